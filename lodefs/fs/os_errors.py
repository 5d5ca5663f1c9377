"""Turns errors of lodefs into the OSErrors that programs expect of files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError
from lodefs.reading.snapshot import READ_ONLY

F = TypeVar("F", bound=Callable[..., Any])

# The first class that matches counts, so a subclass stands before its base. OSError picks the
# class that belongs to a number: FileNotFoundError for ENOENT.
_NUMBERS: tuple[tuple[type[LodefsError], int], ...] = (
    (errors.NotADirectory, errno.ENOTDIR),
    (errors.NotFound, errno.ENOENT),
    (errors.Denied, errno.EACCES),
    (errors.InvalidInput, errno.EINVAL),
    (errors.DeadlineExceeded, errno.ETIMEDOUT),
    (errors.Unavailable, errno.EAGAIN),
    (errors.NoSpace, errno.ENOSPC),
    (errors.Conflict, errno.ESTALE),
)


def os_error(error: LodefsError, path: str | None = None) -> OSError:
    """Returns the OSError for an error of lodefs, with its message."""
    number = next((number for kind, number in _NUMBERS if isinstance(error, kind)), errno.EIO)
    if isinstance(error, errors.Unavailable) and number == errno.EAGAIN:
        return ConnectionError(number, str(error), path)
    return OSError(number, str(error), path)


def raising_os_errors(function: F) -> F:
    """Makes a method raise OSErrors."""

    @wraps(function)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except LodefsError as error:
            path = next((one for one in args[1:2] if isinstance(one, str)), None)
            raise os_error(error, path) from error

    return translated  # type: ignore[return-value]


def read_only(path: Any) -> NoReturn:
    """Raises: OSError with EROFS, whose message says how to write."""
    raise OSError(errno.EROFS, READ_ONLY, str(path))
