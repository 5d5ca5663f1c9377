"""idle_exit.py: when a proxy that nobody uses ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.protocol import lease
from lodefs.proxy.config import Config
from lodefs.proxy.metrics.server_metrics import Use
from lodefs.proxy.service.idle_exit import IdleExit, IdleTimer


def test_unused_for_the_whole_time() -> None:
    """The time counts from the last request or job, not from the proxy's start."""
    idleness = IdleTimer(600, now_s=0)
    assert not idleness.is_over(Use(0, busy=False), 599)
    assert not idleness.is_over(Use(1, busy=False), 599.5)
    assert not idleness.is_over(Use(1, busy=False), 1199)
    assert idleness.is_over(Use(1, busy=False), 1199.5)


def test_a_request_or_job_that_takes_long_is_use() -> None:
    """While something is under way the proxy is used, however long that takes."""
    idleness = IdleTimer(600, now_s=0)
    for now_s in range(0, 10_000, 500):
        assert not idleness.is_over(Use(0, busy=True), now_s)
    assert not idleness.is_over(Use(0, busy=False), 10_099)
    assert idleness.is_over(Use(0, busy=False), 10_100)


def test_put_off() -> None:
    """Where a mount was seen the whole time begins again."""
    idleness = IdleTimer(600, now_s=0)
    assert idleness.is_over(Use(0, busy=False), 600)
    idleness.begin_again(600)
    assert not idleness.is_over(Use(0, busy=False), 1199)
    assert idleness.is_over(Use(0, busy=False), 1200)


class Rig:
    """A proxy's end with a clock of its own."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.socket = folder / "sock"
        self.socket.write_text("")
        self.now_s = 0.0
        self.ends = 0
        config = Config(store="s", socket_path=self.socket, unused_timeout_s=timeout_s)
        self.unused = IdleExit(config, self._end, lambda: self.now_s)

    def _end(self) -> None:
        self.ends += 1

    def look(self, now_s: float) -> int:
        """How often it has ended by then."""
        self.now_s = now_s
        self.unused.look(Use(0, busy=False))
        return self.ends


def test_a_mount_keeps_its_proxy(tmp_path: Path) -> None:
    """As long as there is a lease the proxy stays, also without any request; then it ends once,
    and nobody gets a lease any more."""
    rig = Rig(tmp_path, 600)
    held = lease.take(rig.socket)
    assert [rig.look(now_s) for now_s in (600, 1200, 100_000)] == [0, 0, 0]
    os.close(held)
    assert [rig.look(now_s) for now_s in (100_599, 100_600, 200_000)] == [0, 1, 1]
    with pytest.raises(Unavailable):
        lease.take(rig.socket)
    assert rig.unused.alone_fd is not None
    os.close(rig.unused.alone_fd)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_proxy_whose_socket_is_gone_ends_soon(tmp_path: Path, is_replaced: bool) -> None:
    """Where the socket's file was removed, or is another proxy's, nobody can come to this one: it
    ends within seconds, once, though a mount holds a lease."""
    rig = Rig(tmp_path, 600)
    held = lease.take(rig.socket)
    assert rig.look(1) == 0
    if is_replaced:
        (tmp_path / "new").write_text("")
        (tmp_path / "new").rename(rig.socket)
    else:
        rig.socket.unlink()
        lease.path_of(rig.socket).unlink()
    assert [rig.look(now_s) for now_s in (2, 6, 7, 8, 1000)] == [0, 0, 1, 1, 1]
    os.close(held)


def test_a_socket_that_is_there_again_is_no_end(tmp_path: Path) -> None:
    """A name that is away for a moment only, as when a directory is moved aside and back, ends
    nothing."""
    rig = Rig(tmp_path, 600)
    aside = tmp_path / "aside"
    for now_s in (10, 20, 30):
        rig.socket.rename(aside)
        assert rig.look(now_s) == 0
        aside.rename(rig.socket)
        assert rig.look(now_s + 4) == 0


def test_a_proxy_that_is_to_run_on(tmp_path: Path) -> None:
    """Without the setting a proxy never ends by itself, and offers no lease."""
    rig = Rig(tmp_path, 0)
    assert rig.look(1e9) == 0
    assert not lease.path_of(rig.socket).exists()
