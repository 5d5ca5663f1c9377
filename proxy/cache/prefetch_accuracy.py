"""How much of what the cache fetched without being asked was read before it was evicted."""

from __future__ import annotations

USEFUL_SHARE_MIN = 0.5  # below it, fetching more than what was asked for costs more than it saves
EVIDENCE_PARTS = 16  # evicting this fraction of the cache halves older evidence
# Weight of evicted bytes that were asked for: two caches of them halve it, too
ASKED_WEIGHT = 1 / 32
EVIDENCE_SIZE_BYTES_MIN = 1024 * 1024  # fewer bytes say nothing


class PrefetchAccuracy:
    """Measures prefetching: the share of bytes that readers found in the cache although nobody had
    asked for them when they were fetched, among all such bytes that were evicted recently (the
    "accuracy" by which feedback directed prefetching is throttled: Srinath et al., HPCA 2007).

    Bytes that were fetched on demand are no evidence either way, but their eviction makes older
    evidence fade. It does so slowly, since random readers would otherwise fetch a cache in vain
    before this is learned again. One thread at a time may update it; any may read it.
    """

    def __init__(self, cache_size_bytes: int) -> None:
        self.resize(cache_size_bytes)
        self._unasked_bytes = 0.0
        self._useful_bytes = 0.0

    def resize(self, cache_size_bytes: int) -> None:
        """Sets the size of the cache, by which evidence fades."""
        self._half_life_bytes = max(cache_size_bytes // EVIDENCE_PARTS, EVIDENCE_SIZE_BYTES_MIN)
        self._least_bytes = max(self._half_life_bytes // EVIDENCE_PARTS, EVIDENCE_SIZE_BYTES_MIN)

    def evicted(self, size_bytes: int, asked_bytes: int, read_bytes: int) -> None:
        """Adds an evicted file. ``asked_bytes`` of it were fetched on demand; ``read_bytes``, which
        include these, were read."""
        unasked = max(size_bytes - asked_bytes, 0)
        read_again = max(read_bytes - asked_bytes, 0)  # demanded bytes may be read again, too
        useful = unasked * min(read_again / max(size_bytes, 1), 1.0)
        aged_bytes = unasked + ASKED_WEIGHT * (size_bytes - unasked)
        keep = 0.5 ** (aged_bytes / self._half_life_bytes)
        self._unasked_bytes = self._unasked_bytes * keep + unasked
        self._useful_bytes = self._useful_bytes * keep + useful

    @property
    def share(self) -> float:
        """The share; 1.0 as long as nothing is known."""
        if self._unasked_bytes < self._least_bytes:
            return 1.0
        return self._useful_bytes / self._unasked_bytes

    @property
    def is_low(self) -> bool:
        """Whether most prefetched bytes are evicted unread."""
        return self.share < USEFUL_SHARE_MIN
