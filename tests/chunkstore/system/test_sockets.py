"""Listening sockets: permissions, stale and living ones, and systemd's."""

from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InUse, InvalidInput, LodefsError
from lodefs.chunkstore.system.sockets import inherited, listen_tcp, listen_unix, remove_unix
from lodefs.chunkstore.system.systemd.notify import READY, SystemdNotifier, inheritable


def test_mode_and_group(tmp_path: Path) -> None:
    """The socket has the wanted permission bits and group, and its directory is made."""
    path = tmp_path / "new" / "proxy.sock"
    group = grp.getgrgid(os.getgid()).gr_name
    with listen_unix(path, mode=0o640, group=group):
        found = path.stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o640
        assert found.st_gid == os.getgid()
    assert os.listdir(path.parent) == ["proxy.sock"]


def test_a_stale_socket_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    """Only where nobody listens is the file taken over."""
    path = tmp_path / "proxy.sock"
    listen_unix(path, mode=0o600).close()
    assert path.exists()
    with listen_unix(path, mode=0o600):
        with pytest.raises(InUse, match=r"proxy\.sock"):
            listen_unix(path, mode=0o600)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_other_files_are_never_replaced(tmp_path: Path) -> None:
    """A file that is no socket stays as it is."""
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(InvalidInput, match="not a socket"):
        listen_unix(path, mode=0o600)
    assert path.read_text() == "data"


def test_bad_places_and_groups(tmp_path: Path) -> None:
    """A group or place that is not there is named, and nothing is left behind."""
    with pytest.raises(InvalidInput, match="nogroupofthisname"):
        listen_unix(tmp_path / "s", mode=0o600, group="nogroupofthisname")
    (tmp_path / "file").touch()
    with pytest.raises(LodefsError, match="file"):
        listen_unix(tmp_path / "file" / "s", mode=0o600)
    assert os.listdir(tmp_path) == ["file"]


def test_only_the_own_file_is_removed(tmp_path: Path) -> None:
    """A proxy that ends does not remove the socket of one that came after it."""
    path = tmp_path / "s"
    with listen_unix(path, mode=0o600):
        inode = path.lstat().st_ino
        remove_unix(path, inode + 1)
        assert path.exists()
        remove_unix(path, inode)
        assert not path.exists()
        remove_unix(path, inode)


def test_tcp(tmp_path: Path) -> None:
    """A port is taken once."""
    with listen_tcp("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InUse, match=str(port)):
            listen_tcp("127.0.0.1", port)


@pytest.mark.parametrize("host", ["a..b", "192.0.2.77"])
def test_bad_hosts(host: str) -> None:
    """An address that this machine does not have is refused."""
    with pytest.raises(LodefsError, match=host):
        listen_tcp(host, 0)


def test_sockets_of_systemd() -> None:
    """Sockets are taken from descriptor 3 on, and only when they are meant for this process."""
    script = (
        "import os, socket; "
        "from lodefs.chunkstore.system.sockets import inherited, inherited_by_name, is_unix\n"
        "assert inherited({'LISTEN_FDS': '2', 'LISTEN_PID': '1'}) == []\n"
        "more = {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDNAMES': 'proxy.socket:kept'}\n"
        "named = inherited_by_name({'LISTEN_FDS': '2', **more})\n"
        "found = [one for _, one in named]; print([name for name, _ in named])\n"
        "print([one.fileno() for one in found], [is_unix(one) for one in found])\n"
        "print(any(os.get_inheritable(one.fileno()) for one in found))\n"
        "[one.close() for one in found]\n"
    )
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:

        def place() -> None:
            one, two = os.dup(unix.fileno()), os.dup(tcp.fileno())
            os.dup2(one, 3)
            os.dup2(two, 4)

        done = subprocess.run(
            [sys.executable, "-c", script],
            preexec_fn=place,
            pass_fds=(3, 4),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            cwd=Path(__file__).parents[3],
        )
    assert done.stdout.splitlines() == ["['proxy.socket', 'kept']", "[3, 4] [True, False]", "False"]


def test_no_sockets_of_systemd() -> None:
    """Without its variables there are none."""
    assert inherited({}) == []
    assert inherited({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"}) == []


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    """Messages arrive where NOTIFY_SOCKET says; without it nothing happens."""
    name = f"@lodefs-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0"))
        receiver.settimeout(60)
        notifier = SystemdNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000"})
        notifier.send(READY)
        assert receiver.recv(100) == b"READY=1"
        notifier.alive()
        assert receiver.recv(100) == b"WATCHDOG=1"
    notifier.send(READY)
    SystemdNotifier({}).send(READY)


def test_denied_is_its_own_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory that must not be written is told apart from one that is in use."""

    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(Denied):
        listen_unix(tmp_path / "s", mode=0o600)


def test_children_do_not_speak_for_a_service() -> None:
    """What systemd tells a service's process is kept from what it starts."""
    told = {"NOTIFY_SOCKET": "/n", "LISTEN_FDS": "1", "LISTEN_PID": "1", "WATCHDOG_USEC": "1"}
    assert inheritable({**told, "PATH": "/bin", "JOURNAL_STREAM": "1:2"}) == {
        "PATH": "/bin",
        "JOURNAL_STREAM": "1:2",
    }
