"""pull.py: full copies, verified, parallel, resumable."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from lodefs.chunkstore.errors import (
    Corrupt,
    InUse,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.pull.pull import pull
from lodefs.chunkstore.pull.target import STATE_DIR, part_name
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.system.progress import Progress
from lodefs.cli.exit_codes import code_of
from tests.support.chunkstore.handmade import Files, Handmade, Link, Program, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects

RANDOM = random.Random(7)
LARGE = RANDOM.randbytes(25_300)
FILES: Files = {
    b"a.txt": b"hello\n",
    b"empty": b"",
    b"nothing/in/here": None,
    b"bin/run": Program(b"#!/bin/sh\n"),
    b"bin/large": LARGE,
    b"bin/shares": LARGE[5_000:9_000] + LARGE[:3_000] + b"own",
    b"zeros": bytes(10_000),
    b"loop": Link(b"loop"),
    b"out": Link(b"../../etc/passwd"),
    b"\xff\n\x1b[31m": b"an odd name",
    b"n" * 255: b"a long name",
}


class Counting(MemoryObjects):
    """Objects in memory that count reads of packs, and can fail from the nth on."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.fail_from = 1_000_000
        self.on_failure: Callable[[], object] = lambda: None
        self._count_lock = threading.Lock()

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        if key.startswith(keys.PACKS) and offset >= 0:
            with self._count_lock:
                self.reads += 1
                if self.reads >= self.fail_from:
                    self.on_failure()
                    raise Unavailable("the store is gone")
        return super().get(key, offset=offset, size=size, if_match=if_match)


def counting_store() -> tuple[Store, Counting]:
    """A store with FILES in the repository r, and its objects."""
    objects = Counting()
    Handmade(create_store(objects)).commit("r", FILES)
    return open_store(objects), objects


def check(target: Path, files: Files) -> None:
    """The target holds exactly ``files``."""
    root = os.fsencode(target)
    expected = set(files)
    for path in files:
        while path := path.rpartition(b"/")[0]:
            expected.add(path)
    found = set()
    for folder, directories, names in os.walk(root):
        for name in directories + names:
            found.add(os.path.relpath(os.path.join(folder, name), root))
    assert found == expected
    for path, value in files.items():
        full = os.path.join(root, path)
        if isinstance(value, Link):
            assert os.readlink(full) == value.target
        elif value is None:
            assert stat.S_ISDIR(os.lstat(full).st_mode)
        else:
            content = value.content if isinstance(value, Program) else value
            assert Path(os.fsdecode(full)).read_bytes() == content
            assert bool(os.lstat(full).st_mode & 0o100) == isinstance(value, Program)


def test_pull_copies_everything(tmp_path: Path) -> None:
    """Files, directories, symlinks, executable bits and odd names arrive as they were pushed."""
    store, _ = counting_store()
    progress = Progress()
    result = pull(store, Spec("r"), tmp_path / "new" / "t", progress=progress)
    check(tmp_path / "new" / "t", FILES)
    size_bytes = sum(
        len(v.content if isinstance(v, Program) else v)
        for v in FILES.values()
        if isinstance(v, bytes | Program)
    )
    assert result.size_bytes == size_bytes == progress.bytes_done
    assert result.files + result.symlinks == progress.files_done == 10
    assert result.fetched_bytes < size_bytes  # shared chunks come once


def test_pull_of_a_path(tmp_path: Path) -> None:
    """A directory's content arrives without the path to it; a file arrives under its own name."""
    store, _ = counting_store()
    pull(store, Spec("r", path=b"bin"), tmp_path / "bin")
    assert sorted(os.listdir(tmp_path / "bin")) == ["large", "run", "shares"]
    pull(store, Spec("r", path=b"bin/large"), tmp_path / "one")
    assert os.listdir(tmp_path / "one") == ["large"]
    assert (tmp_path / "one" / "large").read_bytes() == LARGE


def test_pull_of_an_empty_commit(tmp_path: Path) -> None:
    """A commit without files gives an empty directory."""
    store = memory_store()
    Handmade(store).commit("r", {})
    pull(store, Spec("r"), tmp_path / "t")
    assert os.listdir(tmp_path / "t") == []


