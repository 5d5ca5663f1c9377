"""``lodefs verify --cache``: which cache to check, and how a damaged file leaves it.

If a proxy owns the cache, it is asked to drop the files; otherwise this process owns the cache
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from lodefs.chunkstore.errors import InUse, LodefsError
from lodefs.chunkstore.nodecache import damage_reports
from lodefs.settings.session import Session

SETTLE_TIMEOUT_S = 120.0  # a proxy looks every 30 s
POLL_S = 0.2


def cache_dir(session: Session) -> Path:
    """The cache of the running proxy, else of the settings, else of the user's own proxy."""
    from lodefs.proxies.own_proxy import ask, own_proxy, running_proxy
    from lodefs.proxy.config import CACHE_DIR_DEFAULT

    try:
        node = ask(running_proxy(session), "/status", session.environment.get("LODEFS_TOKEN"))
        figures = node.get("node")
        if isinstance(figures, dict) and isinstance(figures.get("cache"), str):
            return Path(figures["cache"])
    except LodefsError:
        pass  # no proxy runs, and none is needed
    configured = Path(str(session.config.serve.get("cache_dir", CACHE_DIR_DEFAULT)))
    if not configured.exists() and session.has_store:
        own = own_proxy(session.home_cache(), session.store_url).directory / "cache"
        if own.exists():
            return own
    return configured


def repair(
    directory: Path,
    numbers: Collection[int],
    *,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Has damaged files dropped; False if the proxy did not do so within SETTLE_TIMEOUT_S.

    Raises: Denied, NoSpace, Corrupt.
    """
    damage_reports.report_damage(directory, numbers)
    deadline_s = clock_s() + SETTLE_TIMEOUT_S
    while left := set(damage_reports.reported_files(directory)) & set(numbers):
        if clock_s() >= deadline_s:
            return False
        try:
            _check_reported(directory)
        except InUse:  # by the proxy, or by another command that does the same
            sleep(POLL_S)
    return not left


def _check_reported(directory: Path) -> None:
    from lodefs.proxy.cache.chunk_cache import Cache
    from lodefs.proxy.cache.recovery import check_reported
    from lodefs.proxy.cache.tables import CacheSettings
    from lodefs.proxy.runtime.counters import Counts

    cache = Cache(CacheSettings(directory, size_bytes_max=1 << 62), Counts())
    try:
        check_reported(cache, stopping=lambda: False)
    finally:
        cache.close()
