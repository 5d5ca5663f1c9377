"""What a process that was forked must not share with its parent, and how it is made anew.

RocksDB has threads and locks that a child does not get: the child opens the index of its own, and
never frees the parent's. ``index_lock`` is held while an index is opened or looks for news, and
while a process forks, so that no fork finds RocksDB in the middle of these. What has files that
no child may inherit is paused while a process forks.
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


class Pausable(Protocol):
    """What has files or locks that a child must not inherit as they are."""

    def pause(self) -> None:
        """Waits until no thread works with it, keeps them from it, and closes such files."""
        ...

    def resume(self) -> None:
        """Lets threads go on, in the parent and in the child: by the thread that forked."""
        ...


_renewed: WeakSet[Renewable] = WeakSet()
_pausable: WeakSet[Pausable] = WeakSet()
_paused: list[Pausable] = []  # while this process forks


def renew(what: Renewable) -> None:
    """Has ``what`` reset in each child that this process forks from now on."""
    _renewed.add(what)


def keep_for_ever(what: object) -> None:
    """Never frees an object, also not when the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def pause_at_fork(what: Pausable) -> None:
    """Has ``what`` paused while this process forks, as long as it is there."""
    _pausable.add(what)


def _before() -> None:
    for what in list(_pausable):
        what.pause()
        _paused.append(what)
    index_lock.acquire()


def _after() -> None:
    paused = _paused[::-1]
    _paused.clear()  # as long as another thread that forks has to wait for them
    index_lock.release()
    for what in paused:
        what.resume()


def _renew_all() -> None:
    _after()
    for what in list(_renewed):
        what.reset()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_renew_all)
