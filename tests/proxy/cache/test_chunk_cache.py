"""Cache: whatever happens to the process or the machine, what it finds are the right bytes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lodefs.chunkstore.errors import Corrupt, Denied, InUse, InvalidInput, NoSpace, UnknownFormat
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.layout import FileKind, FileState
from lodefs.proxy.cache import durability, recovery
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.reader import read_chunk
from lodefs.proxy.cache.tables import CacheSettings, covered_bytes
from lodefs.proxy.metrics.counters import Counter, Counts
from tests.support.proxy.rig import at_once, chunk_of

MIB = 1024 * 1024
BOOT = b"first boot......"
CHUNK_SIZE_BYTES = 64 * 1024
SMALL = [random.Random(n).randbytes(200 + 9_000 * n) for n in range(20)]
BIG = [random.Random(100 + n).randbytes(MIB + 300_000 * n) for n in range(3)]


class Killed(BaseException):
    """The process ends here: nobody catches this."""


class Opened:
    """A cache, as one life of a process. ``kill`` ends it without any care."""

    def __init__(
        self,
        path: Path,
        *,
        boot: bytes = BOOT,
        size_bytes_max: int = 64 * MIB,
        step: Callable[[str], None] = lambda _name: None,
        free_size_bytes_min: int = 0,
    ) -> None:
        self.counts = Counts()
        settings = CacheSettings(path, size_bytes_max, free_size_bytes_min=free_size_bytes_min)
        self.cache = Cache(
            settings, self.counts, boot=boot, step=step, now_s=lambda: 1000.0, call_soon=at_once
        )

    def clean(self) -> None:
        """What is done in the background after a start."""
        recovery.clean(self.cache, stopping=lambda: False)

    def close(self) -> None:
        """A clean end."""
        assert durability.close(self.cache) == ""
        self.cache.close()

    def kill(self) -> None:
        """The kernel closes descriptors and drops the lock; nothing else happens."""
        for file in [*self.cache.files.values(), *self.cache.retired, *self.cache.evicted]:
            file.users = 0
        self.cache.close()

    def read(self, raw: bytes) -> bytes | None:
        """What a reader gets for a chunk."""
        chunk_id = digest_of(raw)
        (place,) = self.cache.find([layout.chunk_key(chunk_id)])
        if place is None:
            return None
        if not place.file.is_trusted(self.cache.boot) and read_chunk(place, chunk_id) is None:
            self.cache.eviction.drop(place.file, "wrong bytes")
            return None
        with place.file.in_use() as fd:
            return os.pread(fd, place.size_bytes, place.offset)

    def store_small(self, raws: list[bytes]) -> bool:
        """Small files' chunks into a slab."""
        return bool(self.cache.store([chunk_of(raw) for raw in raws], None))

    def store_big(self, content: bytes, first: int, count: int) -> bool:
        """Those of a run of a big file's chunks that are not here yet."""
        new = [
            chunk_of(raw, offset)
            for offset, raw in chunks_of(content)[first : first + count]
            if self.cache.find([layout.chunk_key(digest_of(raw))]) == [None]
        ]
        flat = Flat(digest_of(content), len(content))
        return not new or bool(self.cache.store(new, flat))


def chunks_of(content: bytes) -> list[tuple[int, bytes]]:
    """Offsets and chunks of a big file."""
    starts = range(0, len(content), CHUNK_SIZE_BYTES)
    return [(start, content[start : start + CHUNK_SIZE_BYTES]) for start in starts]


ALL = [*SMALL, *(raw for content in BIG for _, raw in chunks_of(content))]


def check(opened: Opened) -> int:
    """Every chunk is here and right, or not here; how many are."""
    found = 0
    for raw in ALL:
        data = opened.read(raw)
        assert data in (None, raw)
        found += data is not None
    return found


def check_figures(opened: Opened) -> None:
    """Used bytes are those of the files, and every file on disk has a row."""
    files = opened.cache.files
    assert opened.cache.used_bytes == sum(file.present_bytes for file in files.values())
    on_disk = {
        path
        for kind in (layout.SLABS_DIR, layout.FLAT_DIR)
        for path in (opened.cache.settings.path / kind).rglob("*")
        if path.is_file()
    }
    assert on_disk <= {file.path for file in files.values()}
    for file in files.values():
        runs = opened.cache.kv.scan(layout.run_prefix(file.number))
        assert sum(layout.run_size(value) for _, value in runs) == file.present_bytes


