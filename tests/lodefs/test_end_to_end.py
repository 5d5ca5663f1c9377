"""push, mount, read, unmount as a user types them, with the proxy that is started for the user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.protocol import lease
from tests.support.chunkstore.child_process import TIMEOUT_S, Child, private_directory, run
from tests.support.mount.mounts import until

pytestmark = [pytest.mark.slow, pytest.mark.fuse]


class User:
    """A user with a home, a store and a mount point of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.source = folder / "source"
        self.place = folder / "mount"
        for directory in (self.source, self.place):
            directory.mkdir(exist_ok=True)
        self.environment = {
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "LODEFS_STORE": str(self.store),
            "LODEFS_CONFIG": os.devnull,
        }

    def lodefs(self, *arguments: str) -> str:
        """What a command that must succeed writes."""
        return run([sys.executable, "-m", "lodefs.main", *arguments], env=self.environment)

    def fails(self, *arguments: str) -> tuple[int, str]:
        """Code and output of a command."""
        with Child(
            [sys.executable, "-m", "lodefs.main", *arguments], env=self.environment
        ) as child:
            return child.wait(timeout_s=TIMEOUT_S), child.output

    def pids(self) -> list[int]:
        """The proxies that were started."""
        return [int(path.read_text()) for path in self.folder.glob("cache/lodefs/*/pid")]

    def mounted(self) -> bool:
        """Whether something is mounted on the place."""
        return self.place.stat().st_dev != self.folder.stat().st_dev


@pytest.fixture(scope="module")
def pushed() -> Iterator[Path]:
    """The folder of a user who pushed two versions of a small directory, for copies."""
    with private_directory() as folder:
        user = User(folder)
        user.lodefs("init", str(user.store))
        (user.source / "d").mkdir()
        (user.source / "d" / "a").write_text("first\n")
        (user.source / "large").write_bytes(os.urandom(3_000_000))
        user.lodefs("push", str(user.source), "vision/cats")
        user.lodefs("tag", "vision/cats", "v1")
        (user.source / "d" / "a").write_text("second\n")
        user.lodefs("push", str(user.source), "vision/cats")
        yield folder


@pytest.fixture
def user(pushed: Path) -> Iterator[User]:
    """A user who pushed two versions of a small directory."""
    with private_directory() as folder:
        shutil.copytree(pushed, folder, symlinks=True, dirs_exist_ok=True)
        user = User(folder)
        try:
            yield user
        finally:
            if user.mounted():
                user.lodefs("unmount", str(user.place))
            for pid in user.pids():
                _end(pid)


