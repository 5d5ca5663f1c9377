"""The logs of a service: sends records of the standard loggers to the journal, or as lines to
stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.safe_text import escaped
from lodefs.chunkstore.system.systemd import journald
from lodefs.chunkstore.system.systemd.journald import Journal, JournalHandler
from lodefs.proxy.tracing.request_scope import RequestFields


def configure_logs(level: str, form: str, *, identifier: str = "lodefs-proxy") -> None:
    """Sets up logging for this process. ``level`` is "debug", "info", ...; ``form`` is "journald",
    "json" (one object a line), "console", or "auto": journald if stderr goes there, otherwise json.

    ``identifier`` names the lines in the journal. Raises: Unavailable if there is no journal.
    """
    number = getattr(logging, level.upper())
    root = logging.getLogger()
    handler = _handler(form, identifier)
    handler.addFilter(RequestFields())
    root.handlers[:] = [handler]
    root.setLevel(number)
    logging.getLogger("botocore").setLevel(max(number, logging.WARNING))
    logging.getLogger("aiohttp").setLevel(max(number, logging.WARNING))


def _handler(form: str, identifier: str) -> logging.Handler:
    if form == "journald" or (form == "auto" and journald.is_stderr(os.environ)):
        try:
            return JournalHandler(Journal(identifier, journald.SOCKET))
        except OSError as error:
            if form != "auto":
                reason = f"{journald.SOCKET}: {error.strerror}"
                raise Unavailable(f"log_format journald: no journal here ({reason})") from error
    return _lines(ConsoleFormatter() if form == "console" else JsonFormatter())


def _lines(formatter: logging.Formatter) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    return handler


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: ``event`` is its message, and each ``extra`` a key, with "_" if
    the object has that key already. A value that JSON cannot hold is shown as text."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "event": _message_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": _time_of(record).replace("+00:00", "Z"),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        for name, value in journald.extras_of(record).items():
            fields[f"{name}_" if name in fields else name] = value
        try:
            return _json(fields)
        except _NOT_JSON:
            return _json({name: _encodable(value) for name, value in fields.items()})


_NOT_JSON = (TypeError, ValueError, RecursionError)  # odd keys, numbers without a value, cycles


def _json(value: object) -> str:
    return json.dumps(value, default=_shown, allow_nan=False)


def _encodable(value: object) -> object:
    try:
        _json(value)
    except _NOT_JSON:
        return _shown(value)
    return value


def _message_of(record: logging.LogRecord) -> str:
    """Returns the message. If its arguments do not fit it, they stand beside it."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - no line may be lost
        return f"{_shown(record.msg)} {_shown(record.args)}"


def _shown(value: object) -> str:
    """Returns a text for a value, even if its class cannot represent it."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - no line may be lost
        return f"<{type(value).__name__}>"


class ConsoleFormatter(logging.Formatter):
    """A record as a line for people; an exception's traceback follows it. Control characters, which
    names of files may have, are escaped: they could forge lines, or move the cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        extras = "".join(f" {name}={value}" for name, value in journald.extras_of(record).items())
        level = record.levelname.lower()
        line = f"{_time_of(record)} [{level:<8}] {record.message} [{record.name}]{extras}"
        return escaped(line)
