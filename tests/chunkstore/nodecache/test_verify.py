"""Checking a node's cache: every way to damage it is named, a good one is not, also in use."""

from __future__ import annotations

import asyncio
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, NotFound, Unavailable, UnknownFormat
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import verify
from lodefs.chunkstore.nodecache.verify import Damage, check_file, opened_index, verify_cache
from lodefs.chunkstore.system.progress import Progress
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, REPO, Rig, read_path

BIG = random.Random(1).randbytes(3 * MIB)
SMALLS = {b"small/%d" % n: random.Random(9 + n).randbytes(5_000 * n) for n in range(20)}
FILES = {b"dir/big": BIG, **SMALLS, b"twin": SMALLS[b"small/7"]}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A cache that holds all of FILES."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=20_000, pack_chunks=40)

    async def fill() -> None:
        async with rig.node() as node:
            for path in FILES:
                await read_path(node, path)

    asyncio.run(fill())
    return rig


def cache_of(rig: Rig) -> Path:
    return rig.directory / "cache"


def cache_files(rig: Rig, kind: str) -> list[Path]:
    return sorted(cache_of(rig).glob(f"{kind}/*/*"))


def flip(path: Path, offset: int) -> None:
    """Turns one bit of a cache file around, as a dying disk does."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


def damages(rig: Rig, workers: int = 2) -> list[Damage]:
    return verify_cache(cache_of(rig), workers=workers).damages


@pytest.mark.parametrize("workers", [1, 5])
def test_a_good_cache_is_found_good(rig: Rig, workers: int) -> None:
    """All bytes of the cache are read, and nothing is told of them."""
    progress = Progress()
    result = verify_cache(cache_of(rig), workers=workers, progress=progress)
    assert result.damages == []
    distinct = {digest_of(content): len(content) for content in FILES.values()}
    assert result.size_bytes >= sum(distinct.values())
    assert progress.bytes_done == progress.bytes_total == result.size_bytes
    assert progress.files_done == progress.files_total == result.files >= 2


@pytest.mark.parametrize("offset", [0, 1_234_567, len(BIG) - 1])
def test_one_bit_of_a_flat_file(rig: Rig, offset: int) -> None:
    """A bit that turned around is found wherever it is, with chunk and dataset file."""
    (path,) = cache_files(rig, "flat")
    flip(path, offset)
    (damage,) = damages(rig)
    first = offset // 20_000 * 20_000
    assert (damage.path, damage.offset) == (path, first)
    assert damage.chunk == digest_of(BIG[first : first + 20_000])
    assert [str(name) for name in damage.names] == [f"{REPO}@{rig.commit.hex()}:dir/big"]


def test_one_bit_of_a_slab(rig: Rig) -> None:
    """In a slab the chunk says which files have it, all of them."""
    slab = cache_files(rig, "slabs")[0]
    flip(slab, slab.read_bytes().index(SMALLS[b"small/7"][:20_000]) + 5)
    (damage,) = damages(rig)
    assert damage.what == "its bytes are wrong"
    assert {name.path for name in damage.names} == {b"small/7", b"twin"}


def test_a_chunk_of_many_files_names_some(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many names are told is limited."""
    monkeypatch.setattr("lodefs.chunkstore.nodecache.affected_files.NAMES_MAX", 1)
    slab = cache_files(rig, "slabs")[0]
    flip(slab, slab.read_bytes().index(SMALLS[b"small/7"][:20_000]))
    (damage,) = damages(rig)
    assert len(damage.names) == 1


def test_a_file_that_was_cut(rig: Rig) -> None:
    """Chunks beyond the end of a cut file are missing; those before are good."""
    (path,) = cache_files(rig, "flat")
    path.chmod(0o644)
    os.truncate(path, 2_950_001)
    found = damages(rig)
    assert found[0].what == "the file ends after 10001 of its bytes"
    assert [damage.offset for damage in found] == list(range(2_940_000, len(BIG), 20_000))


def test_a_file_that_was_removed(rig: Rig) -> None:
    """A missing file is told once, with its name."""
    (path,) = cache_files(rig, "flat")
    path.unlink()
    (damage,) = damages(rig)
    assert damage.chunk is None
    assert "No such file" in damage.what
    assert [name.path for name in damage.names] == [b"dir/big"]


