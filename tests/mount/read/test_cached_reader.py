"""Direct reads: what the proxy has on the node is read without it, and never wrongly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import LodefsError, NotADirectory, NotFound, Unavailable
from lodefs.chunkstore.format.inodes import ROOT_INO
from lodefs.chunkstore.nodecache import index_logs
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.cached_snapshot import RETRY_S
from lodefs.chunkstore.nodecache.index_logs import remove_leftovers
from lodefs.chunkstore.nodecache.layout import FileKind
from lodefs.chunkstore.nodecache.view import CacheView, open_view
from lodefs.chunkstore.protocol.wire import CacheExtent, CachePlace, Snapshot
from lodefs.chunkstore.system.lru import Lru
from lodefs.mount.read import memory_fit
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.read import flat_completion
from tests.support.chunkstore.child_process import run
from tests.support.mount.cached_place import BIG, DATA, FILES, Place, place_on
from tests.support.proxy.rig import MIB, Rig, serve_rig

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that lie in several files of the cache stay so."""
    monkeypatch.setattr(flat_completion, "PAUSE_S", 3600)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_on(tmp_path) as made:
        made.turn()
        yield made


def test_warm_reads_ask_nobody(place: Place) -> None:
    """Files of one chunk, of some, large ones and empty ones: bytes and names without a request."""
    assert place.lines == []
    place.warm(*FILES)
    with place.asked(DATA), place.asked("lookup"), place.asked("node"), place.asked("children"):
        for path, data in FILES.items():
            assert place.read(path) == data, path
            assert place.reader.node(place.ino(path)).size_bytes == len(data)
        names = [node.name for node in place.reader.children(place.ino(b"many"), b"", 4096).nodes]
        assert names == [b"%04d" % n for n in range(700)]
    assert place.lines == []


