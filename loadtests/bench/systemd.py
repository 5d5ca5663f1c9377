"""``./run bench systemd``: a mount as a unit of a real systemd, killed and reloaded while read."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path
from time import sleep

from loadtests.errors import LoadtestError
from loadtests.results import Result
from loadtests.services.machine import (
    ROOT,
    Machine,
    MachineError,
    booted,
    install,
    layered_root,
    write,
)
from loadtests.services.rereader import Seen, rereading
from tests.support.chunkstore.child_process import run

SIZE_BYTES = 64 << 20
KILLS = 5
PAUSE_S = 2.0  # between two kills
UNIT = "lodefs-mount@try.service"
STORE, TARGET = "/srv/store", "/srv/try"
FILES = {
    "/etc/lodefs/lodefs.toml": f'store = "{STORE}"\n',
    "/etc/lodefs/mounts.d/try.toml": f'spec = "try@main"\ndir = "{TARGET}"\ncreate_dir = true\n',
}


def service(scratch: Path) -> Result:
    """Kills (``kill -9``) of the unit's main process and reloads under a verifying reader."""
    try:
        with layered_root() as root:
            install(root)
            digest = _fill(root, scratch)
            with booted(root) as machine:
                return _measured(machine, digest)
    except MachineError as error:
        raise LoadtestError(f"systemd: {error}") from error


def _fill(root: Path, scratch: Path) -> str:
    """Makes a store with one file, and the settings. Returns the file's SHA-256."""
    source = scratch / "source"
    source.mkdir()
    data = os.urandom(SIZE_BYTES)
    (source / "data.bin").write_bytes(data)
    store = root / STORE.lstrip("/")
    lodefs = [sys.executable, "-m", "lodefs.main"]
    run([*lodefs, "init", store], cwd=ROOT)
    run([*lodefs, "--store", str(store), "push", source, "try"], cwd=ROOT)
    run(["chmod", "-R", "a+rX", store])
    for path, text in FILES.items():
        write(root, path, text)
    return sha256(data).hexdigest()


def _measured(machine: Machine, digest: str) -> Result:
    machine.run("systemctl", "start", "lodefs-proxy.socket")
    machine.until("the mount", f"systemctl is-active {UNIT}")
    with rereading(machine, TARGET, {"data.bin": digest}) as seen:
        for _ in range(KILLS):
            sleep(PAUSE_S)
            machine.run("systemctl", "kill", "-s", "KILL", "--kill-whom=main", UNIT)
        sleep(PAUSE_S)
        descriptors = int(machine.show(UNIT, "NFileDescriptorStore"))
        machine.run("systemctl", "reload", UNIT)
        sleep(PAUSE_S)
    machine.run("systemctl", "stop", UNIT)
    left = machine.shell(
        f"pgrep -f '[l]odefs.main mount' || true; grep {TARGET} /proc/mounts || true"
    )
    return _told(seen, descriptors, len(left.splitlines()))


def _told(seen: Seen, descriptors: int, left: int) -> Result:
    result = Result("systemd")
    result.add("main process killed", KILLS, "times")
    result.add("reloaded", 1, "times")
    result.add("descriptors in systemd's store", descriptors, "", at_least=1)
    result.add("whole reads of 64 MiB", seen.reads, "", at_least=1)
    result.add("wrong or failed", len(seen.wrong), "", at_most=0)
    result.add("mounts and processes left after stop", left, "", at_most=0)
    return result
