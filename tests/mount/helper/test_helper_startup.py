"""A mount that is stopped, killed or not acknowledged while it is made leaves nothing."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable
from lodefs.mount.helper import helper_requests
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.helper_process import HelperRequest
from lodefs.mount.process import startup
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import WAIT_S, alive, hold_reads, until, workers_of
from tests.support.mount.places import Places

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

MANY = 16


@pytest.mark.parametrize("stopped", ["supervisor", "workers", "all"])
def test_a_mount_that_is_stopped_while_it_is_made(
    helper: MountHelper, places: Places, proxy: FakeProxy, stopped: str
) -> None:
    """The order fails in time, and leaves no mount and no process."""
    place, short_s = places.new("place"), places.short_s(helper)
    until(lambda: not workers_of(helper.pid))
    came, go = hold_reads(proxy, reads=100, where="/children")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(helper.run, places.mount(place), short_s)
        assert came.wait(WAIT_S)
        [supervisor] = workers_of(helper.pid)
        workers = workers_of(supervisor)
        assert places.mounted()
        chosen = {"supervisor": [supervisor], "workers": workers, "all": [supervisor, *workers]}
        for pid in chosen[stopped]:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_S)
    until(lambda: not places.mounted())
    until(lambda: not any(map(alive, [supervisor, *workers])))
    go.set()
    helper.run(places.mount(place), WAIT_S)
    assert (Path(place) / "a").read_bytes() == b"hello"


@pytest.mark.parametrize("killed", ["supervisor", "workers", "all"])
def test_a_mount_that_is_killed_while_it_is_made(
    helper: MountHelper, places: Places, proxy: FakeProxy, killed: str
) -> None:
    """The order fails with an error of ours and leaves nothing; workers alone are replaced."""
    place = places.new("place")
    came, go = hold_reads(proxy, reads=100, where="/children")
    with ThreadPoolExecutor(1) as pool:
        operation = pool.submit(helper.run, places.mount(place), WAIT_S)
        assert came.wait(WAIT_S)
        [supervisor] = workers_of(helper.pid)
        workers = workers_of(supervisor)[:2]  # the third one reads the root
        chosen = {"supervisor": [supervisor], "workers": workers, "all": [supervisor, *workers]}
        for pid in chosen[killed]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        go.set()
        if killed == "workers":
            operation.result(WAIT_S)
            assert (Path(place) / "a").read_bytes() == b"hello"
            return
        with pytest.raises(Unavailable):
            operation.result(WAIT_S)
    assert not places.mounted()
    until(lambda: not any(map(alive, [supervisor, *workers])))


@pytest.mark.parametrize("stopped", ["supervisor", "worker"])
def test_a_mount_that_is_stopped_when_it_is_ready(
    helper: MountHelper, places: Places, monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    """If its acknowledgement is not answered in time, the order fails and the mount does not stay,
    also when its processes go on at once."""
    place = places.new("place")
    found: list[int] = []
    acknowledge = startup.acknowledge

    def stop(channel: socket.socket) -> bool:
        [supervisor] = workers_of(helper.pid)
        found[:] = [supervisor, *workers_of(supervisor)]
        os.kill(found[0 if stopped == "supervisor" else -1], signal.SIGSTOP)
        channel.settimeout(0.5)
        return acknowledge(channel)

    monkeypatch.setattr(startup, "acknowledge", stop)
    with pytest.raises((DeadlineExceeded, Unavailable)):
        helper.run(places.mount(place), WAIT_S)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    until(lambda: not any(map(alive, found)))
    assert not places.mounted()


@pytest.mark.parametrize("settled", [True, False])
def test_a_mount_that_settles_as_the_time_is_up(
    helper: MountHelper, places: Places, monkeypatch: pytest.MonkeyPatch, *, settled: bool
) -> None:
    """It stays, and the order succeeds, if the answer to its acknowledgement was there already."""
    place = places.new("place")

    def late(channel: socket.socket) -> bool:
        if settled:
            channel.send(startup.ACK)
            select.select([channel], [], [], WAIT_S)
        raise TimeoutError

    monkeypatch.setattr(startup, "acknowledge", late)
    if settled:
        helper.run(places.mount(place), WAIT_S)
        assert (Path(place) / "a").read_bytes() == b"hello"
    else:
        with pytest.raises(Unavailable):
            helper.run(places.mount(place), WAIT_S)
        until(lambda: not places.mounted())


def test_a_plugin_that_is_killed_leaves_no_mount(
    helper: MountHelper, places: Places, proxy: FakeProxy
) -> None:
    """Whenever it is killed before it has acknowledged the mount, also when that is ready."""
    for reads in (0, 100):
        place = places.new(f"place{reads}")
        came, go = hold_reads(proxy, reads=reads, where="/children")
        plugin, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with plugin:
            with theirs:
                request = HelperRequest(places.mount(place), time.monotonic() + WAIT_S)
                helper._send(request, theirs.fileno())
            if reads:
                assert came.wait(WAIT_S)
            else:
                assert select.select([plugin], [], [], WAIT_S)[0]  # the answer is there
            assert places.mounted()
            [supervisor] = workers_of(helper.pid)
        until(lambda: not places.mounted())
        until(lambda: not workers_of(helper.pid))
        assert not alive(supervisor)
        go.set()


def test_the_workers_of_a_new_mount_live_without_their_supervisor(
    helper: MountHelper, places: Places
) -> None:
    """As soon as the mount was answered for."""
    for n in range(MANY):
        place = places.new(str(n))
        helper.run(places.mount(place), WAIT_S)
        [supervisor] = [pid for pid in workers_of(helper.pid) if alive(pid)]
        os.kill(supervisor, signal.SIGKILL)
        assert (Path(place) / "a").read_bytes() == b"hello"
        helper.run(helper_requests.Unmount(place), WAIT_S)
        until(lambda: not workers_of(helper.pid))
