"""Passthrough through the real kernel. Where this machine cannot have it (an old kernel, a cache on
overlayfs), the same files are read with the same result, by the daemon."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.mount.kernel import mount_table
from lodefs.mount.process.mounter import list_mounts
from tests.support.mount.dict_tree import DictTree
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import (
    WAIT_S,
    Mounts,
    in_child,
    kernel_since,
    kill,
    until,
    workers_of,
)
from tests.support.mount.node_cache import NodeCache

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

CONTENT = {name: random.Random(name).randbytes(3_000_001) for name in (b"one", b"two")}
TREE = DictTree({**CONTENT, b"small": b"small"})
ONE, TWO = (child_ino(ROOT_INO, name) for name in CONTENT)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FakeProxy]:
    with FakeProxy(TREE, tmp_path) as made:
        yield made


@pytest.fixture
def cache(tmp_path: Path, proxy: FakeProxy) -> Iterator[NodeCache]:
    made = NodeCache(tmp_path / "cache", TREE)
    proxy.cache = made.place
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that is slow to say whether it passes files through does not say that it cannot."""
    monkeypatch.setattr(mount_table, "ANSWER_TIMEOUT_S", WAIT_S)


def way(path: Path) -> str:
    return os.getxattr(path, "user.lodefs.read_path").decode()


def is_on(mounts: Mounts) -> bool:
    """Whether the mount can pass files through; a reason why it cannot must be true."""
    state = mount_table.passthrough_of(str(mounts.place))
    if state == "on":
        return True
    assert not kernel_since(6, 9) or "the kernel does not offer" in state or "cache" in state
    return False


def open_passed(mounts: Mounts, name: str) -> int:
    """Open a complete file once a worker knows that it is; in cached mode where it must be."""
    path = mounts.place / name
    found = [os.open(path, os.O_RDONLY)]

    def passes() -> bool:
        if way(path) == "passthrough":
            return True
        os.close(found.pop())  # opened before the worker saw that it is complete
        found.append(os.open(path, os.O_RDONLY))
        return False

    if is_on(mounts):
        until(passes)
    return found.pop()


def check(fd: int, name: bytes) -> None:
    """Ranges of an open file, also at and past its end, are what they were."""
    content = CONTENT[name]
    places = random.Random(1)
    ends = [0, len(content) - 1, len(content), len(content) + 9]
    for first in [*ends, *(places.randrange(len(content)) for _ in range(50))]:
        assert os.pread(fd, 20_000, first) == content[first : first + 20_000]


def test_the_kernel_reads_without_us(mounts: Mounts, cache: NodeCache) -> None:
    """A complete file is read and mapped while all our processes are stopped."""
    cache.complete(ONE)
    mounted = mounts.mount(passthrough="on")
    fd = open_passed(mounts, "one")
    processes = [mounted.pid, *workers_of(mounted.pid)] if is_on(mounts) else []
    for pid in processes:
        kill(pid, signal.SIGSTOP)
    try:
        check(fd, b"one")
        if processes:
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
                assert mapped[:] == CONTENT[b"one"]
    finally:
        for pid in processes:
            kill(pid, signal.SIGCONT)
    os.close(fd)
    assert (mounts.place / "small").read_bytes() == b"small"
    assert [m.passthrough for m in list_mounts() if m.mountpoint == str(mounts.place)] == [
        mount_table.passthrough_of(str(mounts.place))
    ]


def test_maps_and_programs_of_others(mounts: Mounts, cache: NodeCache) -> None:
    """Other processes map a file that is passed through, also beyond its last page."""
    cache.complete(ONE)
    mounts.mount(passthrough="on")
    fd = open_passed(mounts, "one")
    script = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    print(hashlib.sha256(mapped).hexdigest(), len(mapped))
