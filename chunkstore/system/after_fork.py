"""What a process that was forked must not share with its parent, and how it is made anew.

RocksDB has threads and locks that a child does not get: the child opens the index of its own, and
never frees the parent's. ``index_lock`` is held while an index is opened or looks for news, and
while a process forks, so that no fork finds RocksDB in the middle of these.
"""

from __future__ import annotations

import ctypes
import os
from threading import Lock
from typing import Protocol
from weakref import WeakSet

index_lock = Lock()


class Renewable(Protocol):
    """What has connections, locks or an index."""

    def reset(self) -> None:
        """As it was made: in a child, where no other thread runs."""
        ...


_renewed: WeakSet[Renewable] = WeakSet()


def renew(what: Renewable) -> None:
    """Has ``what`` reset in each child that this process forks from now on."""
    _renewed.add(what)


def keep_for_ever(what: object) -> None:
    """Never frees an object, also not when the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def _renew_all() -> None:
    index_lock.release()
    for what in list(_renewed):
        what.reset()


os.register_at_fork(
    before=index_lock.acquire, after_in_parent=index_lock.release, after_in_child=_renew_all
)
