"""Starts of the proxy's service that fail: what systemd is told, and how far apart they are."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.system.systemd.notify import SystemdNotifier
from lodefs.proxy.service.systemd import FAILED, PAUSES_S, failures_are_over, told_to_systemd

WHY = "s3://bucket/prefix is not a lodefs store:\ncreate it"


def fail(environ: dict[str, str]) -> list[float]:
    """The pauses of a start that fails."""
    pauses: list[float] = []
    with pytest.raises(NotFound, match="not a"), told_to_systemd(environ, pauses.append):
        raise NotFound(WHY)
    return pauses


def test_what_systemd_is_told(tmp_path: Path) -> None:
    """The reason, on one line, and a descriptor to keep: so the next start knows of this one, and
    waits longer. As many are kept as there are pauses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        kept, pauses = ["lodefs-proxy.socket", "lodefs-clients"], []
        for _ in range(len(PAUSES_S) + 2):
            pauses += fail(environ | {"LISTEN_FDNAMES": ":".join(kept)})
            told = systemd.recv(1000).decode()
            assert (
                told == "STATUS=cannot start: s3://bucket/prefix is not a lodefs store: create it"
            )
            try:
                data, fds, _, _ = socket.recv_fds(systemd, 1000, 4)
            except BlockingIOError:
                continue
            assert data.decode() == f"FDSTORE=1\nFDNAME={FAILED}"
            kept += [FAILED] * len(fds)
            for fd in fds:
                socket.close(fd)
    assert pauses == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]
    assert len(kept) <= 7  # of FileDescriptorStoreMax=8, with the three doors for TCP


def test_a_start_that_succeeds_ends_the_count(tmp_path: Path) -> None:
    """systemd forgets what it kept of failures, and is not asked to if there were none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        failures_are_over(environ, SystemdNotifier(environ))
        failures_are_over(environ | {"LISTEN_FDNAMES": FAILED}, SystemdNotifier(environ))
        assert systemd.recv(1000).decode() == f"FDSTOREREMOVE=1\nFDNAME={FAILED}"
        with pytest.raises(BlockingIOError):
            systemd.recv(1000)


def test_elsewhere_it_ends_at_once() -> None:
    """Without systemd nobody starts it again."""
    assert fail({"LISTEN_FDNAMES": FAILED}) == []
