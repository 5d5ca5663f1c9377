"""A pod's volume that names a Git repository by its URL, through a real driver, proxy and mount."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from loadtests.bench.sides import node
from loadtests.cli import Lodefs
from tests.support.chunkstore.child_process import private_directory
from tests.support.chunkstore.git_repositories import git_server, make_repository
from tests.support.csi.kubelet import refused
from tests.support.csi.real_driver import RealDriver
from tests.support.mount.mounts import until

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


def test_a_pod_reads_a_commit_of_git(tmp_path: Path) -> None:
    """kubelet publishes again while the commit is imported, and then the pod reads it; another
    repository than those that the settings allow is refused."""
    [sha] = make_repository(tmp_path / "org/r.git", [{"d/a": b"hello"}])
    lodefs = Lodefs(str(tmp_path / "store"), tmp_path / "home", os.environ)
    lodefs.run("init", lodefs.store)
    with git_server(tmp_path) as server, private_directory() as folder:
        settings = f'[serve]\ngit_allowed = ["{server.url("org")}"]\n'
        (tmp_path / "home/lodefs.toml").write_text(settings)
        with node(lodefs, tmp_path / "node") as proxy, RealDriver(folder, proxy.url) as driver:
            said: list[str] = []

            def is_published(name: str, repo: str, **more: str) -> bool:
                attributes = {"repo": server.url(repo), **more}
                try:
                    driver.kubelet.publish(name, driver.target(name), attributes)
                except grpc.RpcError as error:
                    code, words = refused(error)
                    assert code != "UNAVAILABLE" or "is being imported from Git" in words
                    said.append(code)
                    return code != "UNAVAILABLE"
                return True

            until(lambda: is_published("one", "org/r.git", commit=sha, path="d"))
            assert (driver.target("one") / "a").read_bytes() == b"hello"
            until(lambda: is_published("two", "organ/r.git", ref="main"))
            assert said[-1] == "NOT_FOUND"
            driver.kubelet.unpublish("one", driver.target("one"))
            driver.await_no_mounts()
