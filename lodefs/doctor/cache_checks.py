"""Checks the cache's directory (rights, file system, speed, space) and limits of processes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.nodecache import layout
from lodefs.chunkstore.system import fd_limit
from lodefs.cli import text
from lodefs.doctor.check import Finding, fault, ok, unchecked, warning
from lodefs.doctor.subject import Subject
from lodefs.mount.kernel import mount_table

DIRECTORY, FILE_SYSTEM, SPEED = "cache directory", "cache file system", "cache disk"
SPACE, FILES, MEMORY = "free space", "open files", "memory"
# RocksDB and the cache cannot rely on locks, memory maps and fsync of these file systems, and a
# cache behind a network is as slow as the store that it stands in for.
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "afs", "beegfs", "gpfs"}
)  # and all FUSE file systems
STACKED = frozenset({"overlay", "aufs", "ecryptfs"})
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
FREE_BYTES_MIN = 1 << 30
FREE_SHARE_MIN = 0.05
FILES_WANTED = 8192  # docs/troubleshooting.md
MEMORY_BYTES_MIN = 1 << 30  # a directory of a million files needs 0.7 GiB
TRIAL_BYTES = 32 << 20
TRIAL_TIME_S = 2.0
RATE_BYTES_PER_S_MIN = 100 << 20
_BLOCK_BYTES = 1 << 20


class DiskSpeed(NamedTuple):
    """Bytes a second past the page cache."""

    written: float
    read: float


def directory(subject: Subject) -> list[Finding]:
    """Checks that the cache can be there: rights, format, owner."""
    path = subject.cache_dir
    there = nearest(path)
    runs = subject.proxy.node.get("cache") == str(path)
    if not there.is_dir():
        mend = "name another cache_dir, or remove that file"
        return [fault(DIRECTORY, f"{there} is not a directory", mend)]
    if not os.access(there, os.W_OK | os.X_OK):
        if runs or not subject.is_root:
            whose = "the running proxy's" if runs else "not this user's"
            mend = "" if runs else f"chown lodefs: {path}; or run doctor as the proxy's user"
            make = unchecked if runs or subject.proxy.expected else fault
            return [make(DIRECTORY, f"{path} is {whose}: it cannot be written here", mend)]
        return [fault(DIRECTORY, f"{path} cannot be written", "mount its file system read-write")]
    version = path / layout.VERSION_FILE
    with suppress(FileNotFoundError, NotADirectoryError):
        found = layout.version_in(path)
        if found != layout.VERSION_TEXT:
            saw = f"{version} says {found.strip()!r}; this lodefs reads {layout.VERSION}"
            mend = f"use another lodefs, or stop the proxy and rm -r {path}"
            return [fault(DIRECTORY, saw, mend)]
    return [ok(DIRECTORY, f"{path}{'' if path.exists() else ' (will be created)'}")]


def file_system(subject: Subject) -> list[Finding]:
    """Checks the kind of file system that the cache lies on."""
    path = nearest(subject.cache_dir)
    return [judged_kind(kind_of(path, mount_table.read_table()), path)]


def judged_kind(kind: str, path: Path) -> Finding:
    """Returns the verdict on a kind of file system for a cache."""
    saw = f"{path} is on {kind or 'an unknown file system'}"
    if kind in NETWORK or kind.startswith("fuse"):
        mend = "set cache_dir to a local disk (ext4, xfs): NVMe is best"
        return fault(FILE_SYSTEM, f"{saw}: a cache does not work there", mend)
    if kind in IN_MEMORY:
        mend = "set cache_dir to a local disk, unless you mean it"
        return warning(FILE_SYSTEM, f"{saw}: it uses memory, and is empty after a boot", mend)
    if kind in STACKED:
        mend = "set cache_dir to a disk of the host (in Docker: a volume)"
        return warning(
            FILE_SYSTEM, f"{saw}: no passthrough, since the kernel cannot stack it", mend
        )
    return ok(FILE_SYSTEM, saw)


def kind_of(path: Path, table: Sequence[mount_table.Mount]) -> str:
    """Returns the type of the file system that a directory is on; "" if no mount holds it."""
    place = os.path.realpath(path)
    best = ""
    kind = ""
    for mount in table:  # of two mounts on one directory the later is on top
        point = mount.mountpoint
        below = place == point or place.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(best):
            best, kind = point, mount.fs_type
    return kind


def speed(subject: Subject) -> list[Finding]:
    """Measures how fast the cache's disk writes and reads TRIAL_BYTES, in a file without a name."""
    path = nearest(subject.cache_dir)
    if not os.access(path, os.W_OK):
        mend = "run doctor as the proxy's user, or root"
        return [unchecked(SPEED, f"this user may not write to {path}", mend)]
    return [judged_speed(measured(path))]


