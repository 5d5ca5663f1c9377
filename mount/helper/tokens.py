"""The token that a volume's options refer to. It is read when it is needed, and never kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.helper.interface import Source

TOKEN_BYTES_MAX = 16384


def read_token(
    source: Source, environ: Mapping[str, str], log: Callable[[str], None]
) -> str | None:
    """Returns the token for a volume's proxy; None if its options name none.

    Raises: InvalidInput, which names the file or the variable, never its content. ``log`` is called
    for a file that everybody can read.
    """
    if source.token_file:
        what = f"token_file {source.token_file}"
        return _checked(_file(source.token_file, what, log), what)
    if source.token_env:
        what = f"token_env {source.token_env}"
        if source.token_env not in environ:
            raise InvalidInput(f"{what}: the plugin's environment has no such variable")
        return _checked(os.fsencode(environ[source.token_env]), what)
    return None


def _file(path: str, what: str, log: Callable[[str], None]) -> bytes:
    if not os.path.isabs(path):
        raise InvalidInput(f"{what}: the path must be absolute")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a path"
        raise InvalidInput(f"{what} cannot be read: {reason}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{what} is not a regular file")
        if found.st_mode & 0o004:
            log(f"{what} can be read by everybody on this machine: chmod 600 {path}")
        return os.read(fd, TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"{what} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)


def _checked(data: bytes, what: str) -> str:
    """Checks that a token is one line of visible ASCII, as an HTTP header needs it."""
    token = data.strip()
    if not token:
        raise InvalidInput(f"{what} is empty")
    if len(data) > TOKEN_BYTES_MAX or not all(0x21 <= byte <= 0x7E for byte in token):
        raise InvalidInput(f"{what} holds no token: a token is one line without blanks")
    return token.decode("ascii")
