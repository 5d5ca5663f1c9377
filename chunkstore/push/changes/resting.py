"""Finds the files of a directory that a job no longer writes, and what to commit of them.

A file rests if two consecutive looks found it with the same size and times.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.push.changes.change import Change, Put, PutLink, Remove
from lodefs.chunkstore.push.scanner import SYMLINK, Scan
from lodefs.chunkstore.repo.tree_walk import join


class FileState(NamedTuple):
    """The state of a file or symlink at a look."""

    mode: int  # the scanner's FILE, EXECUTABLE or SYMLINK
    size_bytes: int
    mtime_ns: int
    inode: int


Look = Mapping[bytes, FileState]  # the states in a directory, by path


def look(scan: Scan) -> Look:
    """Returns the files and symlinks that a push would take. Raises as Scan does."""
    found: dict[bytes, FileState] = {}
    for directory in scan:
        columns = directory.columns
        states = zip(columns.modes, columns.sizes, columns.mtimes_ns, columns.inodes, strict=True)
        for name, state in zip(columns.names, states, strict=True):
            found[join(directory.path, name)] = FileState(*state)
    return found


@dataclass(frozen=True, slots=True)
class Round:
    """The changes to commit after a look, smallest files first. ``moving`` are the files that still
    change."""

    puts: list[bytes]
    removed: list[bytes]
    moving: list[bytes]


def round_of(before: Look, now: Look, committed: Look) -> Round:
    """Returns what differs from ``committed`` and has not changed between two looks."""
    resting = {path for path, state in now.items() if before.get(path) == state}
    puts = [path for path in resting if committed.get(path) != now[path]]
    return Round(
        puts=sorted(puts, key=lambda path: (now[path].size_bytes, path)),
        removed=sorted(path for path in committed if path not in now and path not in before),
        moving=sorted(path for path in now if path not in resting),
    )


def fitting(puts: Iterable[bytes], now: Look, size_bytes: int) -> list[bytes]:
    """Returns the first files with at most ``size_bytes`` together, but at least one."""
    found: list[bytes] = []
    for path in puts:
        size_bytes -= now[path].size_bytes
        if found and size_bytes < 0:
            break
        found.append(path)
    return found


def changes_of(
    root: bytes, place: bytes, puts: Iterable[bytes], removed: Iterable[bytes], now: Look
) -> list[Change]:
    """Returns the changes that put files of the directory ``root`` below ``place`` in a branch.
    Raises: OSError for a symlink that is gone."""
    changes: list[Change] = [Remove(join(place, path)) for path in removed]
    for path in puts:
        source = os.path.join(root, path)
        if now[path].mode == SYMLINK:
            changes.append(PutLink(join(place, path), os.readlink(source)))
        else:
            changes.append(Put(join(place, path), Path(os.fsdecode(source))))
    return changes
