"""The processes of an installed node, and what its proxy says of itself, seen from this machine."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.mount.mounts import until

SOCKET = "/run/lodefs/proxy.sock"
DATA_PROCESS = "lodefs-data"  # its name in ps(1)
MODULE = b"lodefs.proxy.data.process"


class NodeProcesses:
    """``pid``: a process that sees the node's files and is an ancestor of its processes, or the
    proxy itself. ``path``: the proxy's socket among these files."""

    def __init__(self, pid: int, path: str = SOCKET) -> None:
        self._pid = pid
        self._path = path

    def data_processes(self) -> list[int]:
        """The data processes that live."""
        processes = _table()
        parents = {pid: parent for pid, (parent, _) in processes.items()}
        return [
            pid
            for pid, (_, name) in processes.items()
            if name == DATA_PROCESS and self._pid in _ancestors(pid, parents)
        ]

    def value(self, name: str) -> float:
        """A metric of the proxy, summed over its labels; 0 if there is none."""
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self._metrics(), re.MULTILINE)
        return sum(map(float, found))

    def _metrics(self) -> str:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(f"/proc/{self._pid}/root{self._path}")
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: lodefs\r\nConnection: close\r\n\r\n")
            return b"".join(iter(lambda: client.recv(65536), b"")).decode()


def check_reads(
    node: NodeProcesses,
    files: Mapping[str, str],
    read: Callable[[str], str],
    *,
    kernel: bool = True,
) -> str:
    """Two large files that the node has not read yet are read right, the second one by data
    processes, which live as they should; then again, by the kernel alone if ``kernel`` says that it
    can. ``read``: the SHA-256 of a file, read in the node's way; ``files``: as it must be. Returns
    what was seen, for people."""
    first, second = files
    assert read(first) == files[first]
    until(lambda: node.value("lodefs_data_processes") >= 1)
    assert read(second) == files[second]
    until(lambda: node.value("lodefs_data_processes_orders_total") >= 1)
    living = node.data_processes()
    assert len(living) == node.value("lodefs_data_processes")
    assert node.value("lodefs_data_processes_restarts_total") == 0
    for pid in living:
        assert MODULE in Path(f"/proc/{pid}/cmdline").read_bytes()
    opens = "lodefs_mount_passthrough_opens_total"
    # Again, until the mount has seen that the file is complete, and has counted.
    until(lambda: read(first) == files[first] and (not kernel or node.value(opens) >= 1))
    orders = node.value("lodefs_data_processes_orders_total")
    return (
        f"{len(living)} data processes ({orders:.0f} orders), {node.value(opens):.0f} files opened "
        "by the kernel alone, all bytes right"
    )


def write_files(folder: Path, names: Mapping[str, int]) -> dict[str, str]:
    """Files of bytes that no other file has, of these sizes; the SHA-256 of each, in hex."""
    digests = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, size_bytes in names.items():
        data = hashlib.shake_128(name.encode()).digest(size_bytes)
        (folder / name).write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    return digests


def _table() -> dict[int, tuple[int, str]]:
    """Parent and name of each process."""
    found = {}
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            before, _, after = (one / "stat").read_text().rpartition(") ")
            found[int(one.name)] = (int(after.split()[1]), before.partition(" (")[2])
    return found


def _ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    found = []
    while pid := parents.get(pid, 0):
        found.append(pid)
    return found
