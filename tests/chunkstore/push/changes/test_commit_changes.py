"""A base commit plus changes: against a dictionary of paths, against a push of the same directory,
and beside other writers."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Conflict, InvalidInput, LodefsError, NoSpace, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.push import limits
from lodefs.chunkstore.push.changes.change import (
    Change,
    CopyFrom,
    Put,
    PutDirectory,
    PutLink,
    Remove,
    Rename,
)
from lodefs.chunkstore.push.limits import Changes
from tests.adversary.hostile_repo import FileClaim, lying_commit
from tests.support.chunkstore.branches import (
    CHANGES,
    Branches,
    Model,
    applied,
    assert_as_pushed,
    contents_of,
    set_quota,
)
from tests.support.chunkstore.directories import in_commit, in_directory, write_files


@pytest.fixture
def branches(tmp_path: Path) -> Branches:
    return Branches(tmp_path)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(CHANGES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_any_changes_do_what_they_do_to_a_dictionary(rounds: list[list[Change]]) -> None:
    """Each commit has the paths and contents of the model, the totals and the root digest of a
    push of that directory, and fits into a quota of just that; what the model refuses is refused,
    and nothing is committed."""
    start: Model = {"a": None, "a/x": b"ax", "b": None, "b/c": None, "b/c/x": b"bcx" * 500}
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "EARLY_SIZE_BYTES", 0)
        branches = Branches(Path(place))
        puts = [Put(path, text) for path, text in start.items() if text is not None]
        branches.change(*puts)
        branches.change(*puts, on="older")
        model = start
        for changes in rounds:
            model = _round(branches, model, changes, start)
        branches.assert_sound()


def _round(branches: Branches, model: Model, changes: Sequence[Change], older: Model) -> Model:
    wanted: Model | None = model
    for change in changes:
        wanted = None if wanted is None else applied(wanted, change, older)
    set_quota(branches, max(1, sum(len(content or b"") for content in (wanted or {}).values())))
    before = branches.head()
    if wanted is None:
        with pytest.raises(LodefsError):
            branches.change(*changes)
        assert branches.head() == before
        return model
    result = branches.change(*changes)
    assert contents_of(branches, result.commit) == wanted
    assert result.unchanged == (wanted == model)
    assert_as_pushed(branches, wanted)
    return wanted


def test_what_did_not_change_is_not_read(tmp_path: Path) -> None:
    """Of 300 files in 30 directories one changes: only the trees on its path are read, no file,
    and a tree pack and a data pack are written."""
    branches = Branches(tmp_path, ChunkingParams())
    source = tmp_path / "source"
    write_files(source, {f"{n % 30}/{n}": b"%d" % n for n in range(300)})
    branches.change(PutDirectory("", source))
    branches.objects.forget()
    result = branches.change(Put("7/37", b"other"))
    assert (result.files, result.files_read, result.new_bytes) == (300, 1, 5)
    assert result.changes == Changes(changed_files=1, changed_bytes=5)
    assert branches.objects.count("put", keys.PACKS) == 2
    assert branches.objects.count("get", keys.PACKS) <= 2
    assert result.stored_bytes < 10_000
    assert branches.files(result.commit)[b"7/37"] == b"other"


def test_a_large_directory_is_not_sent_again(tmp_path: Path) -> None:
    """Of a directory of 3,000 files only the chunks of its tree that differ are sent, also by a
    machine that knows nothing of the store."""
    branches = Branches(tmp_path, ChunkingParams())
    source = tmp_path / "source"
    write_files(source, {f"{n:05}": b"%d" % n for n in range(3000)})
    first = branches.change(PutDirectory("big", source))
    second = branches.change(Put("big/01234", b"other"), index_dir=tmp_path / "fresh")
    assert second.stored_bytes < first.stored_bytes / 2
    branches.assert_sound()


def test_contents_of_all_kinds(branches: Branches, tmp_path: Path) -> None:
    """Bytes, local files with their executable bit, streams longer than a block, symlinks and
    directories come as they are."""
    local, tree = tmp_path / "local", tmp_path / "tree"
    local.write_bytes(b"local")
    local.chmod(0o755)
    write_files(tree, {"deep/f": b"f" * 3000})
    stream = io.BytesIO(bytes(5 << 20) + b"end")
    result = branches.change(
        Put("bytes", b"x"), Put("local", local), Put(b"\xff/stream", stream, executable=True),
        PutLink("link", b"local"), PutDirectory("tree", tree),
    )  # fmt: skip
    seen = in_commit(branches.store, "r", result.commit)
    assert seen[b"local"][1:] == (True, b"local")
    assert seen[b"\xff/stream"] == (Kind.FILE, True, stream.getvalue())
    assert seen[b"link"] == (Kind.SYMLINK, False, b"local")
    assert seen[b"tree/deep/f"].content == b"f" * 3000
    assert {path[5:] for path in seen if path.startswith(b"tree/")} == set(in_directory(tree)) - {
        b""
    }
    branches.assert_sound()


def during(branches: Branches, change: Change) -> Callable[[Callable[[], Any]], Any]:
    """An Effect: another writer is faster with ``change``."""

    def effect(perform: Callable[[], Any]) -> Any:
        branches.change(change, index_dir=branches.base / "other")
        return perform()

    return effect


def test_disjoint_changes_of_others_are_kept(branches: Branches) -> None:
    """A branch that moves right before the ref is put: the commit follows the other one and has
    both changes; a rename keeps what others put beside it."""
    branches.change(Put("a/one", b"1"), Put("b/two", b"2"))
    branches.objects.add(during(branches, Put("a/new", b"n")), "put", "repos/r/refs", times=1)
    result = branches.change(Rename("a/one", "c/one"), Put("b/two", b"22"))
    assert result.rebased == 1
    assert branches.files(result.commit) == {b"c/one": b"1", b"a/new": b"n", b"b/two": b"22"}
    parent = branches.head().parents[0]
    assert branches.files(parent.hex())[b"a/new"] == b"n"
    assert branches.head().files == 3
    branches.assert_sound()


def test_overlapping_changes_are_refused_by_path(branches: Branches) -> None:
    """Both sides changed a path, or one removed a directory in which the other changed a file:
    Conflict names it, and the other commit stands. The same change on both sides is none."""
    first = CommitId(bytes.fromhex(branches.change(Put("a/f", b"1"), Put("b", b"b")).commit))
    theirs = branches.change(Put("a/f", b"theirs"), Put("same", b"s")).commit
    with pytest.raises(Conflict, match="both sides changed a/f: nothing"):
        branches.change(Put("a/f", b"ours"), base=first)
    with pytest.raises(Conflict, match="both sides changed a: nothing"):
        branches.change(Remove("a"), base=first)
    assert branches.store.resolve("r", "main").hex() == theirs
    both = branches.change(Put("same", b"s"), Remove("b"), base=first)
    assert branches.files(both.commit) == {b"a/f": b"theirs", b"same": b"s"}


def test_the_same_change_of_two_machines_is_one_commit(branches: Branches) -> None:
    """The second one, whose chunks lie in other packs, finds the same in the branch."""
    first = CommitId(bytes.fromhex(branches.change(Put("a", b"1")).commit))
    change = Put("f", b"f" * 3000)
    theirs = branches.change(change, Put("more", b"m" * 3000))
    ours = branches.change(change, base=first, index_dir=branches.base / "another")
    assert ours.stored_bytes > 0
    assert (ours.unchanged, ours.commit) == (True, theirs.commit)


@pytest.mark.parametrize("path", ["f", "d/f"])
def test_a_digest_of_others_is_a_claim(branches: Branches, tmp_path: Path, path: str) -> None:
    """Another writer put what has the digest of our file or directory, and other bytes, before our
    commit: ours counts."""
    first = CommitId(bytes.fromhex(branches.change(Put("a", b"1")).commit))
    content, name = b"f" * 3000, path.encode()
    lie = {name: FileClaim(b"x" * 3000)}
    theirs = lying_commit(branches.store, "r", {b"a": b"1", name: content}, lie)
    write_files(tmp_path / "d", {"f": content})
    change = Put("f", content) if path == "f" else PutDirectory("d", tmp_path / "d")
    ours = branches.change(change, base=first)
    assert branches.head().parents == (theirs,)
    assert branches.files(ours.commit) == {b"a": b"1", name: content}


def test_a_branch_is_created_at_its_base(branches: Branches) -> None:
    """A new branch has the base and the changes; its commit follows the base."""
    first = branches.change(Put("f", b"1")).commit
    made = branches.change(Put("g", b"2"), on="dev", base=CommitId(bytes.fromhex(first)))
    assert made.created_branch
    assert branches.files(made.commit) == {b"f": b"1", b"g": b"2"}
    assert [parent.hex() for parent in branches.head("dev").parents] == [first]


def test_a_file_that_is_not_there(branches: Branches, tmp_path: Path) -> None:
    """A path without a file, or a symlink that leads nowhere, is named, and nothing committed."""
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, why in (("dangling", "leads to a file that does not"), ("none", "does not exist")):
        with pytest.raises(NotFound, match=f"{name} {why}"):
            branches.change(Put("x", tmp_path / name))
    assert list(branches.store.objects.list(keys.REPOS)) == []


def test_a_dry_run_writes_nothing(branches: Branches) -> None:
    """It says what would change and be sent; the store is asked for no put."""
    branches.change(Put("f", b"1" * 5000))
    branches.objects.forget()
    result = branches.change(Put("f", b"2" * 7000), Put("g", b"3"), Remove("f"), dry_run=True)
    assert branches.objects.count("put", "") == 0
    assert result.commit == ""
    assert result.changes == Changes(1, 1, 0, 0, 1, 5000)
    assert result.stored_bytes > 0
    same = branches.change(Put("f", b"1" * 5000), dry_run=True)
    assert same.unchanged


@pytest.mark.parametrize("what", ["bytes", "file", "stream", "directory"])
def test_more_than_the_quota_is_not_sent(
    branches: Branches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Contents of all kinds are counted with what the branch keeps, before any of them is sent."""
    monkeypatch.setattr(limits, "EARLY_SIZE_BYTES", 1000)
    branches.change(Put("kept", b"k" * 3000), Put("d/old", b"o" * 900))
    set_quota(branches, 5000)
    content = bytes(range(256)) * 9  # 2,304
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(content)
    puts: dict[str, Change] = {
        "bytes": Put("d/new", content),
        "file": Put("d/new", tmp_path / "d" / "f"),
        "stream": Put("d/new", io.BytesIO(content)),
        "directory": PutDirectory("d", tmp_path / "d"),
    }
    changes = [Put("more", content[::-1]), puts[what]]
    branches.objects.forget()
    with pytest.raises(NoSpace, match="the branch has 3,900, and"):
        branches.change(*changes)
    assert branches.objects.count("put", keys.PACKS) == 0
    assert branches.change(Remove("kept"), Remove("d"), *changes).size_bytes == 4608