@pytest.mark.parametrize(
    "spec", [Spec("nobody"), Spec("r", "no-branch"), Spec("r", path=b"bin/none")], ids=str
)
def test_pull_of_what_is_not_there(tmp_path: Path, spec: Spec) -> None:
    """An unknown repository, revision or path is an error, and the target is not made."""
    store, _ = counting_store()
    with pytest.raises(NotFound):
        pull(store, spec, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_target_must_be_empty(tmp_path: Path) -> None:
    """A directory with anything in it is refused and left alone."""
    store, _ = counting_store()
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InvalidInput, match="is not empty"):
        pull(store, Spec("r"), tmp_path)
    assert os.listdir(tmp_path) == ["mine"]


def test_a_finished_pull_is_repeated(tmp_path: Path) -> None:
    """Where all of it is there already nothing is written or fetched, and the counts are right."""
    store, _ = counting_store()
    for spec in (Spec("r"), Spec("r", path=b"bin"), Spec("r", path=b"bin/large")):
        target = tmp_path / str(len(spec.path))
        first = pull(store, spec, target)
        times = [(p, p.lstat().st_ctime_ns) for p in sorted(target.rglob("*"))]
        progress = Progress()
        again = pull(store, spec, target, progress=progress)
        assert (first.unchanged, again.unchanged) == (False, True)
        assert again.fetched_bytes == 0
        assert (
            dataclasses.replace(again, unchanged=False, fetched_bytes=first.fetched_bytes) == first
        )
        assert progress.bytes_done == first.size_bytes
        assert [(p, p.lstat().st_ctime_ns) for p in sorted(target.rglob("*"))] == times


def harms() -> dict[str, Callable[[Path], object]]:
    """What may have become of a target of FILES, by the path that differs then."""

    def change(place: Path) -> None:
        data = bytearray(place.read_bytes())
        data[-1] ^= 1
        place.write_bytes(data)

    def to_link(place: Path) -> None:
        shutil.move(place, place.parents[1] / "moved")
        place.symlink_to(place.parents[1] / "moved")

    return {
        "mine": lambda t: (t / "mine").write_text("precious"),
        "bin/mine": lambda t: (t / "bin" / "mine").mkdir(),
        "a.txt": lambda t: (t / "a.txt").unlink(),
        "bin/large": lambda t: change(t / "bin" / "large"),
        "bin/run": lambda t: (t / "bin" / "run").chmod(0o644),
        "bin": lambda t: to_link(t / "bin"),
        "empty": lambda t: ((t / "empty").unlink(), (t / "empty").mkdir()),
    }


@pytest.mark.parametrize("name", harms())
def test_a_target_that_differs_is_left_alone(tmp_path: Path, name: str) -> None:
    """Anything more, less or other than a pull makes is refused with its path, and stays."""
    store, _ = counting_store()
    target = tmp_path / "t"
    pull(store, Spec("r"), target)
    harms()[name](target)
    before = {p: p.lstat() for p in target.rglob("*")}
    how = {"mine": "is not in the dataset", "a.txt": "is missing"}.get(Path(name).name, "differs")
    with pytest.raises(InvalidInput, match=rf"is not empty, and .*: {name} {how}\."):
        pull(store, Spec("r"), target)
    found = {p: p.lstat() for p in target.rglob("*")}
    assert found.keys() == before.keys()
    assert all(found[p].st_mtime_ns == before[p].st_mtime_ns for p in found)


def test_target_must_be_a_directory(tmp_path: Path) -> None:
    """A file in the target's place is refused and left alone."""
    store, _ = counting_store()
    (tmp_path / "t").write_text("precious")
    with pytest.raises(InvalidInput, match="t is not a directory"):
        pull(store, Spec("r"), tmp_path / "t")
    assert (tmp_path / "t").read_text() == "precious"


READS = 9  # of a pull of FILES; what comes first are trees


@pytest.mark.parametrize("nth", range(1, READS + 1))
def test_failed_pull_goes_on(tmp_path: Path, nth: int) -> None:
    """After a pull that failed at its nth read, the next one fetches only what was missing."""
    store, objects = counting_store()
    whole = pull(store, Spec("r"), tmp_path / "whole")
    assert objects.reads == READS
    objects.reads, objects.fail_from = 0, nth
    target, first = tmp_path / "t", Progress()
    with pytest.raises(Unavailable):
        pull(open_store(objects), Spec("r"), target, progress=first, workers=1)
    assert STATE_DIR in os.listdir(target)
    objects.fail_from = 1_000_000
    result = pull(open_store(objects), Spec("r"), target)
    assert result.fetched_bytes + first.bytes_sent == whole.fetched_bytes
    check(target, FILES)


