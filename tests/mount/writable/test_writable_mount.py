"""Writable mounts through the real kernel: what is changed, kept, found again and moved on."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import InUse, InvalidInput
from lodefs.mount.kernel import mount_syscalls, mount_table, overlay
from lodefs.mount.writable import writable_mount
from tests.mount.writable.conftest import Writable
from tests.support.mount.mounts import BIG, SAMPLE, in_child, kill, until, workers_of


def _lines(*lines: str) -> str:
    return "import os, sys; os.chdir(sys.argv[1])\n" + "\n".join(lines)


def test_what_is_written_is_read_and_the_rest_is_the_commit(writable: Writable) -> None:
    """Files are made, changed, removed and renamed as in any directory."""
    writable.mount()
    script = _lines(
        "open('a', 'a').write(' world'); open('new', 'w').write('new'); os.remove('empty')",
        "os.rename('deep', 'deeper'); os.mkdir('made'); os.chmod('link', 0o755)",
        "print(open('a').read(), open('deeper/er/est/f').read(), sorted(os.listdir('.')))",
        "print(len(os.listdir('many')), os.stat('many').st_mode & 0o777, os.access('b', os.R_OK))",
    )
    names = "['a', 'awkward', 'big', 'deeper', 'link', 'loop', 'made', 'many', 'new', 'none', 'out"
    first, second = in_child(script, str(writable.root)).splitlines()
    assert first.startswith("hello world bottom ")
    assert first.endswith(f"{names}', 'program']")
    assert second == "5000 493 False"
    assert min(os.listdir(writable.place.upper(0))) == "a"


def test_extended_attributes_are_not_copied(writable: Writable) -> None:
    """What the mount below says of a file by them is not true of one that is changed; a symlink of
    the commit can be renamed, which copies it."""
    writable.mount()
    script = _lines(
        "open('a', 'a').write('!'); os.rename('link', 'moved'); print(os.readlink('moved'))",
        "print([name for name in os.listxattr('a') if name.startswith('user.lodefs.')])",
    )
    assert in_child(script, str(writable.root)).splitlines() == ["a", "[]"]
    assert not [name for name in os.listxattr(writable.place.upper(0) / "a") if "lodefs" in name]


def test_changes_are_kept_and_found_again(writable: Writable) -> None:
    """Unmounted with its changes kept, the mount shows them when it is made again; they are gone
    when they are discarded, with the directory that they lay in."""
    writable.mount()
    in_child(_lines("open('new', 'w').write('new')"), str(writable.root))
    assert writable.unmount().kept
    assert os.listdir(writable.root) == []
    record = writable.mount(commit="f" * 64)  # the branch has moved: the base stays
    assert record.commit == SAMPLE.snapshot.commit
    assert (writable.root / "new").read_text() == "new"
    assert not writable.unmount(discard=True).kept
    assert not writable.place.directory.exists()
    writable.mounts.wait_for_end()


def test_without_changes_nothing_is_kept(writable: Writable) -> None:
    """Unmounting what was only read leaves nothing behind."""
    writable.mount()
    assert in_child(_lines("print(open('a').read())"), str(writable.root)) == "hello"
    assert not writable.unmount().kept
    assert not writable.place.directory.exists()


def test_one_mount_has_the_changes(writable: Writable, tmp_path: Path) -> None:
    """A second mount of them is refused: on the same directory, on another, and while processes
    have files of the one open that was unmounted."""
    record = writable.mount()
    with pytest.raises(InUse, match="is mounted here for writing"):
        writable.mount()
    other = tmp_path / "other"
    other.mkdir()
    options = msgspec.structs.replace(record.options, mountpoint=str(other))
    with pytest.raises(InvalidInput, match="has changes to demo@main on"):
        writable.mount(options=options)
    with (writable.root / "new").open("w"):
        assert writable.unmount().is_lazy
        with pytest.raises(InUse, match="still in use"):
            writable.mount()
        assert writable.place.read() is not None
    writable.mount()


@pytest.mark.parametrize("branch", ["other", ""])
def test_changes_of_something_else(writable: Writable, branch: str) -> None:
    """They are neither mounted nor lost; the error names what they are of, and the way out."""
    writable.mount()
    (writable.root / "new").write_text("new")
    writable.unmount()
    with pytest.raises(InvalidInput, match="unmount --discard"):
        writable.mount(branch=branch)
    writable.mount()
    assert (writable.root / "new").read_text() == "new"


def test_a_failed_mount_leaves_nothing(writable: Writable) -> None:
    """No record, no directories, no mounts and no processes."""
    (writable.root / "a").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        writable.mount()
    (writable.root / "a").unlink()
    assert writable.place.read() is None
    mounted = len(mount_table.read_table())

    def refuse(_options: object) -> None:
        raise InvalidInput("no")

    with writable.place.locked(), pytest.raises(InvalidInput, match="no"):
        writable_mount.mount(writable.place, writable.wanted(), None, refuse)
    assert not writable.place.directory.exists()
    assert len(mount_table.read_table()) == mounted


def test_after_all_processes_were_killed(writable: Writable) -> None:
    """The same mount goes on with the changes, over a snapshot that is served again."""
    writable.mount()
    (writable.root / "new").write_text("new")
    for found in mount_table.read_table():
        if found.mountpoint == str(writable.place.lower(0)):
            pid = mount_table.pid_of(found.mountpoint)
    for process in (pid, *workers_of(pid)):
        kill(process, signal.SIGKILL)
    until(lambda: mount_table.is_dead(str(writable.place.lower(0))))
    writable.mount()
    script = _lines("print(open('new').read(), open('a').read())")
    assert in_child(script, str(writable.root)) == "new hello"
    assert sum(m.mountpoint == str(writable.root) for m in mount_table.read_table()) == 1


def test_going_on_from_a_commit(writable: Writable) -> None:
    """The mount shows the next commit, and has no changes; what is open is read as it was."""
    writable.mount()
    with (writable.root / "new").open("w+") as file:
        file.write("new")
        file.flush()
        with (writable.root / "new").open() as reader:
            file.close()
            assert not writable_mount.set_read_only(
                writable.place, writable.wanted(), read_only=True
            )
            record = writable.advance(SAMPLE.snapshot.commit)
            assert (record.generation, record.branch) == (1, "main")
            assert not (writable.root / "new").exists()
            assert reader.read() == "new"
            assert writable.place.upper(0).exists()  # somebody uses it
            (writable.root / "newer").write_text("newer")
    assert writable.unmount().kept
    assert writable.place.generations() == [1]
    writable.mount()
    assert (writable.root / "newer").read_text() == "newer"


def test_going_on_without_a_mount(writable: Writable) -> None:
    """What was kept can be committed, and is mounted anew from there."""
    writable.mount()
    (writable.root / "new").write_text("new")
    writable.unmount()
    writable.advance(SAMPLE.snapshot.commit)
    assert writable.mount().generation == 1
    assert not (writable.root / "new").exists()


def test_killed_before_the_new_commit_was_shown(writable: Writable) -> None:
    """The record says what is to be mounted; the former mount is taken away."""
    former = writable.mount()
    (writable.root / "new").write_text("new")
    after = msgspec.structs.replace(former, generation=1, commit=SAMPLE.snapshot.commit)
    writable.place.write(after)
    writable.mount()
    assert not (writable.root / "new").exists()
    assert writable.place.generations() == [1]


def test_written_to_from_elsewhere(writable: Writable) -> None:
    """What processes still have open, or another mount namespace has mounted, is neither removed
    nor taken for all that there is."""
    record = writable.mount()
    fd = os.open(writable.root, os.O_RDONLY)
    assert writable.unmount().is_lazy
    with pytest.raises(InUse, match="still in use"):
        writable_mount.set_read_only(writable.place, record, read_only=True)
    with pytest.raises(InUse, match="still in use"):
        writable.unmount()
    os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    assert writable_mount.set_read_only(writable.place, record, read_only=True) == []
    assert writable.place.has_changes(0)


def test_mounts_in_a_writable_mount(writable: Writable) -> None:
    """A commit would take them away, with what is in them."""
    record = writable.mount()
    (writable.root / "inside").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", writable.root / "inside"], check=True)
    (writable.root / "inside/x").touch()
    with pytest.raises(InUse, match="inside is mounted in"):
        writable_mount.set_read_only(writable.place, record, read_only=True)
    assert (writable.root / "inside/x").exists()
    mount_syscalls.detach(str(writable.root / "inside"), lazy=False)
    assert writable_mount.set_read_only(writable.place, record, read_only=True) == []


def test_writers_are_named(writable: Writable) -> None:
    """The mount does not become read-only while a process has a file open for writing, which is
    named; it goes on to write."""
    record = writable.mount()
    with (writable.root / "new").open("w") as file:
        found = writable_mount.set_read_only(writable.place, record, read_only=True)
        assert [(one.pid, one.path) for one in found] == [(os.getpid(), str(writable.root / "new"))]
        file.write("written")
    assert (writable.root / "new").read_text() == "written"
    assert writable_mount.set_read_only(writable.place, record, read_only=True) == []
    with pytest.raises(OSError, match="Read-only"):
        (writable.root / "new").write_text("again")
    assert writable_mount.set_read_only(writable.place, record, read_only=False) == []
    (writable.root / "new").write_text("again")


def test_mapped_files_count_as_written(writable: Writable) -> None:
    """A file that is mapped for writing, and closed, is named too; so is one that is removed, and
    open for reading."""
    import mmap

    record = writable.mount()
    (writable.root / "new").write_bytes(bytes(4096))
    with (writable.root / "new").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    found = writable_mount.set_read_only(writable.place, record, read_only=True)
    assert [one.path for one in found] == [str(writable.root / "new")]
    mapped.close()
    with (writable.root / "new").open():
        (writable.root / "new").unlink()
        found = writable_mount.set_read_only(writable.place, record, read_only=True)
        assert [one.path for one in found] == [f"{writable.root / 'new'} (deleted)"]


def test_large_files_are_copied_up_whole(writable: Writable) -> None:
    """One byte of a large file is changed, and all others stay."""
    writable.mount()
    script = _lines(
        "f = open('big', 'r+b'); f.seek(4_000_000); f.write(b'!'); f.close()",
        "import hashlib; print(hashlib.sha256(open('big', 'rb').read()).hexdigest())",
    )
    import hashlib

    changed = BIG[:4_000_000] + b"!" + BIG[4_000_001:]
    assert in_child(script, str(writable.root)) == hashlib.sha256(changed).hexdigest()


def test_an_upper_directory_that_cannot_be_one(writable: Writable, tmp_path: Path) -> None:
    """The kernel's refusal says which directories can."""
    writable.mount()
    inside = writable.root / "inside"
    for name in ("upper", "work"):
        (inside / name).mkdir(parents=True)
    with pytest.raises(InvalidInput, match="ext4"):
        overlay.create(tmp_path, inside / "upper", inside / "work", b"x")
