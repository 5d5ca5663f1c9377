"""What looks after the node's cache beside a mount's readers."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.nodecache.cached_snapshot import RETRY_S
from lodefs.chunkstore.protocol.connection import Address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.protocol.wire import CachePlace, Snapshot
from lodefs.mount.read.cache_monitor import CacheMonitor
from tests.support.mount.mounts import SAMPLE, until

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import CacheView


class Knowing(Client):
    """A client that knows where the cache is, without any proxy."""

    def cache_place(self) -> CachePlace:
        return CachePlace(b"/cache", 1)


def test_an_error_that_nobody_expects_ends_nothing() -> None:
    """Whatever opening the cache raises is said, and it is tried again later."""
    now_s = 1000.0
    errors = [OSError(errno.EMFILE, "Too many open files"), Unavailable("not yet")]
    lines: list[str] = []

    def broken(_place: CachePlace, _snapshot: Snapshot) -> CacheView:
        raise errors[len(lines)]

    client = Knowing(Address(path="/nowhere"), timeout_s=1.0)
    monitor = CacheMonitor(
        client, SAMPLE.snapshot, lines.append, opener=broken, clock=lambda: now_s
    )
    monitor.start()
    try:
        until(lambda: len(lines) == 1)
        assert "Too many open files" in lines[0]
        now_s += RETRY_S
        monitor._woken.set()
        until(lambda: len(lines) == 2)
        assert "not yet" in lines[1]
    finally:
        monitor.close()
