"""Rules of access whose groups may come later than the service: made by a directory, or by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from lodefs.chunkstore.nodeapi.access import AccessRules, GidOf, rules_of

LOOK_AGAIN_S = 10.0


class CurrentRules:
    """The rules of ``table``. Groups that there were not are looked up again now and then, as long
    as somebody asks for the rules; others keep their numbers until the service's next start.

    ``start`` has a call made beside the caller, since a directory of users may be slow to answer.
    """

    def __init__(
        self,
        table: Mapping[str, Sequence[str]],
        gid_of: GidOf,
        *,
        free_uids: Collection[int] = (0,),
        say: Callable[[str], None] = lambda _line: None,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._table, self._gid_of, self._free_uids = table, gid_of, free_uids
        self._gids: dict[str, int] = {}
        self._say, self._clock, self._start = say, clock, start or _in_thread
        self._unknown: list[str] = []
        self._is_looking = False
        self._next_s = clock() + LOOK_AGAIN_S
        self._now = self._made()
        for line in self._unknown:
            say(line)

    def __call__(self) -> AccessRules:
        """The rules as they are known now; never waits."""
        if self._unknown and not self._is_looking and self._clock() >= self._next_s:
            self._is_looking = True
            self._next_s = self._clock() + LOOK_AGAIN_S
            try:
                self._start(self._look)
            except RuntimeError:  # the system has no room for a thread now
                self._is_looking = False
        return self._now

    def _look(self) -> None:
        try:
            before = self._unknown
            found = self._made()
            if found != self._now:
                self._say("[access]: a group that was missing is there now")
                self._now = found
            for line in self._unknown:
                if line not in before:
                    self._say(line)
        finally:
            self._is_looking = False

    def _made(self) -> AccessRules:
        unknown: list[str] = []
        found = rules_of(self._table, self._gid, free_uids=self._free_uids, say=unknown.append)
        self._unknown = unknown
        return found

    def _gid(self, group: str) -> int | None:
        gid = self._gids.get(group)
        if gid is None:
            gid = self._gid_of(group)
            if gid is not None:
                self._gids[group] = gid
        return gid


def _in_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="lodefs-groups", daemon=True).start()
