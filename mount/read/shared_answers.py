"""One question to the proxy for ranges of a file that follow each other.

The kernel reads ahead by several requests at once, and a thread of a worker takes each of them. If
the bytes are on their way to the cache, the proxy's answer to the first thread mostly has the
places for the others, too (docs/decisions/0126-shared-answers.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.protocol.read_client import AwaitedAnswer, Client

REACH_SIZE_BYTES = 8 * 1024 * 1024  # an answer has places for at most this many


class SharedAnswers:
    """The ranges for which the threads of a worker ask the proxy now. For any thread."""

    def __init__(self) -> None:
        # By inode number and first byte. No lock: a thread that misses an answer asks by itself.
        self._awaited: dict[tuple[int, int], AwaitedAnswer] = {}

    @contextmanager
    def after_others(self, client: Client, ino: int, first: int) -> Iterator[bool]:
        """Waits for the answer for a range shortly before ``first``, if another thread has asked
        for one, and yields whether one has. Threads with later ranges wait for the end of the
        block."""
        key, answer = (ino, first), AwaitedAnswer()
        before = self._nearest(ino, first)
        self._awaited[key] = answer
        try:
            if before is not None:
                client.wait_for(before)
            yield before is not None
            answer.origin = client.origin
        finally:
            if self._awaited.get(key) is answer:
                self._awaited.pop(key, None)
            answer.came.set()

    def _nearest(self, ino: int, first: int) -> AwaitedAnswer | None:
        least = first - REACH_SIZE_BYTES
        starts = [at for of, at in tuple(self._awaited) if of == ino and least < at < first]
        return self._awaited.get((ino, max(starts))) if starts else None
