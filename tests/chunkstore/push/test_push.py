"""Push: commits from directories."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import Conflict, Denied, InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN, Commit
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.pull.target import STATE_DIR, open_target
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.push.scanner import Scan
from lodefs.chunkstore.push.trees import directories
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import (
    as_nobody,
    awkward,
    deep,
    in_commit,
    in_directory,
    open_directory,
    random_files,
    special,
    write_files,
)
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.handmade import memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects

LATER_NS = 3600 * 10**9  # so much later the pushes take place: no file is too young to be trusted


class Pusher:
    """A machine that pushes to one store, from this process alone."""

    def __init__(self, tmp_path: Path, store: Store | None = None, name: str = "index") -> None:
        self.objects = FaultyObjects(MemoryObjects())
        self.store = store or create_store(self.objects)
        self.index_dir = tmp_path / name
        self.source = tmp_path / "source"
        self.source.mkdir(exist_ok=True)

    def push(
        self,
        branch: str = "main",
        *,
        source: Path | None = None,
        clock_ns: Callable[[], int] = lambda: time.time_ns() + LATER_NS,
        workers: int | None = 0,
        skip_unreadable: bool = False,
    ) -> PushResult:
        options = PushOptions(
            message="a message",
            author="an author",
            time_s=1_700_000_000,
            index_dir=self.index_dir,
            skip_unreadable=skip_unreadable,
            workers=workers,
            clock_ns=clock_ns,
        )
        return push(self.store, source or self.source, "r", branch, options)

    def head(self) -> Commit:
        """The commit of main."""
        return self.store.commit("r", self.store.resolve("r", "main"))

    def assert_pushed(self, result: PushResult) -> None:
        """The commit has what the source has, and the whole store is sound."""
        assert in_commit(self.store, "r", result.commit) == in_directory(self.source)
        assert verify(self.store, None, data=True, progress=Progress()).problems == []


@pytest.fixture
def pusher(tmp_path: Path) -> Pusher:
    return Pusher(tmp_path)


def test_everything_awkward_comes_back(pusher: Pusher) -> None:
    """Names in any bytes, links of all kinds, empty things and holes are in the commit."""
    awkward(pusher.source)
    result = pusher.push()
    pusher.assert_pushed(result)
    seen = in_directory(pusher.source)
    assert result.skipped == []
    assert result.files == sum(kind.name == "FILE" for kind, _, _ in seen.values())
    assert result.symlinks == sum(kind.name == "SYMLINK" for kind, _, _ in seen.values())
    assert result.directories == 1 + sum(kind.name == "DIRECTORY" for kind, _, _ in seen.values())
    assert result.size_bytes == sum(
        len(content) for kind, _, content in seen.values() if kind.name == "FILE"
    )


def test_the_commit_says_who_and_what(pusher: Pusher) -> None:
    """Author, time, message, counts and parents are in the commit, and the branch is at it."""
    write_files(pusher.source, {"a": b"1", "d/b": b"22"})
    first = pusher.push()
    write_files(pusher.source, {"c": b"333"})
    (pusher.source / "link").symlink_to("c")
    second = pusher.push()
    commit_id = pusher.store.resolve("r", "main")
    commit = pusher.store.commit("r", commit_id)
    assert commit_id.hex() == second.commit
    assert commit.parents == (CommitId(bytes.fromhex(first.commit)),)
    assert (commit.author, commit.message, commit.time_s) == (
        "an author", "a message", 1_700_000_000,
    )  # fmt: skip
    assert (commit.files, commit.directories, commit.size_bytes) == (4, 2, 6)
    assert pusher.store.commit("r", commit.parents[0]).parents == ()


def test_the_commit_tells_large_files(pusher: Pusher) -> None:
    """Files of 1 MiB and more are counted, wherever they lie, also by a push that opens none of
    them again; symlinks are not."""
    mib = LARGE_SIZE_BYTES_MIN
    write_files(pusher.source, {"a": bytes(mib - 1), "b": bytes(mib), "d/c": bytes(3 * mib)})
    (pusher.source / "d/link").symlink_to("../b")
    pusher.push()
    assert pusher.head().large == (2, 4 * mib)
    (pusher.source / "a").write_bytes(b"small")
    pusher.push()
    assert pusher.head().large == (2, 4 * mib)


def test_an_empty_directory_can_be_pushed(pusher: Pusher) -> None:
    """It becomes a commit of a root without entries; again, it is unchanged."""
    result = pusher.push()
    assert in_commit(pusher.store, "r", result.commit) == {}
    assert (result.files, result.directories, result.unchanged) == (0, 1, False)
    assert pusher.push().unchanged


@pytest.mark.parametrize("name", ["BACKLOG_NAMES_MAX", "ROWS_BYTES_MAX", "ROWS_MIN"])
def test_directories_that_wait_are_bounded(
    pusher: Pusher, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Where more may not wait they go on at once: the commit is the same, and all is remembered."""
    random_files(pusher.source, files=60, size_bytes_max=5000)
    awkward(pusher.source / "awkward")
    monkeypatch.setattr(directories, name, 1)
    pusher.push()
    again = pusher.push()
    assert again.unchanged
    assert again.files_read == 0


