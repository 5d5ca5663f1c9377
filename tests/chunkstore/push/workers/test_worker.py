"""What a worker does with a slot."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.compression import RAW, ZSTD, decompress
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.push.workers import worker as worker_module
from lodefs.chunkstore.push.workers.source_files import read_full
from lodefs.chunkstore.push.workers.worker import (
    CHANGED,
    RESIZED,
    Compress,
    Compressed,
    Prepare,
    Prepared,
    Read,
    SharedSlots,
    Slot,
    Worker,
)

PARAMS = ChunkingParams(64, 256, 1024)


@pytest.fixture
def slot() -> Iterator[Slot]:
    arena = SharedSlots(1, 8192, 1024)
    yield arena.slots[0]
    arena.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(PARAMS)
    yield made
    made.close()


def prepare(worker: Worker, slot: Slot, root: Path, *reads: Read, run: int = 1) -> Prepared:
    reply = worker.perform(slot, Prepare(run, os.fsencode(root), list(reads)))
    assert isinstance(reply, Prepared)
    return reply


def whole(path: bytes, size_bytes: int) -> Read:
    return Read(path, size_bytes, 0, size_bytes)


def test_whole_files_lie_one_behind_the_other(worker: Worker, slot: Slot, tmp_path: Path) -> None:
    """Files are read, cut and hashed, each from its own start; a missing one takes no room."""
    data = {b"a": Random(1).randbytes(3000), b"b": b"", b"c": b"short", b"d": bytes(1500)}
    for name, content in data.items():
        (tmp_path / os.fsdecode(name)).write_bytes(content)
    names = [b"a", b"b", b"missing", b"c", b"d"]
    reply = prepare(worker, slot, tmp_path, *(whole(n, len(data.get(n, b""))) for n in names))
    assert [read.problem for read in reply.reads] == [0, 0, errno.ENOENT, 0, 0]
    joined = b"".join(data.values())
    assert bytes(slot.data[: len(joined)]) == joined
    ids = b""
    for name, read in zip(names, reply.reads, strict=True):
        if name in data:
            ends = [0, *cut(data[name], PARAMS)]
            assert read.sizes == [b - a for a, b in pairwise(ends)]
            ids += b"".join(digest_of(data[name][a:b]) for a, b in pairwise(ends))
    assert reply.ids == ids
    digests = [read.digest for read in reply.reads]
    assert digests == [digest_of(data[b"a"]), digest_of(b""), None, None, digest_of(data[b"d"])]


def test_window_begins_with_its_overlap(worker: Worker, slot: Slot, tmp_path: Path) -> None:
    """A window is read with the bytes before it, and its last chunk is left to the next one."""
    data = Random(2).randbytes(12_000)
    (tmp_path / "a").write_bytes(data)
    reply = prepare(worker, slot, tmp_path, Read(b"a", 12_000, 4096, 4096, overlap=1024))
    window = data[3072:8192]
    assert bytes(slot.data[: len(window)]) == window
    expected = cut(window, PARAMS, final=False)
    assert sum(reply.reads[0].sizes) == expected[-1] < len(window)
    assert reply.reads[0].digest is None


def test_file_of_another_size_is_taken_where_it_fits(
    worker: Worker, slot: Slot, tmp_path: Path
) -> None:
    """A whole file that grew or shrank since it was planned is read as it is, if it has room."""
    (tmp_path / "a").write_bytes(b"x" * 50)
    (tmp_path / "b").write_bytes(b"y" * 9000)
    reply = prepare(worker, slot, tmp_path, whole(b"a", 10), whole(b"b", 20), whole(b"a", 100))
    assert [read.problem for read in reply.reads] == [0, RESIZED, 0]
    assert [sum(read.sizes) for read in reply.reads] == [50, 0, 50]
    stat = reply.reads[1].stat
    assert stat is not None and stat.size_bytes == 9000


def test_window_of_a_file_of_another_size_is_not_read(
    worker: Worker, slot: Slot, tmp_path: Path
) -> None:
    """A window of a file that is no longer of the planned size makes no sense."""
    (tmp_path / "a").write_bytes(bytes(9001))
    reply = prepare(worker, slot, tmp_path, Read(b"a", 9000, 4096, 4096, overlap=1024))
    assert reply.reads[0].problem == RESIZED


@pytest.mark.parametrize("change", ["append", "truncate", "rewrite"])
def test_change_while_reading_is_seen(
    worker: Worker,
    slot: Slot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    """A file that is written to between its first and its last byte is not taken."""
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    real = read_full

    def read_and_change(fd: int, buffer: memoryview, offset: int, enough: int) -> int:
        if change == "truncate":
            os.truncate(path, 10)
        got = real(fd, buffer, offset, enough)
        if change == "append":
            with path.open("ab") as out:
                out.write(b"more")
        if change == "rewrite":
            path.write_bytes(b"x" * 1000)
            os.utime(path, ns=(1, 1))
        return got

    monkeypatch.setattr(worker_module, "read_full", read_and_change)
    assert prepare(worker, slot, tmp_path, whole(b"a", 1000)).reads[0].problem == CHANGED


def test_a_new_run_opens_the_root_anew(worker: Worker, slot: Slot, tmp_path: Path) -> None:
    """A root that was replaced between two runs is seen by the second."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    root = tmp_path / "one"
    prepare(worker, slot, root, whole(b"a", 3))
    root.rename(tmp_path / "old")
    (tmp_path / "two").rename(root)
    prepare(worker, slot, root, whole(b"a", 3), run=1)
    assert bytes(slot.data[:3]) == b"one"
    prepare(worker, slot, root, whole(b"a", 3), run=2)
    assert bytes(slot.data[:3]) == b"two"


