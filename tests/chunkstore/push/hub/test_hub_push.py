"""Pushes from the Hugging Face Hub keep its commit ids and ETags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.config import conf

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.push.hub.hub_listing import HubCommit, parse_commit
from lodefs.chunkstore.push.hub.hub_push import push_hub
from lodefs.chunkstore.push.push import PushOptions, PushResult
from lodefs.chunkstore.push.remote.remote_files import remembered_root
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import Seen, in_commit
from tests.support.chunkstore.hub_server import HubServer, etag_of, serve_hub
from tests.support.chunkstore.memory_objects import MemoryObjects

WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b"{}", "sub/w": WEIGHTS}


class World:
    """A store, a hub, and a machine that pushes from one to the other."""

    def __init__(self, tmp_path: Path, server: HubServer) -> None:
        self.server = server
        self.repository = server.repository("a/b")
        self.store = create_store(MemoryObjects())
        self.index_dir = tmp_path / "index"

    def push(
        self,
        url: str = "hf://a/b",
        branch: str = "main",
        exclude: tuple[bytes, ...] = (),
        *,
        dry_run: bool = False,
    ) -> PushResult:
        options = PushOptions(
            message="",
            author="",
            time_s=1_700_000_000,
            index_dir=self.index_dir,
            workers=0,
            exclude=exclude,
            dry_run=dry_run,
            clock_ns=lambda: 1_800_000_000 * 10**9,
        )
        self.server.requests.clear()
        return push_hub(self.store, url, "r", branch, options)

    def tags(self, sha: str) -> dict[bytes, Seen]:
        """What the branch of a commit of the hub holds."""
        head = self.store.refs("r").latest(BRANCHES, hub.branch_of(sha))
        assert head is not None and head.commit is not None
        return in_commit(self.store, "r", head.commit.hex())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose hub is the one that the package asks."""
    with serve_hub() as server:
        monkeypatch.setitem(conf, "hf", {"endpoint": server.url})
        yield World(tmp_path, server)


def test_push(world: World) -> None:
    """The commit has the files, its metadata the hub's id, and a branch on it the hub's tags."""
    sha = world.repository.commit(FILES)
    result = world.push()
    found = in_commit(world.store, "r", result.commit)
    assert {path.decode(): found[path].content for path in (b"config.json", b"sub/w")} == FILES
    commit = world.store.commit("r", CommitId(bytes.fromhex(result.commit)))
    assert dict(commit.metadata) == {hub.SOURCE: "hf://a/b", hub.COMMIT: sha}
    assert commit.message == f"hf://a/b as of {sha[:12]}"
    assert world.store.resolve("r", f"{hub.branch_of(sha)}~1").hex() == result.commit
    tags = {path: one.content.decode() for path, one in world.tags(sha).items()}
    weights = f"{etag_of(WEIGHTS)} {len(WEIGHTS)}"
    expected = {b"config.json": f"{etag_of(b'{}')} 2", b"sub": "", b"sub/w": weights}
    assert tags == expected
    assert verify(world.store, None, data=True, progress=Progress()).problems == []


def test_the_next_commit(world: World) -> None:
    """A later commit of the hub reads what has changed; the tags of both are kept."""
    first = world.repository.commit(FILES)
    world.push()
    second = world.repository.commit({**FILES, "config.json": b"{} "})
    result = world.push()
    assert result.files_read == 1
    assert [path for path in world.server.reads() if "/w" in path] == []
    assert world.tags(first) != world.tags(second)


def test_a_push_that_died_before_the_tags(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated push keeps the tags that are missing, and another one writes nothing."""
    sha = world.repository.commit(FILES)
    with monkeypatch.context() as patched:
        module = "lodefs.chunkstore.push.hub.hub_push.keep_tags"
        patched.setattr(module, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.push()
    assert world.push().unchanged
    assert len(world.tags(sha)) == 3
    objects = [one.key for one in world.store.objects.list("repos/")]
    assert world.push().unchanged
    assert [one.key for one in world.store.objects.list("repos/")] == objects


@pytest.mark.parametrize(
    ("url", "exclude", "dry_run"),
    [("hf://a/b/sub", (), False), ("hf://a/b", (b"*.json",), False), ("hf://a/b", (), True)],
)
def test_what_is_not_the_whole(
    world: World, url: str, exclude: tuple[bytes, ...], dry_run: bool
) -> None:
    """A part of a repository is not given under the hub's id of the whole."""
    sha = world.repository.commit(FILES)
    world.push(url, exclude=exclude, dry_run=dry_run)
    assert world.store.refs("r").latest(BRANCHES, hub.branch_of(sha)) is None


def test_what_the_hub_refuses(world: World) -> None:
    """Who may not read a repository, or has mistaken its name, learns where a token comes from."""
    world.repository.commit(FILES)
    world.repository.is_gated = True
    for url in ("hf://a/b", "hf://a/none"):
        with pytest.raises(Denied, match="HF_TOKEN"):
            world.push(url)


SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("url", "of_hub"),
    [
        (f"hf://a/b@{SHA}", HubCommit("model", "a/b", SHA, "")),
        (f"hf://gpt2@{SHA}", HubCommit("model", "gpt2", SHA, "")),
        (f"hf://datasets/a/b@{SHA}/x/y@2", HubCommit("dataset", "a/b", SHA, "x/y@2")),
    ],
)
def test_commits(url: str, of_hub: HubCommit) -> None:
    """The URL of a commit says what it is of."""
    assert parse_commit(url) == of_hub


def test_remembered_root() -> None:
    """A push index knows files of the hub again at another commit, and files of others never."""
    assert remembered_root(f"hf://a/b@{SHA}/x".encode()) == b"hf://a/b/x"
    assert remembered_root(b"hf://a/b@v1") == b"hf://a/b@v1"
    assert remembered_root(f"s3://a/b@{SHA}".encode()) == f"s3://a/b@{SHA}".encode()
