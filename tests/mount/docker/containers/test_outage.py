"""A node whose store is S3, and the network to it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtests.services.containers import REPO, write_flowers
from loadtests.services.dockercalls import DockerCalls, PluginError
from loadtests.services.moto import moto_server
from loadtests.services.pluginnode import PluginNode, plugin_node
from tests.support.chunkstore.child_process import private_directory

ANSWER_TIMEOUT_S = 8.0  # of the plugin, on a machine that may be slow; then it says that it is late

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


@pytest.fixture(scope="module")
def cut_off() -> Iterator[PluginNode]:
    """A node with one volume, which was mounted before; S3 was ended since."""
    with (
        ExitStack() as network,
        private_directory("ln-") as folder,
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as stack,
    ):
        server = network.enter_context(moto_server())
        settings = {**server.environment, "AWS_ENDPOINT_URL": server.endpoint_url}
        for name, value in settings.items():
            patch.setenv(name, value)
        store = f"s3://{server.make_bucket()}/flowers"
        node = stack.enter_context(
            plugin_node(folder, store=store, answer_timeout_s=ANSWER_TIMEOUT_S)
        )
        write_flowers(folder / "data")
        node.push(folder / "data", REPO)
        docker = DockerCalls(node.socket)
        docker.volume_create("known", {"repo": REPO})
        docker.stop(docker.run("known"))
        network.close()
        yield node


def test_without_the_network_the_volume_is_refused_in_time(cut_off: PluginNode) -> None:
    """Create of a repository that the node has not seen fails in time, and tells who is slow."""
    docker = DockerCalls(cut_off.socket)
    with pytest.raises(
        PluginError, match=r"'other'.*(store may be slow or out of reach|Could not connect)"
    ):
        docker.volume_create("other", {"repo": "team/other"})


def test_what_the_node_has_is_mounted_without_the_network(cut_off: PluginNode) -> None:
    """A volume whose directories the node has is mounted and listed all the same."""
    docker = DockerCalls(cut_off.socket)
    used = docker.run("known")
    assert {path.name for path in Path(used.place).iterdir()} >= {"labels", "big.bin"}
    docker.stop(used)
