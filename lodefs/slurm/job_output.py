"""Appends lines to a job's output for its user, with the user's own rights."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from lodefs.chunkstore.errors import InvalidInput
from lodefs.slurm.user_process import opened_by


def append_lines(uid: int, path: str, lines: Sequence[str]) -> None:
    """Appends lines to an existing file. Raises: InvalidInput if the user could not do so, if it is
    not a regular file, or if its file system does not answer."""
    text = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")

    def append(path: str) -> int:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(path, flags)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidInput(f"{path} is not a regular file")
            os.write(fd, text)
            os.close(fd)
            # Root gets a descriptor of something else: closing the file asks its file system
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidInput(f"{path}: {error.strerror}") from error

    os.close(opened_by(uid, path, append))
