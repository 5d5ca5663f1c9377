"""When the mount service of a container counts as ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.service.client import check_own_service
from tests.support.chunkstore.child_process import Child

# Listens, and tells so.
_LISTENER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
listener.accept()[0].recv(1)
"""
_CHECK = """
import sys
from pathlib import Path
from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.service.client import check_own_service
try:
    check_own_service(Path(sys.argv[1]), 5)
except Unavailable as error:
    print(error)
"""


def test_nobody_listens(tmp_path: Path) -> None:
    """Where there is no socket, the error names it."""
    with pytest.raises(Unavailable, match=r"mounter\.sock"):
        check_own_service(tmp_path / "mounter.sock", 1)


def test_a_service_of_another_container_does_not_count(tmp_path: Path) -> None:
    """A service that listens in another process namespace, as the old pod's does during an upgrade,
    is told from the own one."""
    path = tmp_path / "mounter.sock"
    with Child([sys.executable, "-c", _LISTENER, path]) as listener:
        listener.wait_for("listens")
        own = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
        done = subprocess.run(
            [*own, sys.executable, "-c", _CHECK, path], capture_output=True, text=True, check=True
        )
    assert "another container still answers" in done.stdout


def test_a_service_that_does_not_answer_is_not_ready(tmp_path: Path) -> None:
    """To listen is not enough: a service that takes mounts over answers when it has done so."""
    path = tmp_path / "mounter.sock"
    with Child([sys.executable, "-c", _LISTENER, path]) as listener:
        listener.wait_for("listens")
        with pytest.raises(Unavailable):
            check_own_service(path, 1)
