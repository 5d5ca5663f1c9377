"""A machine of its own: a real systemd as PID 1 of a container (systemd-nspawn, as root).

Its root is this machine's, with a layer of memory above it that goes away at the end; it boots
with few services of its own. It shares the network, and so the servers, of this machine. This tree
is /opt/lodefs there, its Python /opt/python, where any user may go; PYTHON and /usr/bin/lodefs run
the one with the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from time import monotonic

from tests.support.chunkstore.child_process import Child, ChildError, private_directory, run

ROOT = Path(__file__).parents[2]
CODE, BASE, PACKAGES = "/opt/lodefs", "/opt/python", "/opt/packages"
PYTHON = "/usr/bin/lodefs-python"
LAYER_SIZE = "3g"
BOOT_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 60.0
_POLL_S = 0.2  # each try starts programs, which take time from other tests
_UNITS = "etc/systemd/system"
_DROPPED = ("etc/systemd/system/*.wants", "etc/rc?.d/[SK]*", "etc/fstab")
_MASKED = ("getty.target", "console-getty.service", "systemd-logind.service")
# systemd-nspawn gives PID 1 a boot id of its own by a mount that units with a /proc of their own do
# not see. On a machine all see one, and the readers of a cache rely on it.
_ONE_BOOT_ID = """[Unit]
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=/usr/bin/umount /proc/sys/kernel/random/boot_id
"""
_DEPLOY = {
    "lodefs-proxy.socket": "usr/lib/systemd/system",
    "lodefs-proxy.service": "usr/lib/systemd/system",
    "lodefs-docker.socket": "usr/lib/systemd/system",
    "lodefs-docker.service": "usr/lib/systemd/system",
    "lodefs-mounter.service": "usr/lib/systemd/system",
    "lodefs-mount@.service": "usr/lib/systemd/system",
    "lodefs-mounts-generator": "usr/lib/systemd/system-generators",
    "lodefs.sysusers": "usr/lib/sysusers.d/lodefs.conf",
    "lodefs.tmpfiles": "usr/lib/tmpfiles.d/lodefs.conf",
}
_PYTHON = f"""#!/bin/sh
export PYTHONPATH={CODE}:{PACKAGES} LD_LIBRARY_PATH={BASE}/lib PYTHONDONTWRITEBYTECODE=1
exec {BASE}/bin/python{sys.version_info.major}.{sys.version_info.minor} -P "$@"
"""
_COMMAND = f"""#!/bin/sh
exec {PYTHON} -m lodefs.main "$@"
"""


class MachineError(Exception):
    """It cannot be made here, or did not boot."""


class Machine:
    """A machine that has booted. ``root``: its files as seen from here, without its /run, /tmp
    and mounts."""

    def __init__(self, root: Path, init_pid: int) -> None:
        self.root = root
        self.init_pid = init_pid

    def command(self, *words: object) -> list[str]:
        """The command line that runs a command in it."""
        enter = ("nsenter", "-t", self.init_pid, "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w")
        return [str(word) for word in (*enter, "--", *words)]

    def run(self, *words: object, timeout_s: float = STEP_TIMEOUT_S) -> str:
        """The output of a command in it. ChildError where it fails or takes too long."""
        return run(self.command(*words), env=_ENVIRONMENT, timeout_s=timeout_s)

    def shell(self, script: str, timeout_s: float = STEP_TIMEOUT_S) -> str:
        """The same for a script of sh, which ends at its first failure."""
        return self.run("sh", "-euc", script, timeout_s=timeout_s)

    def start(self, *words: object) -> Child:
        """A command in it that goes on."""
        return Child(self.command(*words), env=_ENVIRONMENT)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def until(self, what: str, script: str, timeout_s: float = STEP_TIMEOUT_S) -> None:
        """Wait until a script succeeds. ChildError says ``what`` was not seen in time."""
        tries = f"until sh -euc {quote(script)}; do sleep {_POLL_S}; done"
        with Child(self.command("sh", "-c", tries), env=_ENVIRONMENT) as child:
            try:
                child.wait(timeout_s=timeout_s)
            except ChildError as error:
                raise child.failed(f"did not see {what} in {timeout_s:.0f} s") from error


_ENVIRONMENT = {"SYSTEMD_PAGER": "", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


def write(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    """Write a file of a machine."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, "utf-8")
    place.chmod(mode)


