"""Running the proxy as a process: logs, signals, the event loop, from start to stop."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal

from chunkstore.openfiles import raise_limit
from proxy.config import Config


def main(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then end what runs and return.

    Raises errors.py's classes where the proxy cannot start; the caller shows them.
    """
    import uvloop  # here, with what app.py needs: --help must be fast

    from proxy.app import serve
    from proxy.logs import configure_logs

    faulthandler.enable()  # a watchdog's SIGABRT shows where each thread is
    configure_logs(config.log_level, config.log_format)
    raise_limit("a proxy")

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await serve(config, stop, environ=os.environ)

    uvloop.run(run())
