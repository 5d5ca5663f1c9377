"""What a local file system's refusal to write means. What to do about it say those who know whose
file it was."""

from __future__ import annotations

import errno

from chunkstore.errors import Denied, NoSpace, Unavailable

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def kind_of(error: OSError) -> type[NoSpace | Denied | Unavailable]:
    """NoSpace, Denied, or, for all else, Unavailable: trying again may help."""
    if error.errno in FULL:
        return NoSpace
    if error.errno in DENIED:
        return Denied
    return Unavailable
