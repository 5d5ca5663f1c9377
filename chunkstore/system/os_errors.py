"""Maps OSError of local files to lodefs errors. The caller decides how to recover."""

from __future__ import annotations

import errno

from lodefs.chunkstore.errors import Denied, NoSpace, Unavailable

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
# Reading: the file is not there, or the disk has lost its bytes. All else (no descriptors, no
# memory, no right to read) says nothing about the file. ENODATA and EILSEQ are what direct reads
# return for a bad sector; EUCLEAN and EBADMSG are a file system's own checksums.
DAMAGED = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ESTALE,
        errno.EIO,
        errno.ENODATA,
        errno.EILSEQ,
        errno.EUCLEAN,
        errno.EBADMSG,
    )
)


def kind_of(error: OSError) -> type[NoSpace | Denied | Unavailable]:
    """Raises: NoSpace, Denied or, for all else, Unavailable: trying again may help."""
    if error.errno in FULL:
        return NoSpace
    if error.errno in DENIED:
        return Denied
    return Unavailable
