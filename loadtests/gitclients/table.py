"""Everyday commands of Git and git-lfs, large and many objects, and kills of either side."""

from __future__ import annotations

import filecmp
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import create_store
from tests.support.proxy.hub_site import free_ports
from tests.support.proxy.lfs_site import LfsSite, serving

SMALL, SMALL_BYTES = 5000, 2000
LARGE_BYTES = 2 << 30
CLIENTS = 8
KILL_AFTER = 100  # objects in the store's branch, or on their way


def run(folder: Path) -> bool:
    """Whether every clone is equal to what was pushed."""
    site = LfsSite(folder, free_ports(1)[0])
    site.timeout_s = 3600.0
    create_store(DirectoryObjects(str(folder / "store")))
    work = _repository(site)
    with serving(site):
        with _timed("locks, pull, fetch --all, prune"):
            _everyday(site, work)
        with _timed(f"{CLIENTS} clients at once"):
            _together(site)
        with _timed(f"{SMALL:,} objects of {SMALL_BYTES:,} bytes, the client killed on the way"):
            _files(work, "small", SMALL, SMALL_BYTES)
            _add(site, work)
            _killed_push(site, work)
            site.git(work, "push", "-q", "origin", "main")
    with _timed("2 GiB in one object, the server killed on the way"):
        _large(work / "large.bin")
        _add(site, work)
        with serving(site):
            push = site.begin(work, "push", "-q", "origin", "main")
            _until(lambda: _coming_bytes(site) > LARGE_BYTES // 8)
        push.communicate(timeout=site.timeout_s)
        assert push.returncode, "a push without a server succeeded"
        with serving(site):
            site.git(work, "push", "-q", "origin", "main")
    with serving(site), _timed("clone"):
        clone = _clone(site, "clone")
        equal = _is_equal(work, clone)
    print("  every byte is equal" if equal else "  DIFFERENT", flush=True)
    return equal


def _repository(site: LfsSite) -> Path:
    remote, work = site.folder / "remote.git", site.folder / "work"
    site.git(site.folder, "init", "-q", "--bare", "-b", "main", remote)
    site.git(site.folder, "init", "-q", "-b", "main", work)
    site.git(work, "remote", "add", "origin", remote)
    site.use(work, site.writer)
    site.git(work, "lfs", "track", "*.bin")
    _files(work, "first", 20, 100_000)
    _add(site, work)
    return work


def _everyday(site: LfsSite, work: Path) -> None:
    site.git(work, "push", "-q", "origin", "main")
    clone = _clone(site, "everyday")
    _files(work, "first", 20, 100_001)
    _add(site, work)
    site.git(work, "push", "-q", "origin", "main")
    site.git(clone, "pull", "-q", "origin", "main")
    site.git(clone, "lfs", "fetch", "--all")
    assert _is_equal(work, clone)
    site.git(work, "lfs", "prune", "--verify-remote", "--recent")
    site.git(work, "lfs", "lock", "first-0.bin")
    site.use(clone, site.other)
    assert "locked by writer" in site.git(clone, "lfs", "lock", "first-0.bin", fails=True)
    site.git(work, "lfs", "unlock", "first-0.bin")
    site.git(clone, "lfs", "fsck")


def _together(site: LfsSite) -> None:
    """Clients push branches of their own to one repository; each branch has its files then."""

    def push(number: int) -> None:
        clone = _clone(site, f"client-{number}", site.writer)
        site.git(clone, "checkout", "-q", "-b", f"client-{number}")
        _files(clone, f"of-{number}", 50, 3000)
        _add(site, clone)
        site.git(clone, "push", "-q", "origin", f"client-{number}")

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(push, range(CLIENTS)))
    reader = _clone(site, "reader")
    for number in range(CLIENTS):
        site.git(reader, "checkout", "-q", f"client-{number}")
        assert _is_equal(site.folder / f"client-{number}", reader)


def _killed_push(site: LfsSite, work: Path) -> None:
    push = site.begin(work, "push", "-q", "origin", "main")
    commits = site.folder / "store" / "repos"
    before = _count(commits)
    _until(lambda: _count(commits) > before + 5)
    os.killpg(push.pid, signal.SIGKILL)
    push.communicate(timeout=site.timeout_s)


def _coming_bytes(site: LfsSite) -> int:
    uploads = site.folder / "cache" / "lfs" / "uploads"
    sizes_bytes = []
    for path in uploads.glob("*"):
        with suppress(FileNotFoundError):  # it was complete just now
            sizes_bytes.append(path.stat().st_size)
    return sum(sizes_bytes)


def _count(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if "commits" in path.parts)


def _files(folder: Path, name: str, count: int, size_bytes: int) -> None:
    rng = random.Random(f"{name}{size_bytes}")
    for number in range(count):
        (folder / f"{name}-{number}.bin").write_bytes(rng.randbytes(size_bytes))


def _large(path: Path) -> None:
    rng = random.Random(path.name)
    with path.open("wb") as file:
        for _ in range(LARGE_BYTES >> 20):
            file.write(rng.randbytes(1 << 20))


def _add(site: LfsSite, folder: Path) -> None:
    site.git(folder, "add", ".")
    site.git(folder, "commit", "-qm", "more")


def _clone(site: LfsSite, name: str, token: str = "") -> Path:
    clone = site.folder / name
    site.git(site.folder, "clone", "-q", site.folder / "remote.git", clone)
    site.use(clone, token or site.reader)
    site.git(clone, "lfs", "pull")
    return clone


def _is_equal(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.glob("*.bin"))
    assert names == sorted(path.name for path in other.glob("*.bin"))
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names


def _until(condition: object, timeout_s: float = 600.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    load = os.getloadavg()[0]
    print(f"  {what}: {time.monotonic() - began:.0f} s (load {load:.0f})", flush=True)
