"""The contract suite on file systems of fsspec, with real servers, and what is theirs alone."""

from __future__ import annotations

import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fsspec.config import conf

from loadtests.services.nginx import nginx
from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    SourceChanged,
    Unavailable,
)
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.push.archives import zip_list
from lodefs.chunkstore.push.archives.members import Budget, members
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.push.remote import http_ranges
from lodefs.chunkstore.push.remote.file_states import listed, state_of
from lodefs.chunkstore.push.remote.fsspec_files import (
    KINDS,
    FsspecFiles,
    error_of,
    open_fsspec_files,
)
from lodefs.chunkstore.push.remote.remote_files import Listing, NoAccess
from lodefs.chunkstore.repo.store import create_store
from lodefs.chunkstore.system.retry_policy import RetryPolicy
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.hub_server import HubServer, serve_hub
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.remote_files_suite import Put, RemoteFilesSuite, walked
from tests.support.chunkstore.sftp_server import SftpServer, sftp_server

AGO_S = 3600.0


@contextmanager
def open_of(url: str) -> Iterator[FsspecFiles]:
    source = open_fsspec_files(url)
    yield source
    source.close()


def put_below(directory: Path, path: bytes, data: bytes) -> None:
    """Writes a file that is not young."""
    place = directory / os.fsdecode(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    before = place.stat().st_mtime if place.exists() else datetime.now(UTC).timestamp() - AGO_S
    place.write_bytes(data)
    os.utime(place, (before + 1, before + 1))


class TestHttp(RemoteFilesSuite):
    """Lists of files, and ranges, of nginx."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Iterator[FsspecFiles]:
        (tmp_path / "a b").mkdir()
        with nginx(tmp_path) as server:
            source = open_fsspec_files(f"{server.url}/a%20b")
            yield source
            source.close()

    @pytest.fixture
    def put(self, tmp_path: Path) -> Put:
        return partial(put_below, tmp_path / "a b")

    def test_one_file(self, source: FsspecFiles, put: Put) -> None:
        """A URL may be that of one file, with a query that is not shown."""
        put(b"a.txt", b"one")
        with open_of(f"{source.location}/a.txt?signed=1") as one:
            found = one.find(b"")
            assert found is not None
            assert (found.name, found.size_bytes) == (b"a.txt", 3)
            assert one.read(b"", 1, 9).data == b"ne"
            assert one.url.endswith("a.txt")
        assert source.find(b"") is None

    def test_unreadable(self, source: FsspecFiles, put: Put, tmp_path: Path) -> None:
        """A file that is listed but not there is named, and the others are listed."""
        put(b"a", b"1")
        (tmp_path / "a b" / "gone").symlink_to("nowhere")
        listing = source.list(b"")
        assert [file.name for file in listing.files] == [b"a"]


class TestSftp(RemoteFilesSuite):
    """A server of asyncssh."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[SftpServer]:
        with sftp_server(tmp_path) as server:
            yield server

    @pytest.fixture
    def source(
        self, server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[FsspecFiles]:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "in").mkdir()
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh/known_hosts").write_text(server.known_hosts)
        url = f"sftp://user@127.0.0.1:{server.port}{tmp_path}/in"
        monkeypatch.setitem(conf, "sftp", {"password": server.password})
        with open_of(url) as source:
            yield source

    @pytest.fixture
    def put(self, tmp_path: Path) -> Put:
        return partial(put_below, tmp_path / "in")

    def test_unknown_host(self, source: FsspecFiles, tmp_path: Path) -> None:
        """A host that ssh does not know is not believed."""
        (tmp_path / ".ssh/known_hosts").unlink()
        with pytest.raises(NoAccess, match="known_hosts"):
            open_fsspec_files(source.location)

    def test_links(self, source: FsspecFiles, put: Put, tmp_path: Path) -> None:
        """A link to a file is that file; another one is named."""
        put(b"a", b"123")
        (tmp_path / "in/b").symlink_to("a")
        (tmp_path / "in/c").symlink_to("..")
        listing = source.list(b"")
        assert sorted(file[:2] for file in listing.files) == [(b"a", 3), (b"b", 3)]
        assert [one.name for one in listing.unreadable] == [b"c"]


class Source:
    """A source that is opened again when it has changed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.reopen()

    def reopen(self) -> None:
        self._files = open_fsspec_files(self._url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class TestHuggingFace(RemoteFilesSuite):
    """A small hub, read by the library of Hugging Face."""

    @pytest.fixture
    def hub(self) -> Iterator[HubServer]:
        with serve_hub() as hub:
            hub.repository("org/model").add("README.md", b"# a model")
            yield hub

    @pytest.fixture
    def source(self, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Source:
        monkeypatch.setitem(conf, "hf", {"endpoint": hub.url})
        return Source("hf://org/model@main/in")

    @pytest.fixture
    def put(self, hub: HubServer, source: Source) -> Put:
        def put(path: bytes, data: bytes) -> None:
            hub.repository("org/model").add(f"in/{path.decode()}", data)
            source.reopen()

        return put

    def test_a_revision_is_resolved_once(self, source: Source, put: Put, hub: HubServer) -> None:
        """What is open stays at its commit, here and in other processes."""
        put(b"a", b"one")
        source.reopen()
        repository = hub.repository("org/model")
        before = repository.branches["main"]
        repository.add("in/a", b"two")
        assert before in source.location
        for one in (source, Source(source.location)):
            assert one.read(b"a", 0, 9).data == b"one"


class ArchiveSuite(RemoteFilesSuite):
    """An archive that is made anew at each change."""

    KIND = ""

    @pytest.fixture
    def archive(self, tmp_path: Path) -> Path:
        path = tmp_path / f"archive.{self.KIND}"
        self.write(path, {})
        return path

    @pytest.fixture
    def put(self, archive: Path, source: Source) -> Put:
        files: dict[bytes, bytes] = {}

        def put(path: bytes, data: bytes) -> None:
            files[path] = data
            self.write(archive, files)
            source.reopen()

        return put

    @pytest.fixture
    def source(self, archive: Path) -> Source:
        return Source(f"{self.KIND}://::{archive}")

    def write(self, path: Path, files: dict[bytes, bytes]) -> None:
        raise NotImplementedError


class TestZip(ArchiveSuite):
    """A zip."""

    KIND = "zip"

    def write(self, path: Path, files: dict[bytes, bytes]) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name.decode(), data)


class TestTar(ArchiveSuite):
    """A tar, which tells no states."""

    KIND = "tar"
    HAS_STATES = False

    def write(self, path: Path, files: dict[bytes, bytes]) -> None:
        with tarfile.open(path, "w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name.decode())
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


class Changing:
    """A file system of one file; ``on_read`` is called before each read."""

    def __init__(self) -> None:
        self.data, self.etag = b"0123", "1"
        self.error: Exception | None = None
        self.is_changing = False

    def info(self, path: str) -> dict[str, object]:
        if self.error is not None:
            raise self.error
        return {"name": path, "size": len(self.data), "type": "file", "etag": self.etag}

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        found = self.data[start:end]
        self.etag += "1" if self.is_changing else ""
        return found


def changing() -> tuple[Changing, FsspecFiles]:
    system = Changing()
    policy = RetryPolicy(attempts_max=1)
    kind, url = KINDS["gs"], "gs://b"
    return system, FsspecFiles(system, "b", url, kind, location=url, policy=policy)


def test_a_file_that_changes_while_it_is_read() -> None:
    """Bytes that may be of two states are no piece."""
    system, source = changing()
    assert source.read(b"a", 1, 9).data == b"123"
    system.is_changing = True
    with pytest.raises(SourceChanged, match="a changed"):
        source.read(b"a", 1, 9)


def test_no_answer() -> None:
    """Whatever a library raises becomes an error of lodefs that names file and source."""
    system, source = changing()
    system.error = RuntimeError("boom")
    with pytest.raises(Unavailable, match="a in gs://b cannot be read: RuntimeError: boom"):
        source.read(b"a", 0, 1)


def test_smb_shares_files_that_it_reads() -> None:
    """Several parts of a file are read at once, and its owner may write; no forked process reads,
    since the library would use connections of this one."""
    opened: list[dict[str, object]] = []

    class Smb(Changing):
        def open(self, path: str, mode: str, **options: object) -> BytesIO:
            opened.append(options)
            return BytesIO(self.data)

    url = "smb://host/share"
    source = FsspecFiles(Smb(), "/share", url, KINDS["smb"], location=url)
    assert source.read(b"a", 1, 3).data == b"123"
    assert opened == [{"share_access": "rwd"}]
    assert not source.survives_fork


def test_a_store_is_seen() -> None:
    """A store in the bucket, at the same place or above or below, is seen by its first object."""
    system, source = changing()
    assert source.holds("gs://b/store") and source.holds("gs://b")
    assert not any(map(source.holds, ("gs://bucket/store", "s3://b/store", "/b/store")))
    system.error = FileNotFoundError()
    assert not source.holds("gs://b/store")


class WithStatus(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class AuthenticationFailed(Exception):
    """As some libraries name it."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WithStatus(401), NoAccess),
        (AuthenticationFailed(), NoAccess),
        (WithStatus(403), Denied),
        (PermissionError(), Denied),
        (FileNotFoundError(), NotFound),
        (WithStatus(404), NotFound),
        (WithStatus(500), Unavailable),
        (OSError(), Unavailable),
        (TypeError(), InvalidInput),
    ],
)
def test_errors(error: Exception, kind: type[LodefsError]) -> None:
    """An end of all access, one file that is refused, and no answer are told apart."""
    assert type(error_of(error, "x")) is kind
    if not isinstance(error, FileNotFoundError):
        hidden = FileNotFoundError()
        hidden.__cause__ = error
        assert type(error_of(hidden, "x")) is kind


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_errors_hide_signatures(kind: type[Exception]) -> None:
    """What a library says is told, but not the query and the user of the URLs in it."""
    error = error_of(kind("500, url='http://me:hidden@host/x?sig=hidden' was bad"), "x")
    assert str(error).endswith("500, url='http://***@host/x' was bad")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nothing://x/y", "not a kind of source"),
        ("lodefs://r@main", "not a kind of source"),
        ("zip://a::file:///x", "not a kind of source"),
        ("sftp://me:hidden@host/x", r"sftp://\*\*\*@host/x has a password.*FSSPEC_SFTP_PASSWORD"),
        ("gs://b/x?token=hidden", "'token' in a URL is visible"),
        ("az://b/x?account_key=hidden", "'account_key' in a URL is visible"),
        ("smb://host/x", "pip install smbprotocol"),
        ("dropbox://x", 'needs a library: .*"dropboxdrivefs"'),
    ],
)
def test_refused_urls(url: str, message: str) -> None:
    """The error says why, and never quotes a secret."""
    with pytest.raises(InvalidInput, match=message) as raised:
        open_fsspec_files(url)
    assert "hidden" not in str(raised.value)


