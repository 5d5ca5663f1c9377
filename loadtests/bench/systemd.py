"""``./run bench systemd``: a mount as a service of a real systemd, killed and upgraded while read.

systemd is PID 1 of a container (systemd-nspawn) whose root is this machine's own, with a layer of
memory above it that goes away afterwards. Inside, ``python -m loadtests.bench.systemd OUT`` does
the work as a service and writes what it saw to OUT.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from time import sleep

from loadtests.bench.mountrates import BenchmarkError
from loadtests.results import Result

ROOT = Path(__file__).parents[2]
LODEFS = Path(sys.executable).with_name("lodefs")
SIZE_BYTES = 64 << 20
KILLS = 5
PAUSE_S = 2.0  # between two of them
LAYER_SIZE = "2g"
CONTAINER_TIMEOUT_S = 240
STEP_TIMEOUT_S = 60
UNIT = "lodefs-mount@try.service"
TARGET = Path("/srv/lodefs-try/mnt")
FOLDER = TARGET.parent
SOCKET = "/run/lodefs/proxy.sock"

UNITS = {
    "lodefs.service": f"""[Service]
Type=notify
RuntimeDirectory=lodefs
ExecStart={LODEFS} serve --store {FOLDER}/store --cache {FOLDER}/cache --socket {SOCKET}
""",
    f"{UNIT}.d/where.conf": f"""[Service]
Environment=LODEFS_PROXY=unix:{SOCKET} PATH={LODEFS.parent}:/usr/bin:/bin
""",
    "lodefs-try.service": f"""[Service]
Type=oneshot
WorkingDirectory={ROOT}
Environment=HOME=/root
ExecStart={sys.executable} -m loadtests.bench.systemd /out
ExecStopPost=/usr/bin/systemctl poweroff
StandardOutput=file:/out/log
StandardError=inherit
""",
}


def service(scratch: Path) -> Result:
    """Kills (``kill -9``) of the unit's main process and reloads under a verifying reader."""
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        raise BenchmarkError("systemd: needs root and systemd-nspawn (package systemd-container)")
    out = scratch / "out"
    out.mkdir()
    with _layered_root(scratch) as root:
        _install(root)
        _boot(root, out)
    try:
        seen = json.loads((out / "seen.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        log = out / "log"
        text = log.read_text("utf-8", "replace")[-2000:] if log.exists() else "it did not begin"
        raise BenchmarkError(f"systemd: the service inside failed: {text}") from error
    result = Result("systemd")
    result.add("main process killed", seen["kills"], "times")
    result.add("reloaded", seen["reloads"], "times")
    result.add("descriptors in systemd's store", seen["descriptors"], "", at_least=1)
    result.add("whole reads of 64 MiB", seen["reads"], "", at_least=1)
    result.add("wrong or failed", seen["wrong"], "", at_most=0)
    result.add("mounts and processes left after stop", seen["left"], "", at_most=0)
    return result


@contextmanager
def _layered_root(scratch: Path) -> Iterator[Path]:
    """This machine's root with a layer of memory above it."""
    layer, root = scratch / "layer", scratch / "root"
    layer.mkdir()
    root.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={LAYER_SIZE}", "tmpfs", layer)
    try:
        upper, work = layer / "upper", layer / "work"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir=/,upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, root)
        try:
            yield root
        finally:
            _run("umount", root)
    finally:
        _run("umount", layer)


def _install(root: Path) -> None:
    units = root / "etc/systemd/system"
    for name, text in UNITS.items():
        (units / name).parent.mkdir(parents=True, exist_ok=True)
        (units / name).write_text(text, "utf-8")
    shutil.copy(ROOT / "deploy/systemd/lodefs-mount@.service", units)
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "lodefs-try.service").symlink_to("/etc/systemd/system/lodefs-try.service")
    settings = root / "etc/lodefs/mounts/try.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"SPEC=try@main\nDIR={TARGET}\n", "utf-8")


def _boot(root: Path, out: Path) -> None:
    """Boots, and returns when the container has been powered off."""
    command = ["systemd-nspawn", "-q", "--register=no", "--keep-unit", "-b", "-D", root]
    more = ["--bind=/dev/fuse", f"--bind={out}:/out", "--capability=all", "--console=pipe"]
    subprocess.run(
        [str(word) for word in (*command, *more)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=CONTAINER_TIMEOUT_S,
        check=False,
    )


def inside(out: Path) -> None:
    """The work in the container."""
    source = FOLDER / "source"
    source.mkdir(parents=True)
    TARGET.mkdir()
    data = os.urandom(SIZE_BYTES)
    (source / "data.bin").write_bytes(data)
    _run(LODEFS, "init", FOLDER / "store")
    _run(LODEFS, "--store", FOLDER / "store", "push", source, "try")
    _run("systemctl", "start", "lodefs.service", UNIT)
    digest, stop = sha256(data).digest(), FOLDER / "stop"
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read_until, stop, digest)
        for _ in range(KILLS):
            sleep(PAUSE_S)
            _run("systemctl", "kill", "-s", "KILL", "--kill-whom=main", UNIT)
        sleep(PAUSE_S)
        descriptors = int(_run("systemctl", "show", "--value", "-p", "NFileDescriptorStore", UNIT))
        _run("systemctl", "reload", UNIT)
        sleep(PAUSE_S)
        stop.touch()
        reads, wrong = reading.result(STEP_TIMEOUT_S)
    _run("systemctl", "stop", UNIT)
    found = subprocess.run(["pgrep", "-fc", "lodefs mount"], capture_output=True, check=False)
    left = int(found.stdout) + os.path.ismount(TARGET)
    seen = {"kills": KILLS, "reloads": 1, "descriptors": descriptors, "reads": reads}
    (out / "seen.json").write_text(json.dumps({**seen, "wrong": wrong, "left": left}), "utf-8")


def _read_until(stop: Path, digest: bytes) -> tuple[int, int]:
    """Reads the file again and again, past the page cache; how often, and how often not right."""
    reads = wrong = 0
    while not stop.exists():
        command = ["dd", f"if={TARGET}/data.bin", "bs=1M", "iflag=direct", "status=none"]
        done = subprocess.run(command, capture_output=True, timeout=STEP_TIMEOUT_S, check=False)
        reads += 1
        wrong += done.returncode != 0 or sha256(done.stdout).digest() != digest
    return reads, wrong


def _run(*words: object) -> str:
    command: Sequence[str] = [str(word) for word in words]
    return subprocess.run(
        command, check=True, timeout=STEP_TIMEOUT_S, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    inside(Path(sys.argv[1]))
