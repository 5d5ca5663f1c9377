"""Where the bytes of an answer came from, noted on the way for the one who writes its head."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from lodefs.chunkstore.nodeapi.wire import Origin

OnTransferStarted = Callable[[Origin], None]  # called when nothing but a transfer is waited for

_noted: ContextVar[Origin | None] = ContextVar("origin", default=None)


def begin() -> None:
    """What this task reads from now on is of another answer."""
    _noted.set(None)


def note(origin: Origin) -> None:
    """This task had to wait for bytes from there."""
    _noted.set(origin)


def noted() -> Origin | None:
    """The last place that was waited for since ``begin``; None: all of it was in the cache."""
    return _noted.get()
