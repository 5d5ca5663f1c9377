"""The demo pushes two versions of Python's own standard library, mounts them, and compares them.

Everything lies in one temporary directory, which is removed at the end, also after a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.refs import TAGS
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.cli import text
from lodefs.mount.process.mounter import MountOptions, mount, unmount
from lodefs.proxies.own_proxy import OwnProxy, serve_command, start

REPO = "python/stdlib"
END_TIMEOUT_S = 30.0
POLL_S = 0.02
DIFFERENCES_SHOWN_MAX = 10
_LEFT_OUT = ("__pycache__", "site-packages", "dist-packages", "*.pyc")

Say = Callable[[str], None]


def run(say: Say, environment: Mapping[str, str]) -> int:
    """Runs the demo and reports each step by ``say``. Returns how many paths differ."""
    with Interruptions() as interruptions:
        stack = ExitStack()
        try:
            return _run(say, environment, interruptions, stack)
        finally:
            with interruptions.held():
                stack.close()


def _run(
    say: Say, environment: Mapping[str, str], interruptions: Interruptions, stack: ExitStack
) -> int:
    folder = Path(tempfile.mkdtemp(prefix="lodefs-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    versions = _push_both(folder, say)
    proxy = OwnProxy(folder / "proxy")
    store = str(folder / "store")
    began_s = time.monotonic()
    stack.callback(_end_proxy, proxy)
    with interruptions.held():
        start(proxy, serve_command(proxy, store), environment)
    say(f"proxy     ready after {time.monotonic() - began_s:.2f} s")
    different = 0
    for rev, source in versions.items():
        place = folder / f"mount-{rev}"
        place.mkdir()
        began_s = time.monotonic()
        options = MountOptions(
            repo=REPO, rev=rev, mountpoint=str(place), proxy=proxy.url, log_path=f"{place}.log"
        )
        stack.callback(_unmount, place)
        with interruptions.held():
            mount(options)
        say(f"mount {rev}  in {time.monotonic() - began_s:.2f} s")
        different += _compare(source, place, say)
    if different:
        say(f"{text.count(different, 'path')} DIFFER: this is a fault of lodefs")
    else:
        say("every byte of both versions is equal")
        _say_next(say)
    return different


class Interruptions:
    """SIGINT and SIGTERM as KeyboardInterrupt, but not while a process or mount is being started:
    nothing could clean up a half started one."""

    def __init__(self) -> None:
        self._is_held = False
        self._is_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True
        if not self._is_held:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delays a signal to the end of the block; then obeys it, unless something else failed."""
        asked_before, self._is_held = self._is_asked, True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_asked and not asked_before:
            raise KeyboardInterrupt


def _push_both(folder: Path, say: Say) -> dict[str, Path]:
    """Pushes two versions of the directory to a new store, each with a tag. Returns tags and
    directories."""
    first, second = folder / "v1", folder / "v2"
    shutil.copytree(
        sysconfig.get_paths()["stdlib"],
        first,
        symlinks=True,
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
    )
    shutil.copytree(first, second, symlinks=True)
    changed = change(second)
    objects = open_objects(str(folder / "store"), StoreOptions())
    try:
        store = create_store(objects)
        total_bytes = 0
        for rev, source in (("v1", first), ("v2", second)):
            total_bytes += _push(store, folder, source, rev, say)
            tag = RefName(REPO, TAGS, rev)
            point_ref(store, tag, store.resolve(REPO, "main"), expected_sequence=None)
        stored_bytes = sum(info.size_bytes for info in objects.list(""))
    finally:
        objects.close()
    say(f"changed   {changed} between the two versions")
    say(
        f"store     {text.size(stored_bytes)} for {text.size(total_bytes)}: "
        f"{text.size(total_bytes - stored_bytes)} saved"
    )
    return {"v1": first, "v2": second}


