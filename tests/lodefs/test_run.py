"""``lodefs run`` by a user without privilege, and by root: what the command sees, and its end."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.hpc.job_user import ROOT, UID, JobUser, processes
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import alive, until, workers_of

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


@pytest.fixture
def proxy(user: JobUser, group_proxy: FakeProxy) -> FakeProxy:
    """The proxy, where the user's commands find it."""
    user.environment["LODEFS_PROXY"] = group_proxy.address
    return group_proxy


def start(user: JobUser, *words: str) -> subprocess.Popen[str]:
    """``lodefs run`` of a command that says when it runs."""
    process = user.start(*user.lodefs("run", *words))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def mount_processes(process: subprocess.Popen[str], user: JobUser) -> tuple[int, list[int]]:
    """The supervisor of the only mount, which the process sees, and its workers."""
    own = ["nsenter", "--user", "--mount", "--preserve-credentials", "-t", str(process.pid)]
    code, out, err = user.run(*own, *user.lodefs("mounts", "--json"))
    assert code == 0, err
    (found,) = [json.loads(line) for line in out.splitlines()]
    workers = workers_of(found["pid"])
    assert workers
    return found["pid"], workers


def test_with_a_proxy_of_its_own(user: JobUser) -> None:
    """Two datasets of a store, read-only, in directories that are made for them, also behind a
    symlink; the exit code is the command's, others see no mount, and the proxy that was started
    ends, too. What the store does not have is named."""
    store = user.owned(user.home / "store")
    content = {b"a": b"hello\n", b"sub/x": b"below\n"}
    Handmade(create_store(DirectoryObjects(str(store)))).commit("cats", content)
    subprocess.run(["chown", "-R", f"{UID}:{UID}", store], check=True)
    user.environment["LODEFS_STORE"] = str(store)
    (user.home / "link").symlink_to("there")
    script = "cat ./link/a s/x; touch s/new; exit 7"
    words = user.lodefs("run", "cats:./link", "cats@main:sub:./s", "--", "sh", "-c", script)
    code, out, err = user.run(*words)
    assert (code, out.splitlines()) == (7, ["hello", "below"]), err
    assert "Read-only file system" in err
    assert list((user.home / "there").iterdir()) == list((user.home / "s").iterdir()) == []
    for words, text in [
        (user.lodefs("run", "nosuch:./d", "ls"), "there is no repository nosuch"),
        (user.lodefs("run", "cats@v9:./d", "ls"), "no branch, tag or commit v9"),
    ]:
        code, out, err = user.run(*words)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert text in err
    user.wait_for_end()


@pytest.mark.parametrize("victim", ["command", "mount", "supervisor", "SIGTERM"])
def test_the_end(user: JobUser, proxy: FakeProxy, victim: str) -> None:
    """Whatever is killed, with the command the mount ends and its workers, also where a process
    that the command started lives on. Signals are the command's own."""
    script = "trap 'echo signal; exit 3' TERM; echo ready; read line; cat d/a"
    process = start(user, "demo:./d", "sh", "-c", f"sleep 600 > /dev/null 2>&1 & {script}")
    with process:
        supervisor, workers = mount_processes(process, user)
        if victim in ("mount", "supervisor"):
            for pid in [supervisor, *(workers if victim == "mount" else [])]:
                os.kill(pid, signal.SIGKILL)
        if victim == "command":
            process.kill()
        if victim == "SIGTERM":
            process.terminate()
        out, err = process.communicate("go on\n", timeout=60)
        if victim == "supervisor":
            assert (out, process.returncode) == ("hello", 0)
        if victim == "mount":
            assert "d/a" in err
            assert process.returncode != 0
        if victim == "SIGTERM":
            assert (out, process.returncode) == ("signal\n", 3)
    until(lambda: not any(map(alive, [supervisor, *workers])))
    user.wait_for_end(but=1)
    (left,) = processes()
    assert Path(f"/proc/{left}/comm").read_text() == "sleep\n"


def test_mistakes(user: JobUser, proxy: FakeProxy) -> None:
    """Each is one line that names the thing, with an exit code of its kind, and leaves nothing."""
    (user.home / "full").mkdir()
    (user.home / "full" / "file").touch()
    for words, code, text in [
        (("demo:./d", "--"), 2, "no command is given"),
        (("demo:/", "ls"), 2, "/ is not empty"),
        (("demo:./full/../full", "ls"), 2, "full is not empty"),
        (("demo:/sys/x/y", "ls"), 2, "cannot be created"),
        (("demo:./d", "demo:./d/e", "ls"), 2, "one directory lies in the other"),
        (("demo:./d", "--", "no-such-program"), 127, "no-such-program: command not found"),
        (("demo:./d", "--", "./d/a"), 126, "./d/a: Permission denied"),
    ]:
        ended, out, err = user.run(*user.lodefs("run", *words))
        assert (ended, out, err.count("\n")) == (code, "", 1), err
        assert text in err
    user.wait_for_end()


def test_by_root(tmp_path: Path, proxy: FakeProxy) -> None:
    """Root needs no user namespace; the mounts are the command's all the same, and so are umask and
    TMPDIR, also those that root would not use itself."""
    script = (
        "cat d/a; readlink /proc/self/ns/user; grep -c fuse.lodefs /proc/self/mounts; "
        "umask; echo $TMPDIR"
    )
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, UID, UID)
    ran = subprocess.run(
        [sys.executable, "-m", "lodefs.main", "run", "demo:./d", "sh", "-c", script],
        env={
            **os.environ,
            "LODEFS_PROXY": proxy.address,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(theirs),
        },
        cwd=tmp_path,
        umask=0,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert ran.stdout == f"hello{os.readlink('/proc/self/ns/user')}\n1\n0000\n{theirs}\n"
    assert os.listdir(tmp_path / "d") == []
    assert not os.stat(tmp_path / "d").st_mode & stat.S_IWOTH