def test_nothing_changed_means_no_write_and_no_file_opened(pusher: Pusher) -> None:
    """The second push of the same directory makes no put, and reads no file."""
    random_files(pusher.source, files=40, size_bytes_max=5000)
    awkward(pusher.source / "awkward")
    first = pusher.push()
    pusher.objects.forget()
    again = pusher.push()
    assert again.unchanged
    assert again.commit == first.commit
    assert (again.files_read, again.new_bytes, again.stored_bytes) == (0, 0, 0)
    assert pusher.objects.count("put") == 0
    assert pusher.objects.count("get", keys.PACKS) == 0
    assert (again.files, again.symlinks, again.directories, again.size_bytes) == (
        first.files, first.symlinks, first.directories, first.size_bytes,
    )  # fmt: skip


def test_only_what_changed_is_read(pusher: Pusher) -> None:
    """Changed, added, removed and renamed files, changed modes and links are found; no others."""
    random_files(pusher.source, files=60, size_bytes_max=3000)
    write_files(pusher.source, {"keep/same": b"same", "keep/deep/er/x": b"x"})
    (pusher.source / "keep/link").symlink_to("same")
    pusher.assert_pushed(pusher.push())
    write_files(pusher.source, {"keep/deep/er/x": b"y", "new/dir/file": b"new"})
    (pusher.source / "keep/deep/er/empty").write_bytes(b"")
    (pusher.source / "keep/link").unlink()
    (pusher.source / "keep/link").symlink_to("elsewhere")
    (pusher.source / "d0/e0/file00000").unlink()
    (pusher.source / "d1/e1/file00001").chmod(0o755)
    (pusher.source / "d2/e2").rename(pusher.source / "moved")
    result = pusher.push()
    pusher.assert_pushed(result)
    moved = len(os.listdir(pusher.source / "moved"))
    assert result.files_read == 4 + moved
    assert result.new_bytes < 1000
    assert pusher.push().unchanged


def test_a_file_that_becomes_a_directory_or_a_link(pusher: Pusher) -> None:
    """A name may change its kind in all ways between two pushes."""
    write_files(pusher.source, {"a": b"file", "b/c": b"inside", "l": b"file"})
    (pusher.source / "s").symlink_to("a")
    pusher.push()
    for name in ("a", "l", "s"):
        (pusher.source / name).unlink()
    (pusher.source / "b/c").unlink()
    (pusher.source / "b").rmdir()
    write_files(pusher.source, {"a/now": b"directory", "b": b"file now", "s": b"file now"})
    (pusher.source / "l").symlink_to("b")
    pusher.assert_pushed(pusher.push())


def test_a_young_file_is_read_again(pusher: Pusher) -> None:
    """A file that was changed just before the push might change again within one tick of its
    clock, so it is read next time; then it is trusted."""
    write_files(pusher.source, {"a": b"young", "d/b": b"young"})
    newest_ns = max(os.stat(path).st_ctime_ns for path in pusher.source.rglob("*"))
    assert pusher.push(clock_ns=lambda: newest_ns).files_read == 2
    pusher.objects.forget()
    again = pusher.push()
    assert again.unchanged
    assert again.files_read == 2
    assert pusher.objects.count("put") == 0
    assert pusher.push().files_read == 0


