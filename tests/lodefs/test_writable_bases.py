"""Changes whose base is gone, or kept by a tag; commits that were interrupted. In memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import lodefs
from lodefs.api.writing import base_tags
from lodefs.api.writing.writable import unmount_writable
from lodefs.api.writing.writable_changes import status
from lodefs.chunkstore.errors import Denied, InvalidInput, NoSpace, NotFound, Unavailable
from lodefs.chunkstore.format.names import is_base_tag
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.system import libc
from lodefs.mount.writable import upper_place, writable_mount
from lodefs.mount.writable.upper_place import NotedCommit
from tests.support.chunkstore.directories import write_files
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.overlay_mounts import needs_overlay
from tests.support.lodefs.kept_changes import KeptChanges


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptChanges:
    monkeypatch.setattr(upper_place, "OF_ROOT", tmp_path / "of-root")
    return KeptChanges(tmp_path, FaultyObjects(MemoryObjects()))


def refused(*_: object, **_more: object) -> None:
    """What a full disk, or a proxy that is away, does."""
    raise NoSpace("full")


def test_a_commit_that_was_made_and_not_gone_on_from(
    kept: KeptChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has noted it: the next commit goes on from it, and others may have changed the
    same file meanwhile."""
    kept.write(a=b"changed")
    with monkeypatch.context() as patched:
        patched.setattr(writable_mount, "advance", refused)
        with pytest.raises(NoSpace) as raised:
            kept.commit()
    made = kept.head()
    assert raised.value.__notes__[0].startswith(f"{made} is committed, but {kept.directory} is")
    assert kept.record.noted == NotedCommit(made, "r", "main")
    kept.assert_kept()
    theirs = kept.others("a", b"theirs")
    kept.commit()
    assert (kept.head(), kept.record.commit) == (theirs, made)
    assert (kept.record.noted, kept.record.generation) == (None, 1)


def test_a_commit_that_was_noted_and_not_made(kept: KeptChanges) -> None:
    """Another one is made."""
    kept.write(a=b"changed")
    kept.objects.add(fail(Denied("ended here")), "put", "repos/r/refs")
    with pytest.raises(Denied):
        kept.commit()
    assert kept.record.noted is None  # the store said that it is not there
    writable_mount.note_commit(kept.place, NotedCommit("ab" * 32, "r", "main"))
    kept.objects.forget()
    made = kept.commit()
    assert (kept.record.commit, kept.files()["a"], kept.record.noted) == (made, b"changed", None)


def test_what_a_killed_restore_has_left_is_no_change(kept: KeptChanges) -> None:
    """Neither is it shown, nor committed; a file that is called so somewhere else is."""
    kept.write(a=b"changed")
    write_files(kept.upper, {"d/.x.lodefs-restore/x": b"half", ".x.lodefs-restore": b"mine"})
    kept.place.note_restoring(0, b"d/.x.lodefs-restore")
    found = status(kept.directory, session=kept.session).differences
    assert [one.path for one in found] == [b".x.lodefs-restore", b"a"]
    kept.commit()
    assert sorted(kept.files()) == [".x.lodefs-restore", "a", "d/x", "d/y"]
    assert kept.place.restoring(kept.record.generation) == b""


def expired(kept: KeptChanges) -> None:
    """Others commit, and the retention policy has all but the newest commit deleted."""
    kept.others("d/x", b"theirs")
    kept.others("d/y", b"theirs")
    lodefs.retain("r", keep_last=1, session=kept.session)
    for _ in range(2):
        collect(kept.session.store, CollectOptions(grace_s=0))


def test_a_base_that_is_gone(kept: KeptChanges) -> None:
    """The changes stay, and the way out is named: another commit is taken for the base."""
    kept.write(a=b"ours")
    write_files(kept.upper, {"d/x": b"ours"})
    with pytest.raises(InvalidInput, match=r"--base main: .* is there, and counts"):
        kept.commit(base="main")
    expired(kept)
    for act in (kept.commit, lambda: status(kept.directory, session=kept.session)):
        with pytest.raises(NotFound, match="expired by the retention policy") as raised:
            act()
        assert f"`lodefs commit --base REV {kept.directory}`" in raised.value.__notes__[0]
    kept.assert_kept()
    kept.commit(base="main")
    assert kept.files() == {"a": b"ours", "d/x": b"ours", "d/y": b"theirs"}
    assert (kept.record.commit, kept.record.generation) == (kept.head(), 1)


def test_a_renamed_directory_whose_base_is_gone(kept: KeptChanges) -> None:
    """It is not taken for an empty one."""
    (kept.upper / "moved").mkdir()
    prefix = "trusted" if os.geteuid() == 0 else "user"
    os.setxattr(kept.upper / "moved", f"{prefix}.overlay.redirect", b"/d")
    expired(kept)
    lodefs.commit_changes("r", [lodefs.changes.Remove("d")], session=kept.session, workers=0)
    with pytest.raises(InvalidInput, match="moved was renamed, it was /d before, and r@"):
        kept.commit(base="main")
    kept.assert_kept()


