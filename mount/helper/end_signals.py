"""SIGTERM and SIGINT as an event, for services that end on these signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Yields an event that SIGTERM and SIGINT set. Must be entered in the main thread.

    The former handlers are restored when the context ends.
    """
    end = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: end.set()) for number in numbers]
    try:
        yield end
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