def test_a_deep_directory(pusher: Pusher) -> None:
    """A directory as deep as PATH_MAX allows is pushed, found unchanged, and changed."""
    levels = 2047  # with the file's name just under PATH_MAX, and over Python's stack
    with open_directory() as root:
        deep(root, levels=levels)
        result = pusher.push(source=root)
        assert (result.files, result.directories) == (levels, levels + 1)
        commit = pusher.store.commit("r", CommitId(bytes.fromhex(result.commit)))
        paths = [path for path, _ in pusher.store.packs.walk(commit.root)]
        assert b"d/" * levels + b"f" in paths
        assert pusher.push(source=root).unchanged
        (root / "d/f").write_bytes(b"changed")
        changed = pusher.push(source=root)
        assert (changed.unchanged, changed.files_read) == (False, 1)
        assert changed.stored_bytes < 5000


def test_special_files_are_skipped_by_name(pusher: Pusher) -> None:
    """Sockets, FIFOs and devices are named every time, and the rest is pushed."""
    names = special(pusher.source)
    write_files(pusher.source, {"file": b"content"})
    for unchanged in (False, True):
        result = pusher.push()
        assert sorted(item.path for item in result.skipped) == names
        assert result.unchanged is unchanged
    pusher.assert_pushed(result)


def test_unreadable_files_fail_a_push_or_are_skipped(tmp_path: Path) -> None:
    """An unreadable file or directory is named, and nothing is committed; or both are left out by
    name, and are in the commit once they can be read."""
    with open_directory() as base:
        pusher = Pusher(base)
        pusher.source.chmod(0o755)
        write_files(pusher.source, {"a": b"1", "b": b"2", "d/c": b"3", "e/f": b"4"})
        secrets = [pusher.source / "b", pusher.source / "d"]
        pusher.push()  # imports all, which "nobody" may not be able to
        pusher.index_dir = base / "other"
        for path in secrets:
            path.chmod(0)
        with as_nobody():
            with pytest.raises(Denied, match=r"^[bd] cannot be read"):
                pusher.push("other")
            with pytest.raises(NotFound):
                pusher.store.resolve("r", "other")
            result = pusher.push("other", skip_unreadable=True)
            again = pusher.push("other", skip_unreadable=True)
        assert sorted(item.path for item in result.skipped) == [b"b", b"d"]
        assert (result.files, result.files_read) == (2, 2)  # not b, which was tried
        assert set(in_commit(pusher.store, "r", result.commit)) == {b"a", b"e", b"e/f"}
        assert again.unchanged
        assert sorted(item.path for item in again.skipped) == [b"b", b"d"]
        for path in secrets:
            path.chmod(0o755)
        pusher.assert_pushed(pusher.push("other"))


