"""The last changes of a directory's entries, as far as a bounded look at history tells."""

from __future__ import annotations

import time
from urllib.parse import quote_from_bytes

from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.repo import history
from lodefs.chunkstore.repo.store import Store
from lodefs.proxy.node import LastChange, LastChangesView

TREE_BYTES_MAX = 256 * 1024  # of a directory that is looked at: about 4,000 entries
TREES_BYTES_MAX = 16 * 1024 * 1024  # of all of them, in all versions
COMMITS_MAX = 500
LOOKING_S_MAX = 1.5
MESSAGE_CHARS_MAX = 200


class _Bounds:
    """The limits on what a walk through history may still read."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + LOOKING_S_MAX
        self._commits = 0
        self._trees_bytes = 0
        self.were_reached = False

    def goes_on(self, size_bytes: int) -> bool:
        """As of history.blame."""
        self._commits += not size_bytes
        self._trees_bytes += size_bytes
        self.were_reached = self.were_reached or (
            size_bytes > TREE_BYTES_MAX
            or self._trees_bytes > TREES_BYTES_MAX
            or self._commits > COMMITS_MAX
            or time.monotonic() > self._ends_s
        )
        return not self.were_reached


def last_changes(store: Store, repo: str, commit_id: CommitId, path: bytes) -> LastChangesView:
    """The commits that changed the entries of the directory at a path last; of a file, that file.
    Blocking; within the bounds above. Raises: as history.blame."""
    bounds = _Bounds()
    numbers: dict[CommitId, int] = {}
    commits: list[LastChange] = []
    found: dict[str, int] = {}
    spec = Spec(repo, commit_id.hex(), path)
    for one in history.blame(store, spec, goes_on=bounds.goes_on):
        number = numbers.setdefault(one.commit_id, len(commits))
        if number == len(commits):
            message = one.commit.message[:MESSAGE_CHARS_MAX]
            commits.append(LastChange(one.commit_id.hex(), one.commit.time_s, message))
        found[quote_from_bytes(one.path.rpartition(b"/")[2])] = number
    return LastChangesView(commits, found, is_complete=not bounds.were_reached)