def _end(pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def test_mount_read_unmount(user: User) -> None:
    """A mount starts a proxy, is readable at once, is listed, and goes away; the proxy stays."""
    assert "no passthrough" not in user.lodefs("mount", "vision/cats", str(user.place))
    assert (user.place / "d" / "a").read_text() == "second\n"
    assert (user.place / "large").read_bytes() == (user.source / "large").read_bytes()
    mounts = [json.loads(line) for line in user.lodefs("mounts", "--json").splitlines()]
    mine = [one for one in mounts if one["mountpoint"] == str(user.place)]
    assert [one["repo"] for one in mine] == ["vision/cats"]
    figures = {"cache_bytes", "peers_bytes", "store_bytes", "kernel_opens"}
    assert mine[0]["traffic"] is None or set(mine[0]["traffic"]) == figures
    state = mine[0]["passthrough"]
    assert state == "on" or state.startswith("off: ")
    reason = state.removeprefix("off: ")
    words = (
        "the kernel reads large files itself" if state == "on" else f"(no passthrough: {reason})"
    )
    assert words in user.lodefs("mounts")
    way = os.getxattr(user.place / "large", "user.lodefs.read_path")
    assert way in (b"daemon", b"passthrough" if state == "on" else b"daemon")
    status = json.loads(user.lodefs("status", "--json"))
    assert status["node"]["store"] == str(user.store)
    assert status["node"]["cache_used_bytes"] > 0
    assert str(user.place) in user.lodefs("status")
    user.lodefs("unmount", str(user.place))
    assert not user.mounted()
    first = user.pids()
    assert len(first) == 1
    as_shown = ["--uid", "7", "--gid", "8", "--mode", "0550"]
    user.lodefs("mount", *as_shown, "vision/cats@v1:d", str(user.place))
    assert (user.place / "a").read_text() == "first\n"
    assert user.pids() == first
    for path, mode in ((user.place, 0o550), (user.place / "a", 0o440)):
        found = path.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (7, 8, mode)
    for wrong in ("0755", "rwx", "-1"):
        assert user.fails("mount", "--mode", wrong, "vision/cats", str(user.place))[0] == 2


def test_a_mount_file_says_how_things_are_shown(user: User) -> None:
    """Mode, owner and directory of a mount file are those of what is mounted."""
    user.lodefs("mount", "vision/cats", str(user.place))  # which starts the proxy
    (socket,) = user.folder.glob("cache/lodefs/*/sock")
    made = user.folder / "made"
    file = user.folder / "cats.toml"
    file.write_text(
        f'repo = "vision/cats"\ndir = "{made}"\nproxy = "unix:{socket}"\n'
        'mode = "0510"\nuid = 7\ngid = 8\ncreate_dir = true\n'
    )
    user.lodefs("mount", "--from", str(file))
    try:
        for path, mode in ((made, 0o510), (made / "d", 0o510), (made / "large", 0o400)):
            found = path.stat()
            assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (7, 8, mode)
    finally:
        user.lodefs("unmount", str(made))


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("vision/cats@v9", 3),
        ("vision/dogs", 3),
        ("vision/cats:none", 3),
        ("vision/cats:large", 2),
        ("vision/cats:../x", 2),
    ],
)
def test_mount_of_what_cannot_be_mounted(user: User, spec: str, code: int) -> None:
    """An unknown revision, repository or path and a file fail, and nothing is mounted."""
    found, output = user.fails("mount", spec, str(user.place))
    assert found == code, output
    assert output.startswith("lodefs: error: ")
    assert output.count("\n") == 1
    assert not user.mounted()


def test_mount_in_the_foreground(user: User) -> None:
    """With --foreground the command answers for the mount until it is told to end."""
    command = [sys.executable, "-m", "lodefs.main", "mount", "--foreground", "--json"]
    with Child([*command, "vision/cats", str(user.place)], env=user.environment) as child:
        child.wait_for('"repo": "vision/cats"')
        assert (user.place / "d" / "a").read_text() == "second\n"
        assert child.terminate() == 0
    assert not user.mounted()


def test_mount_on_a_mount(user: User) -> None:
    """A directory that has a mount is refused, with the way to take it away."""
    user.lodefs("mount", "vision/cats", str(user.place))
    code, output = user.fails("mount", "vision/cats", str(user.place))
    assert code == 11
    assert "unmount" in output


def test_features_of_the_kernel_are_left_out(user: User) -> None:
    """LODEFS_FUSE_WITHOUT has a mount do without them, as its log says; one that is unknown is bad
    input, before a proxy is started."""
    user.environment["LODEFS_FUSE_WITHOUT"] = "resent"
    code, output = user.fails("mount", "vision/cats", str(user.place))
    assert code == 2
    assert "'resent'" in output
    assert "resend" in output
    assert user.pids() == []
    user.environment["LODEFS_FUSE_WITHOUT"] = "resend,passthrough"
    log = user.folder / "mount.log"
    user.lodefs("mount", "--log", str(log), "--passthrough", "vision/cats", str(user.place))
    assert (user.place / "large").read_bytes() == (user.source / "large").read_bytes()
    assert "LODEFS_FUSE_WITHOUT disables passthrough, resend" in log.read_text()
    code, output = user.fails("mount", "--take-over", str(user.place))
    assert code == 7
    assert "before Linux 6.9" in output


