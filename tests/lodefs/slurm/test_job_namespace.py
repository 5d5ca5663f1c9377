"""What a step of a job is shown, in the mount namespace that the plug-in has made for it."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.system import libc
from lodefs.mount.kernel import mount_table
from lodefs.slurm.job_namespace import enter
from lodefs.slurm.job_record import JobRecord, Shown
from tests.support.hpc.job_node import COMMIT, SHOWN, JobNode, job_node

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")

CLONE_NEWNS = 0x20000  # unshare(2)
USER = pwd.getpwnam("games")  # of base-passwd: somebody who is not root


@pytest.fixture
def node() -> Iterator[JobNode]:
    with job_node(USER.pw_uid) as made:
        home = made.folder / "home"
        home.mkdir()
        os.chown(home, USER.pw_uid, USER.pw_gid)
        yield made


def prolog(node: JobNode, directory: Path | str) -> Shown:
    """A job with a dataset on a directory, as it is while the job runs."""
    shown = msgspec.structs.replace(SHOWN, directory=str(directory))
    node.records.write(JobRecord(job=7, uid=USER.pw_uid, datasets=(shown,)))
    node.trees.make(7)
    node.show(shown)
    node.trees.give(7, USER.pw_uid)
    return shown


def step(node: JobNode, before: Callable[[], object] = lambda: None) -> tuple[str, list[str]]:
    """What a step is told, and where it sees datasets. ``before``: in its namespace."""
    ours, theirs = get_context("fork").Pipe()
    child = get_context("fork").Process(target=_step, args=(node, before, theirs))
    child.start()
    assert ours.poll(60)
    said, seen = ours.recv()
    child.join()
    return said, seen


def _step(node: JobNode, before: Callable[[], object], answer: Connection) -> None:
    libc.call("unshare", CLONE_NEWNS)
    before()
    said = ""
    try:
        enter(node.records, 7, [])
    except LodefsError as error:
        said = str(error)
    seen = [m.mountpoint for m in mount_table.read_table() if m.is_lodefs and m.commit == COMMIT]
    own = (f"{node.records.root}/", f"{node.service}/")
    answer.send((said, [one for one in seen if not one.startswith(own)]))


def test_a_step_sees_the_dataset_on_its_directory_and_nobody_else_does(node: JobNode) -> None:
    """The directory is made by the user."""
    place = node.folder / "home/data"
    prolog(node, place)
    assert step(node) == ("", [str(place)])
    assert place.stat().st_uid == USER.pw_uid
    assert mount_table.on_top(str(place)) is None


@pytest.mark.parametrize("system", ["/etc/ssl", "/usr/local", "/run"])
def test_a_symlink_leads_to_no_directory_of_the_system(node: JobNode, system: str) -> None:
    """Wherever it stands in the path."""
    (node.folder / "home/link").symlink_to(system)
    prolog(node, node.folder / "home/link")
    said, seen = step(node)
    assert seen == []
    assert "is not empty" in said or "may not mount over the system" in said


def test_the_users_names_do_not_change_what_is_shown(node: JobNode) -> None:
    """The user does in a first step what once made the next one show a directory of others."""
    place = node.folder / "home/data"
    prolog(node, place)
    victim = node.folder / "private"
    victim.mkdir(mode=0o700)
    (victim / "secret").touch()
    script = (
        f"cd {node.tree} && chmod 700 .; "
        f"mv tmp old && mkdir -p .{place.parent} && ln -s {victim} .{place}; true"
    )
    words = ["setpriv", f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--clear-groups"]
    subprocess.run([*words, "sh", "-c", script], check=True, capture_output=True)
    assert step(node) == ("", [str(place)])
    node.trees.remove(7)
    assert node.mounted() == []


def test_what_covers_the_dataset_in_the_tree_is_not_shown_for_it(node: JobNode) -> None:
    """Such as a file system of somebody else's."""
    place = node.folder / "home/data"
    shown = prolog(node, place)
    cover = ["mount", "-t", "tmpfs", "x", str(node.records.place(7, shown))]
    said, seen = step(node, lambda: subprocess.run(cover, check=True))
    assert (seen, "is not cats@" in said) == ([], True)
