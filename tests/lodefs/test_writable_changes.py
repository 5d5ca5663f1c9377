"""commit, status, diff and restore of a writable mount: of kept changes on a store in memory, and
through the kernel with a real proxy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lodefs
from lodefs.api.writing import writable, writable_changes
from lodefs.api.writing.job_changes import JobChanges
from lodefs.api.writing.writable import place_of, unmount_writable
from lodefs.api.writing.writable_changes import commit, restore, status
from lodefs.chunkstore.errors import (
    Conflict,
    Denied,
    Diverged,
    InUse,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import parse_spec
from lodefs.mount.kernel import overlay
from lodefs.mount.writable import upper_checks, upper_place, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.settings.datasets import Dataset
from lodefs.settings.session import Session
from tests.support.chunkstore.directories import in_commit, in_directory
from tests.support.chunkstore.faulty_store import Effect, FaultyObjects, fail, fail_after
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.overlay_mounts import needs_overlay
from tests.support.lodefs.command_line import CommandResult, Lodefs
from tests.support.lodefs.dataset_node import DatasetNode, dataset_node
from tests.support.lodefs.kept_changes import KeptChanges
from tests.support.proxy.node_process import REPO


@pytest.fixture
def objects() -> FaultyObjects:
    return FaultyObjects(MemoryObjects())


@pytest.fixture
def kept(tmp_path: Path, objects: FaultyObjects, monkeypatch: pytest.MonkeyPatch) -> KeptChanges:
    monkeypatch.setattr(upper_place, "OF_ROOT", tmp_path / "of-root")
    return KeptChanges(tmp_path, objects)


def test_a_commit_has_the_changes_and_goes_on(kept: KeptChanges) -> None:
    """Then there are none, and another commit makes none."""
    kept.write(a=b"changed", new=b"new")
    made = commit(kept.directory, message="m", session=kept.session, workers=0)
    assert kept.head() == made.commit == kept.record.commit
    assert kept.files() == {"a": b"changed", "d/x": b"x", "d/y": b"y", "new": b"new"}
    assert (made.files_read, made.rebased, made.unchanged) == (2, 0, False)
    assert kept.record.generation == 1
    kept.upper.mkdir(exist_ok=True)
    assert status(kept.directory, session=kept.session).differences == []
    again = commit(kept.directory, session=kept.session, workers=0)
    assert again.unchanged
    assert kept.head() == made.commit
    assert kept.record.generation == 1


def test_a_branch_that_moved(kept: KeptChanges) -> None:
    """What others changed elsewhere is kept. Where both changed a path, it is named, nothing is
    committed or lost, and another branch takes the changes."""
    kept.write(a=b"ours")
    kept.others("d/x", b"theirs")
    kept.commit()
    assert kept.files() == {"a": b"ours", "d/x": b"theirs", "d/y": b"y"}
    theirs = kept.others("a", b"theirs")
    kept.upper.mkdir(exist_ok=True)
    kept.write(a=b"ours again")
    with pytest.raises(Diverged, match="both sides changed a: nothing was committed; the changes"):
        kept.commit()
    assert kept.head() == theirs
    kept.assert_kept(1)
    kept.commit(branch="mine")
    assert kept.files("mine")["a"] == b"ours again"
    assert (kept.head(), kept.record.branch) == (theirs, "mine")


def test_where_a_commit_cannot_go(kept: KeptChanges) -> None:
    """A tag or commit that was mounted, a branch that was deleted, a name that is none: each is
    said, with the way out."""
    kept.write(a=b"changed")
    lodefs.tag("r@main", "v1", session=kept.session)
    for name, words in (("HEAD", "HEAD"), ("v1", "v1 is a tag of r: name a branch")):
        with pytest.raises(InvalidInput, match=words):
            kept.commit(branch=name)
    kept.begin("", "v1")
    with pytest.raises(InvalidInput, match="r@v1, which is not a branch: name one by --branch"):
        kept.commit()
    kept.begin("main")
    lodefs.rm("r@main", session=kept.session)
    with pytest.raises(NotFound, match="no longer has the branch main"):
        kept.commit()
    kept.assert_kept()
    kept.commit(branch="main")
    assert kept.files()["a"] == b"changed"


def test_a_full_repository(kept: KeptChanges) -> None:
    """A quota refuses a commit, and the changes stay."""
    kept.write(new=os.urandom(5000))
    lodefs.quota("r", 1000, session=kept.session)
    with pytest.raises(NoSpace):
        kept.commit()
    kept.assert_kept()
    lodefs.quota("r", 10_000, session=kept.session)
    kept.commit()
    assert "new" in kept.files()


@pytest.mark.parametrize("links", [1, 200])
def test_more_than_the_disk_could_hold(kept: KeptChanges, links: int) -> None:
    """Files with holes, or with many names, would be read for ever."""
    disk = os.statvfs(kept.upper)
    size_bytes = min(20 * disk.f_blocks * disk.f_frsize, 1 << 43) // links
    (kept.upper / "sparse").touch()
    os.truncate(kept.upper / "sparse", size_bytes)
    for number in range(1, links):
        os.link(kept.upper / "sparse", kept.upper / f"sparse-{number}")
    with pytest.raises(InvalidInput, match=r"16 times their disk; the largest is sparse"):
        kept.commit()
    kept.assert_kept()


def test_one_commit_at_a_time(kept: KeptChanges) -> None:
    """A commit while another command works on the place says so."""
    kept.write(a=b"changed")
    with kept.place.locked(), pytest.raises(Conflict, match="in flight"):
        kept.commit()
    kept.assert_kept()


WRITES = [
    (keys.ENTRIES, 1), (keys.PACKS, 1), (keys.PACKS, 2), (keys.INDEX, 1), ("repos/r/commits", 1),
    ("repos/r/refs", 1),
]  # fmt: skip


@pytest.mark.parametrize("ends", [fail, fail_after])
@pytest.mark.parametrize(("prefix", "first"), WRITES)
def test_a_commit_that_ends_at_any_write(
    kept: KeptChanges, prefix: str, first: int, ends: Callable[[LodefsError], Effect]
) -> None:
    """It ends before or after any of its writes to the store: repeated, it goes on, with one commit
    in the end, and the place has no changes."""
    kept.write(a=b"changed")
    rule = kept.objects.add(ends(Denied("ended here")), "put", prefix, first=first)
    with pytest.raises(Denied):
        kept.commit()
    kept.assert_kept()
    assert rule.seen
    kept.objects.forget()
    kept.commit()
    assert kept.files()["a"] == b"changed"
    assert [one.commit.parents for one in lodefs.log("r", session=kept.session)][1] == ()
    assert (kept.record.commit, kept.record.generation) == (kept.head(), 1)


def test_after_a_commit_that_nobody_noted(kept: KeptChanges) -> None:
    """The ref was put and the record was not written: the next commit finds all of it there."""
    kept.write(a=b"changed")
    before = kept.record
    made = kept.commit()
    kept.place.write(before)
    kept.upper.mkdir(exist_ok=True)
    kept.write(a=b"changed")
    assert kept.commit() == made
    assert kept.record.commit == made


def test_a_repository_that_was_renamed(kept: KeptChanges) -> None:
    """Changes go to its new name, and later ones too."""
    lodefs.rename("r", "renamed", session=kept.session)
    kept.write(a=b"ours")
    found = status(kept.directory, session=kept.session)
    assert (found.repo, found.head) == ("renamed", found.commit)
    made = kept.commit()
    assert kept.session.store.resolve("renamed", "main").hex() == made
    assert (kept.record.repo, kept.record.commit) == ("renamed", made)


def test_who_cannot_see_other_mounts(kept: KeptChanges, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a namespace commits nothing that a mount may still write to."""

    def refused(*_places: Path) -> bool:
        raise PermissionError

    kept.write(a=b"ours")
    kept.place.work(0).mkdir()
    monkeypatch.setattr(overlay, "is_in_use", refused)
    with pytest.raises(Denied, match="unshare"):
        kept.commit()
    kept.assert_kept()