"""
    printed = in_child(script, str(mounts.place / "one"))
    assert printed == f"{hashlib.sha256(CONTENT[b'one']).hexdigest()} {len(CONTENT[b'one'])}"
    os.close(fd)


def test_complete_while_it_is_open(mounts: Mounts, cache: NodeCache) -> None:
    """What was opened before it was complete stays cached until its last close, for everybody."""
    mounts.mount(passthrough="on")
    path = mounts.place / "one"
    first = os.open(path, os.O_RDONLY)
    check(first, b"one")
    cache.complete(ONE)
    cache.complete(TWO)
    os.close(open_passed(mounts, "two"))  # the workers know by now
    others = [os.open(path, os.O_RDONLY) for _ in range(20)]
    assert way(path) == "daemon"
    for fd in [first, *others]:
        check(fd, b"one")
        os.close(fd)
    fd = open_passed(mounts, "one")
    check(fd, b"one")
    os.close(fd)


def test_evicted_while_it_is_open(mounts: Mounts, cache: NodeCache) -> None:
    """A flat file that is gone is read on by those who have it open, and by who opens it with
    them; its space is free after the last of them."""
    cache.complete(ONE)
    mounts.mount(passthrough="on")
    path = mounts.place / "one"
    fd = open_passed(mounts, "one")
    cache.evict(ONE)
    check(fd, b"one")
    again = os.open(path, os.O_RDONLY)
    assert way(path) == ("passthrough" if is_on(mounts) else "daemon")
    for each in (fd, again):
        check(each, b"one")
        os.close(each)
    until(lambda: way(path) == "daemon")
    fd = os.open(path, os.O_RDONLY)
    check(fd, b"one")
    os.close(fd)


def test_cut_while_it_is_open(mounts: Mounts, cache: NodeCache) -> None:
    """Nobody opens a file any more that the kernel would read short; after the last close it is
    right again, by the proxy."""
    cache.complete(ONE)
    mounts.mount(passthrough="on")
    path = mounts.place / "one"
    fd = open_passed(mounts, "one")
    cache.cut(ONE, 1_000_000)

    def is_refused() -> bool:
        try:
            path.open().close()
        except OSError as error:
            return error.errno == errno.EIO
        return False

    if is_on(mounts):
        until(is_refused)  # by each worker once it has opened the cache's index
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            path.open()
    os.close(fd)
    until(lambda: way(path) == "daemon")
    assert path.read_bytes() == CONTENT[b"one"]


def test_files_in_use_are_told_to_the_proxy(
    mounts: Mounts, cache: NodeCache, proxy: FakeProxy
) -> None:
    """A file that the kernel reads for a long time counts as used all the time."""
    cache.complete(ONE)
    mounts.mount(passthrough="on")
    fd = open_passed(mounts, "one")
    if not is_on(mounts):
        check(fd, b"one")
    until(lambda: cache.numbers[ONE] in proxy.used)
    if is_on(mounts):
        for _ in range(2):
            proxy.used.clear()
            until(lambda: cache.numbers[ONE] in proxy.used)
    os.close(fd)


def test_workers_die_while_files_are_opened(mounts: Mounts, cache: NodeCache) -> None:
    """However often workers are killed, no open and no read fails while files become complete and
    are evicted; and in the end everything can be passed through again."""
    if not kernel_since(6, 9):
        return  # without RESEND a dead worker's requests fail
    mounted = mounts.mount(passthrough="on")
    wrong: list[object] = []
    right: list[int] = []
    done = Event()

    def use(seed: int) -> None:
        places = random.Random(seed)
        while not done.is_set():
            name = places.choice(sorted(CONTENT))
            first = places.randrange(len(CONTENT[name]))
            try:
                fd = os.open(mounts.place / name.decode(), os.O_RDONLY)
                if os.pread(fd, 5000, first) != CONTENT[name][first : first + 5000]:
                    wrong.append((name, first))
                os.close(fd)
                right.append(first)
            except OSError as error:
                wrong.append(error)

    users = [Thread(target=use, args=(seed,)) for seed in range(6)]
    for user in users:
        user.start()
    count = mounts.options().worker_count()  # and who stores ahead, once reads are told of
    for turn in range(4):
        if turn % 2:
            cache.evict(ONE)
            cache.evict(TWO)
        else:
            cache.complete(ONE)
            cache.complete(TWO)
        victims = workers_of(mounted.pid)
        for pid in victims:
            kill(pid, signal.SIGKILL)
        until(lambda old=victims: len(set(workers_of(mounted.pid)) - set(old)) >= count)
        used = len(right)
        until(lambda used=used: len(right) > used + 50)
    done.set()
    for user in users:
        user.join(WAIT_S)
        assert not user.is_alive()
    assert wrong == []
    cache.complete(ONE)
    cache.complete(TWO)
    for name in sorted(CONTENT):
        fd = open_passed(mounts, name.decode())
        check(fd, name)
        os.close(fd)


SCRIPT = """
import os, sys
from lodefs.mount.process import daemon, mount_target, mounter
from lodefs.mount.kernel import mount_table as mounttable
from lodefs.mount.fs import passthrough
from lodefs.mount.options import MountOptions
place, proxy, log, pretend = sys.argv[1:]
if pretend:
    passthrough.obstacle = lambda cache_dir: None