def test_take_over(user: User) -> None:
    """A mount whose supervisor was killed is listed as such, and can be taken over: by a process
    in the background, and from that by one in the foreground."""
    mounted = json.loads(user.lodefs("mount", "--json", "vision/cats", str(user.place)))
    os.kill(mounted["pid"], signal.SIGKILL)
    until(lambda: "without a supervisor" in _line_of(user))
    assert (user.place / "d" / "a").read_text() == "second\n"
    taken = json.loads(user.lodefs("mount", "--json", "--take-over", str(user.place)))
    assert taken["pid"] != mounted["pid"]
    assert {**taken, "pid": 0} == {**mounted, "pid": 0}
    assert "without a supervisor" not in _line_of(user)
    command = [sys.executable, "-m", "lodefs.main", "mount", "--foreground", "--json"]
    with Child([*command, "--take-over", str(user.place)], env=user.environment) as child:
        child.wait_for('"repo": "vision/cats"')
        assert (user.place / "large").read_bytes() == (user.source / "large").read_bytes()
        assert child.terminate() == 0
    assert not user.mounted()


def _line_of(user: User, *options: str) -> str:
    """The line of the user's mount: the machine may have others."""
    lines = user.lodefs("mounts", *options).splitlines()
    return next(line for line in lines if str(user.place) in line)


def test_a_killed_proxy_is_told_and_started_again(user: User) -> None:
    """A mount whose proxy was killed is listed with the way out; taking it over starts the proxy
    that was started for it, and what was not read yet can be read."""
    user.lodefs("mount", "vision/cats", str(user.place))
    assert json.loads(_line_of(user, "--json"))["proxy_answers"] is True
    shown = [line for line in user.lodefs("status").splitlines() if str(user.place) in line]
    assert "does not answer" not in "".join([*shown, _line_of(user)])
    (pid,) = user.pids()
    _end(pid)
    told = _line_of(user)
    assert f"does not answer: `lodefs mount --take-over {user.place}` starts it again" in told
    assert json.loads(_line_of(user, "--json"))["proxy_answers"] is False
    code, told = user.fails("status")
    assert (code, "lodefs: error: no proxy for" in told) == (7, True)
    assert f"does not answer: `lodefs mount --take-over {user.place}` starts it again" in told
    user.lodefs("mount", "--take-over", str(user.place))
    assert "does not answer" not in _line_of(user)
    assert (user.place / "large").read_bytes() == (user.source / "large").read_bytes()


def test_a_proxy_that_nobody_uses_ends(user: User) -> None:
    """The user's own proxy stays while a mount lives, also one without its supervisor, ends when
    nobody has used it for a while, and is started again by the next mount."""
    config = user.folder / "lodefs.toml"
    config.write_text("[serve]\nunused_timeout_s = 0.5\n")
    user.environment["LODEFS_CONFIG"] = str(config)
    user.lodefs("mount", "vision/cats", str(user.place))
    (first,) = user.pids()
    socket = next(user.folder.glob("cache/lodefs/*/pid")).with_name("sock")
    assert lease.revoke(socket) is None
    mounted = json.loads(_line_of(user, "--json"))
    os.kill(mounted["pid"], signal.SIGKILL)
    assert lease.revoke(socket) is None
    user.lodefs("mount", "--take-over", str(user.place))
    assert lease.revoke(socket) is None
    assert (user.place / "large").read_bytes() == (user.source / "large").read_bytes()
    assert Path(f"/proc/{first}").exists()
    user.lodefs("unmount", str(user.place))
    until(lambda: not Path(f"/proc/{first}").exists())
    assert not socket.exists()
    user.lodefs("mount", "vision/cats", str(user.place))
    assert user.pids() != [first]
    assert (user.place / "d" / "a").read_text() == "second\n"


def test_take_over_of_nothing(user: User) -> None:
    """Where nothing is mounted, and with more or fewer arguments than it takes, it is bad usage."""
    code, output = user.fails("mount", "--take-over", str(user.place))
    assert (code, "no lodefs mount" in output) == (2, True)
    assert user.fails("mount", "--take-over", str(user.place), "vision/cats")[0] == 2
    assert user.fails("mount", "vision/cats")[0] == 2
    assert user.fails("mount")[0] == 2