def test_local_files_beyond_the_quota_are_not_read(branches: Branches, tmp_path: Path) -> None:
    """None of them, though the last one alone is too large; reading it would take hours."""
    set_quota(branches, 5000)
    (tmp_path / "small").write_bytes(b"small")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 42)
    puts = [Put(name, tmp_path / name) for name in ("small", "sparse")]
    with pytest.raises(NoSpace, match="4,398,046,511,109"):
        branches.change(*puts)


def test_what_goes_again_is_not_counted(
    branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A content that a later change of the same list replaces, removes or moves away from under it
    refuses nothing: the quota is for the version that comes of it."""
    monkeypatch.setattr(limits, "EARLY_SIZE_BYTES", 0)
    branches.change(Put("a/x", b"1" * 3000))
    set_quota(branches, 5000)
    big, small = b"2" * 4000, b"3" * 1500
    branches.change(Put("n", big), Remove("n"), Put("n", small))
    branches.change(Put("a/y", big), Remove("a"), Put("m", small))
    branches.change(Rename("m", "b/m"), Put("b/m", big[:2000]), Put("n", big[:2000]))
    head = branches.change(Put("n", big[:2000])).commit
    assert branches.files(head) == {b"b/m": big[:2000], b"n": big[:2000]}
    with pytest.raises(NoSpace):
        branches.change(Put("a/y", big), dry_run=True)


def test_packs_that_the_store_has_lost_are_stored_again(branches: Branches) -> None:
    """Content whose pack the index still knows, and the store has lost, is stored once more; a
    stream that cannot be read twice says so."""
    content = bytes(range(256)) * 40
    branches.change(Put("f", content))
    for info in list(branches.objects.list(keys.PACKS)):
        branches.objects.delete(info.key)
    branches.store.packs = type(branches.store.packs)(branches.objects)
    result = branches.change(Put("g", content), on="other")
    assert result.lost_packs > 0
    assert branches.files(result.commit) == {b"g": content}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Put("", b"x"), InvalidInput),
        (Put("a/../b", b"x"), InvalidInput),
        (Put("n" * 256, b"x"), InvalidInput),
        (Put("f/below", b"x"), NotFound),
        (Remove("none"), NotFound),
        (Rename("f", "f/g"), InvalidInput),
        (CopyFrom(Spec("r", "none"), "x"), NotFound),
        (CopyFrom(Spec("r", "main", b"f"), ""), InvalidInput),
        (PutLink("l", b""), InvalidInput),
    ],
)
def test_what_cannot_be_applied_is_refused(
    branches: Branches, change: Change, error: type[LodefsError]
) -> None:
    """An error names it, and nothing is committed."""
    first = branches.change(Put("f", b"1")).commit
    with pytest.raises(error):
        branches.change(Put("g", b"2"), change)
    assert branches.store.resolve("r", "main").hex() == first