@pytest.mark.parametrize("nth", [3, 5, 7])
def test_killed_pull_goes_on(tmp_path: Path, nth: int) -> None:
    """The same for a process that ends at its nth read without another word."""
    store, objects = counting_store()
    child = os.fork()
    if not child:
        try:
            objects.on_failure = lambda: os._exit(9)
            objects.fail_from = nth
            pull(store, Spec("r"), tmp_path / "t", workers=1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert STATE_DIR in os.listdir(tmp_path / "t")
    pull(store, Spec("r"), tmp_path / "t")
    check(tmp_path / "t", FILES)


def test_resumed_pull_mends_what_was_spoiled(tmp_path: Path) -> None:
    """Files and parts whose bytes are wrong after a crash are fetched again."""
    store, objects = counting_store()
    objects.fail_from = 6
    target = tmp_path / "t"
    with pytest.raises(Unavailable):
        pull(store, Spec("r"), target, workers=1)
    parts = [name for name in os.listdir(target / STATE_DIR) if name != "state.json"]
    for name in parts:
        with (target / STATE_DIR / name).open("r+b") as file:
            file.write(b"spoiled")
    done = next(name for name in ("a.txt", "empty") if (target / name).exists())
    (target / done).write_bytes(b"HELLO\n")
    (target / STATE_DIR / part_name(b"bin/large")).write_bytes(bytes(100_000))
    objects.fail_from = 1_000_000
    result = pull(open_store(objects), Spec("r"), target)
    kept = os.fsencode(done) + b".lodefs-kept"
    assert result.kept == [kept]
    check(target, {**FILES, kept: b"HELLO\n"})


def test_changes_between_an_interruption_and_the_next_pull_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever took the place of a file gets a free name beside it, also without hard links; an
    empty file is what a crash leaves, and is replaced."""
    store = memory_store()
    name = b"n" * 229 + "ü".encode() + b"n" * 24
    files: Files = {b"a": b"1", b"d/" + name: b"2", b"d/x": b"3", b"e": b"4", b"f": b"5"}
    Handmade(store).commit("r", files)
    target, aside = tmp_path / "t", b"n" * 229 + b".lodefs-kept"
    pull(store, Spec("r"), target)
    commit = store.resolve("r", "main").hex()
    state = {"commit": commit, "path": "", "repo": "r", "store": store.settings.store_id}

    def refuse(*_words: object, **_options: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    for has_links in (True, False):
        if not has_links:
            monkeypatch.setattr(os, "link", refuse)
        (target / STATE_DIR).mkdir()
        (target / STATE_DIR / "state.json").write_text(json.dumps(state))
        (target / "a").write_bytes(b"my own")
        Path(os.fsdecode(os.fsencode(target) + b"/d/" + name)).write_bytes(b"mine")
        (target / "d" / "x").write_bytes(b"")
        (target / "e").unlink()
        (target / "f").unlink()
        (target / "f").symlink_to("e")
        result = pull(store, Spec("r"), target)
        end = b"" if has_links else b"-2"
        wanted = [b"a.lodefs-kept", b"d/" + aside, b"f.lodefs-kept"]
        assert sorted(result.kept) == [path + end for path in wanted]
        link = target / os.fsdecode(b"f.lodefs-kept" + end)
        assert link.readlink() == Path("e")
    for link in target.glob("f.lodefs-kept*"):
        link.unlink()
    kept: Files = {b"a.lodefs-kept": b"my own", b"d/" + aside: b"mine"}
    check(target, {**files, **kept, **{path + b"-2": text for path, text in kept.items()}})


def test_a_place_where_no_directory_can_be(tmp_path: Path) -> None:
    """Is refused by its name."""
    store, _ = counting_store()
    (tmp_path / "file").touch()
    for place in (Path("/proc/x"), tmp_path / "file" / "x"):
        with pytest.raises(InvalidInput, match=f"{place}: a directory cannot be made there"):
            pull(store, Spec("r"), place)


def test_interrupted_pull_of_another_commit_is_kept(tmp_path: Path) -> None:
    """A target with another commit's interrupted pull is refused, by the name of that one."""
    store, objects = counting_store()
    objects.fail_from = 6
    with pytest.raises(Unavailable):
        pull(store, Spec("r"), tmp_path / "t", workers=1)
    objects.fail_from = 1_000_000
    Handmade(store).commit("r", {b"other": b"x"})
    with pytest.raises(InvalidInput, match="interrupted pull of r, commit"):
        pull(store, Spec("r"), tmp_path / "t")


def test_two_pulls_into_one_target(tmp_path: Path) -> None:
    """A target that another living pull fills is refused."""
    store, objects = counting_store()
    objects.fail_from = 6
    with pytest.raises(Unavailable):
        pull(store, Spec("r"), tmp_path / "t", workers=1)
    with (tmp_path / "t" / STATE_DIR / "state.json").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InUse):
            pull(store, Spec("r"), tmp_path / "t")


