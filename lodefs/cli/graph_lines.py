"""A graph of commits in characters, with one column for each open line of history."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class GraphLines:
    """Draws commits that come newest first, each one before its parents."""

    def __init__(self) -> None:
        self._columns: list[Hashable] = []  # the next commit of each column

    def commit(self, at: Hashable, parents: Sequence[Hashable]) -> tuple[str, str, list[str]]:
        """Returns the prefix of a commit's first line, the prefix of its other lines, and the lines
        that lead from there to its parents."""
        if at not in self._columns:
            self._columns.append(at)
        place = self._columns.index(at)
        bars = ["|"] * len(self._columns)
        first, others = list(bars), list(bars)
        first[place] = "*"
        others[place] = "|" if parents else " "
        lines = self._leave(place, parents)
        return " ".join(first), " ".join(others).rstrip(), lines

    def _leave(self, place: int, parents: Sequence[Hashable]) -> list[str]:
        columns = self._columns
        if not parents:
            del columns[place]
            right = len(columns) - place
            return ["| " * place + " /" * right] if right else []
        columns[place] = parents[0]
        lines = []
        for parent in parents[1:]:
            right = len(columns) - place - 1
            lines.append("| " * place + "|\\" + " \\" * right)
            columns.insert(place + 1, parent)
        while (double := self._double()) is not None:
            left, right = double
            lines.append(_joined(left, right, len(columns)))
            del columns[right]
        return lines

    def _double(self) -> tuple[int, int] | None:
        """Two columns that lead to one commit: the last such column, and the first."""
        for right in range(len(self._columns) - 1, 0, -1):
            left = self._columns.index(self._columns[right])
            if left < right:
                return left, right
        return None


def _joined(left: int, right: int, count: int) -> str:
    """One of ``count`` columns joins another on its left, and those behind it move up."""
    return "| " * left + "|_" * (right - left - 1) + "|/" + " /" * (count - right - 1)