def test_bad_sources(pusher: Pusher, tmp_path: Path) -> None:
    """A source that is missing or no directory, and a bad name, is told before anything."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFound, match="nothing does not exist"):
        pusher.push(source=tmp_path / "nothing")
    with pytest.raises(NotADirectory, match="file is not a directory"):
        pusher.push(source=tmp_path / "file")
    with pytest.raises(InvalidInput, match="branch"):
        pusher.push("no/such branch")
    assert pusher.objects.count("put", keys.REPOS) == 0


def test_a_store_or_index_inside_the_source_is_refused(pusher: Pusher, tmp_path: Path) -> None:
    """Every push would change such a source; the message names both."""
    pusher.index_dir = pusher.source / "index"
    with pytest.raises(InvalidInput, match=r"the push index .*source/index.* lies in"):
        pusher.push()
    objects = MemoryObjects(str(pusher.source / "store"))
    inside = Pusher(tmp_path, create_store(objects))
    with pytest.raises(InvalidInput, match=r"the store .*source/store.* lies in"):
        inside.push()
    beside = Pusher(tmp_path, create_store(MemoryObjects(str(tmp_path / "source-store"))))
    beside.push()


def test_a_source_whose_pull_has_not_ended_is_refused(pusher: Pusher, tmp_path: Path) -> None:
    """What an interrupted pull left is not committed; the message has the command that ends it."""
    partial = tmp_path / "partial copy"
    with open_target(partial, {"repo": "r", "commit": "c" * 64, "path": b"d".hex()}):
        pass
    with pytest.raises(InvalidInput, match="not finished") as refused:
        pusher.push("other", source=partial)
    assert f"`lodefs pull r@{'c' * 64}:d '{partial}'`" in str(refused.value)
    (partial / STATE_DIR / "state.json").write_text("[")
    with pytest.raises(InvalidInput, match="lodefs pull REPO@COMMIT"):
        pusher.push("other", source=partial)
    assert pusher.store.refs("r").latest(BRANCHES, "other") is None


def test_a_source_given_as_a_symlink(pusher: Pusher, tmp_path: Path) -> None:
    """The source itself may be a link; what is in the directory is pushed."""
    write_files(pusher.source, {"a": b"1"})
    (tmp_path / "link").symlink_to("source")
    pusher.assert_pushed(pusher.push(source=tmp_path / "link"))
    assert pusher.push().unchanged


def test_one_byte_in_a_large_file(pusher: Pusher) -> None:
    """One byte changed in a large file sends a few chunks."""
    content = bytearray(Random(5).randbytes(24 << 20))
    (pusher.source / "large").write_bytes(content)
    assert pusher.push().new_bytes == len(content)
    for position in (0, 12 << 20, len(content) - 1):
        content[position] ^= 1
        (pusher.source / "large").write_bytes(content)
        result = pusher.push()
        assert 0 < result.stored_bytes <= 512 << 10
        pusher.assert_pushed(result)


def test_bytes_are_shared_between_files_and_repositories(pusher: Pusher) -> None:
    """A copied file, a moved one, and another repository with the same content send no data."""
    content = Random(1).randbytes(3 << 20)
    (pusher.source / "a").write_bytes(content)
    pusher.push()
    (pusher.source / "copy").write_bytes(content)
    (pusher.source / "a").rename(pusher.source / "b")
    assert pusher.push().new_bytes == 0
    options = PushOptions("", "", 0, pusher.index_dir, workers=0)
    assert push(pusher.store, pusher.source, "other", "main", options).new_bytes == 0


def test_equal_files_are_stored_once(pusher: Pusher) -> None:
    """Files that are equal share their chunks within one push too."""
    write_files(pusher.source, {f"d{n}/same": b"x" * 1000 for n in range(50)})
    result = pusher.push()
    assert result.new_bytes == 1000
    pusher.assert_pushed(result)


def test_equal_directories_are_told_apart_when_one_changes(pusher: Pusher) -> None:
    """Directories of equal content share a tree; each is remembered, and changes, by itself."""
    files = {"x": b"1" * 1000, "y": b"", "below/z": b"3" * 100_000}
    for name in ("a", "b", "c"):
        write_files(pusher.source, {f"{name}/{path}": data for path, data in files.items()})
    (pusher.source / "c" / "x").chmod(0o755)
    pusher.assert_pushed(pusher.push())
    again = pusher.push()
    assert (again.unchanged, again.files_read) == (True, 0)
    write_files(pusher.source, {"b/x": b"2" * 1000})
    changed = pusher.push()
    assert changed.files_read == 1
    pusher.assert_pushed(changed)


def test_a_file_of_zeros_is_small(pusher: Pusher) -> None:
    """A hole costs next to nothing."""
    with open(pusher.source / "hole", "wb") as file:
        file.truncate(32 << 20)
    result = pusher.push()
    assert result.stored_bytes < 100_000
    pusher.assert_pushed(result)


def test_another_machine_sends_nothing_for_an_equal_directory(
    pusher: Pusher, tmp_path: Path
) -> None:
    """Without the index of the first push, equal content ends in no commit and no write."""
    random_files(pusher.source, files=50, size_bytes_max=100_000)
    first = pusher.push()
    other = Pusher(tmp_path, pusher.store, "index of another machine")
    pusher.objects.forget()
    result = other.push()
    assert result.unchanged
    assert result.commit == first.commit
    assert result.files_read == 50
    assert pusher.objects.count("put") == 0


def test_another_machine_sends_nothing_for_files_that_share_parts(
    pusher: Pusher, tmp_path: Path
) -> None:
    """Chunks that were stored again to keep files whole, and files that lie in two packs, are found
    by a machine that pushes the same, and by the same one when it reads the files again."""
    random = Random(3)
    shared = [random.randbytes(150_000) for _ in range(4)]
    for n in range(40):
        own = random.randbytes(150_000), random.randbytes(120_000)
        (pusher.source / f"f{n}").write_bytes(own[0] + shared[n % 4] + own[1])
    first = pusher.push()
    assert first.stored_bytes > 16_000_000 - sum(map(len, shared)) * 10  # of two packs
    assert first.new_bytes < first.stored_bytes - sum(map(len, shared))  # each chunk once
    other = Pusher(tmp_path, pusher.store, "other")
    again = other.push()
    assert (again.unchanged, again.files_read) == (True, 40)
    assert (again.new_bytes, again.stored_bytes) == (0, 0)
    for path in pusher.source.iterdir():
        os.utime(path)
    again = pusher.push()
    assert (again.unchanged, again.files_read, again.stored_bytes) == (True, 40, 0)


def test_another_machine_stores_only_changed_trees(pusher: Pusher, tmp_path: Path) -> None:
    """Without an index the trees of the branch's head are found, from the root down."""
    write_files(
        pusher.source, {f"d{n}/e{m}/f": b"%d %d" % (n, m) for n in range(20) for m in range(20)}
    )
    pusher.push()
    (pusher.source / "d7/e7/f").write_bytes(b"changed")
    other = Pusher(tmp_path, pusher.store, "index of another machine")
    result = other.push()
    other.assert_pushed(result)
    assert chunks_of_packs(pusher)[-1] <= 5  # of several hundred trees
    assert result.new_bytes == len(b"changed")
    (pusher.source / "d8/e8/f").write_bytes(b"changed too")
    result = other.push()
    other.assert_pushed(result)
    assert result.stored_bytes < 6000


