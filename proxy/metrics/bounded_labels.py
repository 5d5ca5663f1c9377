"""Bounded labels: of many things with counters, only a limited number get their own series."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add, sub

OTHER = "other"
IDLE_S = 3600.0  # a series may pass to another thing after this time without use

Figures = tuple[int, ...]


class BoundedLabels:
    """Shows the counters of at most ``series_max`` things, and the sum of all others.

    A thing keeps its series while it is used, so that no counter ever decreases. The sum of the
    others counts what they did while they had no series of their own.
    """

    def __init__(self, series_max: int, idle_s: float = IDLE_S) -> None:
        self._series_max = series_max
        self._idle_s = idle_s
        self._seen: dict[str, Figures] = {}
        self._used_s: dict[str, float] = {}
        self._shown: set[str] = set()
        self._other: Figures = ()

    def show(self, figures: Mapping[str, Figures], now_s: float) -> dict[str, Figures]:
        """Returns the counters to show now, by label."""
        for name in self._seen.keys() - figures.keys():
            del self._seen[name]
            self._used_s.pop(name, None)
            self._shown.discard(name)
        grown: dict[str, Figures] = {}
        for name, values in figures.items():
            before = self._seen.get(name)
            if before != values:
                grown[name] = values if before is None else tuple(map(sub, values, before))
                self._used_s[name] = now_s
                self._seen[name] = values
        self._give_series(grown, now_s)
        for name, values in grown.items():
            if name not in self._shown:
                self._other = tuple(map(add, self._other, values)) if self._other else values
        found = {name: figures[name] for name in figures if name in self._shown}
        if self._other:
            found[OTHER] = self._other
        return found

    def _give_series(self, grown: Mapping[str, Figures], now_s: float) -> None:
        """Gives series to things that were used, the most used first, as long as there are any."""
        wanting = [name for name in grown if name not in self._shown and name != OTHER]
        wanting.sort(key=lambda name: sum(grown[name]), reverse=True)
        for name in wanting:
            if len(self._shown) >= self._series_max:
                idle = min(self._shown, key=lambda one: self._used_s.get(one, 0.0), default=None)
                if idle is None or now_s - self._used_s.get(idle, 0.0) < self._idle_s:
                    return
                self._shown.discard(idle)
            self._shown.add(name)