def _push(store: Store, folder: Path, source: Path, rev: str, say: Say) -> int:
    """Pushes one version, and returns its size in bytes."""
    began_s = time.monotonic()
    options = PushOptions(
        message=f"standard library, {rev}",
        author="demo",
        time_s=int(time.time()),
        index_dir=folder / "index",
    )
    result = push(store, source, REPO, "main", options)
    took_s = time.monotonic() - began_s
    say(
        f"push {rev}   {text.count(result.files, 'file')}, {text.size(result.size_bytes)}: "
        f"{text.size(result.new_bytes)} new, {text.size(result.stored_bytes)} stored, "
        f"{took_s:.2f} s ({text.size(int(result.size_bytes / max(took_s, 0.001)))}/s)"
    )
    return result.size_bytes


def change(folder: Path) -> str:
    """Edits, adds and removes a few files, and says how many."""
    files = sorted(path for path in folder.rglob("*.py") if not path.is_symlink())
    edited, removed = files[10:15], files[20:23]
    for path in edited:
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + b"\n# edited\n" + content[middle:])
    for path in removed:
        path.unlink()
    (folder / "added").mkdir()
    (folder / "added" / "new.py").write_text("print('new')\n")
    (folder / "added" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "added" / "run.sh").chmod(0o755)
    (folder / "added" / "link").symlink_to("new.py")
    return f"{len(edited)} files edited, 3 added, {len(removed)} removed"


def _compare(source: Path, place: Path, say: Say) -> int:
    """Reads everything twice, and returns how many paths differ."""
    began_s = time.monotonic()
    different = list(differences(source, place))
    first_s = time.monotonic()
    different += differences(source, place)
    again_s = time.monotonic()
    say(
        f"          every byte compared: first in {first_s - began_s:.2f} s, "
        f"again in {again_s - first_s:.2f} s"
    )
    for path in different[:DIFFERENCES_SHOWN_MAX]:
        say(f"          differs: {text.escaped(path)}")
    return len(different)


def differences(source: Path, copy: Path) -> Iterator[bytes]:
    """Paths of two directories that differ in kind, executable bit or bytes, or exist in one
    only."""
    folders = [b""]
    while folders:
        inside = folders.pop()
        left = _entries(os.path.join(os.fsencode(source), inside))
        right = _entries(os.path.join(os.fsencode(copy), inside))
        for name in sorted(left.keys() | right.keys()):
            path = os.path.join(inside, name)
            a, b = left.get(name), right.get(name)
            if a is None or b is None or not _equal(a, b):
                yield path
            elif a.is_dir(follow_symlinks=False):
                folders.append(path)


def _entries(folder: bytes) -> dict[bytes, os.DirEntry[bytes]]:
    with os.scandir(folder) as entries:
        return {entry.name: entry for entry in entries}


def _equal(a: os.DirEntry[bytes], b: os.DirEntry[bytes]) -> bool:
    """Whether two entries are equal; the contents of directories are not compared."""
    if a.is_symlink() or b.is_symlink():
        return a.is_symlink() and b.is_symlink() and os.readlink(a.path) == os.readlink(b.path)
    if a.is_dir() or b.is_dir():
        return a.is_dir() and b.is_dir()
    first, second = a.stat(), b.stat()
    if first.st_size != second.st_size or (first.st_mode ^ second.st_mode) & 0o100:
        return False
    with open(a.path, "rb") as left, open(b.path, "rb") as right:
        while block := left.read(1 << 20):
            if block != right.read(1 << 20):
                return False
        return not right.read(1)


def _say_next(say: Say) -> None:
    say("")
    say("next, with a directory of your own:")
    say("  lodefs init ~/lodefs-store")
    say("  lodefs --store ~/lodefs-store push DIR my/data -m 'first version'")
    say("  lodefs --store ~/lodefs-store mount my/data EMPTY_DIR")


def _unmount(place: Path) -> None:
    with suppress(LodefsError):
        unmount(str(place))


def _end_proxy(proxy: OwnProxy) -> None:
    """Ends the proxy, which is a child of this process, and kills it if it does not obey."""
    try:
        pid = int(proxy.pid_file.read_text())
    except (OSError, ValueError):
        return  # the proxy was not started
    deadline_s = time.monotonic() + END_TIMEOUT_S
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline_s:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise Unavailable(f"the proxy did not end in {END_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
