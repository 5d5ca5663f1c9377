"""Maps OSError of local files to errors of lodefs. The caller decides how to recover."""

from __future__ import annotations

import errno

from lodefs.chunkstore.errors import Denied, NoSpace, Unavailable

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
# Errors of reads which say that the file is missing, that something else has its name, that it may
# not be read, or that the disk has lost its bytes. All others (no descriptors, no memory) say
# nothing about it. Direct reads return ENODATA and EILSEQ for a bad sector; EUCLEAN and EBADMSG
# come from a file system's own checksums.
DAMAGED = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ESTALE,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.ENODATA,
        errno.EILSEQ,
        errno.EUCLEAN,
        errno.EBADMSG,
    )
)


def kind_of(error: OSError) -> type[NoSpace | Denied | Unavailable]:
    """Returns NoSpace, Denied or, for all else, Unavailable: retrying may help."""
    if error.errno in FULL:
        return NoSpace
    if error.errno in DENIED:
        return Denied
    return Unavailable
