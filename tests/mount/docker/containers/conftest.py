"""A node with a plugin and a pushed dataset, and containers that use it: real, all of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.services.containers import REPO, Containers, write_flowers
from loadtests.services.dockerd import Dockerd
from loadtests.services.pluginnode import PluginNode, plugin_node
from tests.support.chunkstore.child_process import private_directory

ANSWER_TIMEOUT_S = 8.0  # of the plugin, on a machine that may be slow; then it says that it is late


@pytest.fixture(scope="package")
def node() -> Iterator[PluginNode]:
    """A store, its proxy, the plugin."""
    with (
        private_directory("ln-") as folder,
        plugin_node(folder, answer_timeout_s=ANSWER_TIMEOUT_S) as running,
    ):
        yield running


@pytest.fixture(scope="package")
def commit(node: PluginNode) -> str:
    """A small dataset in the node's store."""
    with private_directory() as source:
        write_flowers(source)
        return node.push(source, REPO)


@pytest.fixture(scope="package")
def driver(dockerd: Dockerd, node: PluginNode) -> Iterator[str]:
    """The name under which dockerd knows the plugin."""
    with dockerd.plugin(node.socket) as name:
        yield name


@pytest.fixture
def box(dockerd: Dockerd, node: PluginNode, driver: str, commit: str) -> Iterator[Containers]:
    """Containers and volumes, removed at the end; nothing is left of them then."""
    made = Containers(dockerd, node, driver)
    yield made
    made.close()
    assert node.until(lambda: not node.mounts()), node.mounts()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A secret that must be found nowhere else."""
    path = tmp_path / "token"
    path.write_text(f"lodefs-secret-{os.urandom(12).hex()}\n")
    return path
