"""The hub's API over HTTP: with the package huggingface_hub, and with requests it does not send."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import huggingface_hub as hf
import pytest
from huggingface_hub import errors

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.foreign import git, hub
from lodefs.chunkstore.format.inodes import ROOT_INO
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.wire import Entry, Page, Snapshot
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.hub.listing import PAGE_ENTRIES, Listing
from lodefs.proxy.hub.revisions import HubRevision
from tests.support.chunkstore.handmade import Files, Link
from tests.support.proxy.fake_node import RunningProxy, exchange
from tests.support.proxy.rig import REPO, Rig, serve_rig

WEIGHTS = b"weights" * 300_000
FILES: Files = {
    b"README.md": b"read me",
    b"model.safetensors": WEIGHTS,
    b"sub/a.txt": b"a",
    b"sub/deep/b.txt": b"bb",
    b"sub.txt": b"",
    b"link": Link(b"sub/a.txt"),
    b"broken": Link(b"../out"),
    b"not-\xff-utf8": b"x",
}
PATHS = ["README.md", "link", "model.safetensors", "sub/a.txt", "sub/deep/b.txt", "sub.txt"]


class Mirror:
    """A proxy over a store with REPO, and clients of its hub."""

    def __init__(self, rig: Rig, proxy: RunningProxy, folder: Path) -> None:
        self.rig = rig
        self.proxy = proxy
        self.endpoint = f"http://127.0.0.1:{proxy.port}/hf"
        self.sha = rig.commit.hex()[:40]
        self.cache_dir = folder / "hub"

    def api(self, token: str | bool = False) -> hf.HfApi:
        return hf.HfApi(self.endpoint, token=token)

    def download(self, path: str, revision: str | None = None, repo: str = REPO) -> Path:
        return Path(
            hf.hf_hub_download(
                repo, path, revision=revision, endpoint=self.endpoint, cache_dir=self.cache_dir
            )
        )


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    """A proxy without tokens."""
    rig = Rig(tmp_path, FILES)
    with serve_rig(rig) as (proxy, _):
        yield Mirror(rig, proxy, tmp_path)


def test_snapshot_download(mirror: Mirror) -> None:
    """It brings each file, and finds those of a commit by its 40 digits."""
    found = Path(hf.snapshot_download(REPO, endpoint=mirror.endpoint, cache_dir=mirror.cache_dir))
    assert found.name == mirror.sha
    there = {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()}
    assert there == set(PATHS)
    assert (found / "model.safetensors").read_bytes() == WEIGHTS
    assert (found / "link").read_bytes() == b"a"
    assert mirror.download("sub/a.txt", mirror.sha).read_bytes() == b"a"


def test_information(mirror: Mirror) -> None:
    """The model, its files, its branches and its paths are told as the hub tells them."""
    api = mirror.api()
    info = api.model_info(REPO, files_metadata=True)
    assert (info.sha, info.private) == (mirror.sha, False)
    assert info.siblings is not None
    first = info.siblings[0]
    assert (first.rfilename, first.size) == ("README.md", 7)
    assert api.list_repo_files(REPO) == PATHS
    [branch] = api.list_repo_refs(REPO).branches
    assert (branch.name, branch.target_commit) == ("main", mirror.sha)
    found = api.get_paths_info(REPO, ["sub", "README.md", "none"])
    assert [one.path for one in found] == ["sub", "README.md"]
    assert api.dataset_info(REPO).id == REPO


def test_last_commits(mirror: Mirror) -> None:
    """With ``expand``, each file and directory has the commit that changed it last, in pages of 50;
    nothing is said of scans."""
    rig, files = mirror.rig, {**FILES, **{b"many/%03d" % n: b"x" for n in range(60)}}
    commit = rig.maker.commit(REPO, files, message="one more\n\nand why")
    api = mirror.api()
    found = {one.path: one for one in api.list_repo_tree(REPO, recursive=True, expand=True)}
    assert len(found) == len(PATHS) + 2 + 61
    last = found["many/059"].last_commit
    assert last is not None
    assert (last.oid, last.title) == (commit.hex()[:40], "one more")
    first = found["sub/deep/b.txt"].last_commit
    assert first is not None and first.oid == mirror.sha
    assert found["README.md"].security is None
    [info] = api.get_paths_info(REPO, ["many"], expand=True)
    assert info.last_commit is not None and info.last_commit.oid == last.oid
    assert found["README.md"].last_commit is not None
    with pytest.raises(errors.BadRequestError, match="at most 50"):
        api.get_paths_info(REPO, sorted(found), expand=True)


def test_file_system(mirror: Mirror) -> None:
    """HfFileSystem lists directories, and reads ranges of files."""
    fs = hf.HfFileSystem(endpoint=mirror.endpoint, token=False, skip_instance_cache=True)
    assert fs.ls(f"{REPO}/sub", detail=False) == [f"{REPO}/sub/a.txt", f"{REPO}/sub/deep"]
    assert fs.find(f"{REPO}/sub", detail=False) == [f"{REPO}/sub/a.txt", f"{REPO}/sub/deep/b.txt"]
    assert fs.cat_file(f"{REPO}/model.safetensors", start=1, end=8) == WEIGHTS[1:8]


def test_what_is_missing(mirror: Mirror) -> None:
    """Clients know what is missing: the repository, the revision, or the file."""
    with pytest.raises(errors.RepositoryNotFoundError):
        mirror.download("README.md", repo="no/such")
    with pytest.raises(errors.RevisionNotFoundError):
        mirror.download("README.md", "v9")
    with pytest.raises(errors.RevisionNotFoundError):
        mirror.download("README.md", "refs/pr/1")
    for path in ("none", "sub", "README.md/x"):
        with pytest.raises(errors.RemoteEntryNotFoundError):
            mirror.download(path)
    missing = mirror.cache_dir / f"models--data--set/.no_exist/{mirror.sha}/none"
    assert missing.exists()  # the client need not ask again


def test_head_and_ranges(mirror: Mirror) -> None:
    """HEAD tells commit, tag and size; a part is sent if the tag of If-Range is the file's."""
    target = f"/hf/{REPO}/resolve/main/model.safetensors"
    with mirror.proxy.client(tcp=True) as client:
        head = client.get(target, method="HEAD")
        assert head.status == 200 and head.body == b""
        etag = head.header("ETag") or ""
        assert re.fullmatch('"[0-9a-f]{40}"', etag)
        assert head.header("X-Linked-ETag") == etag
        assert head.header("X-Linked-Size") == head.header("Content-Length") == str(len(WEIGHTS))
        assert head.header("X-Repo-Commit") == mirror.sha
        assert head.header("X-Xet-Hash") is None
        part = client.get(target, Range="bytes=5-8", If_Range=etag)
        assert (part.status, part.body) == (206, WEIGHTS[5:9])
        whole = client.get(target, Range="bytes=5-8", If_Range='"other"')
        assert (whole.status, len(whole.body)) == (200, len(WEIGHTS))
        assert client.get(target, If_None_Match=etag).status == 304
        assert client.get(target, If_Match='"other"').status == 412


