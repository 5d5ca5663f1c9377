"""Large files in pieces: several parts read one file, and the commit is that of a plain push."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from random import Random

import fsspec
import pytest

from lodefs.chunkstore.errors import Corrupt, SourceChanged
from lodefs.chunkstore.format.names import Digest, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.push_plan import PlannedDirectory
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.push.parts.file_pieces import SplitFile
from lodefs.chunkstore.push.parts.part_scan import PartLimits
from lodefs.chunkstore.push.parts.plan import make_plan
from lodefs.chunkstore.push.parts.whole_digest import READ_BYTES
from lodefs.chunkstore.push.push import push
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress
from tests.chunkstore.push.parts.test_parts import REPO, Site
from tests.support.chunkstore.directories import in_commit, in_directory, write_files

PIECES = PartLimits(files=2, whole_bytes=500_000, piece_bytes=300_000)
NOISE = Random(4).randbytes(1_000_000)
DIGEST = Digest(bytes(32))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _chunks(store: Store, branch: str, path: str) -> list[bytes]:
    """The ids of the chunks of a file, in order."""
    commit = store.commit(REPO, store.resolve(REPO, branch))
    for at, entry in store.packs.walk(commit.root):
        if at == path.encode():
            return [
                store.packs.index(segment.pack).chunk_id(segment.first + n)
                for segment in entry.segments
                for n in range(segment.count)
            ]
    raise AssertionError(f"no {path}")


@pytest.mark.parametrize(
    "content",
    [
        NOISE,
        bytes(1_000_000),
        b"\x01" + bytes(999_999),
        NOISE[:310_000] + bytes(400_000) + NOISE[:310_000],
        (NOISE[:70_001] * 20)[: 4 * 300_000 + 1],
    ],
    ids=["noise", "zeros", "shifted zeros", "zeros in noise", "periods"],
)
def test_pieces_give_the_chunks_of_a_plain_push(site: Site, content: bytes) -> None:
    """In any order and again, next to other files, in a directory and at the top."""
    files = {"a/first": b"f", "a/large": content, "a/last": b"l", "large": content[::-1]}
    write_files(site.source, files)
    (site.source / "a" / "large").chmod(0o755)
    plan = site.plan(limits=PIECES)
    order = [*range(plan.parts), 1, 2]
    Random(len(content)).shuffle(order)
    for number in order:
        site.do(number, machine=f"machine {number % 2}")
    result = site.finish()
    assert (result.files, result.files_read) == (4, 4)
    assert result.size_bytes == plan.size_bytes == sum(map(len, files.values()))
    site.assert_pushed(result)
    for path in ("a/large", "large"):
        assert _chunks(site.store, "main", path) == _chunks(site.store, "plain", path)


@pytest.mark.parametrize("late", [0, 2])
def test_a_piece_that_is_left_out_leaves_out_the_file(site: Site, late: int) -> None:
    """Whether the part with the digest or one of the others finds it changed."""
    write_files(site.source, {"large": NOISE, "z/small": b"s"})
    plan = site.plan(limits=PIECES)
    site.do(*(number for number in range(plan.parts) if number != late))
    os.utime(site.source / "large", ns=(1, 1))
    with pytest.raises(SourceChanged, match="large has changed since the plan was made"):
        site.do(late)
    site.do(late, skip_unreadable=True)
    result = site.finish()
    assert ([one.path for one in result.skipped], result.files) == ([b"large"], 1)
    assert result.size_bytes == 1
    (site.source / "large").unlink()
    assert in_commit(site.store, REPO, result.commit) == in_directory(site.source)


def test_the_digest_is_read_in_several_batches(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not follow the file's size."""
    module = "lodefs.chunkstore.push.parts.whole_digest"
    monkeypatch.setattr(f"{module}.READ_BYTES", 70_000)
    monkeypatch.setattr(f"{module}._BATCH_BYTES", 3 * 70_000)
    assert READ_BYTES == 8 << 20
    write_files(site.source, {"large": NOISE})
    site.do(*range(site.plan(limits=PIECES).parts))
    site.assert_pushed(site.finish())


def test_pieces_of_a_file_behind_a_url(site: Site) -> None:
    """Requests of several batches give its digest."""
    objects = fsspec.filesystem("memory")
    objects.pipe({"/pieces/large": NOISE, "/pieces/z/small": b"s"})
    options, source = site.options(), "memory://pieces"
    plan = make_plan(site.store, "p", source, REPO, "main", options, limits=PIECES).plan
    site.do(*range(plan.parts))
    site.finish()
    push(site.store, source, REPO, "plain", site.options("plain"))
    ours, theirs = (
        site.store.commit(REPO, site.store.resolve(REPO, branch)).root.digest
        for branch in ("main", "plain")
    )
    assert ours == theirs
    assert _chunks(site.store, "main", "large") == _chunks(site.store, "plain", "large")


def test_heartbeats_keep_a_plan_whose_file_is_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part with the digest stores nothing for hours."""
    started: list[Heartbeat] = []

    def start(heartbeat: Heartbeat) -> None:
        started.append(heartbeat)

    def read(_root: bytes, _file: PlannedDirectory, _progress: Progress) -> bytes:
        assert started
        return DIGEST

    monkeypatch.setattr(Heartbeat, "start", start)
    monkeypatch.setattr("lodefs.chunkstore.push.parts.part.read_digest", read)
    write_files(site.source, {"large": NOISE})
    site.plan(limits=PIECES)
    started.clear()
    site.do(0)


def _index(_: PackId) -> PackIndex:
    return PackIndex(bytes(range(96)), array("I", [10, 20, 30]), array("I", [10, 20, 30]), bytes(3))


def _piece(first: int, count: int, size_bytes: int) -> TreeEntry:
    segment = Segment(PackId(bytes(32)), first, count, size_bytes)
    return TreeEntry(b"f", Kind.FILE, size_bytes=size_bytes, digest=DIGEST, segments=(segment,))


def test_chunks_that_two_pieces_have_are_taken_once() -> None:
    """Those of the later piece are dropped; a piece that lies in the one before it, wholly."""
    file = SplitFile(b"f", [0, 10, 0], DIGEST, 60)
    found = file.entry([_piece(0, 2, 30), _piece(1, 1, 20), _piece(0, 3, 60)], _index)
    assert found.segments == (Segment(PackId(bytes(32)), 0, 3, 60),)
    assert (found.size_bytes, found.digest) == (60, DIGEST)


@pytest.mark.parametrize(
    ("begins", "pieces", "size_bytes"),
    [
        ([0, 31], [_piece(0, 2, 30), _piece(2, 1, 30)], 61),  # bytes between them
        ([0, 5], [_piece(0, 1, 10), _piece(0, 3, 60)], 65),  # no chunk begins where the first ends
        ([0], [_piece(0, 1, 10)], 60),  # no end
    ],
)
def test_pieces_that_do_not_meet_are_refused(
    begins: list[int], pieces: list[TreeEntry], size_bytes: int
) -> None:
    """They would give a file that the source never had."""
    with pytest.raises(Corrupt, match="the parts of f do not meet"):
        SplitFile(b"f", begins, DIGEST, size_bytes).entry(pieces, _index)