def test_ranges(place: Place) -> None:
    """Ranges inside, over the end and behind it."""
    place.warm()
    with place.asked(DATA):
        for path in (b"one", b"two", b"middle", b"big", b"same"):
            data = FILES[path]
            ino = place.look_up(path)
            for first in (0, 1, 999, 1000, len(data) // 2, len(data) - 1, len(data), len(data) + 5):
                for size in (1, 1001, 70_000):
                    found = bytes(place.reader.read(ino, first, size))
                    assert found == data[first : first + size], (path, first, size)


def test_a_known_entry_saves_lookups(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the entry of a small file is known, a read of it takes one look-up in the index, for its
    chunk. A read of a complete large file takes none after the first."""
    place.warm()
    keys: list[bytes] = []
    get = place.view._kv.get

    def counted(key: bytes) -> bytes | None:
        keys.append(key)
        return get(key)

    for path, expected in ((b"one", 1), (b"big", 0)):
        ino = place.look_up(path)
        place.reader.read(ino, 0, 4096)
        place.remembered.put(ino, place.reader.node(ino))
        monkeypatch.setattr(place.view._kv, "get", counted)
        keys.clear()
        assert bytes(place.reader.read(ino, 0, 4096)) == FILES[path][:4096]
        assert len(keys) == expected, path
        monkeypatch.undo()


def test_a_part_of_a_large_file(place: Place) -> None:
    """What is there of an incomplete flat file is read directly; the rest is asked for."""
    ino = place.look_up(b"big")
    assert bytes(place.reader.read(ino, 0, 1000)) == BIG[:1000]
    place.turn()
    with place.asked(DATA):
        assert bytes(place.reader.read(ino, 10, 900)) == BIG[10:910]
    assert place.reader.complete_flat(ino) is None
    with place.asked(DATA, None):
        assert bytes(place.reader.read(ino, len(BIG) - 5, 5)) == BIG[-5:]


def test_an_old_view_asks_and_then_knows(place: Place) -> None:
    """A miss is answered by the proxy, without waiting for news of the index, and has these looked
    for; not more often than every now and then."""
    ino = place.look_up(b"middle")
    with place.asked(DATA, 2):
        for _ in range(2):
            assert bytes(place.reader.read(ino, 0, 4096)) == FILES[b"middle"][:4096]
            place.monitor.refresh()  # what the thread does when it is woken; no time has passed
    assert place.monitor.is_woken
    place.clock.now_s += 60
    place.monitor.refresh()
    with place.asked(DATA):
        assert bytes(place.reader.read(ino, 0, 4096)) == FILES[b"middle"][:4096]


def test_names_are_sure_only_where_a_directory_is_loaded(place: Place) -> None:
    """A missing name is asked for once; then the index says so itself. Pages go on after names."""
    with place.asked("lookup", None), pytest.raises(NotFound):
        place.reader.lookup(ROOT_INO, b"none")
    place.turn()
    with place.asked("lookup", 0):
        with pytest.raises(NotFound):
            place.reader.lookup(ROOT_INO, b"none")
        assert place.reader.lookup(ROOT_INO, b"many").name == b"many"
    many = place.ino(b"many")
    with place.asked("children", 1):
        place.reader.children(many, b"", 10)
    place.turn()
    with place.asked("children"):
        page = place.reader.children(many, b"0300", 300)
        assert [node.name for node in page.nodes] == [b"%04d" % n for n in range(301, 601)]
        assert page.more
        assert not place.reader.children(many, b"0600", 300).more
        assert place.reader.children(many, b"0699", 300).nodes == []
    with pytest.raises(NotADirectory):
        place.reader.lookup(place.ino(b"one"), b"x")
    with pytest.raises(NotFound):
        place.reader.node(12345)


@pytest.mark.parametrize(("available_bytes", "expected"), [(1 << 40, 1), (0, 0)])
def test_neighbours_come_from_the_disk_together(
    place: Place, monkeypatch: pytest.MonkeyPatch, available_bytes: int, expected: int
) -> None:
    """A small file that is not in memory brings what lies around it in its slab, where the dataset
    fits into memory; a large one brings nothing, since the kernel reads ahead in its own file."""
    preadv = os.preadv
    brought: list[tuple[int, int]] = []

    def on_disk(fd: int, buffers: tuple[memoryview, ...], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError
        return preadv(fd, buffers, offset)

    def advise(_fd: int, offset: int, size_bytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        brought.append((offset, size_bytes))

    monkeypatch.setattr(memory_fit, "available_bytes", lambda: available_bytes)
    place.warm()
    monkeypatch.setattr(os, "preadv", on_disk)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    assert place.read(b"two") == FILES[b"two"]
    size_bytes = memory_fit.NEIGHBOURS_SIZE_BYTES
    assert [(offset % size_bytes, size) for offset, size in brought] == [(0, size_bytes)] * expected
    assert place.read(b"big", 0, 4096) == BIG[:4096]
    assert len(brought) == expected


def test_evicted_files_are_asked_for_and_let_go(place: Place) -> None:
    """After an eviction nothing wrong is read, and no descriptor keeps the space."""
    place.warm()
    place.warm()  # directly
    for file in list(place.node._cache.files.values()):
        assert place.node._cache.eviction.evict(file)
    assert any("(deleted)" in target for target in open_targets(place.cache))
    with place.asked(DATA):  # what is open has the right bytes yet
        assert place.read(b"big", 5, 100) == BIG[5:105]
    place.turn()
    assert not any(".sst" not in t and "(deleted)" in t for t in open_targets(place.cache))
    with place.asked(DATA, None):
        for path, data in FILES.items():
            assert place.read(path) == data


def open_targets(below: Path) -> list[str]:
    """What this process has open of a cache's slabs and flat files."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith((str(below / layout.SLABS_DIR), str(below / layout.FLAT_DIR))):
            found.append(target)
    return found


def cache_files(cache: Path, kind: FileKind) -> list[Path]:
    folder = layout.FLAT_DIR if kind is FileKind.FLAT else layout.SLABS_DIR
    return [path for path in (cache / folder).rglob("*") if path.is_file()]


def cut(path: Path) -> None:
    os.chmod(path, 0o644)
    os.truncate(path, 100)


@pytest.mark.parametrize("harm", [os.unlink, cut], ids=["deleted", "truncated"])
def test_a_damaged_cache_file_is_asked_for(place: Place, harm: Callable[[Path], None]) -> None:
    """A file that somebody deletes or cuts gives right bytes, before and after it is opened."""
    place.warm()
    place.warm()
    for _ in range(2):
        for kind in FileKind:
            for file in cache_files(place.cache, kind):
                harm(file)
        for path, data in FILES.items():
            assert place.read(path) == data, path
        place.turn()
        place.turn()
    place.warm()
    if harm is cut:  # the proxy saw it, and dropped the file
        with place.asked(DATA):
            for path, data in FILES.items():
                assert place.read(path) == data, path
    assert len(place.lines) <= 4
    assert all("is truncated" in line for line in place.lines)


def test_files_of_before_a_power_cut_are_not_trusted(place: Place) -> None:
    """Rows that name another boot send the reader to the proxy, which checks the bytes."""
    place.warm()
    kv = place.node._cache.kv
    for number, file in place.node._cache.files.items():
        row = file.row._replace(boot=b"another boot 123")
        kv.write([(layout.file_key(number), layout.encode_file_row(row))])
    place.monitor.view = None
    place.turn()
    with place.asked(DATA, None):
        assert place.read(b"big", 0, 5000) == BIG[:5000]
        assert place.read(b"one") == FILES[b"one"]
    assert place.reader.complete_flat(place.ino(b"big")) is None


def test_a_new_index_at_the_same_place(place: Place, tmp_path: Path) -> None:
    """Somebody removed the index: files that are opened then may have any bytes, and are not
    read; the view is given up."""
    place.warm()
    view = place.view
    node = place.reader.node(place.ino(b"one"))
    view._files = Lru(4)  # nothing is open
    assert view.find(node, 0, 3) is not None
    view._files = Lru(4)
    os.rename(place.cache / layout.INDEX_DIR, tmp_path / "elsewhere")
    (place.cache / layout.INDEX_DIR).mkdir()
    assert view.find(node, 0, 3) is None
    place.monitor.maintain()
    assert place.monitor.view is None
    assert place.read(b"one") == FILES[b"one"]
    shutil.rmtree(place.cache / layout.INDEX_DIR)
    os.rename(tmp_path / "elsewhere", place.cache / layout.INDEX_DIR)


def test_a_place_in_a_new_cache_is_not_looked_for_in_an_old_one(
    place: Place, tmp_path: Path
) -> None:
    """A proxy that has begun a new cache tells of a file with a number that an old one has, too:
    its bytes are asked for, since those of the old file are others."""
    place.warm()
    ino = place.ino(b"one")
    client = place.clients[0].mounted(place.snapshot)
    (told,) = client.locate(ino, 0, 7)
    assert isinstance(told, CacheExtent)
    assert place.view.tell(ino, told) is not None
    os.rename(place.cache / layout.INDEX_DIR, tmp_path / "elsewhere")
    (place.cache / layout.INDEX_DIR).mkdir()
    assert place.view.tell(ino, told) is None
    assert place.monitor.fetch(client, ino, 0, 7) == [FILES[b"one"]]
    shutil.rmtree(place.cache / layout.INDEX_DIR)
    os.rename(tmp_path / "elsewhere", place.cache / layout.INDEX_DIR)


def test_reports(place: Place) -> None:
    """The proxy hears which files were read, how often and how much: hits stay true."""
    place.warm()
    counts = place.node.counts.values
    before = {name: counts[name] for name in (Counter.HITS, Counter.DIRECT, Counter.DIRECT_BYTES)}
    for file in place.node._cache.files.values():
        file.last_use_s = 0
    place.read(b"big")
    place.read(b"one")
    place.turn()
    assert counts[Counter.DIRECT] - before[Counter.DIRECT] == 5  # of at most 1 MiB
    assert counts[Counter.DIRECT_BYTES] - before[Counter.DIRECT_BYTES] == len(BIG) + len(
        FILES[b"one"]
    )
    assert counts[Counter.HITS] - before[Counter.HITS] == 5
    used = {file.kind for file in place.node._cache.files.values() if file.last_use_s}
    assert used == {FileKind.FLAT, FileKind.SLAB}
    with place.asked("cache-used"):
        place.turn()  # nothing new to tell


def test_directories_that_were_loaded_meanwhile_are_listed_without_the_proxy(place: Place) -> None:
    """A listing that the view does not know is asked for, and has news looked for: with them come
    the directories that the proxy loaded meanwhile."""
    below = place.clients[0].mounted(place.snapshot).lookup(ROOT_INO, b"d").ino
    place.clients[0].mounted(place.snapshot).children(below, b"", 10)
    assert not place.monitor.is_woken
    with place.asked("children", 1):
        assert [node.name for node in place.reader.children(below, b"", 10).nodes] == [b"x"]
    assert place.monitor.is_woken
    place.clock.now_s += 60
    place.monitor.refresh()
    with place.asked("children"):
        assert [node.name for node in place.reader.children(below, b"", 10).nodes] == [b"x"]


def test_large_files_that_are_read_by_chunks_are_reported(place: Place) -> None:
    """The proxy hears of a file that has no complete flat file, so that it can complete it, and of
    no file that has one."""
    place.warm()
    noted = place.node.files._completion._noted
    noted.clear()
    assert place.read(b"big") == BIG
    assert place.read(b"same") == FILES[b"same"]
    place.turn()
    assert [known.starts[-1] for known, _ in noted.values()] == [len(FILES[b"same"])]


def test_the_whole_flat_file(place: Place) -> None:
    """A complete large file is given as a descriptor of all its bytes; no other file is."""
    place.warm()
    fd = place.reader.complete_flat(place.ino(b"big"))
    assert fd is not None
    assert os.pread(fd, len(BIG) + 1, 0) == BIG
    for path in (b"one", b"middle", b"same", b"d", b"nothing"):
        assert place.reader.complete_flat(place.ino(path)) is None
    for file in cache_files(place.cache, FileKind.FLAT):
        cut(file)
    assert place.reader.complete_flat(place.ino(b"big")) is None


@pytest.mark.parametrize("what", ["symlink", "directory", "fifo"])
def test_nothing_in_the_cache_leads_out_of_it(place: Place, what: str) -> None:
    """Who reads it may be root, and its files are the proxy's user's: symlinks to others, and files
    that are none, are left to the proxy."""
    place.warm()
    for file in cache_files(place.cache, FileKind.FLAT):
        moved = file.parent if what == "directory" else file
        if not moved.is_symlink():
            outside = moved.rename(place.rig.directory / moved.name)
            os.mkfifo(moved) if what == "fifo" else moved.symlink_to(outside)
    view = place.open(CachePlace(os.fsencode(place.cache), layout.VERSION), place.snapshot)
    node = view.node(place.ino(b"big"))
    assert node is not None
    assert view.complete_flat(node) is None
    assert view.find(node, 0, 10) is None


@pytest.mark.parametrize("change", ["layout", "version", "gone", "index"])
def test_a_cache_that_cannot_be_read_is_left_alone(place: Place, change: str) -> None:
    """Another layout, no such directory here (a container), a broken index: one line in the log,
    and everything is asked of the proxy."""
    place.monitor.view = None

    def changed(found: CachePlace, snapshot: Snapshot) -> CacheView:
        match change:
            case "layout":
                found = CachePlace(found.directory, layout.VERSION + 1)
            case "gone":
                found = CachePlace(found.directory + b"-not-here", layout.VERSION)
            case _:
                other = place.rig.directory / "other"
                other.mkdir(exist_ok=True)
                text = "lodefs-cache 9\n" if change == "version" else layout.VERSION_TEXT
                (other / layout.VERSION_FILE).write_text(text)
                found = CachePlace(os.fsencode(other), layout.VERSION)
        return open_view(found, snapshot)

    place.monitor._opener = changed
    for _ in range(3):
        place.turn()
    assert place.monitor.view is None
    assert len(place.lines) == 1
    assert "not read directly" in place.lines[0]
    with place.asked(DATA, None):
        assert place.read(b"one") == FILES[b"one"]


def test_a_failing_index_is_opened_anew(place: Place) -> None:
    """An error of the index costs nothing but a request, and one line; it is tried again later."""
    place.warm()
    place.view._kv.close()
    with place.asked(DATA, None):
        for path in (b"middle", b"two"):
            assert place.read(path) == FILES[path]
    assert len(place.lines) == 1
    place.monitor.maintain()
    assert place.monitor.view is None
    place.turn(RETRY_S)
    with place.asked(DATA):
        assert place.read(b"middle") == FILES[b"middle"]


def test_reads_go_on_without_the_proxy(tmp_path: Path) -> None:
    """A stopped proxy is not needed for what is here; a new one on the same cache is used."""
    rig = Rig(tmp_path, FILES)
    socket_path = tmp_path / "proxy.sock"
    with serve_rig(rig, socket_path=socket_path) as (proxy, node):
        place = Place(rig, proxy, node)
        place.turn()
        place.warm(b"middle", b"one")
    for path in (b"middle", b"one"):
        assert place.read(path) == FILES[path]
    place.turn()
    with serve_rig(rig, socket_path=socket_path):
        place.turn()
        assert place.read(b"big") == BIG
        place.turn()
        assert place.read(b"big") == BIG
    place.close()
    assert place.lines == []


def test_another_cache_of_the_proxy_is_found(place: Place) -> None:
    """Where the proxy has another cache directory now, that one is opened."""
    first = place.view
    place.turn()
    assert place.view is first
    moved = place.rig.directory / "moved"
    moved.symlink_to(place.cache)
    place.clients[1].cache_place = (  # type: ignore[method-assign]
        lambda: CachePlace(os.fsencode(moved), layout.VERSION)
    )
    place.turn()
    place.turn()
    assert place.view.directory == moved


def test_a_proxy_that_shares_nothing(place: Place) -> None:
    """One that does not tell where its cache lies is asked for everything, after one line."""
    place.monitor.view = None

    def refuse() -> CachePlace:
        raise NotFound("no such path")

    place.clients[1].cache_place = refuse  # type: ignore[method-assign]
    for _ in range(3):
        place.turn()
    assert len(place.lines) == 1
    assert "shares no cache" in place.lines[0]


def test_lost_reports_are_sent_later(place: Place) -> None:
    """Figures that the proxy did not hear come with the next report."""
    place.warm()
    report = place.clients[1].report
    place.read(b"one")

    def fail(_used: object) -> None:
        raise Unavailable("no proxy")

    place.clients[1].report = fail  # type: ignore[method-assign, assignment]
    place.turn()
    place.clients[1].report = report  # type: ignore[method-assign]
    before = place.node.counts.values[Counter.DIRECT]
    place.turn()
    assert place.node.counts.values[Counter.DIRECT] == before + 1


ACTIONS = st.one_of(
    st.tuples(
        st.just("read"),
        st.sampled_from([b"one", b"two", b"middle", b"big", b"same", b"many/0007"]),
        st.floats(0, 1),
        st.sampled_from([1, 4096, 70_000, MIB]),
    ),
    st.tuples(st.sampled_from(["evict", "delete", "cut"]), st.integers(0, 20)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("wait")),
)


@settings(max_examples=25)
@given(actions=st.lists(ACTIONS, min_size=5, max_size=40))
def test_bytes_are_always_right(
    actions: list[tuple[object, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is read, filled, evicted or damaged in between: the bytes are the file's."""
    with place_on(tmp_path_factory.mktemp("place"), size_bytes_max=4 * MIB) as place:
        place.turn()
        for action in actions:
            act(place, *action)
        for path in (b"one", b"middle", b"big"):
            assert place.read(path) == FILES[path]


def act(place: Place, what: object, *how: object) -> None:
    """One step of the test above."""
    files = list(place.node._cache.files.values())
    match what, how:
        case "read", (bytes(path), float(part), int(size)):
            first = int(part * len(FILES[path]))
            found = bytes(place.reader.read(place.look_up(path), first, size))
            assert found == FILES[path][first : first + size]
        case "turn", _:
            place.turn()
        case "wait", _:
            place.clock.now_s += 60
        case _, (int(n),) if files:
            file = files[n % len(files)]
            if what == "evict":
                place.node._cache.eviction.evict(file)
            elif file.path.exists():
                (os.unlink if what == "delete" else cut)(file.path)


def test_leftovers_of_killed_workers_are_removed(tmp_path: Path) -> None:
    """Directories of processes that are gone; not of those that live, nor other ones."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(60)
    names = [f"lodefs-index-{child.pid}-x", f"lodefs-index-{os.getpid()}-x", "lodefs-index-a-b"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "LOG").touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(names[1:])


@pytest.mark.skipif(os.geteuid() != 0, reason="makes directories of another user")
def test_what_others_leave_in_the_temporary_directory_takes_no_direct_reads(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories of another user, however deep, stay and cost nothing; so does what is no log of
    an index, and what is mounted there."""
    names = [f"lodefs-index-{9_000_000 + n}-x" for n in range(4)]
    theirs, deep, own, over = (tmp_path / name for name in names)
    for one in (theirs, deep, own, over):
        one.mkdir()
        (one / "LOG").touch()
    os.chown(theirs, 12345, -1)
    (own / "LOG.old.17").touch()
    script = "import os, sys\nos.chdir(sys.argv[1])\n"
    script += "for _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\n"
    run([sys.executable, "-c", script, deep])
    run(["mount", "--bind", theirs, over])
    monkeypatch.setattr(index_logs, "find_parent", lambda: tmp_path)
    try:
        place.open(CachePlace(os.fsencode(place.cache), layout.VERSION), place.snapshot)
    finally:
        run(["umount", over])
    left = {name for name in os.listdir(tmp_path) if name.startswith("lodefs-index-")}
    assert left == {theirs.name, deep.name, over.name}
    assert (theirs / "LOG").exists() and os.listdir(deep) == ["d"] and (over / "LOG").exists()
    run(["rm", "-rf", deep])


def test_the_log_of_an_index_lies_where_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's directory of run time, where others fill nothing; else in the temporary one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(index_logs, "RUN_DIRECTORY", str(tmp_path / "none"))
    assert index_logs.find_parent() == tmp_path
    tmp_path.chmod(0o1777)
    assert index_logs.find_parent() == Path(tempfile.gettempdir())


def test_index_errors_are_of_this_library(place: Place) -> None:
    """A closed index raises nothing foreign through a view."""
    view = place.view
    view._kv.close()
    with pytest.raises(LodefsError):
        view.node(ROOT_INO)
    place.monitor.view = None
