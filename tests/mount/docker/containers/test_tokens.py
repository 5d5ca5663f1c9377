"""A node whose proxy wants tokens: volumes with a good one, a wrong one, none, and no proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.services import HOST, free_port
from loadtests.services.containers import Containers, containers
from loadtests.services.dockerd import Dockerd
from loadtests.services.pluginnode import PluginNode, plugin_node
from lodefs.proxy.http.tokens import create_token
from tests.support.chunkstore.child_process import private_directory

pytestmark = [pytest.mark.docker, pytest.mark.fuse, pytest.mark.slow]

REPO = "team/closed"
ANSWER_TIMEOUT_S = 8.0  # of the plugin, on a machine that may be slow; then it says that it is late


@pytest.fixture(scope="module")
def guarded() -> Iterator[PluginNode]:
    """A node whose plugin reaches the proxy over TCP, where tokens are asked for."""
    with private_directory("ln-") as folder:
        port, tokens = free_port(), folder / "tokens"
        (folder / "data").mkdir()
        (folder / "data" / "a.txt").write_text("rose\n")
        for name, pattern in (("good", "team/*"), ("other", "other/*")):
            (folder / name).write_text(create_token(tokens, name, (pattern,), now_s=0))
        (folder / "wrong").write_text("wrong-" * 8)
        url = f"http://{HOST}:{port}"
        words = ("--listen", f"{HOST}:{port}", "--tokens", tokens)
        with plugin_node(folder, words, url, answer_timeout_s=ANSWER_TIMEOUT_S) as node:
            node.push(folder / "data", REPO)
            yield node


@pytest.fixture(scope="module")
def box(dockerd: Dockerd, guarded: PluginNode) -> Iterator[Containers]:
    """Containers with volumes of that node."""
    with containers(dockerd, guarded) as made:
        yield made


def test_a_token_opens_its_repositories(box: Containers) -> None:
    """With the file of a good token the container reads."""
    volume = box.volume(REPO, token_file=str(box.node.folder / "good"))
    assert box.run(volume, "cat /data/a.txt") == "rose"


@pytest.mark.parametrize("which", ["", "wrong", "other"])
def test_without_a_good_token_the_volume_is_refused(box: Containers, which: str) -> None:
    """No token, a wrong one and one for other repositories are refused in one line about it,
    which does not say the token."""
    file: Path | None = box.node.folder / which if which else None
    done = box.try_volume(repo=REPO, **({"token_file": str(file)} if file else {}))
    assert done.returncode != 0
    assert "token" in done.stderr or "may not" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert file is None or file.read_text().strip() not in done.stderr


def test_without_a_proxy_the_volume_is_refused(box: Containers) -> None:
    """Where the proxy cannot be reached the one line says so, and where it was looked for."""
    box.node.kill_proxy()
    try:
        done = box.try_volume(repo=REPO, token_file=str(box.node.folder / "good"))
    finally:
        box.node.start_proxy()
    assert done.returncode != 0
    assert box.node.proxy_url in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
