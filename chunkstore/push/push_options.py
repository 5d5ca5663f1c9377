"""What a push is asked to do, and what it says that it did."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lodefs.chunkstore.push.change_counts import AllowRemovals, Changes, allow_all
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.scanner import Private, Scan, Skipped, SourceNotes
from lodefs.chunkstore.repo.store import Store


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How to push, and what the commit says."""

    message: str
    author: str
    time_s: int  # Unix
    index_dir: Path  # where the push index is kept between pushes
    skip_unreadable: bool = False  # leave out what cannot be read, and name it
    workers: int | None = None  # processes that read; 0: none but this one; None: by the cores
    clock_ns: Callable[[], int] = time.time_ns  # the clock of the files' times
    clock: Callable[[], float] = time.time  # what the journal says of this push
    check_packs: bool = False  # look for all packs that the commit names, and store lost ones again
    # asked before more than half of a branch's files are removed; False refuses the push
    allow_removals: AllowRemovals = allow_all
    exclude: tuple[bytes, ...] = ()  # patterns as of gitignore(5), below the source
    private: Private = Private.PUSH  # what becomes of files that others may not read
    dry_run: bool = False  # nothing is written to the store: say what would be

    def scan(self, root: bytes) -> Scan:
        """A scan of a source directory."""
        rules = IgnoreRules(self.exclude)
        return Scan(root, self.skip_unreadable, self.clock_ns, rules, self.private)

    def places_apart(self, store: Store) -> list[tuple[str, str]]:
        """What must not lie in a directory that is pushed: every push would change it."""
        return [(store.url, "the store"), (os.path.abspath(self.index_dir), "the push index")]


@dataclass(slots=True)
class PushResult:
    """What a push did. ``commit``: 64 hex characters; that of the head where it is unchanged; ""
    of a dry run."""

    commit: str
    unchanged: bool
    files: int  # regular ones
    directories: int  # the root too
    symlinks: int
    size_bytes: int  # of all files
    files_read: int  # to their end, because they may have changed
    new_bytes: int  # chunks that were not in the store, uncompressed, each counted once
    # of the objects that were written: packs, with chunks that lie in them again, shard, commit
    stored_bytes: int
    created_branch: bool  # it did not exist before
    lost_packs: int  # that the store lacked: what this commit needs of them was stored again
    changes: Changes | None  # None: unknown, since the trees of the head cannot be read
    excluded: int = 0  # files and directories that patterns left out
    skipped: list[Skipped] = field(default_factory=list)
    notes: SourceNotes = field(default_factory=SourceNotes)
    seconds: dict[str, float] = field(default_factory=dict)  # by phase
