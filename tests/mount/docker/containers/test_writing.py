"""Volumes that take changes, with a real dockerd, plugin, mount service and store."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from loadtests.services.containers import REPO, Containers, containers, write_flowers
from loadtests.services.dockerd import Dockerd
from loadtests.services.pluginnode import plugin_node
from tests.support.chunkstore.child_process import private_directory
from tests.support.csi.real_driver import RealDriver

pytestmark = [pytest.mark.docker, pytest.mark.fuse, pytest.mark.slow]
RUN = {"write": "true", "branch": "run-42"}
ANSWER_TIMEOUT_S = 8.0
DEPTH, KILLS = 400, 4
HOSTILE = f"""
cd /data; mkdir odd closed; for n in $(seq 2000); do echo $n > odd/$n; done
ln -s /etc/shadow odd/out; ln -s ../../../../root odd/up; mkfifo odd/fifo; cp /bin/sh odd/set-id
chmod 6755 odd/set-id; echo closed > closed/file; chmod 0 closed/file closed
for n in $(seq {DEPTH}); do mkdir deeper; cd deeper; done; echo end > end
"""


@pytest.fixture
def box(dockerd: Dockerd) -> Iterator[Containers]:
    """Containers on a node with a mount service."""
    with (
        private_directory("ln-") as folder,
        private_directory("ln-") as below,
        private_directory() as source,
        plugin_node(
            folder, answer_timeout_s=ANSWER_TIMEOUT_S, mounter=below / "mounter.sock"
        ) as node,
        RealDriver(below, node.proxy_url),
        containers(dockerd, node) as made,
    ):
        write_flowers(source)
        node.push(source, REPO)
        yield made


def messages(box: Containers) -> list[str]:
    """Of the branch's commits beyond the first, the latest first."""
    lines = box.node.lodefs("log", f"{REPO}@run-42", "--json").splitlines()
    return [json.loads(line)["message"] for line in lines][:-1]


def test_containers_write_and_the_last_commits(box: Containers) -> None:
    """Two containers see what the other writes; nothing is committed while one is left, not even if
    the plugin is killed; the next container goes on from the one commit that there is then."""
    volume = box.volume(REPO, **RUN)
    first = box.start(volume)
    second = box.start(volume)
    box.dockerd.docker("exec", first, "sh", "-c", "echo lily > /data/labels/a.txt; rm /data/big*")
    assert box.dockerd.docker("exec", second, "cat", "/data/labels/a.txt") == "lily"
    box.remove(first)
    box.node.kill_plugin()
    box.node.start_plugin()
    box.dockerd.docker("exec", second, "sh", "-c", "echo aster > /data/labels/c.txt")
    assert messages(box) == []
    box.remove(second)
    assert box.node.until(lambda: len(messages(box)) == 1)
    assert messages(box)[0].startswith(f"Docker volume {volume}\n\nmount ")
    assert box.run(volume, "cat /data/labels/*.txt; ls /data").split() == [
        *("lily", "tulip", "aster"), *("SHA256SUMS", "labels"),
    ]  # fmt: skip
    box.remove_volume(volume)
    assert len(messages(box)) == 1
    assert box.node.until(lambda: not box.node.mounts())


def test_whatever_a_container_makes_is_committed(box: Containers) -> None:
    """By root of a container, with a plugin that is killed while it commits: once, and nothing of
    the node comes with it."""
    volume = box.volume(REPO, **RUN)
    box.run(volume, HOSTILE)
    for _ in range(KILLS):
        box.node.kill_plugin()
        box.node.start_plugin()
    assert box.node.until(lambda: len(messages(box)) == 1)
    assert box.node.lodefs("cat", f"{REPO}@run-42:closed/file") == "closed\n"
    assert box.node.lodefs("cat", f"{REPO}@run-42:{'/'.join(['deeper'] * DEPTH)}/end") == "end\n"
    box.remove_volume(volume)
    assert box.node.until(lambda: not box.node.mounts())
