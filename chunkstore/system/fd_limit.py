"""The limit on the open files of a process: RLIMIT_NOFILE, getrlimit(2)."""

from __future__ import annotations

import resource
import sys
from typing import NamedTuple

from lodefs.chunkstore.errors import Unavailable

FILES_MIN = 256  # for a proxy or a mount: its index, connections and the cache's files
CACHE_FILES_MAX = 512  # that a proxy has open at a time
INDEX_FILES_MAX = 512
PEER_SOCKETS_MAX = 400  # of a node in a cluster: kept connections to the others, and probes
OTHERS_MIN = 64  # logs, listeners, pipes, new files


class DescriptorShares(NamedTuple):
    """The largest number of descriptors that a proxy uses for each purpose."""

    connections: int  # of clients and nodes, over all listeners
    cache_files: int
    index_files: int
    peer_sockets: int  # besides those for fetches


def shares(
    limit: int, *, fetches_max: int, in_cluster: bool = False, data_sockets: int = 0
) -> DescriptorShares:
    """Splits a limit of open files into a proxy's shares, whose sum stays below it.

    Each fetch has a connection to the store and perhaps one to another node; ``data_sockets`` lead
    to data processes. If the limit is low, the cache's files, the index and, in a cluster, sockets
    to the others get a quarter of the rest each, and connections get what is left.
    """
    fetching = min(2 * fetches_max, limit // 4) + min(data_sockets, limit // 8)
    rest = max(limit - OTHERS_MIN - fetching, 0)
    cache_files = min(CACHE_FILES_MAX, rest // 4)
    index_files = min(INDEX_FILES_MAX, rest // 4)
    peer_sockets = min(PEER_SOCKETS_MAX, rest // 4) if in_cluster else 0
    connections = rest - cache_files - index_files - peer_sockets
    return DescriptorShares(connections, cache_files, index_files, peer_sockets)


def limit() -> int:
    """Returns how many files this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_limit(who: str) -> None:
    """Raises the limit of this process as far as allowed. Raises: Unavailable if that is too low
    for ``who``, rather than failing later within a read."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        raise Unavailable(f"the limit of open files is {hard} (ulimit -n): {who} needs {FILES_MIN}")
