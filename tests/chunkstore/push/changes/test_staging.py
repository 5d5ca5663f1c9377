"""A staging area: any changes against a dictionary of paths, beside other writers, forks and gc
runs, and what it refuses."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import (
    Conflict,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotADirectory,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.push import limits
from lodefs.chunkstore.push.changes import staging
from lodefs.chunkstore.push.changes.branch_commits import CommitJob
from lodefs.chunkstore.push.changes.change import Change, Put, Remove, Rename
from lodefs.chunkstore.push.changes.contents import BLOCK_SIZE_BYTES, ContentWriter
from lodefs.chunkstore.push.changes.staging import Staging
from lodefs.chunkstore.repo.refs import TAGS
from tests.support.chunkstore.branches import (
    CHANGES,
    Branches,
    Model,
    applied,
    assert_as_pushed,
    contents_of,
    set_quota,
    stage,
)
from tests.support.chunkstore.faulty_store import Effect

JOB = CommitJob()
A, B = (b"a",), (b"b",)
LONG = bytes(range(256)) * 20


@pytest.fixture
def branches(tmp_path: Path) -> Branches:
    """With a commit on main."""
    made = Branches(tmp_path)
    made.change(Put("a", b"1"), Put("d/f", b"f" * 3000))
    return made


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.lists(CHANGES, max_size=4)), max_size=4))
def test_any_changes_do_what_they_do_to_a_dictionary(
    rounds: list[tuple[bool, bool, list[Change]]],
) -> None:
    """Changes here or in a fork, with commits in between; what is refused changes nothing. What is
    staged is read as in the model, and the commit is that of a push of the same directory."""
    start: Model = {"a": None, "a/x": b"ax", "b": None, "b/c": None, "b/c/x": b"bcx" * 500}
    with TemporaryDirectory() as place:
        branches = Branches(Path(place))
        puts = [Put(path, text) for path, text in start.items() if text is not None]
        branches.change(*puts, on="older")
        branches.change(*puts)
        model = start
        with branches.staged() as area:
            for is_fork, is_committed, changes in rounds:
                if is_fork:
                    before = area.store_root()
                    with branches.forked(before) as fork:
                        model = _stage(fork, changes, model, start)
                        after = fork.store_root()
                    assert after is not None
                    area.take(before, after, JOB)
                else:
                    model = _stage(area, changes, model, start)
                if is_committed:
                    done = area.commit(CommitJob(check_all=True))
                    area.go_on(CommitId(bytes.fromhex(done.commit)))
            commit = area.commit(CommitJob(check_all=True)).commit
        assert contents_of(branches, commit) == model
        assert_as_pushed(branches, model)
        branches.assert_sound()


def _stage(area: Staging, changes: list[Change], model: Model, older: Model) -> Model:
    for change in changes:
        wanted = applied(model, change, older)
        if wanted is None:
            with pytest.raises(LodefsError):
                stage(area, change)
        else:
            stage(area, change)
            model = wanted
    for path, content in model.items():
        item = area.item(tuple(path.encode().split(b"/")))
        if content is not None:
            assert isinstance(item, TreeEntry)
            assert area.read(item, 0, len(content)) == content
            assert area.read(item, 1, 300) == content[1:300]
    return model


def test_files_are_sent_while_they_are_written(tmp_path: Path) -> None:
    """Packs go into the store before a file ends; two files may be written at once, in small
    pieces."""
    branches, maker = Branches(tmp_path, ChunkingParams()), Random(1)
    pieces = [maker.randbytes(50_000) for _ in range(150)]
    with branches.staged() as area:
        with area.create(A) as one, area.create(B, executable=True) as two:
            for piece in pieces:
                one.write(piece)
                two.write(piece[::-1])
            assert one.tell() == 7_500_000
            two.write(b"")
        assert branches.objects.count("put", keys.PACKS) > 0
        area.put((b"c",), io.BytesIO(b"".join(pieces)))
        commit = area.commit(JOB).commit
    found = branches.files(commit)
    assert found[b"a"] == found[b"c"] == b"".join(pieces)
    assert found[b"b"] == b"".join(piece[::-1] for piece in pieces)
    branches.assert_sound()


def test_a_large_write_is_taken_in_blocks(
    branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds no whole content, also if one call writes it."""
    blocks: list[int] = []
    add = ContentWriter.add

    def counted(writer: ContentWriter, block: bytes, *, final: bool = False) -> None:
        blocks.append(len(block))
        add(writer, block, final=final)

    monkeypatch.setattr(ContentWriter, "add", counted)
    data = bytes(9 << 20)
    with branches.staged() as area:
        with area.create(A) as file:
            file.write(b"1")
            assert file.write(data) == len(data)
        assert branches.files(area.commit(JOB).commit)[b"a"] == b"1" + data
    assert max(blocks) <= BLOCK_SIZE_BYTES + 1


