"""Clients of the Docker plugin's socket: hundreds at once, and those that do not stay."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mount import SharedMount
from tests.adversary.hostile_client import Call, all_at_once
from tests.support.docker.rig import Dockerd, Rig, memory_mounts, request, served
from tests.support.mount.mounts import until

CATS = {"repo": "vision/cats"}
CLIENTS, VOLUMES = 500, 50
MOUNTED = 12  # volumes that all clients want


def call(method: str, **fields: object) -> bytes:
    """The bytes of a call."""
    return request(f"/VolumeDriver.{method}", json.dumps(fields).encode())


def told(one: Call) -> dict[str, Any]:
    """What a call was answered."""
    assert one.error is None and one.is_answered, (one.request, one.error, one.answer)
    head, _, body = one.answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    answer = json.loads(body)
    assert isinstance(answer, dict)
    return answer


def references(rig: Rig) -> int:
    """Of all volumes."""
    return sum(shown.held.references for shown in rig.volumes.list())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "state", memory_mounts())
    for number in range(VOLUMES):
        made.volumes.create(f"v{number}", CATS)
    yield made
    made.close()


@pytest.fixture
def dockerd(rig: Rig, tmp_path: Path) -> Iterator[Dockerd]:
    with served(rig, tmp_path / "sock") as made:
        yield made


def calls_of(number: int) -> bytes:
    """A mix of what dockerd asks."""
    name = f"v{number % VOLUMES}"
    kinds = (
        call("Create", Name=f"new{number}", Opts=CATS),
        call("Mount", Name=name, ID=f"id{number}"),
        call("Get", Name=name),
        call("List"),
    )
    return kinds[number % len(kinds)]


@pytest.mark.slow
def test_five_hundred_clients_at_once(dockerd: Dockerd, rig: Rig, tmp_path: Path) -> None:
    """All connect before any of them asks: none is refused or cut off, each call is done, and when
    all have unmounted no reference is left."""
    answers = [told(one) for one in all_at_once(tmp_path / "sock", _mix(CLIENTS))]
    assert Counter("Err" in one for one in answers) == {False: CLIENTS}
    mounts = [number for number in range(CLIENTS) if "Mountpoint" in answers[number]]
    assert len(mounts) == CLIENTS // 4 == references(rig)
    unmounts = [call("Unmount", Name=f"v{n % VOLUMES}", ID=f"id{n}") for n in mounts]
    assert all("Err" not in told(one) for one in all_at_once(tmp_path / "sock", unmounts))
    assert references(rig) == 0


def _mix(count: int) -> Sequence[bytes]:
    return [calls_of(number) for number in range(count)]


class CountedFiles(MountFiles):
    """Files of mounts, and how often one was written."""

    writes = 0

    def write(self, mount: SharedMount) -> None:
        self.writes += 1
        super().write(mount)


@pytest.mark.slow
def test_five_hundred_mounts_of_volumes_that_are_mounted(tmp_path: Path) -> None:
    """500 containers start at once on 12 volumes that are mounted: all are answered without an
    error and count, so do all Unmounts, and none is left. They take as long as a few writes, which
    is within the answer time of the plugin on any disk."""
    state = tmp_path / "state"
    files = CountedFiles(state / "mounter", tmp_path / "run", state / "mounts")
    rig = Rig(state, memory_mounts(), files=files)
    names = [f"v{number}" for number in range(MOUNTED)]
    for name in names:
        rig.volumes.create(name, CATS)
        rig.volumes.mount(name, "first")
    [slot] = rig.service.slots()
    with served(rig, tmp_path / "sock"), ThreadPoolExecutor(1) as clients:
        for method, left in (("Mount", CLIENTS + MOUNTED), ("Unmount", MOUNTED)):
            calls = [call(method, Name=names[n % MOUNTED], ID=f"id{n}") for n in range(CLIENTS)]
            with slot.writing:
                files.writes = 0
                done = clients.submit(all_at_once, tmp_path / "sock", calls)
                until(lambda: len(slot.pending) == CLIENTS)
            answers = [told(one) for one in done.result()]
            assert Counter(one.get("Err", "") for one in answers) == {"": CLIENTS}
            assert references(rig) == left
            assert files.writes == 1
    rig.close()


@pytest.mark.slow
def test_clients_that_go_leave_no_references(dockerd: Dockerd, rig: Rig) -> None:
    """200 clients ask for a mount each and disconnect: whether that was before it was begun, while
    it was under way or before its answer was read, none of them counts in the end."""
    for number in range(200):
        with dockerd.connect() as gone:
            gone.sendall(call("Mount", Name=f"v{number % VOLUMES}", ID=f"id{number}"))
            if number % 4 == 1:  # it sends no more, and might still read
                gone.shutdown(socket.SHUT_WR)
            if number % 3 == 0:  # the answer has come, and is not read
                assert gone.recv(1, socket.MSG_PEEK)
    pause = threading.Event()
    for _ in range(6000):
        if not references(rig) and rig.calls.wait_idle(0):
            break
        pause.wait(0.01)
    assert references(rig) == 0