def test_touched_files_do_not_move_a_mount(kept: KeptChanges) -> None:
    """With no change there is no commit, and the base stays where it was."""
    kept.write(a=b"a")
    kept.others("d/x", b"theirs")
    kept.commit()
    assert kept.record.commit == kept.base


def test_another_branch_without_changes(kept: KeptChanges) -> None:
    """There is nothing to commit, and the next commit goes to it."""
    lodefs.branch("r@main", "side", session=kept.session)
    kept.commit(branch="side")
    assert (kept.record.branch, kept.head()) == ("side", kept.base)
    kept.write(a=b"changed")
    made = kept.commit()
    assert (kept.head("side"), kept.head()) == (made, kept.base)


def test_a_dry_run_writes_nothing(kept: KeptChanges) -> None:
    """It says what would be."""
    kept.write(a=b"changed")
    found = commit(kept.directory, dry_run=True, session=kept.session, workers=0)
    assert found.changes is not None
    assert found.changes.changed_files == 1
    assert kept.head() == kept.base
    kept.assert_kept()


def test_restore_needs_the_mount(kept: KeptChanges) -> None:
    """What is kept is not changed behind the kernel's back."""
    with pytest.raises(InvalidInput, match="is not mounted"):
        restore(kept.directory, ["a"], session=kept.session)


