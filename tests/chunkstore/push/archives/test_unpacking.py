"""Archives become what a push of the unpacked directory gives, and hostile members are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.push.archives import members
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.changes.change import PutArchive
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.memory_objects import MemoryObjects

Compress = Callable[[bytes], bytes]
COMPRESSIONS: dict[str, Compress] = {
    "tar": lambda data: data,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "two streams": lambda data: lzma.compress(data[:700]) + b"\0" * 8 + lzma.compress(data[700:]),
    "two frames": lambda data: zstandard.compress(data[:700]) + zstandard.compress(data[700:]),
}
LARGE = Random(1).randbytes(5 << 20)


class World:
    """A store, and a machine that pushes into it."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = create_store(MemoryObjects())
        self.index_dir = tmp_path / "index"
        self.skip_unreadable = False
        self.exclude: tuple[bytes, ...] = ()

    @property
    def options(self) -> PushOptions:
        return PushOptions(
            message="",
            author="",
            time_s=1_700_000_000,
            index_dir=self.index_dir,
            skip_unreadable=self.skip_unreadable,
            exclude=self.exclude,
            workers=0,
        )

    def unpack(
        self, *archives: bytes | BinaryIO, path: bytes = b"", **limits: Any
    ) -> ChangesResult:
        streams = [io.BytesIO(one) if isinstance(one, bytes) else one for one in archives]
        put = PutArchive(path, [("x.tar", one) for one in streams], **limits)
        return commit_changes(self.store, "r", "main", [put], self.options)

    def content(self, result: ChangesResult) -> dict[bytes, Any]:
        """What is in a commit of a sound store, by path."""
        assert verify(self.store, None, data=True, progress=Progress()).problems == []
        return {**in_commit(self.store, "r", result.commit)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def tar_of(*found: Any, end: bool = True) -> bytes:
    """A tar of members: headers, or names with contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for one in found:
            info, data = (
                (one, b"") if isinstance(one, tarfile.TarInfo) else (info_of(one[0]), one[1])
            )
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        size = archive.offset
    return out.getvalue() if end else out.getvalue()[:size]


def info_of(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def zip_of(*found: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in found:
            archive.writestr(name, data)
    return out.getvalue()


def directory(tmp_path: Path) -> Path:
    """A directory with all that a commit keeps."""
    top = tmp_path / "source"
    for name in ("a/b", "empty", "ü"):
        (top / name).mkdir(parents=True)
    (top / "large").write_bytes(LARGE)
    (top / "a/small").write_bytes(b"1")
    (top / "a/none").write_bytes(b"")
    (top / "a/b/run").write_bytes(b"#!")
    (top / "a/b/run").chmod(0o755)
    (top / "a/b/to").symlink_to("../small")
    os.link(top / "a/small", top / "a/again")
    Path(os.fsdecode(os.fsencode(top) + b"/not utf-8 \xff")).write_bytes(b"2")
    (top / ("long " * 30)).write_bytes(b"3")
    return top


@pytest.mark.parametrize(
    ("kind", "form"), [("tar", "gnu"), ("gz", "pax"), ("zst", "v7"), ("two frames", "gnu")]
)
def test_same_digest_as_a_directory(world: World, tmp_path: Path, kind: str, form: str) -> None:
    """What GNU tar has packed is what a push of the directory finds unchanged."""
    top = directory(tmp_path)
    if form == "v7":
        (top / ("long " * 30)).unlink()
    packed = subprocess.run(
        ["tar", "-c", f"--format={form}", "-C", str(top), "."], capture_output=True, check=True
    )
    result = world.unpack(COMPRESSIONS[kind](packed.stdout))
    pushed = push(world.store, top, "r", "main", world.options)
    assert pushed.unchanged and pushed.commit == result.commit
    assert world.content(result)


def test_same_digest_of_a_zip(world: World, tmp_path: Path) -> None:
    """What a zip of a directory has is what a push of the directory finds unchanged."""
    top = directory(tmp_path)
    Path(os.fsdecode(os.fsencode(top) + b"/not utf-8 \xff")).unlink()
    found = []
    for path in sorted(top.rglob("*")):
        info = zipfile.ZipInfo(f"{path.relative_to(top)}{'/' if path.is_dir() else ''}")
        info.external_attr = path.lstat().st_mode << 16
        link = path.is_symlink()
        data = os.fsencode(path.readlink()) if link else b"" if path.is_dir() else path.read_bytes()
        found.append((info, data))
    result = world.unpack(zip_of(*found))
    assert push(world.store, top, "r", "main", world.options).unchanged
    assert world.content(result)


NAMES = st.sampled_from(["a", "b", "ü", "c d", "e" * 120])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
FILES = st.dictionaries(PATHS, st.binary(max_size=40_000), max_size=12)


@settings(max_examples=40, deadline=None)
@given(files=FILES, is_zip=st.booleans())
def test_any_files(tmp_path_factory: pytest.TempPathFactory, files: Any, is_zip: bool) -> None:
    """Any files of an archive are the files of the commit."""
    files = {
        path: data
        for path, data in files.items()
        if not any(other.startswith(f"{path}/") for other in files)
    }
    world = World(tmp_path_factory.mktemp("any"))
    if not files:
        with pytest.raises(InvalidInput, match="no members"):
            world.unpack(tar_of())
        return
    made = zip_of(*files.items()) if is_zip else tar_of(*files.items())
    found = world.content(world.unpack(made))
    expected = {path.encode(): data for path, data in files.items()}
    assert {path: one.content for path, one in found.items() if path in expected} == expected


def test_again_and_into_a_path(world: World) -> None:
    """The same archive changes nothing; other files stay, and a path is replaced as a whole."""
    world.unpack(tar_of(("keep", b"1")))
    first = world.unpack(tar_of(("a", b"1"), ("b", b"2")), path=b"in")
    again = world.unpack(tar_of(("a", b"1"), ("b", b"2")), path=b"in")
    assert again.unchanged and again.commit == first.commit and not again.new_bytes
    other = world.unpack(tar_of(("b", b"2")), tar_of(("c/d", b"3")), path=b"in")
    assert {path for path in world.content(other) if b"." not in path} >= {b"keep", b"in/b"}
    assert b"in/a" not in world.content(other) and b"in/c/d" in world.content(other)


HOSTILE = {
    "absolute": info_of("/etc/passwd"),
    "'..'": info_of("a/../../x"),
    "NUL, or": info_of("x" * 256),
    "a path of more": info_of("d/" * 2048 + "x"),
    "no name": info_of("."),
    "leads out": info_of("link", tarfile.SYMTYPE, "/etc"),
    "leads out.*": info_of("a/link", tarfile.SYMTYPE, "b/../../../x"),
    "device": info_of("null", tarfile.CHRTYPE),
    "FIFO": info_of("fifo", tarfile.FIFOTYPE),
    "hard link to nothing": info_of("hard", tarfile.LNKTYPE, "nothing"),
    "hard link to ../out": info_of("hard", tarfile.LNKTYPE, "../out"),
    "comes twice": info_of("file"),
    "comes twice, as a dir": info_of("file", tarfile.DIRTYPE),
    "through a file": info_of("inside/x"),
}


@pytest.mark.parametrize("why", HOSTILE)
def test_hostile_members(world: World, why: str) -> None:
    """A member that no careful program unpacks is named, and nothing is committed;
    --skip-unreadable and --exclude leave it out."""
    link = info_of("inside", tarfile.SYMTYPE, "file")
    packed = tar_of(("file", b"1"), link, HOSTILE[why])
    expected = why if "hard" not in why else "hard link to|'..'"
    with pytest.raises(InvalidInput, match=f"in x.tar .*{expected}.*--skip-unreadable"):
        world.unpack(packed)
    with pytest.raises(NotFound):
        world.store.resolve("r", "main")
    world.skip_unreadable = True
    result = world.unpack(packed)
    assert len(result.skipped) == 1
    assert {path for path in world.content(result) if path} == {b"file", b"inside"}


def test_patterns(world: World) -> None:
    """Members that match are left out, and all in directories that match."""
    world.exclude = (b"/a/", b"*.tmp")
    result = world.unpack(tar_of(("a/b/c", b"1"), ("d/x.tmp", b"2"), ("d/y", b"3")))
    assert result.excluded == 2
    assert b"d/y" in world.content(result) and result.files == 1


def test_damage(world: World) -> None:
    """An archive that was cut off anywhere, or has a wrong header, is never taken for whole."""
    whole = tar_of(("a", b"1" * 2000), ("b", b"2" * 700), end=False)
    cuts = {whole[:at] for at in range(0, len(whole) + 1, 256)}
    for name, compress in COMPRESSIONS.items():
        packed = [compress(cut) for cut in cuts] if name in ("tar", "gz") else []
        packed += [compress(tar_of(("a", LARGE[:9000])))[:at] for at in (500, 2000)]
        for one in packed:
            with pytest.raises(InvalidInput, match=r"cut off or damaged|neither a tar"):
                world.unpack(one)
    wrong = bytearray(tar_of(("a", b"1"), ("b", b"2")))
    wrong[1024 + 100] ^= 1
    with pytest.raises(InvalidInput, match="wrong header"):
        world.unpack(bytes(wrong))
    zipped = bytearray(zip_of(("a", LARGE[:9000])))
    zipped[4000] ^= 1
    broken = bytearray(zip_of(("a", b"12345678" * 99)))
    broken[31:35] = b"\xff" * 4  # no deflated bytes
    for archive in (zipped, broken):
        with pytest.raises(InvalidInput, match="damaged"):
            world.unpack(bytes(archive))


def test_links_through_links(world: World) -> None:
    """Links lead out together though neither does alone; '..' behind a directory is fine."""
    up = info_of("a/b/up", tarfile.SYMTYPE, "../..")
    out = info_of("out", tarfile.SYMTYPE, "a/b/up/../../etc/passwd")
    with pytest.raises(InvalidInput, match=r"out in x\.tar .*leads out"):
        world.unpack(tar_of(up, out))
    again = info_of("again", tarfile.SYMTYPE, "a/b/../up")
    assert world.unpack(tar_of(up, again)).commit


def test_a_path_without_an_end(world: World) -> None:
    """The error names what a system could take of it, and not megabytes."""
    with pytest.raises(InvalidInput, match="a path of more than 4,095 bytes") as raised:
        world.unpack(tar_of(info_of("d/" * 100_000 + "x")))
    assert len(str(raised.value)) < 4400


def test_two_archives_in_one(world: World) -> None:
    """What `cat *.tar` writes is refused, since only the first archive would be read."""
    one, other = tar_of(("a", b"1")), tar_of(("b", b"2"))
    for packed in (one + other, gzip.compress(one) + gzip.compress(other)):
        with pytest.raises(InvalidInput, match=r"another tar follows .* in x\.tar"):
            world.unpack(packed)


def test_headers_that_break_readers(world: World) -> None:
    """Chains of headers, and links compressed by an unknown method, are damage."""
    long = info_of("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    zipped = bytearray(zip_of((link, b"to")))
    zipped[zipped.index(b"PK\x01\x02") + 10] = zipped[8] = 99
    for packed in (tar_of(*[long] * 2000, ("a", b"1")), bytes(zipped)):
        with pytest.raises(InvalidInput, match="damaged"):
            world.unpack(packed)


def test_neither(world: World) -> None:
    """What is no archive is named."""
    for data in (b"", b"hello", gzip.compress(b"hello"), LARGE):
        with pytest.raises(InvalidInput, match="neither a tar nor a zip"):
            world.unpack(data)


@pytest.mark.parametrize("kind", ["tar", "zip", "skipped", "trailing"])
def test_bombs(world: World, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """An archive that grows too much is refused; --max-size allows more, or less."""
    monkeypatch.setattr(members, "RATIO_FROM_BYTES", 1 << 20)
    zeros = b"\0" * (8 << 20)
    if kind == "zip":
        packed = zip_of(("zeros", zeros))
    elif kind == "trailing":
        packed = gzip.compress(tar_of(("a", b"1")) + zeros)
    else:
        packed = gzip.compress(tar_of(("zeros", zeros)))
    world.exclude = (b"zeros",) if kind == "skipped" else ()
    with pytest.raises(InvalidInput, match=r"200 times its size.*larger --max-size"):
        world.unpack(packed)
    assert world.unpack(packed, size_bytes_max=20 << 20).commit
    with pytest.raises(InvalidInput, match="--max-size"):
        world.unpack(packed, size_bytes_max=1 << 20)


def test_header_that_claims_memory(world: World) -> None:
    """A header of a name that claims gigabytes is refused before they are read."""
    info = info_of("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    info.size = 8 << 30
    with pytest.raises(InvalidInput, match="claims 8,589,934,592 bytes"):
        world.unpack(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 5000)


def test_xz_that_claims_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary that is too large is refused before it is allocated."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]
    packed = lzma.compress(tar_of(("a", b"1")), filters=filters)
    assert world.unpack(packed).commit
    monkeypatch.setattr(members, "XZ_MEMORY_BYTES_MAX", 32 << 20)
    with pytest.raises(InvalidInput, match=r"[Mm]emory"):
        world.unpack(packed)


class Pipe(io.RawIOBase):
    """Bytes that come in small pieces, once."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 100) if size >= 0 else -1)


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_pipe(world: World, kind: str) -> None:
    """A tar comes from a pipe in any pieces; a zip does not."""
    pipe: Any = Pipe(COMPRESSIONS[kind](tar_of(("a", LARGE[:9000]), ("b", b"2"))))
    found = world.content(world.unpack(pipe))
    assert found[b"a"].content == LARGE[:9000]
    zipped: Any = Pipe(zip_of(("a", b"1")))
    with pytest.raises(InvalidInput, match="save it to a file"):
        world.unpack(zipped)


def test_encrypted_zip(world: World) -> None:
    """An encrypted member is named."""
    packed = bytearray(zip_of(("secret", b"1")))
    central = packed.index(b"PK\x01\x02")
    packed[central + 8] |= 1
    with pytest.raises(InvalidInput, match=r"secret in x\.tar is encrypted"):
        world.unpack(bytes(packed))
