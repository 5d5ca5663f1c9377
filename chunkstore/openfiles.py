"""How many files a process may have open: RLIMIT_NOFILE, getrlimit(2)."""

from __future__ import annotations

import resource

from chunkstore.errors import Unavailable

FILES_MIN = 256  # for a proxy or a mount: its index, connections and the cache's files


def raise_limit(who: str) -> None:
    """Let this process open as many files as it may. Unavailable where those are too few for
    ``who``: rather now than in the middle of a read."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        raise Unavailable(
            f"only {hard} files may be open here (ulimit -n): {who} needs {FILES_MIN}"
        )
