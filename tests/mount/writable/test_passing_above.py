"""Passthrough below a writable mount, through the real kernel."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.mount.kernel import mount_table
from tests.mount.writable.conftest import Writable
from tests.support.mount.dict_tree import DictTree
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import kill, until, workers_of
from tests.support.mount.node_cache import NodeCache

CONTENT = random.Random(1).randbytes(3_000_001)
TREE = DictTree({b"large": CONTENT})


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FakeProxy]:
    with FakeProxy(TREE, tmp_path) as made:
        yield made


def test_the_kernel_reads_large_files_by_itself(
    writable: Writable, proxy: FakeProxy, tmp_path: Path
) -> None:
    """A complete file of the cache that nobody changed is read through the overlay while all
    processes of the mount below it are stopped."""
    cache = NodeCache(tmp_path / "cache", TREE)
    proxy.cache = cache.place
    cache.complete(child_ino(ROOT_INO, b"large"))
    options = writable.mounts.options(mode=0o755, passthrough="on")
    writable.mount(options=options, commit=TREE.snapshot.commit)
    lower = writable.place.lower(0)
    if mount_table.passthrough_of(str(lower)) != "on":
        pytest.skip("this machine has no passthrough")
    opened = [os.open(writable.root / "large", os.O_RDONLY)]

    def passes() -> bool:
        if os.getxattr(lower / "large", "user.lodefs.read_path") == b"passthrough":
            return True
        os.close(opened.pop())  # opened before a worker saw that it is complete
        opened.append(os.open(writable.root / "large", os.O_RDONLY))
        return False

    until(passes)
    pid = mount_table.pid_of(str(lower))
    processes = [pid, *workers_of(pid)]
    for one in processes:
        kill(one, signal.SIGSTOP)
    try:
        for first in (0, 1_234_567, len(CONTENT) - 1, len(CONTENT)):
            assert os.pread(opened[0], 20_000, first) == CONTENT[first : first + 20_000]
    finally:
        for one in processes:
            kill(one, signal.SIGCONT)
        os.close(opened[0])
        cache.close()
