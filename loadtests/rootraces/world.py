"""A place where root works on a user's paths, and beside it what nobody but root is to touch."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lodefs.chunkstore.system import libc
from lodefs.mount.kernel import mount_syscalls, mount_table

USER = 65534  # nobody, who has an account
COMMIT = "0123456789abcdef" * 4
SOURCE = mount_table.source_of("cats", COMMIT, b"")
_MNT_DETACH = 2
_TIMEOUT_S = 60.0


class World:
    """``home`` is the user's, with a directory ``d``; ``roots`` is what the user leads root to:
    names that root is to work on lie there, too, beside files, a socket that nobody serves, a mount
    and a directory that only root may enter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots = folder / "roots"
        self.home = folder / "home"
        self.service = folder / "service"  # mounts of the node, for root alone
        self.shared = folder / "shared"  # as /tmp
        for path, mode in ((self.roots, 0o755), (self.service, 0o700), (self.shared, 0o1777)):
            path.mkdir()
            path.chmod(mode)
        self.owned(self.home)
        self.owned(self.home / "d")
        self.secret = self.roots / "secret"
        for name in ("m", "new", "d/m", "secret/m", "mounted"):
            (self.roots / name).mkdir(parents=True)
        self.secret.chmod(0o700)
        for name in ("file", "log", "LOG", "00000007", "d/file"):
            (self.roots / name).write_text("root's")
            os.utime(self.roots / name, (1e9, 1e9))
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self.roots / "0-53.sock"))
        self.devices: list[int] = []
        _mount_tmpfs(self.roots / "mounted")
        self.mounted_before = self.mounted_elsewhere()
        self.before = self.seen()

    def owned(self, path: Path) -> Path:
        """A new directory of the user's."""
        path.mkdir(parents=True)
        os.chown(path, USER, USER)
        return path

    def held(self, name: str = "held") -> str:
        """A mount of the node, which nobody serves, so that nothing may be asked of it."""
        place = self.service / name
        if not place.exists():
            place.mkdir()
            self.devices.append(mount_syscalls.attach(str(place), SOURCE, allow_other=True))
        return str(place)

    def seen(self) -> list[object]:
        """All that can be seen of what is root's, and what is mounted there."""
        mounted = self.mounted_elsewhere()
        found: list[object] = [*mounted]
        for path in (self.roots, *_below(self.roots, mounted)):
            status = path.lstat()
            changed_ns = 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
            found.append((str(path), status[:6], status.st_mtime_ns, changed_ns))
        return found

    def mounted_elsewhere(self) -> list[str]:
        """Where something is mounted on what is root's."""
        return [place for place in self.mounts() if place.startswith(str(self.roots))]

    def mounts(self) -> list[str]:
        """Where something is mounted in the world."""
        here = f"{self.folder}/"
        return [m.mountpoint for m in mount_table.read_table() if m.mountpoint.startswith(here)]

    def take_off(self, folder: Path) -> None:
        """Unmount all below a directory, where nobody changes names just now."""
        for mounted in reversed(mount_table.read_table()):
            if mounted.mountpoint.startswith(f"{folder}/"):
                with suppress(OSError):
                    libc.call("umount2", os.fsencode(mounted.mountpoint), _MNT_DETACH)

    def close(self) -> None:
        """Leave nothing mounted."""
        self.take_off(self.folder)
        for fd in self.devices:
            os.close(fd)


def _below(folder: Path, mounted: Sequence[str]) -> Iterator[Path]:
    """All that lies below a directory but for what is mounted, which may not answer."""
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_directory in found:
        if str(folder / name) not in mounted:
            yield folder / name
            if is_directory:
                yield from _below(folder / name, mounted)


def _mount_tmpfs(place: Path) -> None:
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    subprocess.run(words, check=True, timeout=_TIMEOUT_S)


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """One in a directory that users may enter. Needs root, in a mount namespace of its own."""
    folder.mkdir(mode=0o755, exist_ok=True)
    made = World(folder)
    try:
        yield made
    finally:
        made.close()