def test_a_run_discards_no_kept_changes(kept: KeptChanges, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that --upper has, and the state directory does not know, are in the way of a command,
    whose branch is gone besides."""
    kept.write(a=b"ours")
    elsewhere = kept.folder / "upper"
    kept.place.directory.rename(elsewhere)
    kept.place = UpperPlace(elsewhere)

    def mount_writable(session: Session, *_: object, **_more: object) -> writable.WritableMounted:
        state = upper_place.state_directory(session.environment)
        upper_place.remember(state, str(kept.directory), kept.place)
        return writable.WritableMounted(kept.record, kept.place, is_resumed=True)

    monkeypatch.setattr(writable, "mount_writable", mount_writable)
    dataset = Dataset(parse_spec("r@gone"), str(kept.directory), is_writable=True, branch="gone")
    run = JobChanges(session=kept.session, places=[(str(kept.directory), dataset)])
    with pytest.raises(InvalidInput, match=f"{elsewhere} has changes to {kept.directory}"):
        run.mount(0)
    kept.assert_kept()


def shown(kept: KeptChanges, lodefs: Lodefs, *arguments: str) -> CommandResult:
    return lodefs(*arguments, XDG_STATE_HOME=str(kept.folder / "state"))


def test_commands(kept: KeptChanges, lodefs: Lodefs) -> None:
    """status, diff and commit, for people and for scripts."""
    kept.write(a=b"changed", new=b"new")
    os.mkfifo(kept.upper / "pipe")
    place = str(kept.directory)
    out = shown(kept, lodefs, "status", place).out
    assert out == (
        f"r@main, base {kept.base[:12]}, not mounted\n"
        "M  a  (1 B -> 7 B)\nA  new  (nothing -> 3 B)\n"
        "no commit can hold it: pipe is a FIFO\n"
    )
    found = shown(kept, lodefs, "status", place, "--json").json
    assert [one["change"] for one in found["changes"]] == ["changed", "added"]
    assert found["changes"][1]["after"]["digest"] is None
    assert (found["commit"], found["mounted"]) == (kept.base, False)
    out = shown(kept, lodefs, "diff", place).out
    assert out.splitlines()[-1] == "1 added, 1 changed"
    assert shown(kept, lodefs, "diff", place, "--name-only", "--exit-code").code == 1
    single = shown(kept, lodefs, "diff", "r@main")
    assert (single.code, "name two, as in lodefs diff r@main r" in single.err) == (2, True)
    missing = shown(kept, lodefs, "diff", "r")
    assert (missing.code, "name both: REPO@A REPO@B" in missing.err) == (3, True)
    done = shown(kept, lodefs, "commit", place, "-m", "m", "--json")
    assert done.code == 0, done.err
    assert (done.json["changed_files"], done.json["added_files"]) == (1, 1)
    assert [one["path"] for one in done.json["skipped"]] == ["pipe"]


def test_unmount_says_the_way_out(kept: KeptChanges, lodefs: Lodefs) -> None:
    """As `lodefs commit` does, where the base of the changes is gone."""
    kept.write(a=b"ours")
    kept.place.write(msgspec.structs.replace(kept.record, commit="ab" * 32))
    failed = shown(kept, lodefs, "unmount", "--commit", str(kept.directory))
    assert failed.code != 0
    assert f"`lodefs commit --base REV {kept.directory}`" in failed.err


def make_deep(directory: Path, depth: int) -> None:
    """So many directories in each other, which no path reaches."""
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 10, dir_fd=fd)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def refused(*_: object, **_more: object) -> None:
    """What a full disk, or a proxy that is away, does."""
    raise NoSpace("full")


class Mounted:
    """A writable mount of a dataset that a real proxy serves."""

    def __init__(self, node: DatasetNode, folder: Path) -> None:
        self.node = node
        self.root = folder / "mount"
        self.root.mkdir()
        environment = {
            "HOME": str(folder / "home"),
            "XDG_STATE_HOME": str(folder / "state"),
            "LODEFS_CONFIG": os.devnull,
            "LODEFS_MOUNTER_SOCKET": str(folder / "none"),
            "LODEFS_STORE": str(node.store),
            "LODEFS_PROXY": node.address,
        }
        self.session = Session(environment)
        self.store = self.session.store
        upper = folder / "changes"
        lodefs.mount(REPO, self.root, writable=True, upper=upper, session=self.session)

    def commit(self, **more: Any) -> str:
        return commit(self.root, session=self.session, workers=0, **more).commit

    @property
    def place(self) -> UpperPlace:
        return place_of(self.session, str(self.root))

    @property
    def record(self) -> Record:
        return writable_mount.recorded(self.place)

    def listed(self) -> list[str]:
        found = status(self.root, session=self.session).differences
        return [os.fsdecode(one.path) for one in found]

    def assert_shows(self, made: str) -> None:
        assert in_commit(self.store, REPO, made) == in_directory(self.root)


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounted]:
    monkeypatch.setattr(upper_place, "OF_ROOT", tmp_path / "of-root")
    with dataset_node() as node:
        try:
            upper_checks.check_file_system(tmp_path)
        except InvalidInput as error:
            pytest.skip(str(error))
        made = Mounted(node, tmp_path)
        yield made
        unmount_writable(made.session, str(made.root), discard=True)
        made.session.close()


@pytest.mark.slow
@pytest.mark.fuse
@needs_overlay
def test_a_mount_goes_on_from_its_commit(mounted: Mounted) -> None:
    """Programs change it, a commit has what it shows, and it shows the commit; twice, and with what
    others committed in between. What is open for writing is named, and open files are read on."""
    root = mounted.root
    (root / "empty").write_bytes(b"filled")
    (root / "a/b/plain").unlink()
    os.rename(root / "a/b", root / "moved")
    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").write_bytes(os.urandom(70_000))
    with open(root / "text", "a") as file, open(root / "large", "rb") as reader:
        file.write("one more line\n")
        file.flush()
        with pytest.raises(InUse, match=rf"{root}/text \(process {os.getpid()}, "):
            mounted.commit()
        (root / "after-refusal").touch()
        file.close()
        before = in_directory(root)
        made = mounted.commit(message="first")
        assert reader.read(10) == (mounted.node.source / "large").read_bytes()[:10]
    assert in_directory(root) == before
    mounted.assert_shows(made)
    assert mounted.listed() == []
    others = lodefs.changes.Put("others", b"others")
    lodefs.commit_changes(REPO, [others], session=mounted.session, workers=0)
    (root / "new/deep/file").write_bytes(b"small")
    again = mounted.commit(message="second")
    assert (root / "others").read_bytes() == b"others"
    mounted.assert_shows(again)


@pytest.mark.slow
@pytest.mark.fuse
@needs_overlay
def test_restore(mounted: Mounted) -> None:
    """Files, symlinks and directories come back as they were, through nobody's symlink; the rest
    stays."""
    root = mounted.root
    before = in_directory(root)
    (root / "text").write_bytes(b"changed")
    (root / "empty").unlink()
    (root / "to-file").unlink()
    shutil.rmtree(root / "a/b")
    (root / "a/01.bin").write_bytes(b"changed")
    restore(root, ["text", "empty", "to-file", "a/b", root / "a/b/plain"], session=mounted.session)
    assert mounted.listed() == ["a/01.bin"]
    make_deep(root / "a", sys.getrecursionlimit() + 100)
    restore(root, ["a"], session=mounted.session)
    assert in_directory(root) == before
    shutil.rmtree(root / "a")
    (root / "a").symlink_to(mounted.node.source)
    with pytest.raises(InvalidInput, match="a/b leads through a, which is no longer a directory"):
        restore(root, ["a/b/plain"], session=mounted.session)
    for path in (".", "..", "/etc/passwd"):
        with pytest.raises(InvalidInput):
            restore(root, [path], session=mounted.session)
    with pytest.raises(NotFound, match=r"^work/text is not in .*: name a path as it is below /"):
        restore(root, ["work/text"], session=mounted.session)
    restore(root, ["a"], session=mounted.session)
    assert in_directory(root) == before


@pytest.mark.slow
@pytest.mark.fuse
@needs_overlay
def test_restore_after_a_killed_one(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has left is no change, and goes with the next one, of whatever path."""
    root = mounted.root
    before = in_directory(root)
    (root / "a/01.bin").write_bytes(b"changed")
    with monkeypatch.context() as patched:
        patched.setattr(writable_changes, "_remove", ended)
        with pytest.raises(Denied):
            restore(root, ["a/01.bin"], session=mounted.session)
    assert (root / "a/.01.bin.lodefs-restore/01.bin").exists()
    assert mounted.listed() == ["a/01.bin"]
    restore(root, ["text"], session=mounted.session)
    restore(root, ["a/01.bin"], session=mounted.session)
    assert in_directory(root) == before


@pytest.mark.slow
@pytest.mark.fuse
@needs_overlay
def test_killed_between_record_and_mount(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is made and noted, and the mount still shows the one before: it takes no changes,
    which nobody would read, until the next command has it show the commit."""
    root = mounted.root
    (root / "text").write_bytes(b"first")
    with monkeypatch.context() as patched:
        patched.setattr(writable_mount, "_exchange", ended)
        with pytest.raises(Denied):
            mounted.commit()
    with pytest.raises(OSError, match="Read-only"):
        (root / "text").write_bytes(b"lost")
    made = mounted.commit()
    mounted.assert_shows(made)
    (root / "text").write_bytes(b"second")
    again = mounted.commit()
    mounted.assert_shows(again)
    assert len(list(lodefs.log(REPO, session=mounted.session))) == 3


@pytest.mark.slow
@pytest.mark.fuse
@needs_overlay
def test_mounted_again_after_an_interrupted_commit(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no changes until then, and says so: those of a commit that was made would be in the
    way of the next one. Then it shows the commit, or its changes if none was made."""
    root = mounted.root

    def mount_again() -> None:
        lodefs.mount(REPO, root, writable=True, session=mounted.session)

    (root / "text").write_bytes(b"first")
    record = mounted.record
    writable_mount.set_read_only(mounted.place, record, read_only=True)  # and killed
    assert status(root, session=mounted.session).is_read_only
    mount_again()
    (root / "text").write_bytes(b"second")
    with monkeypatch.context() as patched:
        patched.setattr(writable_mount, "advance", refused)
        with pytest.raises(NoSpace):
            mounted.commit()
    assert status(root, session=mounted.session).is_read_only
    with pytest.raises(OSError, match="Read-only"):
        (root / "text").write_bytes(b"third")
    mount_again()
    assert not status(root, session=mounted.session).is_read_only
    assert mounted.listed() == []
    (root / "text").write_bytes(b"third")
    made = mounted.commit()
    mounted.assert_shows(made)
    assert len(list(lodefs.log(REPO, session=mounted.session))) == 3


def ended(*_: object) -> None:
    """What a kill does."""
    raise Denied("ended here")
