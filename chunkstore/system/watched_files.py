"""A value loaded from files, reloaded when one of them changes. The last good value stays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from lodefs.chunkstore.errors import LodefsError

T = TypeVar("T")

Stamp = tuple[int, int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Returns a value that changes when a file is written, replaced or gets other rights; None
    without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


class WatchedFiles(Generic[T]):
    """The value that ``load`` makes of some files. Any thread may read ``value``."""

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], T],
        log: logging.Logger,
        *,
        initial: T | None = None,
    ) -> None:
        """``initial`` is the value until a refresh finds good files; None: they are read now, and
        errors of ``load`` are raised."""
        self._paths = paths
        self._load = load
        self._log = log
        self._seen: list[Stamp | None] | None = None
        if initial is None:
            self._seen = self._stamps()  # before reading, so that later writes are noticed
            self.value = load()
        else:
            self.value = initial

    def refresh(self) -> bool:
        """Checks the files again. Returns whether there is a new value. Blocks for the disk.

        Unusable files are logged once, and the value stays as it is.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.value = self._load()
        except LodefsError as error:
            self._log.warning("the previous content stays in use: %s", error)
            return False
        return True

    def _stamps(self) -> list[Stamp | None]:
        return [stamp_of(path) for path in self._paths]
