"""A stand-in for ``enroot start``: what its hooks may rely on, and no more. A program.

    python enroot.py [--root] [--pid] [--overlay] [--rw] [--env NAME=VALUE] [--mount SOURCE:DIR]
                     [--hooks DIR] IMAGE COMMAND...

From enroot's documentation and the order of its steps (NVIDIA/enroot 4.1): a user namespace of one
id with all capabilities ambient, slave mounts, the image's directory bound on itself (or an overlay
over it, as over an image file), the mounts of every container, hooks in the order of their names
(the system's, then the user's), the mounts that hooks ask for and those of the user, a read-only
root, pivot_root(2), and a command without capabilities.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from pathlib import Path

NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, SLAVE = 1, 2, 4, 32, 4096, 0x4000, 0x80000
DETACH = 2
CAP_SET_VERSION, CAPS, PR_CAP_AMBIENT, RAISE, CLEAR_ALL = 0x20080522, 41, 47, 2, 4
HOST = ("usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "dev")
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: Path, kind: str | None, flags: int, data: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode() if kind else None)
    check(libc.mount(*words, flags, data.encode() or None), f"mount {target}")


def bind(source: str, target: Path, flags: int = 0) -> None:
    if os.path.isdir(source):
        target.mkdir(mode=0, parents=True, exist_ok=True)
    else:
        target.touch()
    mount(source, target, None, BIND | REC)
    if flags:
        mount("none", target, None, BIND | REMOUNT | flags)


def enter(wanted: argparse.Namespace) -> None:
    """The user namespace, with all capabilities for what is run in it."""
    uid, gid = os.geteuid(), os.getegid()
    inside = (0, 0) if wanted.root else (uid, gid)
    check(libc.unshare(NEWUSER | NEWNS | (NEWPID if wanted.pid else 0)), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside[0]} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inside[1]} {gid} 1")
    header = (ctypes.c_uint32 * 2)(CAP_SET_VERSION, 0)
    low, high = 0xFFFFFFFF, (1 << CAPS - 32) - 1
    check(libc.capset(header, (ctypes.c_uint32 * 6)(low, low, low, high, high, high)), "capset")
    for capability in range(CAPS):
        check(libc.prctl(PR_CAP_AMBIENT, RAISE, capability, 0, 0), "ambient")


def make_root(image: Path, runtime: Path, *, overlay: bool) -> Path:
    mount("none", Path("/"), None, REC | SLAVE)
    mount("tmpfs", runtime, "tmpfs", NOSUID | NODEV, "mode=700")
    if not overlay:
        mount(str(image), image, None, BIND)
        mount("none", image, None, BIND | REMOUNT | NOSUID | NODEV)
        return image
    root = runtime / "root"
    for name in ("root", "upper", "work"):
        (runtime / name).mkdir()
    data = f"lowerdir={image},upperdir={runtime / 'upper'},workdir={runtime / 'work'}"
    mount("overlay", root, "overlay", NOSUID | NODEV, data)
    return root


def run_hooks(wanted: argparse.Namespace, root: Path, runtime: Path) -> dict[str, str]:
    """The environment of the command. Exits as a hook that fails."""
    environ, mounts = runtime / "environ", runtime / "mounts"
    environ.write_text("".join(f"{line}\n" for line in [f"PATH={os.environ['PATH']}", *wanted.env]))
    mounts.touch()
    shown = {"ENROOT_PID": str(os.getpid()), "ENROOT_ROOTFS": str(root),
             "ENROOT_ENVIRON": str(environ), "ENROOT_MOUNTS": str(mounts)}  # fmt: skip
    config = os.environ.get("ENROOT_CONFIG_PATH", f"{os.environ['HOME']}/.config/enroot")
    for folder in (wanted.hooks, f"{config}/hooks.d"):
        for hook in sorted(Path(folder).glob("*.sh")):
            if os.access(hook, os.X_OK):
                done = subprocess.run([hook], env={**os.environ, **shown}, check=False)
                if done.returncode:
                    raise SystemExit(done.returncode)
    for line in mounts.read_text().splitlines():
        source, target = line.split()[:2]
        bind(source, root / target.lstrip("/"), RDONLY | NOSUID | NODEV)
    return dict(line.split("=", 1) for line in environ.read_text().splitlines())


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--root", "--pid", "--overlay", "--rw"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("--hooks", default="/nonexistent")
    parser.add_argument("image", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    wanted = parser.parse_args()
    runtime = Path(os.environ["ENROOT_RUNTIME_PATH"])
    enter(wanted)
    if wanted.pid and (child := os.fork()):
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    root = make_root(wanted.image, runtime, overlay=wanted.overlay)
    for name in HOST:
        if os.path.isdir(f"/{name}"):
            bind(f"/{name}", root / name)
    environment = run_hooks(wanted, root, runtime)
    for words in wanted.mount:
        source, _, target = words.partition(":")
        bind(source, root / target.lstrip("/"))
    if not wanted.rw:
        mount("none", root, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
    os.chdir(root)
    check(libc.syscall(155, b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount")
    os.chdir("/")
    check(libc.prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0, 0, 0), "ambient")
    os.execvpe(wanted.command[0], wanted.command, environment)


if __name__ == "__main__":
    sys.exit(main())
