"""The plugin under the calls that dockerd makes, without containers: what moby's own tests of
external volume drivers try, and calls while the node is stuck."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadtests.services.containers import REPO
from loadtests.services.dockercalls import DockerCalls, PluginError
from loadtests.services.pluginnode import PluginNode
from loadtests.services.pluginrelay import relayed
from tests.support.chunkstore.child_process import TIMEOUT_S

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


@pytest.fixture
def docker(node: PluginNode, commit: str) -> Iterator[DockerCalls]:
    """dockerd's side, and nothing mounted afterwards."""
    calls = DockerCalls(node.socket)
    before = set(calls.volume_ls())
    yield calls
    for name in set(calls.volume_ls()) - before:
        calls.volume_rm(name)
    assert node.until(lambda: not node.mounts())


def test_a_volume_from_its_creation_to_its_end(docker: DockerCalls, node: PluginNode) -> None:
    """Create, Mount, reading, Unmount, Remove, with the looks that dockerd takes between them."""
    docker.volume_create("named", {"repo": REPO})
    assert "named" in docker.volume_ls()
    used = docker.run("named", copies_up=True)
    assert (Path(used.place) / "labels/a.txt").read_text() == "rose\n"
    assert docker.volume_inspect("named")["Mountpoint"] == used.place
    docker.stop(used)
    assert node.until(lambda: not node.mounts())
    docker.volume_rm("named")
    assert "named" not in docker.volume_ls()


def test_the_same_id_twice_is_two_mounts(docker: DockerCalls, node: PluginNode) -> None:
    """`docker cp` mounts and unmounts under a running container's ID: its mount stays."""
    docker.volume_create("copied", {"repo": REPO})
    used = docker.run("copied")
    docker.cp(used)
    assert (Path(used.place) / "labels/a.txt").read_text() == "rose\n"
    docker.stop(used)
    assert node.until(lambda: not node.mounts())


def test_an_unmount_of_nobody_harms_nobody(docker: DockerCalls) -> None:
    """An ID that is not known, or not any more, takes no mount from another container."""
    docker.volume_create("shared", {"repo": REPO})
    first, second = docker.run("shared"), docker.run("shared")
    docker.stop(first)
    for nobody in (first.id, "f" * 64):
        try:
            docker.call("Unmount", Name="shared", ID=nobody)
        except PluginError as error:
            assert "shared" in str(error)  # noqa: PT017 - either answer is good
    assert (Path(second.place) / "labels/a.txt").read_text() == "rose\n"
    docker.stop(second)


def test_a_volume_in_use_is_not_removed(docker: DockerCalls) -> None:
    """Remove while mounted is refused; dockerd would not ask, another client may."""
    docker.volume_create("busy", {"repo": REPO})
    used = docker.run("busy")
    with (Path(used.place) / "labels/a.txt").open() as held:  # as by a container
        with pytest.raises(PluginError, match="busy"):
            docker.call("Remove", Name="busy")
        assert held.read() == "rose\n"
    docker.stop(used)


def test_a_volume_that_was_removed_cannot_be_mounted(docker: DockerCalls) -> None:
    """Mount, Get, Path and Unmount of a removed volume name it."""
    docker.volume_create("gone", {"repo": REPO})
    docker.volume_rm("gone")
    for method in ("Mount", "Get", "Path"):
        with pytest.raises(PluginError, match="gone"):
            docker.call(method, Name="gone", ID="a" * 64)


def test_dockerd_comes_back_and_finds_its_volumes(docker: DockerCalls) -> None:
    """After a restart of dockerd its volumes are there, and its mounts end as before."""
    docker.volume_create("kept", {"repo": REPO})
    used = docker.run("kept")
    docker.restart(["kept"])
    assert docker.volume_inspect("kept")["Mountpoint"] == used.place
    docker.stop(used)


def test_a_stuck_proxy_holds_nobody_up(docker: DockerCalls, node: PluginNode) -> None:
    """While the proxy hangs, others are answered, and Create is told in time that it is late."""
    docker.volume_create("before", {"repo": REPO})
    other = DockerCalls(node.socket)
    os.kill(node.proxy.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(docker.volume_create, "late", {"repo": REPO, "commit": "main"})
            assert "before" in other.volume_ls()
            assert other.volume_inspect("before")["Name"] == "before"
            assert not late.done()
            with pytest.raises(PluginError, match="late"):
                late.result(TIMEOUT_S)
    finally:
        os.kill(node.proxy.pid, signal.SIGCONT)


def test_a_lost_answer_is_asked_again_and_nothing_is_left(
    docker: DockerCalls, node: PluginNode, tmp_path: Path
) -> None:
    """The plugin is killed while calls come: dockerd asks again, and the volume works."""
    own = tmp_path / "own.sock"
    with relayed(own, node.socket):
        through = DockerCalls(own, lambda _: None)
        through.volume_create("again", {"repo": REPO})
        node.kill_plugin()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(through.run, "again")
            node.start_plugin()
            used = waiting.result(TIMEOUT_S)
        assert (Path(used.place) / "labels/a.txt").read_text() == "rose\n"
        through.stop(used)


def test_many_at_once(docker: DockerCalls, node: PluginNode) -> None:
    """Eight callers mount and unmount five volumes, forty times in all: no error, and none late."""
    names = [f"many-{number}" for number in range(5)]
    for name in names:
        docker.volume_create(name, {"repo": REPO})

    def use(number: int) -> None:
        own = DockerCalls(node.socket)
        used = own.run(names[number % len(names)])
        assert (Path(used.place) / "labels/a.txt").read_text() == "rose\n"
        own.stop(used)

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(use, range(40)):
            pass