def test_pages_of_a_tree(mirror: Mirror) -> None:
    """Pages follow one another by absolute links, of the commit that the first page is of."""
    target = f"/hf/api/models/{REPO}/tree/main?recursive=true&limit=2"
    paths: list[str] = []
    with mirror.proxy.client(tcp=True) as client:
        while target:
            page = client.get(target, Host="a.b.localhost:7440", X_Forwarded_Proto="https")
            assert page.status == 200
            entries = json.loads(page.body)
            assert len(entries) <= 2
            paths += [entry["path"] for entry in entries]
            if len(paths) == 2:
                mirror.rig.maker.commit(REPO, {b"other": b"now"})
            link = page.header("Link") or ""
            found = re.fullmatch(r'<https://a\.b\.localhost:7440(/[^>]*)>; rel="next"', link)
            target = found[1] if found else ""
            assert target or not link
    assert sorted(paths) == sorted([*PATHS, "sub", "sub/deep"])


def test_tags_of_the_hub(mirror: Mirror) -> None:
    """A commit with the hub's id and tags is given with them; without its tags it is not."""
    rig, api = mirror.rig, mirror.api()
    sha, sha256 = "0123456789" * 4, hashlib.sha256(WEIGHTS).hexdigest()
    blob = git.blob_id(b"read me")
    rig.maker.metadata = ((hub.COMMIT, sha),)
    files = {b"README.md": b"read me", b"w": WEIGHTS, b"new": b"n"}
    commit = rig.maker.commit(REPO, files)
    assert api.model_info(REPO).sha == commit.hex()[:40]
    rig.maker.metadata = ()
    rig.store.refs(REPO).advance("branches", hub.branch_of(sha), commit, expected_sequence=None)
    tags = {b"README.md": Link(blob.encode()), b"w": Link(sha256.encode()), b"new": Link(b"../x")}
    rig.maker.commit(REPO, tags, branch=hub.branch_of(sha))
    info = mirror.api().model_info(REPO, files_metadata=True)
    assert info.sha == sha and info.siblings is not None
    by_name = {one.rfilename: one for one in info.siblings}
    assert by_name["README.md"].blob_id == blob
    lfs = by_name["w"].lfs
    assert lfs is not None and (lfs.sha256, lfs.size) == (sha256, len(WEIGHTS))
    for revision in ("main", sha, commit.hex()[:40]):
        assert mirror.download("w", revision).resolve().name == sha256
    assert mirror.download("README.md", sha).resolve().name == blob
    rig.maker.metadata = ((hub.COMMIT, sha),)
    rig.maker.commit(REPO, files, branch="v1.0")  # the same content again
    rig.maker.commit(REPO, {**files, b"more": b"1"}, branch="v1.1")
    rig.maker.metadata = ()
    assert api.model_info(REPO, revision="v1.0").sha == sha
    assert api.model_info(REPO, revision="v1.1").sha != sha
    assert mirror.download("new", sha).parent.name == sha
    assert [one.name for one in api.list_repo_refs(REPO).branches] == ["main", "v1.0", "v1.1"]


