"""lease.py: who uses a proxy, and who may end it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, NotFound, Unavailable
from lodefs.chunkstore.protocol import lease
from tests.support.chunkstore.child_process import Child


@pytest.fixture
def listening(tmp_path: Path) -> Path:
    """A socket's path, with a lease to be had."""
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.chmod(0o660)
    lease.offer(path)
    return path


def test_who_may_connect_may_have_a_lease(listening: Path) -> None:
    """The file has the socket's permissions, without those to execute."""
    assert lease.path_of(listening).stat().st_mode & 0o777 == 0o660
    assert lease.path_of(listening).stat().st_gid == listening.stat().st_gid


def test_nobody_is_alone_while_there_is_a_lease(listening: Path) -> None:
    """Any number of leases can be had; the lock alone only when the last of them is over."""
    held = [lease.take(listening) for _ in range(3)]
    while held:
        assert lease.revoke(listening) is None
        os.close(held.pop())
    alone = lease.revoke(listening)
    assert alone is not None
    os.close(alone)


def test_no_lease_of_a_proxy_that_is_ending(listening: Path) -> None:
    """Who comes later is told so, and has one as soon as the proxy's process is gone."""
    code = (
        "import sys; from pathlib import Path; from lodefs.chunkstore.protocol import lease;"
        "assert lease.revoke(Path(sys.argv[1])); print('alone', flush=True); "
        "import signal; signal.pause()"
    )
    with Child([sys.executable, "-c", code, listening]) as child:
        child.wait_for("alone")
        with pytest.raises(Unavailable, match="is ending"):
            lease.take(listening)
        child.kill()
        os.close(lease.take(listening, 60.0))


def test_a_lease_lives_in_a_child(listening: Path) -> None:
    """A worker that was forked holds the lease of its supervisor, which is gone."""
    held = lease.take(listening)
    code = "print('holds', flush=True); import signal; signal.pause()"
    with Child([sys.executable, "-c", code], pass_fds=[held]) as child:
        os.close(held)
        child.wait_for("holds")
        assert lease.revoke(listening) is None
        child.kill()
    alone = lease.revoke(listening)
    assert alone is not None
    os.close(alone)


def test_no_lease_where_none_is_offered(tmp_path: Path) -> None:
    """A proxy that does not end by itself offers none, unless whoever starts it makes the file."""
    with pytest.raises(NotFound):
        lease.take(tmp_path / "sock")
    assert lease.revoke(tmp_path / "sock") is None
    os.close(lease.take(tmp_path / "sock", create=True))
    (tmp_path / "file").write_text("")
    with pytest.raises(Denied):
        lease.take(tmp_path / "file" / "sock", create=True)
