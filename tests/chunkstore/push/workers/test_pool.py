"""Workers of both kinds: what the sink sees is what the files hold."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, NotFound, SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.compression import decompress
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.push.workers import worker
from lodefs.chunkstore.push.workers.pipeline import CutUnit
from lodefs.chunkstore.push.workers.pool import InlineWorkers, WorkerPool, Workers
from lodefs.chunkstore.push.workers.source_files import FileStat, SourceFile, read_full
from lodefs.chunkstore.system.rate import Rate
from lodefs.chunkstore.types import Buffer

PARAMS = ChunkingParams(64, 256, 1024)
Make = Callable[[], InlineWorkers | WorkerPool]


def inline() -> InlineWorkers:
    return InlineWorkers(PARAMS, unit_bytes=4096, files_max=7)


def processes() -> WorkerPool:
    return WorkerPool(PARAMS, unit_bytes=4096, files_max=7, workers=2)


@pytest.fixture(params=[inline, processes], ids=["inline", "processes"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes workers of one kind; tests that patch the reading do so before."""
    made: Make = request.param
    return made


@pytest.fixture
def workers(make: Make) -> Iterator[Workers]:
    with make() as made:
        yield made


class Collector:
    """A sink that keeps what it is told, and wants each chunk once (or nothing)."""

    def __init__(self, *, wants: bool = True) -> None:
        self.wants = wants
        self.calls: list[tuple[str, int]] = []  # what was called for the unit of which number
        self.units: list[CutUnit] = []
        self.flags: list[list[bool]] = []
        self.raw: dict[bytes, bytes] = {}
        self.ids: dict[int, list[tuple[bytes, int]]] = {}
        self.digests: dict[int, bytes | None] = {}
        self.stats: dict[int, FileStat | None] = {}
        self.errors: dict[int, LodefsError] = {}
        self._known: set[bytes] = set()

    def wanted(self, unit: CutUnit) -> Sequence[bool]:
        self.calls.append(("wanted", len(self.units)))
        flags = []
        for file in unit.files:
            if file.first:
                self.ids[file.token] = []
            self.ids[file.token] += file.chunks
            for chunk in file.chunks:
                flags.append(self.wants and chunk.id not in self._known)
                self._known.add(chunk.id)
            if file.last:
                self.digests[file.token] = file.digest
                self.stats[file.token] = file.stat
            if file.error:
                self.errors[file.token] = file.error
        self.units.append(unit)
        self.flags.append(flags)
        return flags

    def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:
        number = next(n for n, seen in enumerate(self.units) if seen is unit)
        self.calls.append(("store", number))
        chunks = [chunk for file in unit.files for chunk in file.chunks]
        wanted = [chunk for chunk, flag in zip(chunks, self.flags[number], strict=True) if flag]
        for chunk, (codec, data) in zip(wanted, stored, strict=True):
            raw = bytes(decompress(codec, data, chunk.raw_size_bytes))
            assert digest_of(raw) == chunk.id
            assert chunk.id not in self.raw
            self.raw[chunk.id] = raw

    def content(self, token: int) -> bytes:
        return b"".join(self.raw[chunk_id] for chunk_id, _ in self.ids[token])


def scan(root: Path, *names: bytes) -> list[SourceFile]:
    """The files ``names`` below ``root``, as a scan finds them; by default all, sorted."""
    base = os.fsencode(root)
    if not names:
        found = (os.path.join(at, name) for at, _, files in os.walk(base) for name in files)
        names = tuple(sorted(os.path.relpath(path, base) for path in found))
    return [
        SourceFile(name, os.lstat(os.path.join(base, name)).st_size, token)
        for token, name in enumerate(names)
    ]


