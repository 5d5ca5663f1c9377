"""Looking at cache files that somebody found damaged (``lodefs verify --cache --repair``)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache.damage_reports import settle, suspects
from lodefs.chunkstore.nodecache.verify import check_file, segments_of_files
from lodefs.proxy.cache.chunk_cache import Cache

log = logging.getLogger("lodefs.cache")


class _Interrupted(Exception):
    """The node ends."""


def settle_all(cache: Cache, *, stopping: Callable[[], bool]) -> list[int]:
    """Checks every file that is suspected, and drops those that are damaged; their numbers.

    Their bytes are fetched again when they are wanted. ``stopping`` is asked at each chunk: a file
    that was not read to its end stays suspected.
    """

    def pace(_size_bytes: int) -> None:
        if stopping():
            raise _Interrupted

    dropped = []
    try:
        for number in suspects(cache.settings.path):
            pace(0)
            file = cache.files.get(number)
            if file is not None:
                row = file.row
                segments = segments_of_files(cache.kv, [row])
                checked = check_file(
                    cache.kv, cache.settings.path, number, row, segments, pace=pace
                )
                if checked.damages:
                    cache.eviction.drop(file, checked.damages[0].what)
                    dropped.append(number)
            settle(cache.settings.path, number)
    except _Interrupted:
        log.info("suspected files of %s are looked at after the next start", cache.settings.path)
    except (OSError, LodefsError) as error:
        log.warning("suspected files of %s are not looked at: %s", cache.settings.path, error)
    return dropped