def test_tokens(tmp_path: Path) -> None:
    """A client reads what its token covers; all else is missing for it; a stranger gets 401."""
    rig = Rig(tmp_path, FILES)
    rig.maker.commit("secret/set", {b"x": b"secret"})
    tokens = tmp_path / "tokens"
    token = create_token(tokens, "reader", ["data/*"], now_s=0)
    with serve_rig(rig, tokens_file=tokens) as (proxy, _):
        mirror = Mirror(rig, proxy, tmp_path)
        assert mirror.api(token).model_info(REPO).sha == mirror.sha
        with pytest.raises(errors.RepositoryNotFoundError) as hidden:
            mirror.api(token).model_info("secret/set")
        with pytest.raises(errors.RepositoryNotFoundError) as missing:
            mirror.api(token).model_info("secret/sot")
        assert hidden.value.server_message == "there is no repository secret/set"
        assert missing.value.server_message == "there is no repository secret/sot"
        with pytest.raises(errors.HfHubHTTPError) as refused:
            mirror.api().model_info(REPO)
        assert refused.value.response.status_code == 401


def test_methods(mirror: Mirror) -> None:
    """Nothing can be written: POST is for the question about paths alone."""
    with mirror.proxy.client(tcp=True) as client:
        assert client.get(f"/hf/api/models/{REPO}", method="POST").status == 405
    with mirror.proxy.client(tcp=True) as client:
        assert client.get(f"/hf/api/models/{REPO}/paths-info/main").status == 405
    with mirror.proxy.client(tcp=True) as client:
        assert client.get(f"/hf/api/models/{REPO}", method="DELETE").status == 405


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (f"/hf/{REPO}/resolve/main/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 400),
        ("/hf/..%2f..%2fx/resolve/main/y", 404),
        ("/hf/%00/resolve/main/y", 404),
        (f"/hf/{REPO}/resolve/..%2f..%2fmain/README.md", 404),
        (f"/hf/api/models/{REPO}/tree/main?cursor=..%2F..%2Fx&recursive=true", 400),
        (f"/hf/api/models/{REPO}/tree/main?cursor=none%2Fx&recursive=true", 404),
        (f"/hf/api/models/{REPO}/tree/main/README.md", 404),
        (f"/hf/{REPO}/resolve/main/\xe9", 400),
        (f"/hf/{REPO}/resolve/main/%", 400),
        (f"/hf/api/models/{REPO}/tree/main?limit=99999999999999999999999", 200),
    ],
)
def test_hostile_targets(mirror: Mirror, target: str, status: int) -> None:
    """Names that lead elsewhere, and places that there are not, get an answer of their own."""
    with mirror.proxy.connect(tcp=True) as connected:
        head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = exchange(connected, head.encode("latin-1"))
    assert answer[9:12] == b"%d" % status, answer[:200]


class ManyFiles:
    """Names of a snapshot with a million files in one directory, made when they are asked for."""

    FILES = 1_000_000

    def __init__(self) -> None:
        self.asked = 0
        self.root = Entry(ROOT_INO, ROOT_INO, b"", Kind.DIRECTORY, False, 0, b"d" * 32, b"")

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        if path:
            raise NotFound("there is only the root")
        return self.root

    async def children(
        self, snapshot: Snapshot, ino: int, *, after: bytes = b"", limit: int
    ) -> Page:
        self.asked += limit
        first = int(after or b"-1") + 1
        numbers = range(first, min(first + limit, self.FILES))
        return Page([self._file(n) for n in numbers], first + limit < self.FILES)

    def _file(self, n: int) -> Entry:
        return Entry(n + 2, 1, b"%07d" % n, Kind.FILE, False, n, b"d" * 32, b"")

    async def content_ids(self, snapshot: Snapshot, inos: Sequence[int]) -> list[bytes]:
        return [b"%032d" % ino for ino in inos]


def test_a_million_files() -> None:
    """A page in the middle of a large directory costs two pages of names at most."""
    names = ManyFiles()
    snapshot = Snapshot("a/b", "0" * 64, names.root, 0, names.FILES, 1, 0)
    listing = Listing(names, HubRevision(snapshot, "0" * 40))  # type: ignore[arg-type]

    async def page(after: bytes) -> list[str]:
        found: list[str] = []
        async for one in listing.below(b"", after, recursive=True):
            found.append(one.path)
            if len(found) == PAGE_ENTRIES:
                break
        return found

    assert asyncio.run(page(b"0499999"))[0] == "0500000"
    assert names.asked <= 2 * PAGE_ENTRIES
    assert asyncio.run(page(b"0999990")) == [f"{n:07}" for n in range(999_991, names.FILES)]