def test_symlinks_in_the_target_are_not_followed(tmp_path: Path) -> None:
    """A symlink that somebody puts where a directory or a part belongs diverts no byte."""
    store, objects = counting_store()
    objects.fail_from = 6
    target, outside = tmp_path / "t", tmp_path / "outside"
    with pytest.raises(Unavailable):
        pull(store, Spec("r"), target, workers=1)
    outside.mkdir()
    for name in os.listdir(target / "bin"):
        (target / "bin" / name).unlink()
    (target / "bin").rmdir()
    (target / "bin").symlink_to(outside)
    objects.fail_from = 1_000_000
    with pytest.raises(InvalidInput, match="something else changed"):
        pull(store, Spec("r"), target)
    assert os.listdir(outside) == []
    (target / "bin").unlink()
    part = target / STATE_DIR / part_name(b"bin/large")
    part.unlink(missing_ok=True)
    (outside / "victim").write_text("precious")
    part.symlink_to(outside / "victim")
    with pytest.raises(InvalidInput):
        pull(store, Spec("r"), target)
    assert (outside / "victim").read_text() == "precious"


def test_a_fifo_in_the_target_does_not_hang_the_pull(tmp_path: Path) -> None:
    """Where a FIFO took the place of a part, the pull ends with an error."""
    store, objects = counting_store()
    objects.fail_from = 6
    with pytest.raises(Unavailable):
        pull(store, Spec("r"), tmp_path / "t", workers=1)
    part = tmp_path / "t" / STATE_DIR / part_name(b"bin/large")
    part.unlink(missing_ok=True)
    os.mkfifo(part)
    objects.fail_from = 1_000_000
    with pytest.raises(LodefsError):
        pull(store, Spec("r"), tmp_path / "t")


def test_wrong_bytes_are_never_written(tmp_path: Path) -> None:
    """A store that gives wrong bytes ends the pull, which names the version, the file and the way
    out, and no file looks complete that is not."""
    store, objects = counting_store()
    first = next(e for p, e in store.packs.walk(_root(store)) if p == b"a.txt")
    key = keys.pack(first.segments[0].pack)
    data = bytearray(objects.objects[key])
    data[0] ^= 1
    objects.objects[key] = bytes(data)
    told = r"^r@main \(\w+\): a\.txt: chunk 0 of packs/.*; `lodefs repair` lists"
    with pytest.raises(Corrupt, match=told):
        pull(store, Spec("r"), tmp_path / "t")
    for path in (b"bin/large", b"a.txt", b"bin/shares"):
        there = tmp_path / "t" / os.fsdecode(path)
        value = FILES[path]
        assert not there.exists() or there.read_bytes() == value


def test_zeros_become_holes(tmp_path: Path) -> None:
    """Long runs of zeros take no room in a copy, at the beginning, in the middle and at the end of
    a file; every byte and the size are right, also after an interruption."""
    mib = 1 << 20
    data = RANDOM.randbytes(mib)
    contents = {
        "all": bytes(8 * mib),
        "ends": bytes(4 * mib) + data + bytes(4 * mib),
        "middle": data + bytes(4 * mib) + data,
        "none": data,
    }
    source = tmp_path / "source"
    source.mkdir()
    for name, content in contents.items():
        (source / name).write_bytes(content)
    objects = Counting()
    store = create_store(objects)
    push(store, source, "r", "main", PushOptions("", "", 0, tmp_path / "index", workers=0))

    def check(target: Path) -> None:
        for name, content in contents.items():
            assert (target / name).read_bytes() == content

    pull(store, Spec("r"), tmp_path / "t")
    check(tmp_path / "t")
    used = {name: (tmp_path / "t" / name).stat().st_blocks * 512 for name in contents}
    assert used["all"] < mib
    assert used["ends"] < 2 * mib
    assert used["middle"] < 3 * mib
    objects.reads, objects.fail_from = 0, 3
    with pytest.raises(Unavailable):
        pull(open_store(objects), Spec("r"), tmp_path / "u", workers=1)
    objects.fail_from = 1_000_000
    for part in (tmp_path / "u" / STATE_DIR).iterdir():
        if part.name != "state.json":  # as a disk may leave it
            part.write_bytes(b"\xff" * part.stat().st_size)
    pull(open_store(objects), Spec("r"), tmp_path / "u")
    check(tmp_path / "u")