def test_what_is_told_of_one_file_is_limited(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of nothing but damage does not fill the memory."""
    monkeypatch.setattr(verify, "DAMAGES_MAX", 3)
    (path,) = cache_files(rig, "flat")
    path.chmod(0o644)
    path.write_bytes(bytes(len(BIG)))
    assert len(damages(rig)) == 3


def test_chunks_in_the_wrong_order(rig: Rig) -> None:
    """A complete flat file is the dataset file: good chunks alone do not make it so."""

    async def swap() -> None:
        async with rig.node() as node:
            kv = node._cache.kv
            (number,) = (n for n, file in node._cache.files.items() if file.content.strip(b"\0"))
            runs = [layout.decode_run_row(v) for _, v in kv.scan(layout.run_prefix(number))]
            chunks = [chunk for run in runs for chunk in run.chunks]
            rows = [(k, None) for k, _ in kv.scan(layout.run_prefix(number))]
            path = node._cache.files[number].path
            chunks[0], chunks[1] = chunks[1], chunks[0]
            data = BIG[20_000:40_000] + BIG[:20_000] + BIG[40_000:]
            path.chmod(0o644)
            path.write_bytes(data)
            kv.write([*rows, (layout.run_key(number, 0), layout.encode_run_row(chunks))])

    asyncio.run(swap())
    (damage,) = damages(rig)
    assert "do not match the dataset file" in damage.what


@pytest.mark.parametrize("window", [8192, 65536])
def test_chunks_larger_than_the_window(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Whatever the size of the window, good bytes are good and a bad one is found."""
    monkeypatch.setattr(verify, "WINDOW_SIZE_BYTES", window)
    assert damages(rig) == []
    flip(cache_files(rig, "flat")[0], 2_000_000)
    assert [damage.offset for damage in damages(rig)] == [2_000_000]


def test_without_direct_reads(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that refuses O_DIRECT the ordinary way is taken."""
    real: Callable[..., int] = os.open

    def refuse(path: Path, flags: int, *more: int, **named: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert damages(rig) == []
    flip(cache_files(rig, "flat")[0], 7)
    assert len(damages(rig)) == 1


def in_use(rig: Rig, act: Callable[[StoreNode], object]) -> list[Damage]:
    """What a check finds while a node owns the cache, and does something when the check has
    listed the files."""
    found: list[Damage] = []

    async def run() -> None:
        async with rig.node() as node:
            progress = Progress()
            listed = verify.check_file
            done: list[object] = []

            def check(*args: object, **kwargs: object) -> object:
                if not done:
                    done.append(act(node))
                return listed(*args, **kwargs)  # type: ignore[arg-type]

            verify.check_file = check  # type: ignore[assignment]
            try:
                result = await asyncio.to_thread(
                    verify_cache, cache_of(rig), workers=1, progress=progress
                )
            finally:
                verify.check_file = listed
            found.extend(result.damages)

    asyncio.run(run())
    return found


def test_a_cache_in_use_is_checked(rig: Rig) -> None:
    """A proxy that owns the cache does not hinder the check."""
    flip(cache_files(rig, "flat")[0], 77)
    assert len(in_use(rig, lambda node: None)) == 1


def test_what_is_evicted_meanwhile_is_no_damage(rig: Rig) -> None:
    """Files that are evicted between the list and the look are not told."""
    assert in_use(rig, lambda node: node._cache.eviction.free(64 * MIB)) == []


def test_no_cache(tmp_path: Path) -> None:
    """A directory that is no cache, or one of another version, is refused with words."""
    with pytest.raises(NotFound, match="--cache-dir"):
        verify_cache(tmp_path / "none", workers=1)
    (tmp_path / "VERSION").write_text("lodefs-cache 99\n")
    with pytest.raises(UnknownFormat, match="a lodefs of that version"):
        verify_cache(tmp_path, workers=1)


def test_a_cache_that_may_not_be_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user is told who may."""

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(layout, "version_in", refuse)
    with pytest.raises(Denied, match="root"):
        verify_cache(cache_of(rig), workers=1)


def test_a_file_that_may_not_be_read_is_damaged(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the cache that its owner may not open is named, and the others are checked."""
    opened, refused = layout.open_file, list[Path]()

    def refuse(cache_dir: Path, path: Path, *, writable: bool = False) -> int:
        if path.parts[0] in (layout.SLABS_DIR, layout.FLAT_DIR) and refused in ([], [path]):
            refused[:] = [path]
            raise PermissionError(13, "Permission denied")
        return opened(cache_dir, path, writable=writable)

    monkeypatch.setattr(layout, "open_file", refuse)
    found = verify_cache(cache_of(rig), workers=1)
    (damage,) = found.damages
    assert damage.path == cache_of(rig) / refused[0]
    assert damage.what == "the file cannot be read: Permission denied"
    assert found.files > 1
    assert found.chunks


def test_a_file_that_cannot_be_opened_is_not_damaged(rig: Rig) -> None:
    """Without descriptors the check fails, and names no file as damaged, which would have the
    proxy drop it."""
    with opened_index(cache_of(rig)) as kv:
        key, value = next(iter(kv.scan(layout.FILES)))
        number, row = layout.number_of_key(key), layout.decode_file_row(value)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(Unavailable, match="Too many open files"):
                check_file(kv, cache_of(rig), number, row, {})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
