"""``lodefs run`` of datasets that take changes, by a user without privilege, and by root: what
becomes of the changes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.api.writing.job_changes import is_to_commit
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.settings.datasets import CommitWhen
from tests.mount.writable.conftest import skip_where_unfit
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.handmade import Handmade
from tests.support.hpc.job_user import ROOT, UID, Enroot, JobUser
from tests.support.lodefs.command_line import Lodefs
from tests.support.mount.mounts import alive, until

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

NOT_COMMITTED = 125


class Cats:
    """A store of a user with the repository cats, and ``lodefs run`` of it on ./d."""

    def __init__(self, user: JobUser) -> None:
        self.user = user
        self.folder = user.owned(user.home / "store")
        content = {b"a": b"hello\n", b"sub/x": b"below\n"}
        Handmade(create_store(DirectoryObjects(str(self.folder)))).commit("cats", content)
        subprocess.run(["chown", "-R", f"{UID}:{UID}", self.folder], check=True)
        user.environment["LODEFS_STORE"] = str(self.folder)

    @property
    def store(self) -> Store:
        return open_store(DirectoryObjects(str(self.folder)))

    @property
    def head(self) -> str:
        return self.store.resolve("cats", "main").hex()

    def files(self, rev: str = "main") -> dict[str, bytes]:
        seen = in_commit(self.store, "cats", self.store.resolve("cats", rev).hex())
        return {os.fsdecode(path): one.content for path, one in seen.items() if one.content}

    def words(self, script: str, *options: str, spec: str = "cats") -> list[str]:
        return self.user.lodefs("run", *options, f"{spec}:./d:rw", "--", "sh", "-c", script)

    def run(self, script: str, *options: str, spec: str = "cats") -> tuple[int, str, str]:
        return self.user.run(*self.words(script, *options, spec=spec))

    def start(self, script: str, *options: str) -> tuple[subprocess.Popen[str], int]:
        """Also the command's process, which said its id."""
        process = self.user.start(*self.words(f"echo $$; {script}", *options))
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, process.communicate()[1]
        return process, int(said)

    def lodefs(self, *words: str) -> str:
        """What a command that must succeed writes."""
        code, out, err = self.user.run(*self.user.lodefs(*words))
        assert code == 0, err
        return out

    def assert_nothing_left(self) -> None:
        assert list((self.user.home / ".local/state/lodefs/writable").iterdir()) == []
        assert list((self.user.home / "d").iterdir()) == []


@pytest.fixture
def cats(user: JobUser) -> Cats:
    skip_where_unfit(user.home)
    return Cats(user)


def test_success(cats: Cats) -> None:
    """One commit has what the command has changed, and what it left running, with the message."""
    os.mkfifo(cats.user.home / "go")
    os.chown(cats.user.home / "go", UID, UID)
    background = "(read line < go; echo late > d/late) > /dev/null 2>&1 &"
    process, pid = cats.start(f"{background} echo new > d/new; rm d/a", "-m", "smaller")
    with process:
        until(lambda: not alive(pid))
        (cats.user.home / "go").write_text("on\n")
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, ""), err
    assert cats.files() == {"new": b"new\n", "late": b"late\n", "sub/x": b"below\n"}
    assert f"commit {cats.head} of the branch main" in err
    assert "smaller" in cats.lodefs("log", "cats")
    cats.assert_nothing_left()
    cats.user.wait_for_end()


def test_what_is_kept(cats: Cats) -> None:
    """The changes of a command that failed are kept, found, in the way of another run, and
    committed. The exit code is the command's."""
    code, out, err = cats.run("mv d/sub d/moved; exit 7")
    assert (code, out, err.count("\n")) == (7, "", 1), err
    place = str(cats.user.home / "d")
    assert f"`lodefs commit {place}`" in err
    assert place in cats.lodefs("mounts", "--uncommitted")
    code, out, err = cats.run("true")
    assert (code, "changes that are in no commit" in err) == (2, True), err
    cats.lodefs("unmount", "./d", "--commit")
    assert cats.files() == {"a": b"hello\n", "moved/x": b"below\n"}
    cats.assert_nothing_left()


def test_signals(cats: Cats) -> None:
    """They are the command's, and what it has changed then is committed as always; kill -9 of
    lodefs ends the command, and leaves the changes to a commit."""
    trap = "trap 'echo told > d/told; exit 3' TERM; echo ready; read line"
    process, _ = cats.start(trap, "--commit", "always")
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        process.wait(timeout=60)
    assert process.returncode == 3
    assert cats.files()["told"] == b"told\n"

    process, _ = cats.start("echo left > d/left; echo ready; exec sleep 600")
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    cats.user.wait_for_end()
    assert str(cats.user.home / "d") in cats.lodefs("mounts", "--uncommitted")
    cats.lodefs("commit", "./d")
    assert cats.files()["left"] == b"left\n"
    cats.lodefs("unmount", "./d")
    cats.assert_nothing_left()


