"""The logs of a service: sends records of the standard loggers to the journal, or as lines to
stderr.

Modules log through ``logging``; structlog only formats the lines.
"""

from __future__ import annotations

import logging
import os
import sys

import structlog
from structlog.typing import Processor

from lodefs.chunkstore.errors import Unavailable
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
    return _lines(colours=form == "console")


def _lines(*, colours: bool) -> logging.Handler:
    """Returns a handler for lines on stderr: readable with ``colours``, otherwise JSON."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: Processor = structlog.processors.JSONRenderer()
    if colours:
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    return handler