def test_an_error_leaves_the_branch_and_no_writer(branches: Branches) -> None:
    """After an exception the branch is as it was, and a gc run waits for nobody."""
    before = branches.head()
    with pytest.raises(KeyError):  # noqa: PT012, SIM117
        with branches.staged() as area:
            area.put(A, b"2" * 5000)
            area.store_root()
            raise KeyError
    assert branches.head() == before
    with pytest.raises(InvalidInput, match="is over"):
        area.put(A, b"3")


def test_the_same_content_is_no_commit(branches: Branches) -> None:
    """Files that are put as they are, by a machine that knows nothing of them either, change
    nothing; nor does a file that comes and goes."""
    before = branches.head()
    with branches.staged(index_dir=branches.base / "fresh") as area:
        area.put((b"d", b"f"), b"f" * 3000)
        area.put(B, b"2")
        area.remove(B)
        result = area.commit(JOB)
    assert result.unchanged
    assert branches.head() == before


def test_others_commit_meanwhile(branches: Branches) -> None:
    """Disjoint paths of others are kept. The same path is a conflict, after which all is staged as
    before: with a choice it is committed."""
    with branches.staged() as area:
        area.put(A, b"ours")
        area.put((b"d", b"new"), LONG)
        branches.change(Put("d/theirs", b"t"), index_dir=branches.base / "other")
        first = area.commit(JOB)
        area.go_on(CommitId(bytes.fromhex(first.commit)))
        area.put(A, b"again")
        area.put(B, b"b")
        branches.change(Put("a", b"theirs"), index_dir=branches.base / "other")
        for step in (area.commit, area.rebase):
            with pytest.raises(Conflict, match="both sides changed a: nothing was committed"):
                step(JOB)
        area.rebase(CommitJob(choices={A: False}))
        area.put((b"c",), b"c")
        commit = area.commit(JOB).commit
    assert branches.files(commit) == {
        b"a": b"theirs", b"b": b"b", b"c": b"c", b"d/f": b"f" * 3000, b"d/new": LONG,
        b"d/theirs": b"t",
    }  # fmt: skip


