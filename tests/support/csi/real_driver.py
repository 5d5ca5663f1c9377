"""A driver and a mount service as processes, with real mounts, that can be killed and started."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from lodefs.mount.kernel import mount_syscalls, mount_table
from tests.support.chunkstore.child_process import Child
from tests.support.csi.kubelet import Kubelet
from tests.support.mount.mounts import SAMPLE, WAIT_S, read_anew, until

ROOT = Path(__file__).parents[3]
DEMO = {"repo": SAMPLE.snapshot.repo}
READERS = 4
LODEFS = (sys.executable, "-m", "lodefs.main")


class RealDriver:
    """One node. ``pods`` is where a kubelet would publish; ``words``: options of its mounter.
    ``store``: its volumes take changes to this one; "": none does."""

    def __init__(self, folder: Path, proxy: str, *words: str, store: str = "") -> None:
        self.folder = folder
        self.store = store
        self.proxy = proxy
        self.socket = folder / "csi.sock"
        self.pods = folder / "pods"
        self.pods.mkdir()
        self.kubelet = Kubelet(self.socket)
        self.mounters = [self.mounter(*words)]
        self.driver = self.start_driver()

    def __enter__(self) -> RealDriver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kubelet.close()
        for child in (self.driver, *self.mounters):
            started = children(child.pid) if child in self.mounters else []
            child.kill()
            for pid in started:  # the service of a keeper, which a container would end with it
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for mounted in reversed(self.mounts(self.folder)):
            mount_syscalls.detach(mounted.mountpoint, lazy=True)

    def mounter(self, *words: str) -> Child:
        """Another start of the mount service, which serves now."""
        child = Child(
            [
                *(*LODEFS, "mounter", "--proxy", self.proxy, *words),
                *("--socket", str(self.folder / "mounter.sock")),
                *("--state-dir", str(self.folder / "state")),
                *("--run-dir", str(self.folder / "run")),
                *("--mounts-root", str(self.folder / "mounts")),
                *("--idle-timeout", "0.2"),
            ],
            cwd=ROOT,
            env={"HOME": str(self.folder), "LODEFS_PROXY": ""},
        )
        child.wait_for("serving [0-9]+ mounts")
        return child

    def start_driver(self, *words: str) -> Child:
        """Another start of the driver."""
        child = Child(
            [
                *(*LODEFS, "csi", "--endpoint", f"unix://{self.socket}", "--node-id", "node-1"),
                *("--mounter", str(self.folder / "mounter.sock"), "--log-level", "debug", *words),
                *("--state", str(self.folder / "csi"), "--run-dir", str(self.folder / "run")),
                *("--writable", "node" if self.store else "no"),
            ],
            cwd=ROOT,
            env={
                "HOME": str(self.folder),
                "LODEFS_CONFIG": os.devnull,
                "LODEFS_STORE": self.store,
                "LODEFS_PROXY": self.proxy if self.store else "",
            },
        )
        child.wait_for("serving csi.lodefs.dev")
        return child

    def restart_driver(self) -> None:
        """kill -9, and the next one."""
        self.driver.kill()
        self.driver = self.start_driver()

    def restart_mounter(self) -> None:
        """kill -9, and the next one."""
        self.mounters.pop().kill()
        self.mounters.append(self.mounter())

    def target(self, name: str) -> Path:
        """Where a pod's volume is to be."""
        return self.pods / name

    def fuse_mounts(self) -> list[mount_table.Mount]:
        """The mounts that the service holds."""
        return self.mounts(self.folder / "mounts")

    def mounts(self, folder: Path) -> list[mount_table.Mount]:
        """All lodefs mounts below a directory."""
        top = f"{os.path.realpath(folder)}/"
        return [m for m in mount_table.read_table() if m.is_ours and m.mountpoint.startswith(top)]

    def await_no_mounts(self) -> None:
        """Wait until nothing is mounted, which takes a while after the last user."""
        until(lambda: not self.mounts(self.folder))


def children(pid: int) -> list[int]:
    """The processes that one has started; none where it has ended."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # the latter: gone since it was opened
        return []


@contextmanager
def readers(node: RealDriver, names: list[str]) -> Iterator[None]:
    """Volumes are read all the time, each reader of all of them; no read may fail."""
    failures: list[object] = []
    turns = [0] * READERS
    end = threading.Event()

    def read(number: int) -> None:
        while not end.is_set():
            for name in names:
                try:
                    if read_anew(os.fsencode(node.target(name) / "a")) != b"hello":
                        failures.append("other bytes")
                except OSError as error:
                    failures.append(error)
                    return
            turns[number] += 1
            end.wait(0.002)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        yield
        before = list(turns)  # all go on reading after what happened
        until(lambda: failures != [] or all(map(int.__gt__, turns, before)))
    finally:
        end.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert failures == []