def test_a_tag_keeps_the_base(kept: KeptChanges) -> None:
    """Where there is a retention policy, until there are no changes to it."""
    kept.write(a=b"ours")
    assert base_tags.name_for(kept.session, kept.place, kept.record) == ""
    lodefs.retain("r", keep_last=1, session=kept.session)
    name = base_tags.name_for(kept.session, kept.place, kept.record)
    kept.place.write(msgspec.structs.replace(kept.record, tag=name))
    assert base_tags.put(kept.session, kept.record) is None
    expired(kept)
    made = kept.commit()
    assert kept.files() == {"a": b"ours", "d/x": b"theirs", "d/y": b"theirs"}
    assert [(one.name, one.commit) for one in lodefs.tag.list("r", session=kept.session)] == [
        (name, made)
    ]
    unmount_writable(kept.session, str(kept.directory), keep=True)
    assert lodefs.tag.list("r", session=kept.session) == []


def tagged(kept: KeptChanges) -> str:
    """The repository has a policy, and the base its tag, as after a mount."""
    lodefs.retain("r", keep_last=1, session=kept.session)
    name = base_tags.name_for(kept.session, kept.place, kept.record)
    assert is_base_tag(name)
    kept.place.write(msgspec.structs.replace(kept.record, tag=name))
    assert base_tags.put(kept.session, kept.record) is None
    return name


def tags(kept: KeptChanges, repo: str) -> dict[str, str]:
    return {one.name: one.commit for one in lodefs.tag.list(repo, session=kept.session)}


def test_a_tag_of_a_repository_that_was_renamed(kept: KeptChanges) -> None:
    """It is put again by the next mount, and goes with the changes, under the new name."""
    kept.write(a=b"ours")
    name = tagged(kept)
    lodefs.rename("r", "renamed", session=kept.session)
    assert base_tags.name_for(kept.session, kept.place, kept.record) == name
    assert base_tags.put(kept.session, kept.record) is None
    assert tags(kept, "renamed") == {name: kept.base}
    unmount_writable(kept.session, str(kept.directory), discard=True)
    assert tags(kept, "renamed") == {}


def test_a_tag_that_cannot_be_removed(kept: KeptChanges) -> None:
    """It is named, for somebody to remove."""
    name = tagged(kept)
    kept.objects.add(fail(Denied("read only")), "put", "")
    assert unmount_writable(kept.session, str(kept.directory)).tag_left == name