def judged_speed(found: DiskSpeed | None) -> Finding:
    """Returns the verdict on the speed of a disk for a cache."""
    if found is None:
        return unchecked(SPEED, "the file system does not support O_DIRECT")
    saw = f"writes {text.size(int(found.written))}/s, reads {text.size(int(found.read))}/s"
    if min(found) < RATE_BYTES_PER_S_MIN:
        mend = (
            "set cache_dir to a faster disk (NVMe); `lodefs profile DIR` shows what jobs wait for"
        )
        return warning(SPEED, saw, mend)
    return ok(SPEED, saw)


def measured(path: Path) -> DiskSpeed | None:
    """Returns bytes a second past the page cache, in a writable directory. None if the file system
    does not support O_DIRECT. Raises: OSError."""
    block = mmap.mmap(-1, _BLOCK_BYTES)  # aligned to a page, as O_DIRECT needs it
    block.write(os.urandom(_BLOCK_BYTES))
    with tempfile.TemporaryFile(dir=path) as file:  # has no name, so nobody can replace it
        fd = file.fileno()
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            return None
        try:
            written = _rate(lambda offset: os.pwrite(fd, block, offset))
            os.fsync(fd)
            read = _rate(lambda offset: os.preadv(fd, [block], offset))
        except OSError as error:
            if error.errno == errno.ENOSPC:  # the check of free space reports this
                return None
            raise
    return DiskSpeed(written, read)


def _rate(step: Callable[[int], int]) -> float:
    """Returns bytes a second of a step, which takes the offset and returns how many bytes it
    moved."""
    begin_s = time.monotonic()
    done_bytes = 0
    while done_bytes < TRIAL_BYTES:
        count = step(done_bytes)
        if count <= 0:
            break
        done_bytes += count
        if time.monotonic() - begin_s > TRIAL_TIME_S:
            break
    return done_bytes / max(time.monotonic() - begin_s, 1e-6)


def space(subject: Subject) -> list[Finding]:
    """Checks the room for the cache: bytes and files."""
    path = nearest(subject.cache_dir)
    usage = shutil.disk_usage(path)
    found = os.statvfs(path)
    limit = subject.proxy.node.get("cache_size_bytes_max")
    used = subject.proxy.node.get("cache_used_bytes")
    if subject.config is not None and not isinstance(limit, int):
        limit = subject.config.cache_size_bytes_max
    saw = f"{text.size(usage.free)} of {text.size(usage.total)} free at {path}"
    make_room = "make room there, or lower cache_size_bytes_max"
    if usage.free < FREE_BYTES_MIN:
        return [fault(SPACE, saw, make_room)]
    if found.f_files and found.f_favail / found.f_files < FREE_SHARE_MIN:
        return [warning(SPACE, f"{saw}, but only {found.f_favail:,} more files fit", make_room)]
    if isinstance(limit, int) and limit - (used if isinstance(used, int) else 0) > usage.free:
        mend = "lower cache_size_bytes_max: the disk fills up before the cache does"
        return [warning(SPACE, f"{saw}; the cache may take {text.size(limit)}", mend)]
    if usage.free < FREE_SHARE_MIN * usage.total:
        return [warning(SPACE, saw, make_room)]
    return [ok(SPACE, saw)]


def open_files(subject: Subject) -> list[Finding]:
    """Checks how many files the proxy may open or, if it cannot be seen, this process."""
    pid = proxy_pid(subject.cache_dir)
    hard = None if pid is None else limit_of(pid)
    whose = f"the proxy (process {pid})"
    if hard is None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        whose = "a process of this user"
    if hard in (resource.RLIM_INFINITY, -1) or hard >= FILES_WANTED:
        return [ok(FILES, f"{whose} may open enough")]
    mend = f"LimitNOFILE={FILES_WANTED} or more in its unit; ulimit -n; limits.conf"
    saw = f"{whose} may open {hard:,} files"
    if hard < fd_limit.FILES_MIN:
        return [fault(FILES, f"{saw}; lodefs needs {fd_limit.FILES_MIN}", mend)]
    return [warning(FILES, f"{saw}: it keeps fewer connections and cache files open", mend)]


def proxy_pid(cache_dir: Path) -> int | None:
    """Returns the process that is recorded as the cache's owner; None without one."""
    with suppress(OSError, ValueError):
        return int((cache_dir / layout.LOCK_FILE).read_text())
    return None


def limit_of(pid: int) -> int | None:
    """Returns a process's hard limit of open files, if this user may see it
    (proc_pid_limits(5))."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max open files"):
                hard = line.split()[4]
                return -1 if hard == "unlimited" else int(hard)
    return None


def memory(subject: Subject) -> list[Finding]:  # noqa: ARG001
    """Checks the memory of the machine, or of the container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    where = "this machine"
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        if limit < total:
            total, where = limit, "this container (memory.max)"
    saw = f"{where} has {text.size(total)}"
    if total < MEMORY_BYTES_MIN:
        mend = f"give the proxy {text.size(MEMORY_BYTES_MIN)} (MemoryMax=, --memory)"
        return [warning(MEMORY, f"{saw}: large directories may not fit", mend)]
    return [ok(MEMORY, saw)]


def nearest(path: Path) -> Path:
    """Returns the path, or the first existing directory above it."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
