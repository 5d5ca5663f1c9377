"""Mounts that a user without privilege makes in the namespaces of a container, while it starts."""

from __future__ import annotations

import os
import shlex
import signal

import pytest

from tests.support.hpc.job_user import Enroot, JobUser, processes
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import alive, until

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

MOUNT = """
import sys
from lodefs.mount.process import mounter
from lodefs.mount.options import MountOptions
proxy, log, pids, *places = sys.argv[1:]
for at in places:
    options = MountOptions(repo="demo", mountpoint=at, proxy=proxy, log_path=log, workers=2)
    try:
        mounted = mounter.mount(options, fork=True)
    except Exception as error:
        from lodefs.mount.kernel import mount_table
        print(type(error).__name__, error, "mounted:", mount_table.on_top(at), file=sys.stderr)
        sys.exit(1)
    with open(pids, "a") as file:
        print(mounted.pid, file=file)
"""


@pytest.fixture
def enroot(user: JobUser, group_proxy: FakeProxy) -> Enroot:
    """With a hook that mounts the sample on /data and /more."""
    made = Enroot(user)
    user.owned(made.image / "more")
    words = [user.python, "-c", MOUNT, group_proxy.address, f"{user.home}/log",
             f"{user.home}/pids"]  # fmt: skip
    made.hook("50-mount.sh", f'{shlex.join(words)} "$ENROOT_ROOTFS/data" "$ENROOT_ROOTFS/more"')
    return made


@pytest.mark.parametrize("options", [(), ("--root",), ("--pid", "--overlay")])
def test_a_container_reads_and_leaves_nothing(enroot: Enroot, options: tuple[str, ...]) -> None:
    """In a container of any kind two mounts can be read, also through pivot_root, and not be
    written to; when it ends, all of their processes end."""
    command = "cat /data/a /more/a; touch /data/new; wc -c < /more/big; ls /data/many | wc -l"
    code, out, err = enroot.run(*options, command=command)
    assert out == "hellohello5000000\n5000\n", err
    assert "Read-only file system" in err
    assert code == 0
    enroot.user.wait_for_end()


def test_killed_processes(enroot: Enroot) -> None:
    """Without a supervisor the workers serve on, and end with the container."""
    with enroot.start(command="cat /data/a; read line; cat /data/deep/er/est/f") as container:
        assert container.stdout is not None
        assert container.stdout.read(5) == "hello"
        for pid in map(int, (enroot.user.home / "pids").read_text().split()):
            os.kill(pid, signal.SIGKILL)
        out, err = container.communicate("go on\n", timeout=60)
        assert (out, err) == ("bottom", "")
    enroot.user.wait_for_end()


def test_a_container_of_several_processes(enroot: Enroot) -> None:
    """The mount lives as long as any process of the container, also one that came later and when
    the one that started it was killed."""
    with enroot.start(command="echo here; read line") as container:
        assert container.stdout is not None
        assert container.stdout.readline() == "here\n"
        same = ["nsenter", "--user", "--mount", "--preserve-credentials", "-t", str(container.pid)]
        with enroot.user.start(*same, "sh", "-c", "cat /data/a; read line; cat /more/a") as task:
            assert task.stdout is not None
            assert task.stdout.read(5) == "hello"
            container.kill()
            container.wait()
            assert task.communicate("go on\n", timeout=60) == ("hello", "")
    enroot.user.wait_for_end()


def test_a_mount_that_fails(enroot: Enroot, group_proxy: FakeProxy) -> None:
    """A mount whose root cannot be read stops the container with its reason, and is not there."""
    answer = b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n"
    group_proxy.hook = lambda path: answer if "/children" in path else None
    code, out, err = enroot.run(command="echo started")
    assert (code, out) == (1, "")
    assert "its root cannot be read" in err
    assert "mounted: None" in err
    enroot.user.wait_for_end()


def test_who_is_not_in_the_group(enroot: Enroot, user: JobUser) -> None:
    """The proxy's socket is its group's, also in a user namespace: others are told."""
    words = enroot.words(command="echo started")
    code, out, err = user.run(*words, groups=())
    assert (code, out) == (1, "")
    assert err.startswith("Denied unix:")
    assert "the proxy is for" in err
    user.wait_for_end()


def test_unmount_in_the_container(enroot: Enroot) -> None:
    """A job that unmounts by itself ends the mount's processes at once."""
    with enroot.start("--root", command="umount /data && echo gone; read line") as container:
        assert container.stdout is not None
        assert container.stdout.readline() == "gone\n"
        first, second = map(int, (enroot.user.home / "pids").read_text().split())
        until(lambda: not alive(first))
        assert alive(second)
        container.communicate("go on\n", timeout=60)
    enroot.user.wait_for_end()
    assert processes() == []
