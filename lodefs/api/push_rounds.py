"""``lodefs.push_every``: commits what a job writes into a directory, at intervals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Unpack

from lodefs.api.pushing import SourceOptions, opened_for, push_options
from lodefs.chunkstore.errors import (
    LodefsError,
    NotADirectory,
    NotFound,
)
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.session import Session, spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.changes.resting import FileState, Look, Round
    from lodefs.chunkstore.push.session import PushOptions

GRACE_S = 30  # between SIGTERM and SIGKILL: Slurm's KillWait, Kubernetes' grace period
_RESERVE_S = 5.0  # of the grace time, for the last requests
_LAST_LOOKS_S = 2.0  # between the last two looks
_FIRST_RATE_BYTES_S = 20e6  # the rate of commits that is assumed until one was measured


@dataclass(slots=True)
class PushRound:
    """The outcome of one round. ``result``: None if there was nothing to commit; ``moving``: paths
    left out because they were still changing; ``unfit``: paths for which no time was left at the
    end; ``error``: why nothing was committed. The next round tries again."""

    result: ChangesResult | None = None
    moving: list[bytes] = field(default_factory=list)
    unfit: list[bytes] = field(default_factory=list)
    error: LodefsError | OSError | None = None


def push_every(
    directory: str | os.PathLike[str],
    place: str | Spec,
    *,
    every_s: float,
    stop: Event,
    grace_s: float = GRACE_S,
    tell: Callable[[PushRound], None] = lambda _round: None,
    **options: Unpack[SourceOptions],
) -> PushRound:
    """Commits the content of a directory to ``REPO[@BRANCH][:PATH]`` at an interval, until
    ``stop`` is set; then once more, in at most ``grace_s`` seconds. Returns the last round, and
    reports each.

    A file is committed when two looks in a row have found it with the same size and time. A file
    that was committed and is gone from the directory is removed; all else in the branch stays.
    Where somebody deletes the branch, it is made anew, and all files are committed again.
    Without a change there is no commit. At the end the smallest files come first, as many as there
    is time for. The other options: as for ``push``.

    Raises: NotFound, NotADirectory, InvalidInput, Denied for the directory. Any other failure is
    the error of a round.
    """
    with opened_for(options) as settings:
        core = push_options(settings, options)
        work = _Rounds(settings, Path(directory), spec_of(place), core)
        work.look()
        while not stop.wait(every_s):
            tell(work.tried())
        ends_s = time.monotonic() + grace_s - _RESERVE_S
        work.look()
        time.sleep(min(_LAST_LOOKS_S, grace_s / 4))
        return work.last(ends_s)


class _Rounds:
    """The rounds of one directory, and what they have committed."""

    def __init__(self, settings: Session, root: Path, place: Spec, core: PushOptions) -> None:
        from lodefs.chunkstore.push.source_directory import source_root

        self._settings = settings
        self._root = source_root(root, core.places_apart(settings.store))
        self._place = place
        self._core = core
        self._now: Look = {}
        self._committed: dict[bytes, FileState] = {}
        self._rate_bytes_s = _FIRST_RATE_BYTES_S

    def look(self) -> Round:
        """Looks at the directory, and returns what to do since the last look."""
        from lodefs.chunkstore.push.changes.resting import look, round_of

        before, self._now = self._now, look(self._core.scan(self._root))
        return round_of(before, self._now, self._committed)

    def tried(self) -> PushRound:
        """Runs one round. Its error is reported, and the next round may succeed."""
        try:
            found = self.look()
            return PushRound(self._commit(found.puts, found.removed), found.moving)
        except (LodefsError, OSError) as error:
            return PushRound(error=error)

    def last(self, ends_s: float) -> PushRound:
        """Runs the last round: commits the smallest files first, while there is time."""
        from lodefs.chunkstore.push.changes.resting import fitting

        found = self.look()
        done = PushRound(moving=found.moving)
        left, removed = found.puts, found.removed
        while left or removed:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                break
            some = fitting(left, self._now, int(self._rate_bytes_s * left_s / 2))
            if some and self._now[some[0]].size_bytes > self._rate_bytes_s * left_s:
                some = []
            if not some and not removed:
                break
            known = self._committed.keys() - set(removed)
            try:
                done.result = self._commit(some, removed) or done.result
                done.error = None
                left = left[len(some) :] if self._committed.keys() >= known else self.look().puts
                removed = []
            except (LodefsError, OSError) as error:
                done.error = error
                before, found = found, self.look()
                if found.puts == before.puts:
                    break
                # The job still works. A file that it has removed must not stop the others.
                left, removed, done.moving = found.puts, found.removed, found.moving
        done.unfit = left
        return done

    def _commit(self, puts: list[bytes], removed: list[bytes]) -> ChangesResult | None:
        from lodefs.chunkstore.push.changes.commit_changes import commit_changes
        from lodefs.chunkstore.push.changes.resting import changes_of

        gone = [path for path in removed if self._is_there(path)]
        changes = changes_of(self._root, self._place.path, puts, gone, self._now)
        result, began_s = None, time.monotonic()
        if changes:
            core = replace(self._core, time_s=int(time.time()))
            repo, branch = self._place.repo, self._place.rev
            result = commit_changes(self._settings.store, repo, branch, changes, core)
        size_bytes = sum(self._now[path].size_bytes for path in puts)
        if size_bytes > self._rate_bytes_s:
            self._rate_bytes_s = size_bytes / max(time.monotonic() - began_s, 1e-3)
        if result is not None and result.created_branch:
            self._committed.clear()  # somebody deleted the branch, with all that it had
        self._committed |= {path: self._now[path] for path in puts}
        for path in removed:
            self._committed.pop(path, None)
        return None if result is None or result.unchanged else result

    def _is_there(self, path: bytes) -> bool:
        from lodefs.chunkstore.repo.history import find
        from lodefs.chunkstore.repo.tree_walk import join

        spec = Spec(self._place.repo, self._place.rev, join(self._place.path, path))
        try:
            find(self._settings.store, spec)
        except (NotFound, NotADirectory):
            return False
        return True
