"""Readers that check every byte, for tests of what happens meanwhile."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

READ_BYTES = 5000


class Load:
    """``readers`` threads read a file, of which ``data`` is the content, past the page cache.

    ``wrong`` collects what went wrong: errors, and places where other bytes came. With
    ``pass_over`` that says True of an error, reading goes on.
    """

    def __init__(
        self,
        path: Path,
        data: bytes,
        *,
        readers: int = 4,
        pass_over: Callable[[OSError], bool] = lambda _error: False,
    ) -> None:
        self._path = path
        self._data = data
        self._pass_over = pass_over
        self._over = Event()
        self._threads = [Thread(target=self._run, args=(seed,)) for seed in range(readers)]
        self.reads = [0] * readers
        self.wrong: list[object] = []
        self.longest_s = 0.0  # of one read

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def everyone_read(self) -> Callable[[], bool]:
        """A condition: each reader has finished two reads since this call, or something is wrong.

        So one of them began after it.
        """
        before = list(self.reads)
        return lambda: (
            bool(self.wrong)
            or all(now >= then + 2 for now, then in zip(self.reads, before, strict=True))
        )

    def _run(self, seed: int) -> None:
        places = random.Random(seed)
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            self.wrong.append(error)
            return
        try:
            while not self._over.is_set():
                self._read(fd, places.randrange(len(self._data)))
                self.reads[seed] += 1
        except OSError as error:
            self.wrong.append(error)
        finally:
            os.close(fd)

    def _read(self, fd: int, first: int) -> None:
        start_s = time.monotonic()
        try:
            got = os.pread(fd, READ_BYTES, first)
        except OSError as error:
            if not self._pass_over(error):
                raise
            return
        self.longest_s = max(self.longest_s, time.monotonic() - start_s)
        if got != self._data[first : first + READ_BYTES]:
            self.wrong.append(first)