def power_cut(path: Path, opened: Opened, rng: random.Random) -> None:
    """Spoils what is not known to be on disk, as a power cut may."""
    opened.kill()
    for file in opened.cache.files.values():
        if file.boot == layout.DURABLE or not file.path.exists():
            continue
        harm = rng.randrange(4)
        if harm == 0:
            file.path.unlink()
        elif harm == 1:
            os.truncate(file.path, rng.randrange(file.size_bytes + 1))
        elif harm == 2:
            with file.path.open("r+b") as spoiled:
                spoiled.seek(rng.randrange(file.size_bytes + 1))
                spoiled.write(bytes(4096))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@contextmanager
def opened_at(path: Path, **more: object) -> Iterator[Opened]:
    opened = Opened(path, **more)  # type: ignore[arg-type]
    try:
        yield opened
    finally:
        opened.close()


def test_chunks_come_back_after_a_restart(path: Path) -> None:
    """Slab and flat chunks are found, also by the next process, without any being checked."""
    with opened_at(path) as opened:
        assert opened.store_small(SMALL)
        for content in BIG:
            assert opened.store_big(content, 0, 1000)
        assert check(opened) == len(ALL)
    with opened_at(path, boot=b"another boot....") as opened:
        assert all(file.boot == layout.DURABLE for file in opened.cache.files.values())
        assert check(opened) == len(ALL)
        opened.clean()
        check_figures(opened)


def test_a_flat_file_is_complete_when_all_chunks_are_there(path: Path) -> None:
    """Pieces in any order end in a file with the dataset file's bytes, read-only, never before."""
    content = BIG[2]
    order = list(range(len(chunks_of(content))))
    random.Random(4).shuffle(order)
    with opened_at(path) as opened:
        for n in order:
            assert opened.cache.complete_flat(digest_of(content)) is None
            opened.store_big(content, n, 1)
        file = opened.cache.complete_flat(digest_of(content))
        assert file is not None
        assert file.path.read_bytes() == content
        assert file.path.stat().st_mode & 0o777 == 0o444


def test_a_chunk_stored_twice_does_not_complete_a_file(path: Path) -> None:
    """Completeness is about covered bytes, not about how many were written."""
    content = BIG[0]
    raws = chunks_of(content)
    chunk = chunk_of(raws[0][1], 0)
    with opened_at(path) as opened:
        for _ in range(len(raws) + 1):
            opened.cache.store([chunk], Flat(digest_of(content), len(content)))
        assert opened.cache.complete_flat(digest_of(content)) is None


def test_covered_bytes_counts_overlaps_once() -> None:
    """Runs that overlap or repeat count once."""
    assert covered_bytes(iter([(0, 10), (0, 10), (5, 10), (20, 5)])) == 20
    assert covered_bytes(iter([])) == 0


def test_eviction_takes_the_least_recently_used_and_unlinks_it(path: Path) -> None:
    """The oldest file goes, rows and bytes; an open descriptor still reads it."""
    with opened_at(path) as opened:
        for n, content in enumerate(BIG):
            opened.store_big(content, 0, 1000)
            opened.cache.flats[digest_of(content)].last_use_s = n
        oldest = opened.cache.flats[digest_of(BIG[0])]
        with oldest.in_use() as fd:
            opened.cache.eviction.free(1)  # it is in use: the next one goes
            assert oldest.is_alive
            assert opened.cache.flats.get(digest_of(BIG[1])) is None
            opened.cache.eviction.drop(oldest, "a test")
            assert os.pread(fd, len(BIG[0]), 0) == BIG[0]
        opened.cache.trim()
        assert oldest.fd == -1
        assert not oldest.path.exists()
        assert check(opened) == len(chunks_of(BIG[2]))
        check_figures(opened)