NOW = 1_800_000_000.0
OLD = datetime.fromtimestamp(NOW - 100, UTC)


@pytest.mark.parametrize(
    ("info", "state"),
    [
        ({"ETag": '"x"', "mtime": OLD}, "ETag:x"),
        ({"md5Hash": "m", "etag": "x"}, "md5Hash:m"),
        ({"mtime": OLD}, f"time:{NOW - 100}"),
        ({"mtime": OLD.replace(tzinfo=None)}, f"time:{NOW - 100}"),
        ({"modificationTime": int(NOW - 100) * 1000}, f"time:{NOW - 100}"),
        ({"updated": OLD.isoformat()}, f"time:{NOW - 100}"),
        ({"Last-Modified": "Fri, 15 Jan 2027 07:58:20 GMT"}, f"time:{NOW - 100}"),
        ({"mtime": NOW - 1}, f"young time:{NOW - 1}"),
        ({"CRC": 7, "date_time": (1980, 1, 1)}, "CRC:7 date_time:(1980, 1, 1)"),
        ({"modify": "20270115075820"}, f"time:{NOW - 100}"),
        ({"modify": "20270115075820.5"}, f"time:{NOW - 99.5}"),
        ({"Last-Modified": "soon"}, ""),
        ({"size": 5}, ""),
    ],
)
def test_states(info: dict[str, object], state: str) -> None:
    """A state is a checksum, a version or a time; a young time is not listed."""
    assert state_of(info, NOW) == state
    assert listed(state) == ("" if "young" in state else state)