def test_renamed_after_an_interrupted_commit(
    kept: KeptChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag moves on to what was committed, under the new name."""
    kept.write(a=b"ours")
    name = tagged(kept)
    with monkeypatch.context() as patched:
        patched.setattr(writable_mount, "advance", refused)
        with pytest.raises(NoSpace):
            kept.commit()
    made = kept.head()
    lodefs.rename("r", "renamed", session=kept.session)
    kept.commit()
    assert (kept.record.commit, tags(kept, "renamed")) == (made, {name: made})


def test_a_tag_goes_on_before_the_mount_does(
    kept: KeptChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no grace time gc would delete what the mount shows. A mount whose tag does not move
    stays where it is, and the same command goes on."""
    kept.write(a=b"ours")
    name = tagged(kept)
    kept.objects.add(fail(Unavailable("away")), "put", "repos/r/refs/tags")
    with pytest.raises(Unavailable) as raised:
        kept.commit()
    assert "is committed, but" in raised.value.__notes__[-1]
    assert (kept.record.commit, tags(kept, "r")) == (kept.base, {name: kept.base})
    kept.objects.forget()
    made = kept.head()
    with monkeypatch.context() as patched:
        patched.setattr(writable_mount, "advance", refused)
        with pytest.raises(NoSpace):
            kept.commit()
    assert tags(kept, "r") == {name: made}
    kept.commit()
    assert (kept.head(), kept.record.commit) == (made, made)


def test_who_may_make_no_tag_goes_on_without(kept: KeptChanges) -> None:
    """As at the mount, which has told it."""
    kept.write(a=b"ours")
    name = tagged(kept)
    kept.objects.add(fail(Denied("branches alone")), "put", "repos/r/refs/tags")
    assert kept.commit() == kept.record.commit == kept.head()
    assert tags(kept, "r") == {name: kept.base}


def test_a_tag_is_gone_before_its_record_is(
    kept: KeptChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between leaves none of which nobody knows."""
    tagged(kept)
    with monkeypatch.context() as patched:
        patched.setattr(upper_place.UpperPlace, "remove", refused)
        with pytest.raises(NoSpace):
            unmount_writable(kept.session, str(kept.directory), discard=True)
    assert tags(kept, "r") == {}
    unmount_writable(kept.session, str(kept.directory), discard=True)
    assert not kept.place.directory.exists()


def test_a_policy_that_is_set_while_there_are_changes(kept: KeptChanges) -> None:
    """The next commit is tagged."""
    kept.write(a=b"ours")
    lodefs.retain("r", keep_last=1, session=kept.session)
    made = kept.commit()
    assert tags(kept, "r") == {kept.record.tag: made}


def test_a_base_that_is_not_under_the_new_name(kept: KeptChanges) -> None:
    """No ref led to it when the repository was renamed, and the old name still has it; in the end
    gc deletes it there. The way out is the same."""
    kept.write(a=b"ours")
    kept.place.write(msgspec.structs.replace(kept.record, commit=kept.others("d/x", b"theirs")))
    lodefs.branch(f"r@{kept.base}", "main", force=True, session=kept.session)
    lodefs.rename("r", "renamed", session=kept.session)
    for act in (kept.commit, lambda: status(kept.directory, session=kept.session)):
        with pytest.raises(NotFound, match="renamed has no commit") as raised:
            act()
        assert "--base REV" in raised.value.__notes__[0]
    made = kept.commit(base="main")
    assert kept.session.store.resolve("renamed", "main").hex() == made == kept.record.commit


def test_an_interrupted_commit_that_is_gone(
    kept: KeptChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deleted its branch, and gc has run: the place alone has the changes, which stay."""
    kept.write(a=b"ours")
    lodefs.branch("r", "other", session=kept.session)
    with monkeypatch.context() as patched:
        patched.setattr(writable_mount, "advance", refused)
        with pytest.raises(NoSpace):
            kept.commit()
    lodefs.rm("r@main", session=kept.session)
    for _ in range(2):
        collect(kept.session.store, CollectOptions(grace_s=0))
    with pytest.raises(NotFound, match="no longer has the branch main"):
        kept.commit()
    kept.assert_kept()
    kept.commit(branch="other")
    assert kept.files("other")["a"] == b"ours"


def test_a_tag_is_kept_by_a_host_of_another_name(
    kept: KeptChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that mounts for the one before it moves that one's tag and leaves none behind."""
    lodefs.retain("r", keep_last=1, session=kept.session)
    name = base_tags.name_for(kept.session, kept.place, kept.record)
    record = msgspec.structs.replace(kept.record, tag=name)
    monkeypatch.setattr("platform.node", lambda: "driver-x7k2p")
    assert "driver-x7k2p" in base_tags.name_for(kept.session, kept.place, kept.record)
    assert base_tags.name_for(kept.session, kept.place, record) == name


def test_a_store_that_takes_no_tag(kept: KeptChanges) -> None:
    """Why is said, and nothing else comes of it."""
    record = msgspec.structs.replace(kept.record, tag="mounted-here")
    kept.objects.add(fail(Denied("read only")), "put", "")
    assert "read only" in str(base_tags.put(kept.session, record))


def fill_bytes(upper: Path) -> None:
    with suppress(OSError), open(upper / "a", "wb", buffering=0) as file:
        file.writelines(bytes(4096) for _ in range(128))


def fill_inodes(upper: Path) -> None:
    (upper / "a").write_bytes(b"ours")
    with suppress(OSError):
        for number in range(128):
            (upper / f"empty-{number}").touch()


@needs_overlay
@pytest.mark.parametrize("fill", [fill_bytes, fill_inodes])
def test_changes_that_have_filled_their_disk(
    kept: KeptChanges, fill: Callable[[Path], None]
) -> None:
    """Are committed: room for that was kept free, and is again, bytes and inodes."""
    place = kept.place
    record = kept.record
    shutil.rmtree(place.directory)
    place.directory.mkdir()
    limits = b"size=256k,nr_inodes=96"
    libc.call("mount", b"tmpfs", os.fsencode(place.directory), b"tmpfs", 0, limits)
    try:
        with place.locked():
            place.write(record)
            place.make(0, 0, 0, 0o755)
        place.reserve()
        fill(kept.upper)
        with pytest.raises(NoSpace):
            writable_mount.note_commit(place, None)
        made = kept.commit()
        assert kept.record.commit == made
        assert kept.files()["a"] != b"a"
        left = [one.stat() for one in (place.directory / "reserve").iterdir()]
        assert len(left) == upper_place.RESERVE_INODES - 1
        assert sum(one.st_size for one in left) == upper_place.RESERVE_BYTES
    finally:
        libc.call("umount2", os.fsencode(place.directory), 2)


def test_a_reserve_of_an_earlier_version_is_used(kept: KeptChanges) -> None:
    """It was a file, and stays one until a commit needs it."""
    reserve = kept.place.directory / "reserve"
    reserve.write_bytes(bytes(100))
    kept.place.reserve()
    assert reserve.is_file()
    kept.place.use_reserve()
    kept.place.reserve()
    assert reserve.is_dir()


@pytest.mark.parametrize("now_s", [1.0, 2e10])
def test_a_clock_that_jumps(
    kept: KeptChanges, monkeypatch: pytest.MonkeyPatch, now_s: float
) -> None:
    """Back before the base, or centuries ahead: what was changed is committed, also when it was
    interrupted before that."""
    kept.write(a=b"ours")
    kept.objects.add(fail(Denied("ended here")), "put", "repos/r/refs")
    with pytest.raises(Denied):
        kept.commit()
    kept.objects.forget()
    monkeypatch.setattr(time, "time", lambda: now_s)
    made = kept.commit()
    assert (kept.record.commit, kept.files()["a"]) == (made, b"ours")