options = MountOptions(
    repo="demo", mountpoint=place, proxy=proxy, log_path=log, passthrough="on", threads=4
)
ready, tell = os.pipe()
pid = os.fork()
if not pid:
    os.close(ready)
    lines = open(log, "a", buffering=1)
    daemon.serve(
        mount_target.resolve(options),
        lambda text: lines.write(text + "\\n"),
        lambda: os.write(tell, b"+"),
    )
    os._exit(0)
os.close(tell)
assert os.read(ready, 1) == b"+", open(log).read()
states = [mounttable.passthrough_of(place)]
for _ in range(300):
    fd = os.open(place + "/one", os.O_RDONLY)
    assert len(os.pread(fd, 1000, 5)) == 1000
    os.close(fd)
    states.append(mounttable.passthrough_of(place))
    if states[-1] != states[0] or not pretend:
        break
    import threading
    threading.Event().wait(0.1)
for name in ("one", "two", "small"):
    with open(place + "/" + name, "rb") as file:
        print(len(file.read()), os.getxattr(place + "/" + name, "user.lodefs.read_path").decode())
print(states[-1])
mounter.unmount(place)
os.waitpid(pid, 0)
"""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
READ_BY_DAEMON = ["3000001 daemon", "3000001 daemon", "5 daemon"]


def test_without_the_right_to_it(mounts: Mounts, cache: NodeCache) -> None:
    """Root of another user namespace gets no passthrough, one line that says so, and its files."""
    cache.complete(ONE)
    arguments = (str(mounts.place), mounts.options().proxy, str(mounts.log), "")
    *read, state = in_child(SCRIPT, *arguments, prefix=NAMESPACE).splitlines()
    assert read == READ_BY_DAEMON
    assert state == "off: it needs CAP_SYS_ADMIN in the first user namespace"
    lines = [line for line in mounts.log.read_text().splitlines() if "passthrough" in line]
    assert lines == [f"{mounts.place}: no passthrough: {state.removeprefix('off: ')}"]


def test_refused_by_the_kernel(mounts: Mounts, cache: NodeCache) -> None:
    """What only the first try shows is noted once, and everything is read all the same."""
    cache.complete(ONE)
    arguments = (str(mounts.place), mounts.options().proxy, str(mounts.log), "pretend")
    *read, state = in_child(SCRIPT, *arguments, prefix=NAMESPACE).splitlines()
    assert read == READ_BY_DAEMON
    if kernel_since(6, 9):
        assert state.startswith("off: the kernel ")
    lines = [line for line in mounts.log.read_text().splitlines() if "passthrough" in line]
    assert len(lines) == 1


def test_not_wanted(mounts: Mounts, cache: NodeCache) -> None:
    """A mount can be told to do without, and says so."""
    cache.complete(ONE)
    mounts.mount(passthrough="off")
    assert mount_table.passthrough_of(str(mounts.place)) == "off: it is switched off"
    assert way(mounts.place / "one") == "daemon"
    assert (mounts.place / "one").read_bytes() == CONTENT[b"one"]
