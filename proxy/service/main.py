"""Running the proxy as a process: logs, signals, the event loop, from start to stop."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal

from lodefs.chunkstore.system.fd_limit import raise_limit
from lodefs.proxy.config import Config

# New objects before a search for garbage. A cold read makes many objects and hardly a cycle, so the
# search is a waste of time (docs/decisions/0115-the-write.md).
YOUNG_MAX = 10_000


def main(config: Config) -> None:
    """Serves until SIGTERM or SIGINT, then ends what runs and returns. If calls to the store hang,
    the process ends here. Raises: errors.py's classes if the proxy cannot start; the caller shows
    them."""
    import uvloop  # here, with what app.py imports, since --help must be fast

    from lodefs.proxy.runtime.thread_pools import calls_left
    from lodefs.proxy.service.app import serve
    from lodefs.proxy.service.logs import configure_logs

    faulthandler.enable()  # a watchdog's SIGABRT shows where each thread is
    configure_logs(config.log_level, config.log_format)
    raise_limit("a proxy")
    gc.freeze()  # what was imported stays, and is searched no more
    gc.set_threshold(YOUNG_MAX, *gc.get_threshold()[1:])

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await serve(config, stop, environ=os.environ)

    uvloop.run(run())
    if calls_left():  # a store hangs: the cache is closed, and nothing waits for these calls
        logging.shutdown()
        os._exit(0)