def test_a_damaged_tree_names_the_version_and_the_way_out(tmp_path: Path) -> None:
    """A directory that cannot be read ends the pull, and a look into it, with both."""
    store, objects = counting_store()
    key = keys.pack(_root(store).segments[0].pack)
    damaged = bytearray(objects.objects[key])
    damaged[: len(damaged) // 2] = bytes(len(damaged) // 2)
    objects.objects[key] = bytes(damaged)
    for path in (b"", b"bin/large"):
        with pytest.raises(Corrupt, match=r"r@main.*; `lodefs repair` lists"):
            pull(open_store(objects), Spec("r", path=path), tmp_path / "t")


def test_a_lost_pack_names_a_file_that_needs_it(tmp_path: Path) -> None:
    """A pack that is gone is damage, not a mistyped name, and the file and the way out are told."""
    store, objects = counting_store()
    del objects.objects[keys.pack(find(store, Spec("r", path=b"a.txt")).segments[0].pack)]
    with pytest.raises(Corrupt, match=r"is missing.*`lodefs repair`") as caught:
        pull(store, Spec("r", path=b"a.txt"), tmp_path / "t")
    assert "a.txt" in str(caught.value)
    assert code_of(caught.value) == 8


def test_tree_with_a_wrong_file_digest(tmp_path: Path) -> None:
    """Right chunks that do not make the file that the tree names are refused."""
    store = memory_store()
    made = Handmade(store)
    made.commit("r", {b"x": b"1" * 1500, b"y": b"2" * 1500})
    entries = {e.name: e for e in store.packs.read_tree(_root(store))}
    wrong = replace(entries[b"x"], segments=entries[b"y"].segments)
    made.commit_root("r", made.tree(b"", [wrong]), branch="wrong")
    with pytest.raises(Corrupt, match="do not match the file's digest"):
        pull(store, Spec("r", "wrong"), tmp_path / "t")
    for size_bytes in (1400, 1600):
        branch = f"size-{size_bytes}"
        more_bytes = size_bytes - 1500
        *rest, last = entries[b"x"].segments
        segments = (*rest, last._replace(size_bytes=last.size_bytes + more_bytes))
        false = replace(entries[b"x"], size_bytes=size_bytes, segments=segments)
        made.commit_root("r", made.tree(b"", [false]), branch=branch)
        with pytest.raises(Corrupt, match=f"x: .* and should have {segments[-1].size_bytes}"):
            pull(store, Spec("r", branch), tmp_path / branch)
        assert os.listdir(tmp_path / branch) == [STATE_DIR]


def test_dataset_with_the_name_of_the_state(tmp_path: Path) -> None:
    """A dataset that has pull's own state directory at its top is refused."""
    store = memory_store()
    Handmade(store).commit("r", {STATE_DIR.encode() + b"/x": b"1"})
    with pytest.raises(InvalidInput, match=STATE_DIR):
        pull(store, Spec("r"), tmp_path / "t")


def test_deep_directories(tmp_path: Path) -> None:
    """Paths beyond what one system call takes are filled too."""
    store = memory_store()
    deep = b"/".join([b"d" * 200] * 30)
    Handmade(store, pack_chunks=1000).commit("r", {deep + b"/f": b"deep", deep + b"/g": b"too"})
    pull(store, Spec("r"), tmp_path / "t")
    fd = os.open(tmp_path / "t", os.O_RDONLY)
    for name in deep.split(b"/"):
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    assert sorted(os.listdir(fd)) == ["f", "g"]
    os.close(fd)


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is NoSpace, what is there does not look complete, and the next pull goes on."""
    store, _ = counting_store()
    real = os.pwritev
    calls = 0

    def full(fd: int, buffers: list[bytes], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError(28, "No space left on device")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(NoSpace, match="make room"):
        pull(store, Spec("r"), tmp_path / "t", workers=1)
    assert (tmp_path / "t" / STATE_DIR).is_dir()
    monkeypatch.setattr(os, "pwritev", real)
    pull(store, Spec("r"), tmp_path / "t")
    check(tmp_path / "t", FILES)


def test_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes only some of the bytes is continued."""
    store, _ = counting_store()
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, offset: real(fd, [bytes(buffers[0])[:7]], offset)
    )
    pull(store, Spec("r"), tmp_path / "t")
    check(tmp_path / "t", FILES)


def _root(store: Store) -> TreeEntry:
    return store.commit("r", store.resolve("r", "main")).root