def test_the_limit_holds(path: Path) -> None:
    """However much is stored, the cache holds no more than its limit, and evicts whole files."""
    limit = 8 * MIB
    rng = random.Random(9)
    with opened_at(path, size_bytes_max=limit) as opened:
        for _ in range(60):
            raws = [rng.randbytes(100_000) for _ in range(5)]
            assert opened.store_small(raws)
            assert [opened.read(raw) for raw in raws] == raws
            assert opened.cache.used_bytes <= limit
        assert opened.counts.values[Counter.EVICTED_FILES] > 0
        check_figures(opened)


def test_what_exceeds_the_limit_is_not_kept(path: Path) -> None:
    """A store that cannot fit says so and leaves nothing behind."""
    with opened_at(path, size_bytes_max=MIB) as opened:
        assert not opened.store_small([bytes(2 * MIB)])
        assert opened.cache.used_bytes == opened.cache.reserved_bytes == 0
        opened.clean()
        check_figures(opened)


@pytest.mark.parametrize("where", ["create", "data", "rows"])
def test_a_full_disk_keeps_nothing_and_breaks_nothing(path: Path, where: str) -> None:
    """ENOSPC at any point of a store: it keeps nothing, what was there stays right, and the next
    store works."""
    full = [False]

    def step(name: str) -> None:
        if full[0] and name == where:
            told = "No space left on device"
            raise NoSpace(told) if where == "rows" else OSError(errno.ENOSPC, told)

    with opened_at(path, step=step) as opened:
        assert opened.store_small(SMALL[:5])
        full[0] = True
        opened.cache.eviction.free = lambda _size_bytes: None  # type: ignore[method-assign, assignment]
        assert opened.store_small(SMALL[5:]) is (where == "create")  # the slab is there already
        assert not opened.store_big(BIG[0], 0, 1000)
        full[0] = False
        assert check(opened) == (20 if where == "create" else 5)
        assert opened.store_small(SMALL[5:])
        assert opened.store_big(BIG[0], 0, 1000)
        assert opened.cache.complete_flat(digest_of(BIG[0])) is not None


def test_a_full_disk_evicts(path: Path) -> None:
    """Where the disk is full before the limit is reached, old files make room."""
    full = [False]

    def step(name: str) -> None:
        if full[0] and name == "data":
            raise OSError(errno.ENOSPC, "No space left on device")

    with opened_at(path, step=step) as opened:
        opened.store_big(BIG[0], 0, 1000)
        full[0] = True
        assert not opened.store_big(BIG[1], 0, 1000)
        assert digest_of(BIG[0]) not in opened.cache.flats


def _life(opened: Opened) -> None:
    """All that a process does to a cache."""
    opened.store_small(SMALL[:6])
    opened.store_big(BIG[0], 3, 5)
    durability.sync(opened.cache)
    opened.store_big(BIG[0], 0, 1000)
    opened.store_small(SMALL[6:12])
    opened.store_big(BIG[1], 0, 10)
    opened.cache.eviction.free(1)
    opened.store_small(SMALL[12:])
    opened.cache.eviction.free(4 * MIB)
    opened.store_big(BIG[1], 0, 10)
    durability.sync(opened.cache)


def _steps(path: Path) -> list[str]:
    names: list[str] = []
    opened = Opened(path, step=names.append)
    _life(opened)
    opened.close()
    return names


