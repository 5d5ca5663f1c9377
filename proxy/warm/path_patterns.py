"""Selects entries of a snapshot by paths and glob patterns, matched name by name from the root
down, so that only directories that can contain matches are visited.

Pure. In a pattern ``*`` stands for any run of bytes in one name, ``?`` for one byte, ``[ab]`` and
``[!ab]`` for one of a set, and ``**`` as a whole name for any number of directories, even none.
Names that begin with a dot are not special. A directory stands for everything below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import split_path

PATTERNS_MAX = 200_000
GLOBS_MAX = 1000  # each is tried on every name of the directories that may match
GLOBS_BYTES_MAX = 65536  # for all together: compiling a name with a wildcard takes 0.1 ms
_GLOB_BYTES = frozenset(b"*?[")
_DEEP = b"**"


def is_glob(path: bytes) -> bool:
    """Whether a path has bytes that make it a pattern."""
    return not _GLOB_BYTES.isdisjoint(path)


class _PatternNode:
    """A position in the patterns, with the positions that matching names lead to."""

    __slots__ = ("below", "deep", "ends", "globs", "is_deep")

    def __init__(self, *, is_deep: bool = False) -> None:
        self.below: dict[bytes, _PatternNode] = {}
        self.globs: dict[bytes, tuple[re.Pattern[bytes], _PatternNode]] = {}
        self.deep: _PatternNode | None = None  # where a ``**`` from here leads
        self.ends: list[int] = []  # patterns that end here
        self.is_deep = is_deep  # any name leads back here


class MatchState(NamedTuple):
    """The progress of the patterns at a directory. ``is_whole``: everything below it is
    selected."""

    spots: tuple[_PatternNode, ...]
    is_whole: bool

    @property
    def is_over(self) -> bool:
        """Whether nothing at or below is selected."""
        return not (self.spots or self.is_whole)


class Selection:
    """The selection of paths and globs; without any, everything. Raises: InvalidInput for malformed
    ones, and for too many at once. Not for an event loop, since many take a second.

    ``unmatched`` returns those that no entry has matched so far.
    """

    def __init__(self, paths: Sequence[bytes] = (), globs: Sequence[bytes] = ()) -> None:
        if len(paths) > PATTERNS_MAX or len(globs) > GLOBS_MAX:
            raise InvalidInput(
                f"at most {PATTERNS_MAX:,} paths and {GLOBS_MAX:,} patterns can be asked for at "
                "once: name a directory, or ask several times"
            )
        if sum(map(len, globs)) > GLOBS_BYTES_MAX:
            raise InvalidInput(
                f"all patterns of one request have at most {GLOBS_BYTES_MAX:,} bytes together: "
                "ask for several jobs, or give a list of paths"
            )
        self._patterns: list[bytes] = []
        self._root = _PatternNode()
        self._matched: set[int] = set()
        for path in paths:
            self._add(path, split_path(path), globs=False)
        for glob in globs:
            self._add(glob, split_path(glob), globs=True)

    @property
    def is_everything(self) -> bool:
        """Whether the whole snapshot is selected, and nothing can be missing."""
        return self.start().is_whole and not self.unmatched()

    @property
    def patterns(self) -> Sequence[bytes]:
        """All paths and globs, as given."""
        return self._patterns

    def unmatched(self) -> list[bytes]:
        """Returns the paths and globs that no entry matched."""
        return [one for n, one in enumerate(self._patterns) if n not in self._matched]

    def start(self) -> MatchState:
        return self._state([self._root], is_whole=not self._patterns)

    def step(self, state: MatchState, name: bytes) -> MatchState:
        """Returns the state at an entry of a directory; the entry is selected if that
        ``is_whole``."""
        found: list[_PatternNode] = []
        for spot in state.spots:
            if spot.is_deep:
                found.append(spot)
            below = spot.below.get(name)
            if below is not None:
                found.append(below)
            found += [to for pattern, to in spot.globs.values() if pattern.match(name)]
        return self._state(found, is_whole=state.is_whole)

    def _state(self, found: list[_PatternNode], *, is_whole: bool) -> MatchState:
        spots: dict[int, _PatternNode] = {}
        while found:
            spot = found.pop()
            if id(spot) not in spots:
                spots[id(spot)] = spot
                self._matched.update(spot.ends)
                is_whole = is_whole or bool(spot.ends)
                if spot.deep is not None:
                    found.append(spot.deep)
        return MatchState(tuple(spots.values()), is_whole)

    def _add(self, pattern: bytes, names: list[bytes], *, globs: bool) -> None:
        spot = self._root
        for name in names:
            spot = _way(spot, name, globs=globs)
        spot.ends.append(len(self._patterns))
        self._patterns.append(pattern)


def _way(spot: _PatternNode, name: bytes, *, globs: bool) -> _PatternNode:
    """Returns where a name of a pattern leads from a position; adds that if it is missing."""
    if not (globs and is_glob(name)):
        return spot.below.setdefault(name, _PatternNode())
    if name == _DEEP:
        if spot.is_deep:
            return spot
        spot.deep = spot.deep or _PatternNode(is_deep=True)
        return spot.deep
    if name not in spot.globs:
        pattern = translate(name.decode("latin-1")).encode("latin-1")
        spot.globs[name] = re.compile(pattern, re.DOTALL), _PatternNode()
    return spot.globs[name][1]


def common_directory(patterns: Iterable[bytes]) -> bytes:
    """Returns the deepest path that all patterns lie at or below; b"" for the root."""
    common: list[bytes] | None = None
    for pattern in patterns:
        names: list[bytes] = []
        for name in split_path(pattern):
            if is_glob(name):
                break
            names.append(name)
        if common is None:
            common = names
        else:
            same = 0
            while same < min(len(common), len(names)) and common[same] == names[same]:
                same += 1
            common = common[:same]
    return b"/".join(common or [])
