"""Volumes that name a Git repository by its URL, in containers of a real dockerd."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.services.containers import Containers
from loadtests.services.dockerd import Dockerd
from loadtests.services.pluginnode import plugin_node
from tests.mount.docker.containers.conftest import ANSWER_TIMEOUT_S
from tests.support.chunkstore.child_process import private_directory
from tests.support.chunkstore.git_repositories import (
    EXECUTABLE,
    LINK,
    GitServer,
    Put,
    Tree,
    git_server,
    make_repository,
)

pytestmark = [pytest.mark.docker, pytest.mark.fuse, pytest.mark.slow]
COMMITS = 500


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path) as running:
        yield running


@pytest.fixture
def box(dockerd: Dockerd, server: GitServer) -> Iterator[Containers]:
    """Containers of a node that may import from the server."""
    with private_directory("lg-") as folder:
        settings = f'[serve]\ngit_allowed = ["{server.url("org")}"]\n'
        (folder / "lodefs.toml").write_text(settings)
        with (
            plugin_node(folder, answer_timeout_s=ANSWER_TIMEOUT_S) as node,
            dockerd.plugin(node.socket) as driver,
        ):
            made = Containers(dockerd, node, driver)
            yield made
            made.close()


def created(box: Containers, **options: str) -> str:
    """A volume that is created again while its import is under way, as its user would do."""
    done: list[subprocess.CompletedProcess[str]] = []
    name = f"git-{os.urandom(4).hex()}"

    def is_decided() -> bool:
        done.append(box.try_volume(name, **options))
        return "is being imported from Git: try again" not in done[-1].stderr

    assert box.node.until(is_decided)
    return name if done[-1].returncode == 0 else done[-1].stderr


def test_commits_of_a_git_repository(box: Containers, server: GitServer, tmp_path: Path) -> None:
    """Containers see the right bytes of three of 500 commits and of a branch; other hosts and
    places, and revisions that are none, are refused."""
    changes: list[Tree] = [{f"d/{n % 9}": b"%d" % n, "n": b"%d\n" % n} for n in range(COMMITS)]
    first: Tree = {
        "run": Put(b"#!/bin/sh\necho ran\n", EXECUTABLE),
        "l": Put(b"n", LINK),
        **changes[0],
    }
    shas = make_repository(tmp_path / "org/r.git", [first, *changes[1:]])
    url = server.url("org/r.git")
    for number in (0, 250, COMMITS - 1):
        volume = created(box, repo=url, commit=shas[number])
        said = box.run(volume, "cd /data && cat l d/* && ./run")
        of_d = [max(n for n in range(number + 1) if n % 9 == k) for k in range(min(9, number + 1))]
        assert said.split("\n") == [str(number), "".join(map(str, of_d)) + "ran"]
    assert box.run(created(box, repo=url, ref="main"), "cat /data/n") == str(COMMITS - 1)

    for options, said in (
        ({"repo": server.url("other/r.git"), "commit": shas[0]}, "imports"),
        ({"repo": url, "ref": "gone"}, "no branch or tag gone"),
        ({"repo": url, "ref": "--upload-pack=x"}, "not a revision of Git"),
        ({"repo": url, "commit": "main"}, "ref names a branch"),
        ({"repo": "http://me:hunter2@127.0.0.1/r", "ref": "x"}, "no password"),
    ):
        refused = created(box, **options)
        assert said in refused and "hunter2" not in refused