def install(root: Path) -> None:
    """Put the units of deploy/ and the command where a package would."""
    for name, place in _DEPLOY.items():
        target = root / place
        shutil.copy(ROOT / "deploy/systemd" / name, target)
    write(root, PYTHON, _PYTHON, 0o755)
    write(root, "/usr/bin/lodefs", _COMMAND, 0o755)


@contextmanager
def layered_root() -> Iterator[Path]:
    """This machine's root with a layer of memory above it, without what would make boots slow."""
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        raise MachineError("needs root and systemd-nspawn (Debian: systemd-container)")
    with private_directory("lm-") as scratch:
        layer, root = scratch / "layer", scratch / "root"
        layer.mkdir()
        root.mkdir()
        run(["mount", "-t", "tmpfs", "-o", f"size={LAYER_SIZE},mode=755", "tmpfs", layer])
        try:
            upper, work = layer / "upper", layer / "work"
            upper.mkdir()
            work.mkdir()
            options = f"lowerdir=/,upperdir={upper},workdir={work}"
            run(["mount", "-t", "overlay", "overlay", "-o", options, root])
            try:
                _slim(root)
                yield root
            finally:
                run(["umount", root])
        finally:
            run(["umount", layer])


def _slim(root: Path) -> None:
    for place in (one for pattern in _DROPPED for one in root.glob(pattern)):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    for name in _MASKED:
        mask = root / _UNITS / name
        mask.unlink(missing_ok=True)
        mask.symlink_to("/dev/null")
    see_one_boot_id(root)
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n", "utf-8")


def see_one_boot_id(root: Path) -> None:
    """Have all of a machine see one boot id, as on a machine of metal."""
    write(root, f"/{_UNITS}/one-boot-id.service", _ONE_BOOT_ID)
    wants = root / _UNITS / "sysinit.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "one-boot-id.service").symlink_to(f"/{_UNITS}/one-boot-id.service")


@contextmanager
def booted(root: Path) -> Iterator[Machine]:
    """The machine of this root, when it has booted; it is off after the block. MachineError."""
    nspawn = ["setpriv", "--pdeathsig", "KILL", "systemd-nspawn", "--quiet", "--boot"]
    more = ["--register=no", "--keep-unit", "--console=pipe", "--kill-signal=SIGKILL"]
    may = ["--capability=all", "--bind=/dev/fuse"]
    packages = sysconfig.get_path("platlib")
    places = {ROOT: CODE, sys.base_prefix: BASE, packages: PACKAGES}
    code = [f"--bind-ro={here}:{there}" for here, there in places.items()]
    with Child([*nspawn, *more, *may, *code, "-D", root]) as container:
        machine = Machine(root, _init_of(container))
        try:
            _await_boot(machine, container)
            yield machine
        finally:
            with suppress(ProcessLookupError):  # its PID 1: all of it ends
                os.kill(machine.init_pid, signal.SIGKILL)
            container.wait(timeout_s=STEP_TIMEOUT_S)


def _init_of(nspawn: Child) -> int:
    """The process of this machine that is PID 1 there."""
    deadline = monotonic() + BOOT_TIMEOUT_S
    while monotonic() < deadline and nspawn.process.poll() is None:
        for child in _children(nspawn.pid):
            with suppress(OSError):
                status = Path(f"/proc/{child}/status").read_text("ascii", "replace")
                ids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                if ids.split()[-1] == "1" and len(ids.split()) > 2:
                    return child
        nspawn.pause()
    raise MachineError(f"did not start: {nspawn.output[-2000:]}")


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _await_boot(machine: Machine, nspawn: Child) -> None:
    deadline = monotonic() + BOOT_TIMEOUT_S
    state = ""
    while monotonic() < deadline and nspawn.process.poll() is None:
        done = subprocess.run(
            machine.command("systemctl", "is-system-running"),
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        state = done.stdout.strip()
        if state in ("running", "degraded"):
            return
        nspawn.pause(_POLL_S)
    raise MachineError(f"did not boot ({state}): {nspawn.output[-2000:]}")
