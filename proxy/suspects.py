"""Looking at cache files that somebody found damaged (``lodefs verify --cache --repair``)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from chunkstore.cacheverify import check_file
from chunkstore.errors import LodefsError
from chunkstore.suspects import settle, suspects
from proxy.cache import Cache
from proxy.eviction import Evictor

log = logging.getLogger("lodefs.cache")


def settle_all(cache: Cache, evictor: Evictor, *, stopping: Callable[[], bool]) -> list[int]:
    """Checks every file that is suspected, and drops those that are damaged; their numbers.

    Their bytes are fetched again when they are wanted.
    """
    dropped = []
    try:
        for number in suspects(cache.settings.path):
            if stopping():
                break
            file = cache.files.get(number)
            if file is not None:
                checked = check_file(cache.kv, cache.settings.path, number, file.row)
                if checked.damages:
                    evictor.drop(file, checked.damages[0].what)
                    dropped.append(number)
            settle(cache.settings.path, number)
    except (OSError, LodefsError) as error:
        log.warning("suspected files of %s are not looked at: %s", cache.settings.path, error)
    return dropped
