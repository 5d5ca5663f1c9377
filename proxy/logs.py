"""How the proxy's log looks: what the standard loggers say, as JSON or for a console, on stderr.

Modules log through ``logging``; structlog only forms the lines.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor


def configure_logs(level: str, form: str) -> None:
    """Set up logging for this process: ``level`` is "debug", "info", ...; ``form`` is "json" (one
    object a line) or "console"."""
    number = getattr(logging, level.upper())
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: Processor = structlog.processors.JSONRenderer()
    if form == "console":
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    logging.getLogger("botocore").setLevel(max(number, logging.WARNING))
    logging.getLogger("aiohttp").setLevel(max(number, logging.WARNING))
