"""Root mounts where a job's user may go, and tells nothing that only root sees."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.kernel import mount_syscalls
from lodefs.slurm import user_process
from lodefs.slurm.job_namespace import opened_as
from tests.support.chunkstore import leftovers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become others")

USER = pwd.getpwnam("games")  # of base-passwd: somebody who is not root
TRIES = 100


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the user's; beside it, ``private`` is root's alone."""
    with leftovers.claimed("job-") as folder:
        folder.chmod(0o755)
        (folder / "private/full").mkdir(parents=True)
        (folder / "private").chmod(0o700)
        (folder / "private/full/file").touch()
        (folder / "private/empty").mkdir()
        (folder / "home").mkdir()
        os.chown(folder / "home", USER.pw_uid, USER.pw_gid)
        yield folder / "home"


def path_of(directory: Path | str) -> str:
    """Where the directory is that the user has opened."""
    fd = opened_as(USER.pw_uid, str(directory))
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def test_a_directory_is_made_by_the_user(home: Path) -> None:
    """With its parents, as the user's."""
    assert path_of(home / "a/b") == os.path.realpath(home / "a/b")
    assert {(home / "a" / one).stat().st_uid for one in (".", "b")} == {USER.pw_uid}
    assert path_of(home / "a/b") == os.path.realpath(home / "a/b")


def test_nothing_is_told_of_a_directory_that_the_user_may_not_enter(home: Path) -> None:
    """The same words for what is full, empty, or not there, also behind a symlink of the user's."""
    private = home.parent / "private"
    (home / "link").symlink_to(private)
    for folder in (private, home / "link"):
        said = set()
        for name in ("full", "empty", "nowhere", "full/file"):
            with pytest.raises(InvalidInput) as raised:
                path_of(folder / name)
            said.add(str(raised.value).replace(f"{folder / name}", ""))
        assert said == {": Permission denied; name a directory"}


def test_what_a_mount_would_spoil_is_refused(home: Path) -> None:
    """A file, a directory with something in it, and one that the user may not make."""
    (home / "full").mkdir()
    (home / "full/file").touch()
    for place, why in (
        (home / "full", "is not empty"),
        (home / "full/file", "Not a directory"),
        (home.parent / "new", "you may not make it"),
    ):
        with pytest.raises(InvalidInput, match=why):
            path_of(place)


def test_a_user_whom_the_machine_does_not_know_is_told_so(home: Path) -> None:
    """Its groups are not known."""
    with pytest.raises(InvalidInput, match="no user 4040404"):
        opened_as(4040404, str(home))


def test_a_file_system_that_never_answers_is_given_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user's own may."""
    monkeypatch.setattr(user_process, "TIMEOUT_S", 0.1)
    (home / "stuck").mkdir()
    fd = mount_syscalls.attach(str(home / "stuck"), b"x", allow_other=True)
    try:
        with pytest.raises(InvalidInput, match="does not answer"):
            path_of(home / "stuck/below")
    finally:
        mount_syscalls.detach(str(home / "stuck"), lazy=True)
        os.close(fd)


_SWAP = """
import os
while True:
    for one, two in (("name", "aside"), ("other", "name"), ("name", "other"), ("aside", "name")):
        os.rename(one, two)
    print(flush=True)
"""


def test_a_path_that_is_swapped_all_the_time_leads_where_the_user_may_go(home: Path) -> None:
    """Never into the directory of others that a symlink names by turns."""
    (home / "name").mkdir(mode=0o777)
    (home / "name").chmod(0o777)
    (home / "other").symlink_to(home.parent / "private")
    allowed = {os.path.realpath(home / "name/empty"), os.path.realpath(home / "aside/empty")}
    words = [sys.executable, "-c", _SWAP]
    with subprocess.Popen(words, cwd=home, stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline()
            for _ in range(TRIES):
                with suppress(InvalidInput):
                    assert path_of(home / "name/empty") in allowed
        finally:
            swapper.kill()


def test_a_jobs_output_is_written_by_its_user(home: Path) -> None:
    """As far as the user could: neither a file of root's, by whatever name, nor a FIFO that nobody
    reads, nor one that is not there."""
    output = home / "output"
    output.write_text("before\n")
    os.chown(output, USER.pw_uid, USER.pw_gid)
    user_process.append_lines(USER.pw_uid, str(output), ["one", "two"])
    assert output.read_text() == "before\none\ntwo\n"
    os.mkfifo(home / "fifo")
    os.chown(home / "fifo", USER.pw_uid, USER.pw_gid)
    (home / "link").symlink_to(home.parent / "private/full/file")
    for name in ("fifo", "link", "missing"):
        with pytest.raises(InvalidInput):
            user_process.append_lines(USER.pw_uid, str(home / name), ["one"])
    assert (home.parent / "private/full/file").read_text() == ""
    assert not (home / "missing").exists()


def test_root_closes_no_file_of_the_users(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a file asks its file system, which may be the user's own and never answer."""
    opened, opened_by = [], user_process.opened_by

    def noted(uid: int, path: str, work: Callable[[str], int]) -> int:
        fd = opened_by(uid, path, work)
        opened.append(os.readlink(f"/proc/self/fd/{fd}"))
        return fd

    monkeypatch.setattr(user_process, "opened_by", noted)
    (home / "output").touch()
    os.chown(home / "output", USER.pw_uid, USER.pw_gid)
    user_process.append_lines(USER.pw_uid, str(home / "output"), ["one"])
    assert (home / "output").read_text() == "one\n"
    assert opened == [os.devnull]
