"""A node imports commits of Git that somebody asks for, if its settings allow that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    Renamed,
    TooLarge,
    UnderWay,
)
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.proxy.config import Config
from lodefs.proxy.git import imports
from lodefs.proxy.git.imports import GitProcesses, GitSettings
from lodefs.proxy.service.app import git_settings
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.git_repositories import GitServer, git_server, make_repository
from tests.support.proxy.fake_node import DictNode, start_proxy

REPO = "demo"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(DirectoryObjects(str(tmp_path / "store")))


@pytest.fixture
def settings(tmp_path: Path, server: GitServer, store: Store) -> GitSettings:
    config = Config.from_mapping(
        {
            # relative, while the process has another current directory
            "store": os.path.relpath(store.url.removeprefix("file://")),
            "cache_dir": str(tmp_path / "cache"),
            "git_allowed": [server.url("org")],
        }
    )
    found = git_settings(config)
    assert found is not None
    return found


async def imported(node: GitProcesses, repo: str, rev: str) -> str:
    """The revision, asked for until it is there."""
    while True:
        with suppress(UnderWay):
            return await node.imported(repo, rev)


async def refusal(node: GitProcesses, repo: str, rev: str) -> LodefsError:
    """Why it is not imported."""
    with pytest.raises(LodefsError) as caught:
        await imported(node, repo, rev)
    return caught.value


def test_imports(tmp_path: Path, server: GitServer, store: Store, settings: GitSettings) -> None:
    """A branch is asked of Git each time, and its commit is imported once; what the settings do
    not name is not asked for, and a failure is told again without another attempt."""
    first, second = make_repository(tmp_path / "org/r.git", [{"a": b"1"}, {"a": b"2"}])
    repo = f"git/127.0.0.1_{server.port}/org/r.git"

    async def run() -> None:
        node = GitProcesses(settings)
        try:
            revs = [imported(node, repo, f"git:{name}") for name in ("main", "main", "HEAD")]
            assert set(await asyncio.gather(*revs)) == {f"git:{second}"}
            at = store.resolve(repo, f"git:{second}")
            assert in_commit(store, repo, at.hex())[b"a"].content == b"2"
            assert await imported(node, repo, f"git:{first}") == f"git:{first}"

            asked = len(server.asked)
            for other in ("vision/cats", repo.replace("org", "organ"), "git/evil.example/r.git"):
                assert isinstance(await refusal(node, other, "git:main"), NotFound)
            for rev in ("main", f"git:{first}~1"):
                assert isinstance(await refusal(node, repo, rev), NotFound)
            assert len(server.asked) == asked

            server.state["password"] = "Basic x"
            asked = len(server.asked)
            assert isinstance(await refusal(node, repo, "git:other"), Denied)
            assert isinstance(await refusal(node, repo, "git:other"), Denied)
            assert len(server.asked) == asked + 1
        finally:
            await node.close()

    asyncio.run(run())


def test_an_import_outlives_its_clients(
    tmp_path: Path, server: GitServer, settings: GitSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks is told soon that an import is under way; it goes on, and a stop ends it. More than
    the limit is refused."""
    make_repository(tmp_path / "org/r.git", [{"a": bytes(9_000_000)}])
    repo = f"git/127.0.0.1_{server.port}/org/r.git"
    monkeypatch.setattr(imports, "WAIT_S", 0.0)

    async def run() -> None:
        node = GitProcesses(replace(settings, size_bytes_max=4_000_000))
        with pytest.raises(UnderWay, match="try again"):
            await node.imported(repo, "git:main")
        monkeypatch.setattr(imports, "WAIT_S", 60.0)
        assert isinstance(await refusal(node, repo, "git:main"), TooLarge)
        monkeypatch.setattr(imports, "WAIT_S", 0.0)
        with pytest.raises(UnderWay):
            await node.imported(repo, "git:HEAD")
        await node.close()

    asyncio.run(run())


def test_settings(tmp_path: Path) -> None:
    """Nothing is allowed by default; URLs with passwords, and credentials that others may read,
    are refused."""
    base = {"store": str(tmp_path), "cache_dir": str(tmp_path / "cache")}
    assert git_settings(Config.from_mapping(base)) is None
    for value in (["https://me:secret@h/"], ["file:///srv"], [7]):
        with pytest.raises(InvalidInput) as caught:
            Config.from_mapping({**base, "git_allowed": value})
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidInput, match="needs git_allowed"):
        Config.from_mapping({**base, "git_credentials_file": "/x"})
    file = tmp_path / "credentials"
    file.write_text("https://me:secret@h\n")
    file.chmod(0o644)
    given = {**base, "git_allowed": ["https://h"], "git_credentials_file": str(file)}
    with pytest.raises(LodefsError, match="chmod 0600"):
        git_settings(Config.from_mapping(given))


def test_snapshots_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node lacks of Git is imported when its commit is asked for, and nothing else; a
    repository that was renamed is looked for under its new name."""
    node = DictNode({b"a": b"1"})
    asked: list[str] = []

    class Imports:
        async def imported(self, repo: str, rev: str) -> str:
            asked.append(f"{repo}@{rev}")
            return "main"

    with start_proxy(node) as proxy, proxy.client() as client:
        path = f"/snapshots/{REPO}@git:main"
        assert client.get(path).status == 404
        node.git = Imports()
        assert client.get(path).status == 200
        assert client.get(f"/snapshots/{REPO}@gone").status == 404
        assert client.get(f"/files/{REPO}@git:main/a").status == 404
        assert asked == [f"{REPO}@git:main"]

        async def renamed(repo: str, rev: str) -> None:
            raise Renamed(f"{repo}@{rev}")

        monkeypatch.setattr(node, "snapshot", renamed)
        assert client.get(path).status == 404
        assert len(asked) == 1
