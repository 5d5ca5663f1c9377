"""A job's tree is root's: its user looks into it, and nobody changes where its paths lead."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import AlreadyExists, Denied, LodefsError, Unavailable
from lodefs.chunkstore.system.safe_open import PLACE, closing
from lodefs.mount.kernel import detached_mounts, mount_table
from lodefs.slurm.job_record import Shown
from tests.support.hpc.job_node import COMMIT, SHOWN, SOURCE, JobNode, job_node

USER, OTHER = 61501, 61502
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount and to be others")


@pytest.fixture
def node() -> Iterator[JobNode]:
    with job_node(USER) as made:
        yield made


def run_as(uid: int, script: str, folder: Path) -> int:
    """The exit code of a shell's script as a user, in a directory."""
    words = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    words += ["sh", "-c", f"cd {folder} && {script}"]
    return subprocess.run(words, check=False, capture_output=True).returncode


@as_root
def test_the_jobs_user_looks_into_the_tree_and_changes_nothing(node: JobNode) -> None:
    """Neither a name nor a mode; others do not even look."""
    node.trees.make(7)
    with node.trees.made_place(7, SHOWN):
        pass
    assert run_as(USER, "ls", node.tree) != 0
    node.trees.give(7, USER)
    assert run_as(USER, "ls tmp/a/data", node.tree) == 0
    for script in ("chmod 700 .", "mv tmp old", "mkdir x", "touch x", "rm -r tmp", "ln -s / x"):
        for place in (".", "tmp", "tmp/a", "tmp/a/data"):
            assert run_as(USER, script, node.tree / place) != 0, (script, place)
    assert run_as(OTHER, "ls", node.tree) != 0
    assert node.tree.stat().st_uid == 0


@as_root
@pytest.mark.parametrize("name", ["data", "a b", "a\rb", "a\tb\\c", "a\x0bb\x85c", "a #%s"])
def test_what_was_shown_is_taken_away(node: JobNode, name: str) -> None:
    """Whatever its name, and though nobody answers for the mount; what is there is read-only."""
    node.trees.make(7)
    place = node.show(Shown("cats", COMMIT, b"", f"/tmp/{name}"))
    assert node.mounted() == [str(place)]
    lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    (line,) = [one for one in lines if os.fsencode(f" {node.tree}/") in one]
    assert line.split(b" ")[5].startswith(b"ro,nosuid,nodev")
    node.trees.remove(7)
    assert (node.mounted(), node.tree.exists()) == ([], False)


@as_root
def test_a_busy_mount_and_one_on_top_of_another_are_taken_away(node: JobNode) -> None:
    """Who has it open keeps it."""
    node.trees.make(7)
    place = node.show()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    with open(place / "file", "w"):
        node.trees.remove(7)
    assert (node.mounted(), node.tree.exists()) == ([], False)


def test_a_tree_that_is_there_is_not_built_upon(node: JobNode) -> None:
    """Whoever made it; neither is what a symlink leads to."""
    node.trees.make(7)
    with pytest.raises(AlreadyExists, match="still there"):
        node.trees.make(7)
    node.trees.remove(7)
    victim = node.folder / "victim"
    victim.mkdir()
    node.tree.symlink_to(victim)
    with pytest.raises(AlreadyExists):
        node.trees.make(7)
    for call in (node.trees.made_place(7, SHOWN), node.trees.copy(7, SHOWN)):
        with pytest.raises(LodefsError), call:
            pass
    with pytest.raises(LodefsError):
        node.trees.give(7, USER)
    with pytest.raises(LodefsError):
        node.trees.remove(7)
    assert not [*victim.iterdir()]
    assert victim.stat().st_mode & 0o777 == 0o755


@as_root
@pytest.mark.parametrize("kind", ["symlink", "directory", "tmpfs", "commit", "path", "owner"])
def test_only_the_mount_of_the_dataset_is_taken_for_it(node: JobNode, kind: str) -> None:
    """Neither what a symlink leads to, nor another directory, file system, commit or path, nor
    what a user has mounted."""
    node.trees.make(7)
    right = node.show()
    with node.trees.copy(7, SHOWN):
        pass
    node.trees.remove(7)
    node.trees.make(7)
    right.parent.mkdir(parents=True)
    other = mount_table.source_of("cats", "f" * 64, b"")
    if kind == "symlink":
        right.symlink_to(node.mount(node.service / "mine"))
    elif kind == "directory":
        right.mkdir()
    elif kind == "tmpfs":
        right.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", os.fsdecode(SOURCE), right], check=True)
    elif kind == "owner":
        right.mkdir()
        fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={fd},rootmode=40000,user_id={USER},group_id={USER},allow_other"
        words = ["mount", "-i", "-t", "fuse.lodefs", "-o", options, os.fsdecode(SOURCE)]
        subprocess.run([*words, str(right)], check=True, pass_fds=[fd])
        node.devices.append(fd)
    else:
        node.mount(right, other if kind == "commit" else SOURCE + b":deep")
    with pytest.raises(Unavailable), node.trees.copy(7, SHOWN):
        pass


@as_root
def test_a_copy_of_the_mount_is_put_where_the_step_wants_it(node: JobNode) -> None:
    """Also where its path leads elsewhere by then."""
    node.trees.make(7)
    node.show()
    target, victim = node.folder / "target", node.folder / "victim"
    target.mkdir()
    victim.mkdir()
    with closing(os.open(target, PLACE)) as target_fd, node.trees.copy(7, SHOWN) as fd:
        target.rename(node.folder / "moved")
        target.symlink_to(victim)
        detached_mounts.put(fd, target_fd, str(target))
    assert mount_table.on_top(str(victim)) is None
    assert mount_table.on_top(str(node.folder / "moved")) is not None


@as_root
@pytest.mark.parametrize("others", ["owner", "mode"])
def test_a_directory_of_jobs_that_others_may_write_is_not_used(node: JobNode, others: str) -> None:
    """They could move trees about."""
    node.trees.make(7)
    if others == "owner":
        os.chown(node.records.root, USER, 0)
    else:
        node.records.root.chmod(0o775)
    with pytest.raises(Denied, match="others may write"):
        node.trees.remove(7)
    with pytest.raises(Denied, match="others may write"):
        node.trees.make(8)
    assert node.tree.exists()