@pytest.mark.slow
@pytest.mark.parametrize("cut", [False, True], ids=["kill", "power cut"])
def test_killed_at_every_step(tmp_path: Path, cut: bool) -> None:
    """A process that ends at any step, by a kill or with the machine, leaves a cache in which
    every chunk is right or missing, and which cleans itself up."""
    names = _steps(tmp_path / "dry")
    assert {"create", "data", "rows", "complete", "sync", "unlink", "evict mark"} <= set(names)
    for stop in range(len(names)):
        path = tmp_path / f"at {stop}"
        left = [stop]

        def step(_name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        opened = Opened(path, step=step)
        with pytest.raises(Killed):
            _life(opened)
        if cut:
            power_cut(path, opened, random.Random(stop))
        else:
            opened.kill()
        with opened_at(path, boot=b"another boot...." if cut else BOOT) as opened:
            check(opened)
            opened.clean()
            check(opened)
            check_figures(opened)
            assert all(f.is_trusted(opened.cache.boot) for f in opened.cache.files.values())
            _life(opened)
            check(opened)
            check_figures(opened)


@pytest.mark.parametrize("clean_first", [False, True])
def test_flipped_bits_after_a_power_cut_are_noticed(path: Path, clean_first: bool) -> None:
    """A file that was not synced before the machine went down is checked before its use."""
    opened = Opened(path)
    opened.store_small(SMALL)
    opened.store_big(BIG[0], 0, 1000)
    opened.kill()
    for file in [*(path / "slabs").rglob("*"), *(path / "flat").rglob("*")]:
        if file.is_file():
            data = bytearray(file.read_bytes())
            data[100] ^= 1
            file.chmod(0o644)
            file.write_bytes(data)
    with opened_at(path, boot=b"another boot....") as opened:
        assert opened.cache.complete_flat(digest_of(BIG[0])) is None
        if clean_first:
            opened.clean()
        assert opened.read(SMALL[0]) is None
        assert opened.read(BIG[0][:CHUNK_SIZE_BYTES]) is None
        assert opened.counts.values[Counter.CACHE_CORRUPT] == 2


def test_unsynced_files_become_trusted_once_checked(path: Path) -> None:
    """After a power cut that did no harm, the background check makes all files usable again."""
    opened = Opened(path)
    opened.store_big(BIG[0], 0, 1000)
    opened.kill()
    with opened_at(path, boot=b"another boot....") as opened:
        assert opened.cache.complete_flat(digest_of(BIG[0])) is None
        opened.clean()
        assert opened.cache.complete_flat(digest_of(BIG[0])) is not None


def test_a_kill_needs_no_checking(path: Path) -> None:
    """Within one boot the kernel has what a killed process wrote."""
    opened = Opened(path)
    opened.store_big(BIG[0], 0, 1000)
    opened.kill()
    with opened_at(path) as opened:
        assert opened.cache.complete_flat(digest_of(BIG[0])) is not None


def test_file_numbers_are_never_used_again(path: Path) -> None:
    """Also after everything was evicted and the process started anew: an old view of the index
    must not find other bytes under an old number."""
    seen: set[int] = set()
    for _ in range(3):
        with opened_at(path) as opened:
            opened.store_small(SMALL)
            opened.store_big(BIG[0], 0, 1000)
            numbers = set(opened.cache.files)
            assert not numbers & seen
            seen |= numbers
            opened.cache.eviction.free(100 * MIB)


def test_a_second_owner_is_refused(path: Path) -> None:
    """The error names the directory and the owner's process id."""
    with opened_at(path), pytest.raises(InUse, match=rf"{path}.*process {os.getpid()}"):
        Opened(path)


def test_a_damaged_index_is_given_up(path: Path) -> None:
    """A cache whose index cannot be read is Corrupt, each time, and held by nobody."""
    with opened_at(path) as opened:
        opened.cache.kv.write([(layout.file_key(7), b"no row")])
    for _ in range(2):
        with pytest.raises(Corrupt), opened_at(path):
            pass


def test_a_newer_format_is_refused(path: Path) -> None:
    """A cache of another version is left alone, and the error names both."""
    Opened(path).close()
    (path / "VERSION").write_text("lodefs-cache 3\n")
    with pytest.raises(UnknownFormat, match=r"lodefs-cache 3.*lodefs-cache 2"):
        Opened(path)
    (path / "VERSION").unlink()
    with pytest.raises(UnknownFormat, match="missing"):
        Opened(path)
    (path / "VERSION").write_text("lodefs-cache 2\n")
    Opened(path).close()


def test_a_file_in_place_of_the_directory(path: Path) -> None:
    """A cache directory that is a file is the caller's mistake."""
    path.write_text("")
    with pytest.raises(InvalidInput, match="not a directory"):
        Opened(path)


def test_a_directory_that_cannot_be_written_is_denied() -> None:
    """No right to write: the error says where and what to do. Root may write almost anywhere, but
    nobody can make directories in sysfs."""
    with pytest.raises(Denied, match=r"/sys/lodefs-cache.*another cache directory"):
        Opened(Path("/sys/lodefs-cache"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    target = tmp_path / "disk"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", target], check=True)
    yield target
    subprocess.run(["umount", "--lazy", target], check=True)


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.parametrize("polite", [True, False])
def test_a_disk_smaller_than_the_limit(small_disk: Path, polite: bool) -> None:
    """On a disk that is really full, through us or through others, stores fail or evict, nothing
    raises, and all that is found is right; the index works again when there is space."""
    rng = random.Random(5)
    hog = small_disk / "hog"
    free = 4 * MIB if polite else 0
    with opened_at(
        small_disk / "cache", size_bytes_max=1024 * MIB, free_size_bytes_min=free
    ) as opened:
        for n in range(80):
            raws = [rng.randbytes(100_000) for _ in range(10)]
            stored = opened.store_small(raws)
            assert [opened.read(raw) for raw in raws] == (raws if stored else [None] * 10)
            if n == 30:
                hog.write_bytes(bytes(shutil.disk_usage(small_disk).free))
            if n == 50:
                hog.unlink()
        assert stored
        assert opened.counts.values[Counter.FILLED_BYTES] > 24 * MIB
        opened.cache.eviction.finish()
        check_figures(opened)


class Lives(RuleBasedStateMachine):
    """A cache against a model of it, over restarts, kills and power cuts."""

    @initialize()
    def begin(self) -> None:
        self._kept = tempfile.TemporaryDirectory()
        self.path = Path(self._kept.name) / "cache"
        self.boots = 0
        self.rng = random.Random(0)
        self.opened = self._open()

    def _open(self) -> Opened:
        boot = b"boot %011d" % self.boots
        return Opened(self.path, boot=boot, size_bytes_max=4 * MIB)

    @rule(first=st.integers(0, 19), count=st.integers(1, 5))
    def small(self, first: int, count: int) -> None:
        raws = SMALL[first : first + count]
        if self.opened.store_small(raws):
            assert [self.opened.read(raw) for raw in raws] == raws

    @rule(n=st.integers(0, 2), first=st.integers(0, 25), count=st.integers(1, 12))
    def big(self, n: int, first: int, count: int) -> None:
        self.opened.store_big(BIG[n], first, count)

    @rule(size_bytes=st.integers(1, 3 * MIB))
    def free(self, size_bytes: int) -> None:
        self.opened.cache.eviction.free(size_bytes)

    @rule()
    def sync(self) -> None:
        durability.sync(self.opened.cache)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.opened.close()
        self.opened = self._open()
        if clean:
            self.opened.clean()

    @rule(clean=st.booleans())
    def kill(self, clean: bool) -> None:
        self.opened.kill()
        self.opened = self._open()
        if clean:
            self.opened.clean()

    @rule(clean=st.booleans())
    def power_cut(self, clean: bool) -> None:
        power_cut(self.path, self.opened, self.rng)
        self.boots += 1
        self.opened = self._open()
        if clean:
            self.opened.clean()

    @invariant()
    def right_or_missing(self) -> None:
        if hasattr(self, "opened"):
            check(self.opened)
            assert self.opened.cache.used_bytes <= 4 * MIB

    @invariant()
    def complete_files_are_whole(self) -> None:
        if hasattr(self, "opened"):
            for content in BIG:
                file = self.opened.cache.complete_flat(digest_of(content))
                assert file is None or file.path.read_bytes() == content

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.close()
            self._kept.cleanup()


Lives.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestLives = pytest.mark.slow(Lives.TestCase)


def test_kinds_and_states_are_fixed() -> None:
    """The numbers stand in rows on disk."""
    assert [*FileKind] == [1, 2]
    assert [*FileState] == [1, 2, 3]


def test_a_late_store_harms_no_cache_that_came_after(path: Path) -> None:
    """A fetch that returns when its cache is closed, removed and replaced by a new one that counts
    files from the beginning removes nothing of that."""
    old = Opened(path, size_bytes_max=4 * MIB)
    for _ in range(18):  # more than would be left free by an eviction
        assert old.store_small([os.urandom(200_000)])
    old.cache.end_stores()
    old.cache.close()
    shutil.rmtree(path)
    with opened_at(path) as new:
        assert new.store_small([b"new" * 1000])
        before = sorted(path.glob("slabs/*/*"))
        assert not old.store_small([os.urandom(2_000_000)])
        assert sorted(path.glob("slabs/*/*")) == before