def test_forks_of_one_transaction(branches: Branches) -> None:
    """Disjoint paths come together, in one directory too; one path of two forks is a conflict, and
    a fork sees what was staged before it."""
    with branches.staged() as area:
        area.put((b"d", b"before"), b"0")
        before, written = area.store_root(), []
        for n in range(3):
            with branches.forked(before) as fork:
                assert fork.item((b"d", b"before"))
                fork.put((b"d", b"%d" % n), b"%d" % n * 2000)
                fork.put((b"x%d" % (n // 2), b"f"), b"%d" % n)
                written.append(fork.store_root())
        for after in written:
            assert after is not None
            if after is written[1]:
                with pytest.raises(Conflict, match="both sides changed x0/f"):
                    area.take(before, after, JOB)
            else:
                area.take(before, after, JOB)
        commit = area.commit(CommitJob(check_all=True)).commit
    assert {path for path in branches.files(commit) if path.startswith((b"d/", b"x"))} == {
        b"d/before", b"d/f", b"d/0", b"d/2", b"x0/f", b"x1/f",
    }  # fmt: skip
    branches.assert_sound()


def test_packs_of_a_fork_that_are_gone(branches: Branches) -> None:
    """A commit that would name packs of a fork which the store has lost is refused."""
    head = branches.head()
    with pytest.raises(Unavailable, match="begin the transaction anew"):  # noqa: PT012, SIM117
        with branches.staged() as area:
            before = area.store_root()
            there = {info.key for info in branches.objects.list(keys.PACKS)}
            with branches.forked(before) as fork:
                fork.put(B, LONG)
                after = fork.store_root()
            assert after is not None
            area.take(before, after, JOB)
            for info in list(branches.objects.list(keys.PACKS)):
                if info.key not in there and after.segments[0].pack.hex() not in info.key:
                    branches.objects.delete(info.key)
            area.commit(CommitJob(check_all=True))
    assert branches.head() == head


def test_packs_that_the_store_has_lost(branches: Branches) -> None:
    """What relied on a lost pack fails with the way out, which works."""
    for info in list(branches.objects.list(keys.PACKS)):
        branches.objects.delete(info.key)
    branches.store.packs = type(branches.store.packs)(branches.objects)
    with pytest.raises(Unavailable, match="begin the transaction anew"):
        _stage_some(branches, "other")
    with branches.staged("other") as area:
        area.put(A, b"f" * 3000)
        commit = area.commit(JOB).commit
    assert branches.files(commit) == {b"a": b"f" * 3000}


@pytest.mark.slow
def test_a_store_that_fails_at_each_write(tmp_path: Path) -> None:
    """Whichever put fails, the branch is as it was, and a repetition goes through."""
    failed = 0
    for n in range(1, 99):
        branches = Branches(tmp_path / str(n))
        branches.change(Put("a", b"1"))
        before = branches.head()
        branches.objects.add(_fail_nth(n), "put")
        try:
            _stage_some(branches)
            break
        except Unavailable:
            failed += 1
        if branches.head() != before:  # the ref was put, and the answer is lost
            assert branches.files(branches.store.resolve("r", "main").hex())[b"b"] == LONG
        else:
            _stage_some(branches)
        branches.assert_sound()
    assert failed > 5


def _fail_nth(nth: int) -> Effect:
    numbers = count(1)

    def effect(perform: Callable[[], Any]) -> Any:
        if next(numbers) == nth:
            raise Unavailable("gone")
        return perform()

    return effect


def _stage_some(branches: Branches, on: str = "main") -> None:
    with branches.staged(on) as area:
        area.put(A, b"f" * 3000)
        area.put(B, LONG)
        area.commit(JOB)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (Put("d", b""), InvalidInput, "d is a directory: remove it first"),
        (Put("a/x", b""), NotADirectory, "a is a file"),
        (Remove("none"), NotFound, "none does not exist"),
        (Rename("none", "x"), NotFound, "none does not exist"),
        (Rename("d", "d/e"), InvalidInput, "into itself"),
        (Put("d/../a", b""), InvalidInput, "not a path inside"),
        (Put("", b""), InvalidInput, "a change needs a path"),
    ],
)
def test_what_cannot_be_staged(
    branches: Branches, change: Change, kind: type[LodefsError], message: str
) -> None:
    """It is refused at once, and the rest can be committed."""
    with branches.staged() as area:
        with pytest.raises(kind, match=message):
            stage(area, change)
        assert not area.is_changed or area.commit(JOB).unchanged


def test_files_that_are_open(branches: Branches) -> None:
    """A path has one writer at a time, a commit needs all of them closed, an error in a file's
    block leaves the path as it was, and a closed file takes no bytes."""
    with branches.staged() as area:
        file = area.create(A)
        with pytest.raises(InvalidInput, match="a is open for writing already: close it first"):
            area.put(A, b"2")
        for step in (lambda: area.commit(JOB), lambda: area.rebase(JOB), area.store_root):
            with pytest.raises(InvalidInput, match="a is still open for writing: close it first"):
                step()
        file.discard()
        with pytest.raises(KeyError):  # noqa: PT012, SIM117
            with area.create(A) as other:
                other.write(b"half")
                raise KeyError
        with pytest.raises(ValueError, match="closed"):
            other.write(b"more")
        assert not area.is_changed
        with area.create(B) as file:
            pass
        assert branches.files(area.commit(JOB).commit)[b"b"] == b""


def test_a_directory_and_its_copy(branches: Branches) -> None:
    """A copy and what it is of change each for itself; an empty directory is kept."""
    with branches.staged() as area:
        area.put((b"d", b"e", b"g"), b"1")
        area.copy((b"d",), (b"d2",))
        area.put((b"d", b"e", b"g"), b"2")
        area.make_directory((b"d2", b"empty"))
        with pytest.raises(InvalidInput, match="into itself"):
            area.copy((b"d",), (b"d", b"e"))
        with pytest.raises(InvalidInput, match="a is not a directory"):
            area.make_directory(A)
        commit = area.commit(JOB).commit
    assert contents_of(branches, commit) == {
        "a": b"1", "d": None, "d/e": None, "d/e/g": b"2", "d/f": b"f" * 3000,
        "d2": None, "d2/e": None, "d2/e/g": b"1", "d2/f": b"f" * 3000, "d2/empty": None,
    }  # fmt: skip


def test_a_tag_is_no_branch(branches: Branches) -> None:
    """Nor is a commit: nothing is staged for them."""
    head = branches.store.resolve("r", "main")
    branches.store.refs("r").advance(TAGS, "v1.0", head, expected_sequence=None)
    for name, message in (("v1.0", "has a tag v1.0"), (head.hex()[:12], "beginning of commit")):
        with pytest.raises(InvalidInput, match=message), branches.staged(name):
            pass


def test_more_than_the_quota(branches: Branches, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said while much is written, and at the commit for little; what is staged stays."""
    set_quota(branches, 10_000)
    with branches.staged() as area:
        area.put(B, b"b" * 9000)
        with pytest.raises(NoSpace, match="needs at least 12,001"):
            area.commit(JOB)
        area.remove((b"d",))
        assert area.commit(JOB).size_bytes == 9001
    monkeypatch.setattr(staging, "EARLY_SIZE_BYTES", 1000)
    monkeypatch.setattr(limits, "EARLY_SIZE_BYTES", 1000)
    with branches.staged() as area:
        area.remove(B)
        for n in range(9):
            area.put((b"%d" % n,), b"%d" % n * 1000)
        branches.objects.forget()
        with pytest.raises(NoSpace):
            area.put(B, LONG)
        assert branches.objects.count("put", keys.PACKS) == 0
        assert area.commit(JOB).size_bytes == 9001
