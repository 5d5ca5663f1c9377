"""The calls to the store: times, bytes, errors, retries."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from lodefs.chunkstore.errors import Held, LodefsError
from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.exposition import Family, MetricLine, label_text, labelled
from lodefs.proxy.metrics.histogram import Histogram

OK = "ok"


def outcome_of(error: type[LodefsError] | None) -> str:
    """Returns "ok", or the class of an error: one of errors.py, which dashboards and alerts know,
    even if a store has derived its own."""
    if error is None:
        return OK
    return next(
        kind.__name__ for kind in error.__mro__ if kind.__module__ == LodefsError.__module__
    )


class StoreCalls:
    """Calls to the store by operation and outcome. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[tuple[str, str], Histogram] = {}
        self._bytes: Counter[tuple[str, ...]] = Counter()
        self._retries: Counter[tuple[str, ...]] = Counter()
        self._gets = 0
        # for each of several stores: its URL, whether it answers, calls that it answered
        self.mirrors: Callable[[], Sequence[tuple[str, bool, int]]] = tuple

    def add(self, operation: str, outcome: str, *, size_bytes: int, elapsed_s: float) -> None:
        """Counts one call that ended. ``outcome`` comes from outcome_of."""
        with self._lock:
            found = self._seconds.get((operation, outcome))
            if found is None:
                found = self._seconds[operation, outcome] = Histogram()
            found.add(elapsed_s)
            self._bytes[(operation,)] += size_bytes
            self._gets += operation == "get" and outcome != Held.__name__

    def retried(self, reason: str) -> None:
        """Counts a retry by its reason: "unreached" or "failed"; "throttled" if the store throttled
        the call."""
        with self._lock:
            self._retries[(reason,)] += 1

    @property
    def gets(self) -> int:
        """Returns the reads of objects, as a store bills them, including retries."""
        with self._lock:
            return self._gets + self._retries.total()

    @property
    def received_bytes(self) -> int:
        with self._lock:
            return self._bytes["get",]

    def families(self) -> Iterator[Family]:
        with self._lock:
            sizes, retries = dict(self._bytes), dict(self._retries)
            lines: list[MetricLine] = []
            for key, histogram in sorted(self._seconds.items()):
                lines += histogram.samples(label_text(names.STORE_SECONDS.labels, key))
        yield Family(names.STORE_SECONDS, lines)
        yield labelled(names.STORE_BYTES, sizes)
        known: dict[tuple[str, ...], int] = {
            (reason,): 0 for reason in ("throttled", "unreached", "failed")
        }
        yield labelled(names.STORE_RETRIES, known | retries)
        if stores := self.mirrors():
            yield labelled(names.MIRROR_UP, {(url,): int(is_up) for url, is_up, _ in stores})
            yield labelled(names.MIRROR_ANSWERS, {(url,): count for url, _, count in stores})
