"""The rates of a run's nodes by the second: which links idle, which nodes send and read S3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EVERY_S = 1.0
COLUMNS = {"up": "peer_sent_bytes", "down": "peer_fetched_bytes", "s3": "store_fetched_bytes"}
Statuses = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Timeline:
    """Rates of all nodes. ``rows`` has, for each second or so, when it ended, and by column the
    MB/s of each node: to other nodes, from them, from S3. A fetch counts when all of it is
    there."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    _begin_s: float = 0.0
    _last_s: float = float("-inf")
    _last: Statuses = ()

    def look(self, now_s: float, statuses: Callable[[], Statuses]) -> None:
        """Adds a row, unless the last one is younger than a second."""
        if now_s - self._last_s < EVERY_S:
            return
        found = statuses()
        if not self._last:
            self._begin_s = now_s
        else:
            rates = rates_of(self._last, found, now_s - self._last_s)
            self.rows.append({"at_s": round(now_s - self._begin_s, 1), **rates})
        self._last_s, self._last = now_s, found

    def lines(self) -> list[str]:
        """The rows as text, a column of each node."""
        return [
            f"{row['at_s']:6.1f} s  "
            + "  ".join(f"{name} {' '.join(f'{rate:3}' for rate in row[name])}" for name in COLUMNS)
            for row in self.rows
        ]


def rates_of(before: Statuses, now: Statuses, seconds: float) -> dict[str, list[int]]:
    """The MB/s of each node that answered both times, by column."""
    earlier = {status["number"]: status.get("node", {}) for status in before}
    pairs = [
        (earlier[status["number"]], status.get("node", {}))
        for status in now
        if status["number"] in earlier
    ]
    return {
        name: [
            round((new[key] - old[key]) / seconds / 1e6)
            for old, new in pairs if key in old and key in new
        ]
        for name, key in COLUMNS.items()
    }  # fmt: skip
