"""The log of a mount's processes: a file, syslog, standard error or the journal."""

from __future__ import annotations

import os
import sys
import syslog
import time
from collections.abc import Callable
from contextlib import suppress

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.safe_open import open_plain
from lodefs.chunkstore.system.safe_text import escaped
from lodefs.mount.kernel import mountpoints

IDENTIFIER = "lodefs-mount"  # of lines in the journal

Log = Callable[[str], None]


class Logs:
    """The log of a background mount process. It drops lines until it is redirected: until then the
    requester gets errors."""

    def __init__(self) -> None:
        self.log: Log = lambda _text: None

    def redirect(self, log_path: str) -> None:
        """Redirects standard input and output to nowhere, and standard error to the log file.

        Raises: InvalidInput.
        """
        self.log = _redirect(log_path)


def say_to_stderr(text: str) -> None:
    """Writes a line for a log file or a terminal."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    sys.stderr.write(f"{stamp} lodefs mount[{os.getpid()}] {escaped(text)}\n")
    sys.stderr.flush()


def say_in_foreground(mountpoint: str) -> Log:
    """Logs for a process of a service, or on a terminal: to the journal if standard error goes
    there."""
    from lodefs.chunkstore.system.systemd import (
        journald,  # here: mounts in the background need none of it
    )

    if journald.is_stderr(os.environ):
        with suppress(OSError):
            sender = journald.Journal(IDENTIFIER)
            fields = {"LODEFS_MOUNTPOINT": mountpoint}
            return lambda text: sender.send(text, journald.WARNING, fields)
    return say_to_stderr


def _say_to_syslog(text: str) -> None:
    syslog.syslog(syslog.LOG_WARNING, escaped(text))


def _redirect(log_path: str) -> Log:
    null = os.open(os.devnull, os.O_RDWR)
    if log_path:
        try:
            # A FIFO without a reader is an error, and must not block.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
            log = open_plain(mountpoints.real(log_path), flags, 0o640)
            os.set_blocking(log, True)
        except OSError as error:
            raise InvalidInput(
                f"{log_path}: the log cannot be written: {error.strerror}"
            ) from error
    else:
        log = null
        syslog.openlog("lodefs mount", syslog.LOG_PID, syslog.LOG_DAEMON)
    for target, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, target)
    for fd in {null, log} - {0, 1, 2}:
        os.close(fd)
    return say_to_stderr if log_path else _say_to_syslog