def chunks_of_packs(pusher: Pusher) -> list[int]:
    """How many chunks each pack has, in the order in which they were put."""
    puts = [call.key for call in pusher.objects.calls if call.operation == "put"]
    ids = [PackId(bytes.fromhex(key[-64:])) for key in puts if key.startswith(keys.PACKS)]
    return [len(pusher.store.packs.index(pack_id)) for pack_id in ids]


def test_two_sources_with_one_index(pusher: Pusher, tmp_path: Path) -> None:
    """Two directories that are pushed in turn keep what is remembered of each."""
    other = tmp_path / "other"
    random_files(pusher.source, files=10, size_bytes_max=100)
    random_files(other, files=10, size_bytes_max=100, seed=2)
    pusher.push("one")
    pusher.push("two", source=other)
    assert pusher.push("one").files_read == 0
    assert pusher.push("two", source=other).files_read == 0


def test_one_directory_to_two_branches(pusher: Pusher) -> None:
    """A branch that is new gets a commit without parents, and no data travels again."""
    random_files(pusher.source, files=20, size_bytes_max=5000)
    pusher.push("one")
    result = pusher.push("two")
    assert not result.unchanged
    assert (result.files_read, result.new_bytes) == (0, 0)
    assert result.stored_bytes == 0 or result.stored_bytes < 2000
    assert pusher.store.commit("r", pusher.store.resolve("r", "two")).parents == ()


def test_a_branch_that_moved_meanwhile_is_a_conflict(pusher: Pusher, tmp_path: Path) -> None:
    """Of two pushes at once one wins; the other is told, loses nothing, and repeats cheaply."""
    write_files(pusher.source, {"a": b"first"})
    pusher.push()
    write_files(pusher.source, {"a": Random(1).randbytes(100_000)})
    theirs = Pusher(tmp_path, pusher.store, "their index")
    other_source = tmp_path / "their source"
    write_files(other_source, {"b": b"theirs"})
    won: list[PushResult] = []

    def overtake(perform: object) -> object:
        if not won:
            won.append(theirs.push(source=other_source))
        assert callable(perform)
        return perform()

    pusher.objects.add(overtake, "put", keys.INDEX, times=1)
    with pytest.raises(Conflict, match=r"moved by another writer.*undo what the other push"):
        pusher.push()
    assert pusher.store.resolve("r", "main").hex() == won[0].commit
    pusher.objects.forget()
    result = pusher.push()
    assert result.new_bytes == 0
    assert pusher.objects.size_bytes("put", keys.PACKS) == 0
    pusher.assert_pushed(result)
    commit = pusher.store.commit("r", pusher.store.resolve("r", "main"))
    assert commit.parents[0].hex() == won[0].commit


