"""Samba's file server, of Debian's package samba: one user, one share, all state in a private
directory. The settings are those of smb.conf(5)."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loadtests.errors import LoadtestError
from loadtests.services import HOST, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child, private_directory

SHARE = "share"
STATE_DIRECTORIES = (
    "private dir",
    "lock dir",
    "state directory",
    "cache directory",
    "pid directory",
)


class SambaServer(NamedTuple):
    """A running server and its user."""

    port: int
    user: str
    password: str


@contextmanager
def samba(directory: Path) -> Iterator[SambaServer]:
    """Serves ``directory`` to be read. Raises: LoadtestError."""
    program = shutil.which("smbd") or shutil.which("smbd", path="/usr/sbin")
    if program is None:
        raise LoadtestError("smbd is not installed: apt install samba")
    server = SambaServer(free_port(), pwd.getpwuid(os.geteuid()).pw_name, secrets.token_hex(10))
    with private_directory("sm-") as state:
        settings = {
            **dict.fromkeys(STATE_DIRECTORIES, state),
            "ncalrpc dir": state / "ncalrpc",
            "passdb backend": f"tdbsam:{state}/passdb.tdb",
            "log file": state / "log",
            "server role": "standalone server",
            "interfaces": HOST,
            "bind interfaces only": "yes",
            "disable netbios": "yes",
            "smb ports": server.port,
            "load printers": "no",
        }
        file = state / "smb.conf"
        lines = [f"{name} = {value}" for name, value in settings.items()]
        share = [f"[{SHARE}]", f"path = {directory}", "read only = yes"]
        file.write_text("\n".join(["[global]", *lines, *share, ""]))
        _add_user(file, server)
        words = [program, "--foreground", "--no-process-group", f"--configfile={file}"]
        with Child(words) as child:
            if not wait_for_port(child, server.port):
                raise child.failed(f"does not listen on port {server.port}")
            yield server


def _add_user(file: Path, server: SambaServer) -> None:
    subprocess.run(
        ["smbpasswd", "-c", file, "-s", "-a", server.user],
        input=f"{server.password}\n{server.password}\n",
        text=True,
        check=True,
        capture_output=True,
    )
