"""How much of what was brought unasked is read before it is evicted. Pure."""

from __future__ import annotations

MIB = 1024 * 1024
SHARE_MIN = 0.5  # below it, bringing more than what is asked costs more than it saves
EVIDENCE_PARTS = 16  # of the cache's size: what is evicted of it halves what older evidence counts
EVIDENCE_SIZE_BYTES_MIN = MIB  # less says nothing


class Usefulness:
    """The running share of the bytes which readers of the cache found there, although nobody had
    asked for them when they were fetched, of all that were evicted (the "accuracy" by which
    feedback directed prefetching is throttled: Srinath et al., HPCA 2007).

    What was fetched because it was asked for is no evidence for either. One thread at a time.
    """

    def __init__(self, cache_size_bytes: int) -> None:
        self._half_life_bytes = max(cache_size_bytes // EVIDENCE_PARTS, MIB)
        self._unasked_bytes = 0.0
        self._useful_bytes = 0.0

    def evicted(self, size_bytes: int, asked_bytes: int, read_bytes: int) -> None:
        """A file of the cache went. ``asked_bytes`` of its bytes were fetched since somebody asked
        for them; ``read_bytes`` were read, these among them."""
        unasked = max(size_bytes - asked_bytes, 0)
        read_again = max(read_bytes - asked_bytes, 0)  # of what was asked for as of the rest
        useful = unasked * min(read_again / max(size_bytes, 1), 1.0)
        keep = 0.5 ** (unasked / self._half_life_bytes)
        self._unasked_bytes = self._unasked_bytes * keep + unasked
        self._useful_bytes = self._useful_bytes * keep + useful

    @property
    def share(self) -> float:
        """1.0 while nothing is known."""
        if self._unasked_bytes < EVIDENCE_SIZE_BYTES_MIN:
            return 1.0
        return self._useful_bytes / self._unasked_bytes

    @property
    def is_low(self) -> bool:
        """Whether most of what is brought unasked is evicted unread."""
        return self.share < SHARE_MIN
