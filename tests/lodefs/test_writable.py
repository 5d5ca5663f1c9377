"""Writable mounts as a user asks for them: by commands, and by the Python API with bad input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import lodefs
from lodefs.api.writing import writable
from lodefs.chunkstore.errors import Conflict, InUse, InvalidInput, LodefsError, NotFound
from lodefs.chunkstore.format.names import parse_spec
from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session
from tests.mount.writable.conftest import skip_where_unfit
from tests.support.chunkstore.child_process import TIMEOUT_S, Child, run
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import SAMPLE

pytestmark = [pytest.mark.fuse]


class User:
    """A user with a proxy, a directory to mount on, and one for changes."""

    def __init__(self, folder: Path, proxy: str) -> None:
        self.folder = folder
        self.root = folder / "work"
        self.root.mkdir()
        self.upper = str(folder / "changes")
        self.environment = {
            "HOME": str(folder),
            "LODEFS_PROXY": proxy,
            "LODEFS_CONFIG": os.devnull,
            "LODEFS_MOUNTER_SOCKET": str(folder / "none"),
        }
        self.session = Session(self.environment)

    def lodefs(self, *arguments: str) -> str:
        """What a command that must succeed writes."""
        return run([sys.executable, "-m", "lodefs.main", *arguments], env=self.environment)

    def fails(self, *arguments: str) -> tuple[int, str]:
        """Code and output of a command."""
        command = [sys.executable, "-m", "lodefs.main", *arguments]
        with Child(command, env=self.environment) as child:
            return child.wait(timeout_s=TIMEOUT_S), child.output

    def mount(
        self, spec: str = "demo", directory: Path | None = None, upper: str | None = None
    ) -> None:
        """Mount it through the API."""
        requested = MountFile(spec=parse_spec(spec.encode()), directory=str(directory or self.root))
        writable.mount_writable(self.session, requested, upper=upper or self.upper)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with FakeProxy(SAMPLE, tmp_path) as proxy:
        made = User(tmp_path, proxy.address)
        skip_where_unfit(tmp_path)
        yield made
        with suppress(NotFound):  # root's state directory is the machine's
            writable.unmount_writable(made.session, str(made.root), discard=True)
        for found in reversed(mount_table.read_table()):
            if found.mountpoint.startswith(str(tmp_path)):
                mount_syscalls.detach(found.mountpoint, lazy=True)


def test_commands(user: User) -> None:
    """Changes are made, listed, not lost by an unmount that does not say what becomes of them,
    kept, gone on with, and discarded."""
    place = str(user.root)
    made = user.lodefs("mount", "demo", place, "--writable", "--upper", user.upper)
    assert (
        made == f"{place}  demo@main from {SAMPLE.snapshot.commit[:12]}  writable, changes in "
        f"{user.upper}\n"
    )
    (user.root / "new").write_text("new")
    listed = [json.loads(line) for line in user.lodefs("mounts", "--json").splitlines()]
    (mine,) = [one for one in listed if one["mountpoint"].startswith(str(user.folder))]
    assert (mine["mountpoint"], mine["writable"], mine["supervised"]) == (place, True, True)
    assert mine["branch"] == "main"
    shown = f"{place}  demo@main from {SAMPLE.snapshot.commit[:12]}  writable, over"
    assert shown in user.lodefs("mounts")
    code, words = user.fails("unmount", place)
    assert code != 0
    assert "--keep" in words
    user.lodefs("mount", "--take-over", place)
    user.lodefs("unmount", place, "--keep")
    assert os.listdir(place) == []
    assert f"{place}  demo@main" in user.lodefs("mounts", "--uncommitted")
    user.lodefs("mount", "demo", place, "--writable")
    assert (user.root / "new").read_text() == "new"
    user.lodefs("unmount", place, "--discard")
    assert not os.path.exists(user.upper)
    assert place not in user.lodefs("mounts", "--uncommitted")


def test_the_python_api(user: User) -> None:
    """As a context a writable mount keeps its changes."""
    for expected in ([], ["new"]):
        with lodefs.mount(
            "demo", user.root, writable=True, upper=user.upper, session=user.session
        ) as mounted:
            assert [name for name in os.listdir(mounted) if name == "new"] == expected
            (user.root / "new").write_text("new")
    writable.unmount_writable(user.session, str(user.root), discard=True)


def test_bad_places(user: User) -> None:
    """Where the changes cannot lie, and what cannot be mounted on, is said, and nothing is made."""
    inside = user.root / "inside"
    full = user.folder / "full"
    full.mkdir()
    (full / "a").write_text("mine")
    theirs = user.folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, 1234, 1234)
    before = sorted(os.listdir(user.folder))
    for upper, words in [
        (str(inside), "or contains it"),
        (str(user.folder), "or contains it"),
        (str(full), "not empty"),
        (str(theirs / "up"), "users other than root"),
        ("/proc", "not empty"),
        ("/sys/kernel/up", "Operation not permitted"),
    ]:
        with pytest.raises(LodefsError, match=words):
            user.mount(upper=upper)
    (user.root / "a").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        user.mount()
    (user.root / "a").unlink()
    with pytest.raises(NotFound, match="nosuch"):
        user.mount("nosuch")
    assert sorted(os.listdir(user.folder)) == before
    assert (full / "a").read_text() == "mine"


def test_bad_repetitions(user: User) -> None:
    """What is mounted, or has changes, is neither mounted twice nor moved elsewhere."""
    user.mount()
    (user.root / "new").write_text("new")
    other = user.folder / "other"
    other.mkdir()
    with pytest.raises(InUse, match="mounted here for writing"):
        user.mount()
    with pytest.raises(InvalidInput, match="without --upper"):
        user.mount(upper=str(user.folder / "changes-2"))
    with pytest.raises(InvalidInput, match="has changes to demo@main on"):
        user.mount(directory=other)
    with pytest.raises(InvalidInput, match="--keep"):
        writable.unmount_writable(user.session, str(user.root))
    with pytest.raises(NotFound, match="no writable mount"):
        writable.unmount_writable(user.session, str(other), discard=True)
    with writable.place_of(user.session, str(user.root)).locked(), pytest.raises(Conflict):
        user.mount()
    assert (user.root / "new").read_text() == "new"
    (one,) = [
        one for one in writable.uncommitted(user.session) if one.record.mountpoint == str(user.root)
    ]
    assert one.is_mounted


def test_options_that_do_not_go_together(user: User) -> None:
    """They are refused before anything is done."""
    for words in (
        ["--upper", user.upper],
        ["--writable", "--foreground"],
        ["--writable", "--take-over", str(user.root)],
    ):
        assert user.fails("mount", "demo", str(user.root), *words)[0] == 2
    for words in (["--keep"], ["--commit", "--keep"], ["-m", "text"]):
        assert user.fails("unmount", str(user.root), *words)[0] == 2


def test_a_commit_is_no_branch(user: User) -> None:
    """It is mounted, and the record says that its changes have no branch to go to."""
    user.mount(f"demo@{SAMPLE.snapshot.commit}")
    record = writable.place_of(user.session, str(user.root)).read()
    assert record is not None
    assert record.branch == ""