def test_a_deleted_branch_begins_anew(pusher: Pusher) -> None:
    """After a branch was deleted a push makes a commit without parents on it."""
    write_files(pusher.source, {"a": b"1"})
    pusher.push()
    pusher.store.refs("r").advance(BRANCHES, "main", None, expected_sequence=0)
    result = pusher.push()
    assert not result.unchanged
    assert pusher.store.commit("r", pusher.store.resolve("r", "main")).parents == ()


def test_going_back_to_an_old_state(pusher: Pusher) -> None:
    """A directory as it was two pushes ago makes a commit, but sends neither data nor trees."""
    for content in (b"one", b"two", b"one"):
        write_files(pusher.source, {"d/file": content})
        pusher.objects.forget()
        result = pusher.push()
    assert not result.unchanged
    assert result.new_bytes == 0
    assert pusher.objects.count("put", keys.PACKS) == 0
    pusher.assert_pushed(result)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [None, 1, 300])
def test_worker_processes_give_the_same_commit(tmp_path: Path, workers: int | None) -> None:
    """However many processes read, the trees are the same as from one."""
    pusher = Pusher(tmp_path)
    random_files(pusher.source, files=400, size_bytes_max=90_000)
    alone = pusher.push("alone")
    other = Pusher(tmp_path, memory_store(), "other")
    result = other.push("together", workers=workers)
    other.assert_pushed(result)
    roots = [
        machine.store.commit("r", CommitId(bytes.fromhex(pushed.commit))).root.digest
        for machine, pushed in ((pusher, alone), (other, result))
    ]
    assert roots[0] == roots[1]
    assert result.new_bytes == alone.new_bytes


def test_progress_is_counted(pusher: Pusher) -> None:
    """Progress ends with all files and bytes that were read, what was sent, and the last phase."""
    random_files(pusher.source, files=30, size_bytes_max=3000)
    progress = Progress()
    options = PushOptions("", "", 0, pusher.index_dir, workers=0)
    result = push(pusher.store, pusher.source, "r", "main", options, progress)
    assert progress.files_done == progress.files_total == 30
    assert progress.bytes_done == progress.bytes_total == result.size_bytes
    assert progress.bytes_sent == result.stored_bytes > 0
    assert progress.phase == "committing"


def test_stored_bytes_are_those_of_the_objects(pusher: Pusher) -> None:
    """What is reported as stored is what was put: packs, shard and commit."""
    random_files(pusher.source, files=30, size_bytes_max=3000)
    result = pusher.push()
    put = sum(
        pusher.objects.size_bytes("put", prefix)
        for prefix in (keys.PACKS, keys.INDEX, keys.commits("r"))
    )
    assert result.stored_bytes == put


def test_many_directories_in_one(pusher: Pusher) -> None:
    """A directory with many directories and files, and one change in it."""
    write_files(pusher.source, {f"d{n:04d}/f": b"%d" % (n % 5) for n in range(300)})
    write_files(pusher.source, {f"f{n:04d}": b"%d" % n for n in range(300)})
    pusher.assert_pushed(pusher.push())
    write_files(pusher.source, {"d0123/f": b"changed"})
    result = pusher.push()
    assert result.files_read == 1
    pusher.assert_pushed(result)


def test_the_scan_is_closed_after_an_error(pusher: Pusher, tmp_path: Path) -> None:
    """A push that fails leaves no descriptor open."""
    write_files(pusher.source, {f"{n}": b"x" for n in range(20)})
    before = len(os.listdir("/proc/self/fd"))
    pusher.objects.add(lambda _: (_ for _ in ()).throw(Denied("no")), "put", keys.PACKS)
    with pytest.raises(Denied):
        pusher.push()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(Scan(os.fsencode(pusher.source)))


def test_a_new_branch_takes_no_name(pusher: Pusher, tmp_path: Path) -> None:
    """A push to a new branch is refused where its name is a tag's, before any file is read."""
    write_files(pusher.source, {"a": b"1"})
    assert pusher.push().created_branch
    commit_id = pusher.store.resolve("r", "main")
    pusher.store.refs("r").advance(TAGS, "v1", commit_id, expected_sequence=None)
    other = Pusher(tmp_path, pusher.store, "other index")
    with pytest.raises(InvalidInput, match="r has a tag v1"):
        other.push(branch="v1")
    assert not other.index_dir.exists()  # it is opened before the first file
    write_files(pusher.source, {"a": b"2"})
    assert not pusher.push().created_branch
    assert pusher.store.resolve("r", "v1") == commit_id