def test_a_commit_that_fails(cats: Cats) -> None:
    """Others changed the same path: this has an exit code of its own, says what to do, and loses
    nothing."""
    others = " ".join(cats.user.lodefs("push", "other", "cats:sub", "--allow-removals"))
    cats.user.owned(cats.user.home / "other")
    (cats.user.home / "other" / "x").write_text("theirs")
    code, _, err = cats.run(f"echo mine > d/sub/x; {others} > /dev/null")
    assert code == NOT_COMMITTED, err
    for words in ("sub/x", "--branch NAME", "are kept in"):
        assert words in err
    cats.lodefs("commit", "./d", "--branch", "mine")
    cats.lodefs("unmount", "./d")
    assert (cats.files()["sub/x"], cats.files("mine")["sub/x"]) == (b"theirs", b"mine\n")
    cats.assert_nothing_left()


def test_mistakes(cats: Cats) -> None:
    """A store that takes no commits, and a commit without a branch for the next one, are told of
    before the command runs, in one line, and nothing is left."""
    subprocess.run(["chown", "-R", "0:0", cats.folder], check=True)
    code, out, err = cats.run("echo ran")
    assert (code, out, err.count("\n")) == (6, "", 1), err
    subprocess.run(["chown", "-R", f"{UID}:{UID}", cats.folder], check=True)
    code, out, err = cats.run("echo ran", spec=f"cats@{cats.head}")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "name one by --branch" in err
    cats.assert_nothing_left()


def test_a_container_of_enroot(cats: Cats) -> None:
    """What it changes through the hook's mount is kept when it ends; `lodefs run` around it
    commits."""
    code, _, err = cats.user.run(*cats.user.lodefs("enroot-hook", "--install"))
    assert code == 0, err
    enroot = Enroot(cats.user)
    place = str(enroot.image / "data")
    wanted = {"LODEFS_DATASETS": "cats@main:/data:rw,commit=never"}
    code, out, err = enroot.run(command="cat data/a; echo 1 > data/kept; rm data/a", **wanted)
    assert (code, out) == (0, "hello\n"), err
    cats.user.wait_for_end()
    assert place in cats.lodefs("mounts", "--uncommitted")
    code, out, err = enroot.run(command="cat data/kept", **wanted)  # it goes on
    assert (code, out) == (0, "1\n"), err
    cats.user.wait_for_end()
    cats.lodefs("unmount", place, "--commit")
    code, _, err = enroot.run(command="true", LODEFS_DATASETS="cats@main:/data:rw")
    assert (code, "commit=never" in err) == (2, True), err
    del cats.user.environment["LODEFS_DATASETS"]
    words = enroot.words("--mount", f"{cats.user.home}/d:/data", command="echo 2 > data/committed")
    run = cats.user.lodefs("run", "cats@main:./d:rw=mine", "--", *words)
    code, _, err = cats.user.run(*run)
    assert code == 0, err
    kept = {"sub/x": b"below\n", "kept": b"1\n"}
    assert (cats.files(), cats.files("mine")) == (kept, {**kept, "committed": b"2\n"})
    cats.assert_nothing_left()


@pytest.mark.parametrize(
    ("when", "codes"), [("on-success", [0]), ("always", [0, 1, 143]), ("never", [])]
)
def test_when_to_commit(when: CommitWhen, codes: list[int]) -> None:
    """Only after the exit codes that are asked for."""
    assert [code for code in (0, 1, 143) if is_to_commit(when, code)] == codes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-m", "text", "cats:/d"], "REPO@BRANCH:DIR:rw"),
        (["--commit", "always", "cats:/d"], "--commit is for a dataset that takes changes"),
        (["--upper", "up", "cats:/d:rw", "cats:/e:rw"], "there are more"),
    ],
)
def test_bad_usage(lodefs: Lodefs, words: list[str], text: str) -> None:
    """Options that would do nothing, or one place for the changes of two."""
    failed = lodefs("run", *words, "--", "true")
    assert failed.code == 2
    assert text in failed.err


def test_by_root(cats: Cats, tmp_path: Path) -> None:
    """Root needs no user namespace, and its command may commit, too; then there is another mount,
    whose processes are not waited for."""
    words = ["run", "--upper", "up", "--branch", "roots", "cats:./d:rw", "--", "sh", "-c"]
    lodefs = [sys.executable, "-m", "lodefs.main"]
    commit = shlex.join([*lodefs, "commit", "./d", "--branch", "roots"])
    ran = subprocess.run(
        [*lodefs, *words, f"mv d/sub d/moved; {commit} && rm d/a"],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "LODEFS_STORE": str(cats.folder),
            "LODEFS_CONFIG": os.devnull,
            "PYTHONPATH": str(ROOT),
        },
        cwd=tmp_path,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert cats.files("roots") == {"moved/x": b"below\n"}
    assert ran.stderr.count("are commit") == 1
    assert not (tmp_path / "up").exists()
    assert os.listdir(tmp_path / "d") == []