def make_tree(root: Path) -> None:
    """Files of all sizes around the limits, of several kinds of bytes, some of them equal."""
    noise = Random(5)
    for size in (0, 1, 63, 64, 65, 300, 1024, 1025, 3000, 4095, 4096, 4097, 9000, 30_000):
        folder = root / f"size{size:05}"
        folder.mkdir()
        (folder / "noise").write_bytes(noise.randbytes(size))
        (folder / "zeros").write_bytes(bytes(size))
        (folder / "text").write_bytes((b"a line of text\n" * (size // 15 + 1))[:size])
    names = [b"not utf-8 \xff", b"new\nline", b"n" * 255, b" "]
    for name in names:
        with open(os.path.join(os.fsencode(root), name), "wb") as out:
            out.write(name * 3)
    os.link(root / "size03000" / "noise", root / "hard link")
    with (root / "sparse").open("wb") as out:
        out.truncate(20_000)
        out.seek(10_000)
        out.write(b"in the middle")


def check_file(sink: Collector, file: SourceFile, content: bytes) -> None:
    """That the sink was told the truth about a file."""
    ends = [0, *cut(content, PARAMS)]
    chunks = [(digest_of(content[a:b]), b - a) for a, b in pairwise(ends)]
    assert sink.ids[file.token] == chunks, file.path
    assert sink.digests[file.token] == digest_of(content), file.path
    stat = sink.stats[file.token]
    assert stat is not None and stat.size_bytes == len(content)


def read(root: Path, file: SourceFile) -> bytes:
    with open(os.path.join(os.fsencode(root), file.path), "rb") as opened:
        return opened.read()


class Taken(Rate):
    """Counts, and never waits."""

    def __init__(self) -> None:
        super().__init__(None)
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes


def test_all_that_is_read_is_paced(workers: Workers, tmp_path: Path) -> None:
    """The rate sees each byte before it is read."""
    make_tree(tmp_path)
    files, taken = scan(tmp_path), Taken()
    workers.run(tmp_path, files, Collector(), rate=taken)
    assert taken.size_bytes == sum(file.size_bytes for file in files)


def test_every_file_is_told_truly(workers: Workers, tmp_path: Path) -> None:
    """Chunks are the sequential cuts, digests are right, and stored bytes give the content."""
    make_tree(tmp_path)
    files = scan(tmp_path)
    sink = Collector()
    workers.run(tmp_path, files, sink)
    assert not sink.errors
    for file in files:
        content = read(tmp_path, file)
        check_file(sink, file, content)
        assert sink.content(file.token) == content
        real = os.lstat(os.path.join(os.fsencode(tmp_path), file.path))
        assert sink.stats[file.token] == FileStat(
            real.st_size,
            real.st_mtime_ns,
            real.st_ctime_ns,
            real.st_ino,
        )


def test_both_kinds_tell_the_same(tmp_path: Path) -> None:
    """The units that worker processes give are those that one process gives, in the same order."""
    make_tree(tmp_path)
    told = []
    for make in (inline, processes):
        with make() as workers:
            sink = Collector()
            workers.run(tmp_path, scan(tmp_path), sink)
            told.append(sink.units)
    assert told[0] == told[1]


def test_calls_come_in_source_order(workers: Workers, tmp_path: Path) -> None:
    """wanted and store are each called once per unit, in order, and store after wanted."""
    make_tree(tmp_path)
    sink = Collector()
    workers.run(tmp_path, scan(tmp_path), sink)
    numbers = list(range(len(sink.units)))
    assert [number for name, number in sink.calls if name == "wanted"] == numbers
    assert [number for name, number in sink.calls if name == "store"] == numbers
    for number in numbers:
        assert sink.calls.index(("wanted", number)) < sink.calls.index(("store", number))
    tokens = [file.token for unit in sink.units for file in unit.files if file.first]
    assert tokens == sorted(tokens)


def test_nothing_wanted(workers: Workers, tmp_path: Path) -> None:
    """A sink that wants nothing gets nothing to store, and is told all the same."""
    make_tree(tmp_path)
    files = scan(tmp_path)
    sink = Collector(wants=False)
    workers.run(tmp_path, files, sink)
    assert not sink.raw
    for file in files:
        check_file(sink, file, read(tmp_path, file))


def test_no_files(workers: Workers, tmp_path: Path) -> None:
    """A run without files asks the sink nothing."""
    sink = Collector()
    workers.run(tmp_path, [], sink)
    assert not sink.calls


def test_runs_follow_each_other(workers: Workers, tmp_path: Path) -> None:
    """The same workers serve several runs, on different roots."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name * 3000)
    for name in ("one", "two", "one"):
        sink = Collector()
        workers.run(os.fsencode(tmp_path / name), scan(tmp_path / name), sink)
        assert sink.content(0) == name.encode() * 3000


def test_relative_root(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative root is below the present directory, also when that changed since the start."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a").write_text("content")
    monkeypatch.chdir(tmp_path)
    sink = Collector()
    workers.run("here", scan(tmp_path / "here"), sink)
    assert sink.content(0) == b"content"


def test_many_files_with_long_paths(tmp_path: Path) -> None:
    """Messages about many files with long paths, all of them gone, find their room."""
    names = [b"/".join([b"\xff" * 255] * 15 + [b"%03d" % n]) for n in range(100)]
    files = [SourceFile(name, 0, token) for token, name in enumerate(names)]
    with WorkerPool(workers=1) as workers:
        sink = Collector()
        workers.run(tmp_path, files, sink)
    assert len(sink.errors) == 100
    assert all(isinstance(error, NotFound) for error in sink.errors.values())


def test_files_that_cannot_be_read_are_named(workers: Workers, tmp_path: Path) -> None:
    """What vanished or is no longer a file is told by name; the other files come all the same."""
    names = [b"a", b"gone", b"now a link", b"now a fifo", b"now a folder", b"large gone", b"z"]
    for name in names:
        size = 9000 if name.startswith(b"large") else 100
        (tmp_path / os.fsdecode(name)).write_bytes(Random(name).randbytes(size))
    files = scan(tmp_path, *names)
    for name in names[1:-1]:
        (tmp_path / os.fsdecode(name)).unlink()
    (tmp_path / "now a link").symlink_to("a")
    os.mkfifo(tmp_path / "now a fifo")
    (tmp_path / "now a folder").mkdir()
    sink = Collector()
    workers.run(tmp_path, files, sink)
    kinds = {token: type(error) for token, error in sink.errors.items()}
    assert kinds == {
        1: NotFound,
        2: SourceChanged,
        3: SourceChanged,
        4: SourceChanged,
        5: NotFound,
    }
    for token, error in sink.errors.items():
        assert os.fsdecode(names[token]) in str(error)
        assert not sink.ids[token]
    for token in (0, 6):
        assert sink.content(token) == read(tmp_path, files[token])


def test_unreadable_file_is_denied(make: Make) -> None:
    """A file without read permission is told as Denied, whoever runs the push."""
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path: nobody may look into that
        root = Path(folder)
        root.chmod(0o755)
        (root / "secret").write_bytes(b"x")
        (root / "secret").chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with make() as workers:
                sink = Collector()
                workers.run(root, scan(root), sink)
        finally:
            os.seteuid(user)
    assert isinstance(sink.errors[0], Denied)
    assert "secret" in str(sink.errors[0])


@pytest.mark.parametrize(
    ("before", "after"), [(10, 200), (10, 30_000), (30_000, 10), (30_000, 41_000), (10, 0)]
)
def test_stale_scan(workers: Workers, tmp_path: Path, before: int, after: int) -> None:
    """A file of another size than the scan saw is taken as it is now."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(Random(name).randbytes(before))
    files = scan(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(Random(name).randbytes(after))
    sink = Collector()
    workers.run(tmp_path, files, sink)
    assert not sink.errors
    for file in files:
        check_file(sink, file, read(tmp_path, file))
        assert sink.content(file.token) == read(tmp_path, file)


class Disturber:
    """Stands in for read_full, and changes a file each time it is read, so many times.

    ``after``: reads of that file that are left in peace first.
    """

    def __init__(self, path: Path, times: int, after: int = 0) -> None:
        self._path = path
        self._inode = path.stat().st_ino
        self._times = times
        self._after = after
        self._read_full = read_full

    def __call__(self, fd: int, buffer: memoryview, offset: int, enough: int) -> int:
        got = self._read_full(fd, buffer, offset, enough)
        if os.fstat(fd).st_ino == self._inode:
            self._after -= 1
            if self._after < 0 < self._times:
                self._times -= 1
                with self._path.open("ab") as out:
                    out.write(b"more")
        return got


@pytest.mark.parametrize(("size", "after"), [(100, 0), (30_000, 0), (30_000, 3), (30_000, 7)])
def test_file_that_changes_once_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, after: int
) -> None:
    """A change while a file is read voids what was told of it; the second reading counts."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(Random(name).randbytes(size))
    files = scan(tmp_path)
    monkeypatch.setattr(worker, "read_full", Disturber(tmp_path / "b", 1, after))
    sink = Collector()
    with inline() as workers:
        workers.run(tmp_path, files, sink)
    assert not sink.errors
    for file in files:
        check_file(sink, file, read(tmp_path, file))
        assert sink.content(file.token) == read(tmp_path, file)


@pytest.mark.parametrize("size", [100, 30_000])
def test_file_that_keeps_changing_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A file that changes whenever it is read is SourceChanged; the others come."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(Random(name).randbytes(size))
    files = scan(tmp_path)
    disturber = Disturber(tmp_path / "b", 1000)
    for name in ("read_full", "read_data"):
        monkeypatch.setattr(worker, name, disturber)
    sink = Collector()
    with make() as workers:
        workers.run(tmp_path, files, sink)
    assert list(sink.errors) == [1]
    assert isinstance(sink.errors[1], SourceChanged)
    assert not sink.ids[1]
    for file in (files[0], files[2]):
        assert sink.content(file.token) == read(tmp_path, file)


def test_missing_root(workers: Workers, tmp_path: Path) -> None:
    """A root that is not there is NotFound, and the workers serve on."""
    with pytest.raises(NotFound):
        workers.run(tmp_path / "nowhere", [], Collector())
    workers.run(tmp_path, [], Collector())


def test_error_of_the_sink_ends_the_run(workers: Workers, tmp_path: Path) -> None:
    """What the sink raises comes out of run, and the workers are closed then."""
    make_tree(tmp_path)

    class Full(Collector):
        def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:
            raise Denied("no space for this")

    with pytest.raises(Denied, match="no space"):
        workers.run(tmp_path, scan(tmp_path), Full())
    with pytest.raises(InvalidInput, match="closed"):
        workers.run(tmp_path, scan(tmp_path), Collector())


def test_error_of_the_scan_ends_the_run(workers: Workers, tmp_path: Path) -> None:
    """What the files raise as they are asked for comes out of run."""
    make_tree(tmp_path)

    def files() -> Iterator[SourceFile]:
        yield from scan(tmp_path)
        raise Denied("a folder")

    with pytest.raises(Denied, match="a folder"):
        workers.run(tmp_path, files(), Collector())


def test_buffers_are_valid_during_the_call_only(workers: Workers, tmp_path: Path) -> None:
    """A sink that keeps a buffer cannot read somebody else's bytes from it later."""
    (tmp_path / "a").write_bytes(b"content")
    kept: list[Buffer] = []

    class Keeper(Collector):
        def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:
            kept.extend(data for _, data in stored)

    workers.run(tmp_path, scan(tmp_path), Keeper())
    assert len(kept) == 1
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])


def test_closed_twice(make: Make) -> None:
    """Closing closed workers does nothing."""
    workers = make()
    workers.close()
    workers.close()


def test_unit_must_hold_a_chunk() -> None:
    """A unit smaller than the largest chunk is refused, and so are no workers."""
    with pytest.raises(InvalidInput):
        InlineWorkers(PARAMS, unit_bytes=1023)
    with pytest.raises(InvalidInput):
        WorkerPool(workers=0)
