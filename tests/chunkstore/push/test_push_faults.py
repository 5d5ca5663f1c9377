"""Pushes where something goes wrong: the source, the store, the index."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lodefs.chunkstore.errors import (
    Conflict,
    Denied,
    LodefsError,
    NoSpace,
    NotFound,
    SourceChanged,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.push.index import push_index
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import in_commit, in_directory, random_files, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects, fail, fail_after
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import MUCH

PIECE_BYTES = 3 << 20  # of files so large that each is a unit of work of its own


class Watched(Progress):
    """Progress that calls back when so many files are done: in the midst of a push."""

    def __init__(self, files: int, callback: Callable[[], None]) -> None:
        self._at = (files, callback)
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "files_done" and value == self._at[0]:
            self._at[1]()


class Scene:
    """A source, a store that may fail, and an index."""

    def __init__(self, tmp_path: Path) -> None:
        self.objects = FaultyObjects(MemoryObjects())
        self.store: Store = create_store(self.objects)
        self.objects.forget()
        self.source = tmp_path / "source"
        self.source.mkdir()
        self.index_dir = tmp_path / "index"

    def push(
        self, progress: Progress | None = None, *, skip_unreadable: bool = False
    ) -> PushResult:
        options = PushOptions(
            message="",
            author="",
            time_s=0,
            index_dir=self.index_dir,
            skip_unreadable=skip_unreadable,
            workers=0,
            clock_ns=lambda: time.time_ns() + 3600 * 10**9,
        )
        return push(self.store, self.source, "r", "main", options, progress)

    def assert_sound(self, result: PushResult) -> None:
        assert in_commit(self.store, "r", result.commit) == in_directory(self.source)
        assert verify(self.store, None, data=True, progress=Progress()).problems == []

    def assert_nothing_committed(self) -> None:
        assert list(self.store.objects.list(keys.REPOS)) == []
        assert verify(self.store, None, data=True, progress=Progress()).problems == []


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def pieces(scene: Scene, count: int = 4) -> None:
    random = Random(1)
    write_files(scene.source, {f"file{n}": random.randbytes(PIECE_BYTES) for n in range(count)})


def test_a_file_that_vanishes_fails_the_push(scene: Scene) -> None:
    """A file that is gone when its turn comes is named, and nothing is committed."""
    pieces(scene)
    with pytest.raises(NotFound, match="file3"):
        scene.push(Watched(1, (scene.source / "file3").unlink))
    scene.assert_nothing_committed()
    result = scene.push()
    scene.assert_sound(result)
    assert result.new_bytes < 3 * PIECE_BYTES  # what was uploaded is used


def test_a_file_that_vanishes_can_be_skipped(scene: Scene) -> None:
    """With skip_unreadable it is left out by name; the commit has the rest."""
    pieces(scene)
    result = scene.push(Watched(1, (scene.source / "file3").unlink), skip_unreadable=True)
    assert [item.path for item in result.skipped] == [b"file3"]
    assert "file3" in str(result.skipped[0])
    scene.assert_sound(result)


def test_a_file_that_becomes_a_fifo_does_not_hang_the_push(scene: Scene) -> None:
    """What is no longer a regular file is named."""
    pieces(scene)

    def replace() -> None:
        (scene.source / "file3").unlink()
        os.mkfifo(scene.source / "file3")

    with pytest.raises(SourceChanged, match="file3"):
        scene.push(Watched(1, replace))
    scene.assert_nothing_committed()


def test_a_file_that_changes_between_scan_and_reading(scene: Scene) -> None:
    """The commit has what was read, with its size, and the next push reads the file again."""
    pieces(scene)
    (scene.source / "d").mkdir()
    result = scene.push(Watched(1, lambda: write_files(scene.source, {"file3": b"shorter"})))
    scene.assert_sound(result)
    again = scene.push()
    assert again.unchanged
    assert again.files_read == 1
    assert scene.push().files_read == 0


def test_a_directory_that_vanishes(scene: Scene) -> None:
    """It fails the push by name, or it is skipped."""
    pieces(scene, 3)
    write_files(scene.source, {"z/file": b"x"})

    def vanish() -> None:
        (scene.source / "z/file").unlink()
        (scene.source / "z").rmdir()

    with pytest.raises(SourceChanged, match="z vanished"):
        scene.push(Watched(1, vanish))
    scene.assert_nothing_committed()
    write_files(scene.source, {"z/file": b"x", "file0": Random(9).randbytes(PIECE_BYTES)})
    write_files(scene.source, {"file1": Random(8).randbytes(PIECE_BYTES)})
    write_files(scene.source, {"file2": Random(7).randbytes(PIECE_BYTES)})
    result = scene.push(Watched(1, vanish), skip_unreadable=True)
    assert [item.path for item in result.skipped] == [b"z"]
    scene.assert_sound(result)


@pytest.mark.parametrize("prefix", [keys.PACKS, keys.INDEX, "repos/r/commits", "repos/r/refs"])
@pytest.mark.parametrize("error", [Unavailable("503"), Denied("403"), NoSpace("full")], ids=str)
def test_a_store_that_fails(scene: Scene, prefix: str, error: LodefsError) -> None:
    """An error of any write comes out; nothing is committed; the repetition sends no data."""
    random_files(scene.source, files=30, size_bytes_max=30_000)
    scene.objects.add(fail(error), "put", prefix)
    with pytest.raises(type(error), match=str(error)):
        scene.push()
    scene.objects.forget()
    assert scene.store.refs("r").latest("branches", "main") is None
    assert verify(scene.store, None, data=True, progress=Progress()).problems == []
    result = scene.push()
    scene.assert_sound(result)
    if prefix != keys.PACKS:
        assert result.new_bytes == 0
        assert scene.objects.size_bytes("put", keys.PACKS) == 0
        assert result.files_read == 0
        assert scene.objects.count("put", keys.INDEX) == (prefix == keys.INDEX)


def test_a_lost_answer_to_the_last_write(scene: Scene) -> None:
    """The ref was written but the answer got lost: the push fails, its repetition is unchanged."""
    write_files(scene.source, {"a": b"1"})
    scene.objects.add(fail_after(Unavailable("connection lost")), "put", "repos/r/refs")
    with pytest.raises(Unavailable):
        scene.push()
    scene.objects.forget()
    assert scene.push().unchanged


def test_a_store_without_conditional_writes_is_refused(scene: Scene) -> None:
    """A store that ignores If-None-Match is told before anything is written to it."""

    class Ignoring(MemoryObjects):
        def put(self, key: str, data: Any, *, if_absent: bool = False) -> str:
            return super().put(key, data)

    write_files(scene.source, {"a": b"1"})
    objects = Ignoring()
    objects.put(keys.STORE, [scene.objects.get(keys.STORE, size=MUCH).data])
    made = dict(objects.objects)
    scene.store = Store(objects, scene.store.settings)
    with pytest.raises(Unsupported, match="If-None-Match"):
        scene.push()
    assert objects.objects == made


def test_a_lost_race_keeps_what_was_remembered(scene: Scene) -> None:
    """After a Conflict the next push opens no file."""
    random_files(scene.source, files=10, size_bytes_max=1000)
    scene.push()
    write_files(scene.source, {"new": b"file"})
    latest = scene.store.refs("r").read("branches", "main")

    def overtake(perform: Callable[[], Any]) -> Any:
        scene.objects.rules.clear()
        scene.store.refs("r").advance(
            "branches", "main", latest.commit, expected_sequence=latest.sequence
        )
        return perform()

    scene.objects.add(overtake, "put", "repos/r/commits")
    with pytest.raises(Conflict):
        scene.push()
    result = scene.push()
    assert (result.files_read, result.new_bytes) == (0, 0)
    scene.assert_sound(result)


def test_trees_that_were_never_stored_are_stored_by_the_next_push(scene: Scene) -> None:
    """A push that dies between files and trees leaves directories that look unchanged: their
    trees are made from what is remembered, without opening a file."""
    write_files(
        scene.source, {f"a{n}/b/c{m}/f": b"%d %d" % (n, m) for n in range(4) for m in (1, 2)}
    )
    (scene.source / "empty").mkdir()
    scene.objects.add(fail(Unavailable("503")), "put", keys.PACKS, first=2)
    with pytest.raises(Unavailable):
        scene.push()
    scene.objects.forget()
    result = scene.push()
    scene.assert_sound(result)
    # Rows are written when their chunks are known to be in the store, here after the data pack
    assert result.new_bytes == 0


def test_times_that_64_bits_of_ns_do_not_hold(scene: Scene) -> None:
    """Files of the years 1000 and 2400 are pushed, and not read again, as any others."""
    write_files(scene.source, {"old": b"old", "d/new": b"new"})
    os.utime(scene.source / "old", (-30_000_000_000, -30_000_000_000))
    os.utime(scene.source / "d/new", (13_600_000_000, 13_600_000_000))
    scene.assert_sound(scene.push())
    assert scene.push().files_read == 0


def test_a_broken_index_is_replaced(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A push with a broken index reads all files again, says so, and changes nothing else."""
    random_files(scene.source, files=20, size_bytes_max=3000)
    first = scene.push()
    path = next(scene.index_dir.glob("*.sqlite"))
    for content in (b"", b"no index " * 1000):
        path.write_bytes(content)
        for stale in scene.index_dir.glob("*.sqlite-*"):
            stale.unlink()
        result = scene.push()
        assert result.unchanged
        assert result.commit == first.commit
        assert result.files_read == 20
    assert f"the push index {path} is broken" in caplog.text
    assert "this push reads all files again" in caplog.text
    assert scene.push().files_read == 0


