"""A node's ``lodefs mounter`` with an attach socket, as a process of root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lodefs.mount.kernel import mount_table
from lodefs.mount.process import mounter
from tests.support.hpc.job_user import ROOT
from tests.support.mount.mounts import WAIT_S, until


class NodeMounter:
    """Its files lie in ``folder``, which users may enter."""

    def __init__(self, folder: Path, proxy: str) -> None:
        self.folder = folder
        self.socket = folder / "attach.sock"
        self.root = folder / "mounts"
        self._proxy = proxy
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        places = {
            "--socket": self.folder / "mounter.sock",
            "--state-dir": self.folder / "state",
            "--run-dir": self.folder / "run",
            "--mounts-root": self.root,
            "--attach-socket": self.socket,
            "--idle-timeout": "0",
        }
        words = [str(word) for pair in places.items() for word in pair]
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lodefs.main", "mounter", *words],
            env=os.environ | {"LODEFS_PROXY": self._proxy, "LODEFS_CONFIG": os.devnull,
                              "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        until(self.socket.exists)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(WAIT_S)

    def devices(self) -> list[str]:
        """Of the mounts that stand."""
        below = f"{os.path.realpath(self.root)}/"
        return [m.device for m in mount_table.read_table() if m.mountpoint.startswith(below)]

    def await_none(self) -> None:
        """Wait until nothing is mounted any more."""
        until(lambda: not self.devices())

    def close(self) -> None:
        """End it and its mounts."""
        self._end(signal.SIGTERM)
        for name in os.listdir(self.root) if self.root.is_dir() else ():
            if mount_table.on_top(str(self.root / name)):
                mounter.unmount(str(self.root / name))


@contextmanager
def node_mounter(folder: Path, proxy: str) -> Iterator[NodeMounter]:
    """One that runs."""
    folder.mkdir(mode=0o755)
    made = NodeMounter(folder, proxy)
    try:
        made.start()
        yield made
    finally:
        made.close()
