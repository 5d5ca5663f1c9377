"""Containers read on while plugin, dockerd and proxy are killed and started again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from loadtests.services.containers import REPO, VERIFY, Containers
from loadtests.services.dockerd import Dockerd
from tests.support.chunkstore.child_process import ChildError

pytestmark = [pytest.mark.docker, pytest.mark.fuse, pytest.mark.slow]

ROUNDS = 3  # that a reader must do after whatever happened


@pytest.fixture
def surviving(dockerd: Dockerd) -> Iterator[Dockerd]:
    """The dockerd with --live-restore."""
    dockerd.restart(signal.SIGKILL, live_restore=True)
    yield dockerd
    dockerd.restart(signal.SIGKILL, live_restore=False)


def reads_on(box: Containers, name: str, act: Callable[[], None]) -> None:
    """A reader in a container reads before, during and after ``act``, and every byte is right."""

    def rounds_after(rounds: int) -> bool:
        return box.verified(name)[0] >= rounds + ROUNDS

    assert box.node.until(lambda: rounds_after(0)), "it does not begin"
    act()
    now, _ = box.verified(name)
    assert box.node.until(lambda: rounds_after(now)), "it reads no more"
    assert box.verified(name)[1] == 0


def released(box: Containers, volume: str, name: str) -> None:
    """The end of the container releases the mount, and the volume can be removed."""
    box.remove(name)
    assert box.node.until(lambda: not box.node.mounts()), "still mounted"
    box.remove_volume(volume)


def test_the_plugin_is_killed_while_a_container_reads(box: Containers) -> None:
    """No read fails; the next plugin knows the mount, and the container's end releases it."""
    volume = box.volume(REPO)
    name = box.start(volume, VERIFY)

    def act() -> None:
        box.node.kill_plugin()
        box.node.start_plugin()

    reads_on(box, name, act)
    second = box.start(volume)
    assert len(box.node.mounts()) == 1
    box.remove(second)
    assert len(box.node.mounts()) == 1
    released(box, volume, name)


def test_a_container_ends_while_the_plugin_is_dead(box: Containers) -> None:
    """dockerd's call waits at the socket for the next plugin: nothing fails, nothing is left."""
    volume = box.volume(REPO)
    name = box.start(volume)
    box.node.kill_plugin()
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(box.dockerd.docker, "kill", name)
        box.node.start_plugin()
        ending.result()
    released(box, volume, name)


def test_the_proxy_is_killed_while_a_container_reads(box: Containers) -> None:
    """No read fails while the proxy is dead for a moment."""
    volume = box.volume(REPO)
    name = box.start(volume, VERIFY)

    def act() -> None:
        box.node.kill_proxy()
        box.node.start_proxy()

    reads_on(box, name, act)
    released(box, volume, name)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_dockerd_restarts_under_a_container_that_stays(
    surviving: Dockerd, box: Containers, sent: signal.Signals
) -> None:
    """With --live-restore the container reads on, and the volume is released at its end."""
    volume = box.volume(REPO)
    name = box.start(volume, VERIFY)
    reads_on(box, name, lambda: surviving.restart(sent))
    with pytest.raises(ChildError, match="in use"):
        box.remove_volume(volume)
    released(box, volume, name)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_dockerd_restarts_and_ends_its_containers(
    dockerd: Dockerd, box: Containers, sent: signal.Signals
) -> None:
    """Without --live-restore the container ends, and can be started again with its volume. A
    dockerd that was killed has forgotten to unmount: the volume can be removed soon."""
    volume = box.volume(REPO)
    name = box.start(volume)
    dockerd.restart(sent)
    dockerd.docker("start", name)
    assert dockerd.docker("exec", name, "cat", "/data/labels/a.txt") == "rose"
    box.remove(name)
    remove = ("volume", "rm", volume)
    assert box.node.until(lambda: dockerd.try_docker(*remove).returncode == 0)


def test_everything_restarts_at_once_under_a_reader(surviving: Dockerd, box: Containers) -> None:
    """Plugin, proxy and dockerd are killed together; no read fails, the volume is released."""
    volume = box.volume(REPO)
    name = box.start(volume, VERIFY)

    def act() -> None:
        box.node.kill_plugin()
        box.node.kill_proxy()
        surviving.end(signal.SIGKILL)
        box.node.start_proxy()
        box.node.start_plugin()
        surviving.restart()

    reads_on(box, name, act)
    released(box, volume, name)
