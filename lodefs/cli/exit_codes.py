"""Exit codes of the command line: one table from error classes to numbers."""

from __future__ import annotations

import errno

from lodefs.chunkstore import errors

OK = 0
FAILURE = 1  # any other error; also "the two differ" and "problems found"
USAGE = 2  # a bad option, name, setting or other input
INTERRUPTED = 130  # 128 + SIGINT, as in shells

# The first class that matches counts, so a subclass stands before its base.
CODES: tuple[tuple[type[errors.LodefsError], int], ...] = (
    (errors.InvalidInput, USAGE),
    (errors.NotFound, 3),
    (errors.AlreadyExists, 4),
    (errors.Conflict, 5),
    (errors.Denied, 6),
    (errors.Unavailable, 7),
    (errors.Changed, 7),
    (errors.Corrupt, 8),
    (errors.Purged, 8),
    (errors.UnknownFormat, 9),
    (errors.NoSpace, 10),
    (errors.InUse, 11),
    (errors.Unsupported, 12),
    (errors.SourceChanged, 13),
    (errors.TooManyRemovals, 14),
    (errors.Diverged, 15),
)


def code_of(error: BaseException) -> int:
    """Returns the exit code for an error: its number in CODES, or FAILURE."""
    return next((code for kind, code in CODES if isinstance(error, kind)), FAILURE)


def code_of_os(error: OSError) -> int:
    """Returns the exit code for an untranslated error of the local file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 10
    if error.errno in (errno.EACCES, errno.EPERM):
        return 6
    return FAILURE
