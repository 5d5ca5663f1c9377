"""Sends log lines to systemd's journal, with fields and priorities, by its native protocol.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL: one datagram for each line, or a sealed memory file if
it is large. Lines that cannot be sent in time are counted, and the next line reports the count: a
journal that hangs loses log lines, but blocks no reads.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import socket
import struct
import syslog
from collections.abc import Iterable, Mapping
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
SEND_TIMEOUT_S = 0.05
NAME_CHARS_MAX = 64  # of a field name; journald drops longer ones
PREFIX = "LODEFS_"
ERROR, WARNING = syslog.LOG_ERR, syslog.LOG_WARNING
_STDERR = 2
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_PRIORITIES = (
    (logging.CRITICAL, syslog.LOG_CRIT),
    (logging.ERROR, syslog.LOG_ERR),
    (logging.WARNING, syslog.LOG_WARNING),
    (logging.INFO, syslog.LOG_INFO),
)
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def is_stderr(environ: Mapping[str, str], fd: int = _STDERR) -> bool:
    """Whether standard error goes to the journal (JOURNAL_STREAM of systemd.exec(5))."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def marked(text: str, priority: int) -> str:
    """Adds the priority to lines for a standard error that goes to the journal (sd-daemon(3))."""
    return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


def priority_of(level: int) -> int:
    """Returns syslog's priority (RFC 5424) for a level of ``logging``."""
    return next((one for least, one in _PRIORITIES if level >= least), syslog.LOG_DEBUG)


def encode(fields: Iterable[tuple[str, object]]) -> bytes:
    """Returns the fields as one message; invalid names are corrected."""
    return b"".join(_line(_field_name(name), _bytes_of(value)) for name, value in fields)


def _line(name: str, value: bytes) -> bytes:
    if b"\n" in value:
        return b"%b\n%b%b\n" % (name.encode(), struct.pack("<Q", len(value)), value)
    return b"%b=%b\n" % (name.encode(), value)


def _field_name(name: str) -> str:
    """Returns a name in capitals, digits and underscores. The journal reserves a leading
    underscore."""
    return re.sub(r"[^A-Z0-9_]", "_", name.upper()).lstrip("_0123456789")[:NAME_CHARS_MAX] or "X"


def _bytes_of(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")


class Journal:
    """Sends messages. For any thread, and after forks."""

    def __init__(self, identifier: str, path: Path = SOCKET) -> None:
        """``identifier`` is the tag for ``journalctl -t``. Raises: OSError if there is no
        journal."""
        self._identifier = identifier
        self.lost = 0  # lines since the last one that was sent
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SEND_TIMEOUT_S)
        self._path = os.fspath(path)
        try:
            self._socket.connect(self._path)
        except OSError:
            self._socket.close()
            raise

    def send(self, text: str, priority: int, fields: Mapping[str, object] | None = None) -> None:
        """Sends one line with its fields, whose names are those of the journal. Raises nothing."""
        lost = self.lost
        message = [
            ("MESSAGE", text),
            ("PRIORITY", priority),
            ("SYSLOG_IDENTIFIER", self._identifier),
            *(fields or {}).items(),
            *([(f"{PREFIX}LOST_LINES", lost)] if lost else []),
        ]
        try:
            self._send(encode(message))
        except OSError:
            self.lost += 1
        else:
            self.lost -= lost

    def _send(self, message: bytes) -> None:
        try:
            self._socket.send(message)
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ENOBUFS):
                self._send_as_file(message)
            elif error.errno in (errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET):
                self._socket.connect(self._path)  # journald was restarted
                self._socket.send(message)
            else:
                raise

    def _send_as_file(self, message: bytes) -> None:
        fd = os.memfd_create("lodefs-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(fd, "wb") as file:
            file.write(message)
            file.flush()
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(self._socket, [b""], [fd])

    def close(self) -> None:
        self._socket.close()


class JournalHandler(logging.Handler):
    """Sends records of the standard loggers, with level, place and ``extra`` as fields of the
    journal: ``extra={"pack": ID}`` becomes LODEFS_PACK=ID."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._journal.send(self.format(record), priority_of(record.levelno), fields_of(record))
        except Exception:  # noqa: BLE001 - as logging's own handlers: reported, and no more
            self.handleError(record)


def extras_of(record: logging.LogRecord) -> dict[str, object]:
    """Returns what ``extra`` of the logging call, and filters, gave to a record."""
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Returns the fields of a record besides its message."""
    extras = {f"{PREFIX}{name}": value for name, value in extras_of(record).items()}
    return {
        "CODE_FILE": record.pathname,
        "CODE_LINE": record.lineno,
        "CODE_FUNC": record.funcName,
        f"{PREFIX}LOGGER": record.name,
        **extras,
    }
