"""TCP sockets that systemd keeps: taken again where they are wanted, let go where not."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from loadtests.services import free_port
from lodefs.chunkstore.system.sockets import is_at, listen_tcp
from lodefs.chunkstore.system.systemd.notify import SystemdNotifier
from lodefs.proxy.service.systemd import CLIENTS, PEERS, Listeners
from tests.support.chunkstore.child_process import Child

HERE = "127.0.0.1"
SCRIPT = """
import json, os, socket, sys
from lodefs.chunkstore.system.systemd.notify import SystemdNotifier
from lodefs.proxy.service.systemd import CLIENTS, Listeners
first, wanted = int(sys.argv[1]), json.loads(sys.argv[2])
environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": sys.argv[3],
           "NOTIFY_SOCKET": sys.argv[4]}
held = socket.socket(); held.bind(("127.0.0.1", first)); held.listen()
copy = os.dup(held.fileno())  # systemd's
unix = os.dup(socket.socket(socket.AF_UNIX).detach())
os.dup2(unix, 9); os.dup2(held.detach(), 4); os.dup2(9, 3)
listeners = Listeners(environ, SystemdNotifier(environ), {CLIENTS: wanted and tuple(wanted)})
print(json.dumps([one.fileno() for one in listeners.given]))
if wanted:
    listener = listeners.tcp(CLIENTS, tuple(wanted))
    print(json.dumps([listener.fileno(), *listener.getsockname()]))
listeners.close()
"""


def recover(
    tmp_path: Path, names: str, wanted: tuple[str, int] | None, port: int
) -> tuple[list[list[object]], list[bytes]]:
    """What a process sees that gets a Unix socket and a TCP socket on ``port`` under these names,
    and what it tells systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        words = [str(port), json.dumps(wanted), names, str(tmp_path / "notify")]
        with Child([sys.executable, "-c", SCRIPT, *words], cwd=Path(__file__).parents[3]) as child:
            assert child.wait() == 0, child.output
            told = []
            while True:
                try:
                    told.append(systemd.recv(1000))
                except BlockingIOError:
                    break
            return [json.loads(line) for line in child.output.splitlines()], told


def test_a_kept_socket_is_used_again(tmp_path: Path) -> None:
    """One that is where the settings say is taken as it is; systemd has it already."""
    port = free_port()
    seen, told = recover(tmp_path, f"lodefs-proxy.socket:{CLIENTS}", (HERE, port), port)
    assert seen == [[3], [4, HERE, port]]
    assert told == []


def test_a_socket_elsewhere_is_let_go(tmp_path: Path) -> None:
    """After a change of the settings another socket is opened and kept, the old one forgotten."""
    old, new = free_port(), free_port()
    seen, told = recover(tmp_path, f"lodefs-proxy.socket:{CLIENTS}", (HERE, new), old)
    assert seen[0] == [3]
    assert seen[1][1:] == [HERE, new]
    assert told == [f"FDSTOREREMOVE=1\nFDNAME={CLIENTS}".encode(),
                    f"FDSTORE=1\nFDNAME={CLIENTS}".encode()]  # fmt: skip


def test_another_address_with_the_same_port(tmp_path: Path) -> None:
    """What systemd still holds of the old socket is not in the way of the new one."""
    port = free_port()
    seen, told = recover(tmp_path, f"lodefs-proxy.socket:{CLIENTS}", ("0.0.0.0", port), port)
    assert seen[1][1:] == ["0.0.0.0", port]
    assert len(told) == 2


def test_what_is_not_wanted_is_forgotten(tmp_path: Path) -> None:
    """A door that the settings do not have any more is closed."""
    seen, told = recover(tmp_path, f"lodefs-proxy.socket:{PEERS}", None, free_port())
    assert seen == [[3]]
    assert told == [f"FDSTOREREMOVE=1\nFDNAME={PEERS}".encode()]


def test_sockets_of_units_are_given(tmp_path: Path) -> None:
    """Whatever has another name is a unit's, and is not judged here."""
    seen, told = recover(tmp_path, "lodefs-proxy.socket:web.socket", None, free_port())
    assert (seen, told) == ([[3, 4]], [])


def test_without_systemd() -> None:
    """Where nobody keeps sockets they are opened all the same."""
    listeners = Listeners({}, SystemdNotifier({}), {CLIENTS: (HERE, 0)})
    with listeners.tcp(CLIENTS, (HERE, 0)) as listener:
        assert is_at(listener, HERE, 0)
    listeners.close()


def test_where_a_socket_is() -> None:
    """The address and the port decide; port 0 is any; what does not listen is nowhere."""
    with listen_tcp(HERE, 0) as listener:
        port = listener.getsockname()[1]
        assert is_at(listener, HERE, port)
        assert not is_at(listener, HERE, port + 1)
        assert not is_at(listener, "127.0.0.2", port)
        assert not is_at(listener, "::1", port)
        assert not is_at(listener, "no such name.", port)
    with socket.socket() as idle:
        idle.bind((HERE, 0))
        assert not is_at(idle, HERE, 0)