@pytest.mark.parametrize("changes", [{}, {"new": b"new"}])
def test_a_store_that_is_back_from_a_backup_gets_what_it_lacks(
    scene: Scene, changes: dict[str, bytes]
) -> None:
    """A push does not trust what the index knows of a later state of the store, whether it reads
    files or not."""
    write_files(scene.source, {"old": b"old"})
    scene.push()
    backup = {
        info.key: scene.objects.get(info.key, size=MUCH).data for info in scene.objects.list("")
    }
    write_files(scene.source, {"d/later": b"later", "later": b"later, too"})
    scene.push()
    for info in list(scene.objects.list("")):
        if info.key not in backup:
            scene.objects.delete(info.key)
    write_files(scene.source, changes)
    scene.assert_sound(scene.push())
    assert scene.push().files_read == 0


@pytest.mark.slow
def test_flipped_bits_in_the_index_never_spoil_a_commit(scene: Scene) -> None:
    """With any byte of the index wrong a push gives the same tree as with a good one."""
    random_files(scene.source, files=20, size_bytes_max=3000)
    scene.push()
    path = next(scene.index_dir.glob("*.sqlite"))
    good = path.read_bytes()
    random = Random(3)
    for number in range(60):
        for stale in scene.index_dir.iterdir():
            stale.unlink()
        spoiled = bytearray(good)
        for _ in range(10):
            spoiled[random.randrange(len(good))] ^= 1 << random.randrange(8)
        path.write_bytes(spoiled)
        write_files(scene.source, {"d1/changed": b"%d" % number})
        scene.assert_sound(scene.push())


def test_an_index_that_cannot_be_written(scene: Scene, tmp_path: Path) -> None:
    """An index directory that is a file is told, with the way out."""
    scene.index_dir = tmp_path / "file"
    scene.index_dir.write_bytes(b"")
    with pytest.raises(Denied, match=r"the push index .* cannot be written"):
        scene.push()


def test_an_index_that_is_always_broken_ends_the_push(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push does not replace its index for ever."""
    aside: list[str] = []
    monkeypatch.setattr(push_index, "SCHEMA_VERSION", 7)
    monkeypatch.setattr(push_index, "_VERSION", "SELECT 8")
    monkeypatch.setattr(
        push_index.PushIndex, "set_aside", staticmethod(lambda *args: aside.append(args[1]))
    )
    with pytest.raises(push_index.IndexBroken):
        scene.push()
    assert aside == [scene.store.settings.store_id]