def test_server_without_ranges(tmp_path: Path) -> None:
    """Such a server gives whole files; a part of a large one is refused, and never wrong."""
    put_below(tmp_path, b"a", b"0123456789")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with open_of(f"http://127.0.0.1:{server.server_port}") as source:
            assert walked(source) == {b"a": 10}
            assert source.read(b"a", 0, 10).data == b"0123456789"
            with pytest.raises(InvalidInput, match="range"):
                source.read(b"a", 5, 5)
            assert source.list(b"nowhere") == Listing([], [])
        server.shutdown()
        thread.join()


class _Page(SimpleHTTPRequestHandler):
    """A page of links with a name in Latin-1, which its server has not quoted, and files."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        is_page = self.path == "/"
        body = b'<a href="caf\xe9"> <a href="caf"> <a href="caf%C3%A9">' if is_page else b"1"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def test_names_that_are_no_text() -> None:
    """A name keeps its bytes, whatever the page: without them, it would be that of another file."""
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with open_of(f"http://127.0.0.1:{server.server_port}") as source:
            assert walked(source) == {b"caf\xe9": 1, b"caf": 1, "caf\xe9".encode(): 1}
        server.shutdown()
        thread.join()


def test_lists_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of links, or a list of members, that is too large to hold is refused; the error names
    it and a way out. Smaller ones are read."""
    put_below(tmp_path, b"some-name", b"0123456789")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("some-name", b"a")
    with nginx(tmp_path) as server:
        zip_url = f"zip://::{server.url}/x.zip"
        for limit, fits in ((1 << 20, True), (40, False)):
            monkeypatch.setattr(http_ranges, "PAGE_BYTES_MAX", limit)
            monkeypatch.setattr(zip_list, "LIST_BYTES_MAX", limit)
            if fits:
                for url in (server.url, zip_url):
                    with open_of(url) as source:
                        assert source.read(b"some-name", 0, 99).data
                continue
            with open_of(server.url) as source, pytest.raises(InvalidInput, match="--from-list"):
                source.list(b"")
            with pytest.raises(InvalidInput, match=r"x\.zip has more than 40 bytes: unpack"):
                open_fsspec_files(zip_url)
    with (tmp_path / "x.zip").open("rb") as stream, pytest.raises(InvalidInput, match="unpack"):
        list(members("x.zip", stream, Budget("x.zip", None)))


@pytest.mark.slow
def test_push_by_worker_processes(tmp_path: Path) -> None:
    """Processes that are forked after the source was listed read it by connections of their own,
    and a second push reads nothing."""
    random = Random(5)
    files = {f"d {n % 3}/{n}".encode(): random.randbytes(n + 1) for n in range(30)}
    files[b"large"] = random.randbytes(9 << 20)
    for path, data in files.items():
        put_below(tmp_path / "in", path, data)
    store = create_store(MemoryObjects())

    def pushed(url: str) -> PushResult:
        options = PushOptions("", "", 0, tmp_path / "index", workers=2)
        return push(store, url, "r", "main", options)

    with nginx(tmp_path / "in") as server:
        first, again = pushed(server.url), pushed(server.url)
    assert again.unchanged and not again.files_read
    commit = in_commit(store, "r", first.commit)
    found = {path: one.content for path, one in commit.items() if one.kind is Kind.FILE}
    assert found == files
