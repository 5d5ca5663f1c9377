"""Resets what a forked process must not share with its parent.

A child does not get RocksDB's threads and locks: it opens its own index, and never frees the
parent's. ``index_lock`` is held while an index is opened or catches up, and while a process forks,
so that no fork interrupts RocksDB. Objects with files that no child may inherit are paused during a
fork.
"""

from __future__ import annotations

import ctypes
import os
from threading import Lock
from typing import Protocol
from weakref import WeakSet

index_lock = Lock()


class Renewable(Protocol):
    """An object with connections, locks or an index."""

    def reset(self) -> None:
        """Resets the object to its initial state, in a child, where no other thread runs."""
        ...


class Pausable(Protocol):
    """An object with files or locks that a child must not inherit as they are."""

    def pause(self) -> None:
        """Waits until no thread uses the object, keeps threads away, and closes such files."""
        ...

    def resume(self) -> None:
        """Lets threads continue, in the parent and in the child. The thread that forked calls
        it."""
        ...


_renewed: WeakSet[Renewable] = WeakSet()
_pausable: WeakSet[Pausable] = WeakSet()
_paused: list[Pausable] = []  # those paused during the current fork


def renew(what: Renewable) -> None:
    """Resets ``what`` in each child that this process forks from now on."""
    _renewed.add(what)


def keep_for_ever(what: object) -> None:
    """Never frees an object, not even at exit."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def pause_at_fork(what: Pausable) -> None:
    """Pauses ``what`` during each fork of this process, as long as it exists."""
    _pausable.add(what)


def _before() -> None:
    for what in list(_pausable):
        what.pause()
        _paused.append(what)
    index_lock.acquire()


def _after() -> None:
    paused = _paused[::-1]
    _paused.clear()  # before another thread that forks can take them
    index_lock.release()
    for what in paused:
        what.resume()


def _renew_all() -> None:
    _after()
    for what in list(_renewed):
        what.reset()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_renew_all)