def test_chunks_are_compressed_in_place(worker: Worker, slot: Slot) -> None:
    """What shrinks lies compressed where it lay raw; the rest is as it was."""
    noise = Random(3).randbytes(1000)
    slot.data[:2000] = b"text " * 400
    slot.data[2000:3000] = noise
    reply = worker.perform(slot, Compress([[(0, 1500)], [(1500, 500), (2000, 1000)]]))
    assert isinstance(reply, Compressed)
    assert [codec for codec, _ in reply.stored] == [ZSTD, ZSTD, RAW]
    first, second, third = (size for _, size in reply.stored)
    assert decompress(ZSTD, slot.data[:first], 1500) == b"text " * 300
    assert decompress(ZSTD, slot.data[1500 : 1500 + second], 500) == b"text " * 100
    assert bytes(slot.data[2000:3000]) == noise and third == 1000


def test_a_hole_is_cut_as_its_zeros_are(worker: Worker, slot: Slot, tmp_path: Path) -> None:
    """Each window of it, also one with an overlap and the last one; each has the state of its own
    file."""
    size, step, overlap = 30_000, 4096, 1024
    (tmp_path / "dense").write_bytes(bytes(size))
    for name in ("hole", "other"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
    for start in range(0, size, step):
        before = min(start, overlap)
        windows = [
            Read(name, size, start, min(step, size - start), before)
            for name in (b"dense", b"hole", b"other")
        ]
        dense, hole, other = (prepare(worker, slot, tmp_path, one) for one in windows)
        assert dense.ids == hole.ids == other.ids
        assert dense.reads[0].sizes == hole.reads[0].sizes == other.reads[0].sizes
        assert not any(slot.data[: before + windows[0].size_bytes])
        stats = [one.reads[0].stat for one in (dense, hole, other)]
        assert [stat.inode for stat in stats if stat] == [
            (tmp_path / name).stat().st_ino for name in ("dense", "hole", "other")
        ]


def test_a_hole_that_is_filled_meanwhile_is_stored_under_no_other_id(
    worker: Worker, slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes in the slot are those that were cut, whatever the file has by then."""
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 10_000)

    def filled(fd: int, *_: int) -> bool:
        os.utime(tmp_path / "hole", ns=(1, 1))
        (tmp_path / "hole").write_bytes(b"x" * 10_000)
        os.utime(tmp_path / "hole", ns=(1, 1))
        return True

    monkeypatch.setattr(worker_module, "is_hole", filled)
    prepare(worker, slot, tmp_path, Read(b"hole", 10_000, 0, 4096))
    assert not any(slot.data[:4096])
