"""The tokens and certificates of all endpoints, read again when their files change; never on the
event loop, which a file on a slow disk would hold up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from lodefs.chunkstore.errors import LodefsError
from lodefs.proxy.http.endpoint import Endpoint
from lodefs.proxy.http.tokens import TokenBook, TokensTaken
from lodefs.proxy.runtime.thread_pools import Pool

INTERVAL_S = 1.0
_log = logging.getLogger("lodefs.proxy")


class TokenWatch:
    """Looks after the endpoints' files of tokens and certificates, from ``start`` to ``close``."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints: dict[TokenBook, list[Endpoint]] = {}
        for endpoint in endpoints:
            if endpoint.tokens is not None:
                self._endpoints.setdefault(endpoint.tokens, []).append(endpoint)
        self._taken = {book: book.taken for book in self._endpoints}
        certificates = (endpoint.certificate for endpoint in endpoints)
        self._certificates = {one for one in certificates if one is not None}
        self._pool = Pool("tokens", threads=1)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._endpoints or self._certificates:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._pool.close(0)

    async def look(self) -> None:
        """Read what has changed. What the fast path learnt by then holds no more. A file that
        cannot be read keeps no other from being read, now and later."""
        for certificate in self._certificates:
            if await self._changed(certificate.refresh, "the certificate stays as it was"):
                _log.info("new connections are shown the new certificate")
        for book, endpoints in self._endpoints.items():
            changed = await self._changed(book.reload, "the tokens stay as they were")
            if changed or book.taken.digest != self._taken[book].digest:
                for endpoint in endpoints:
                    endpoint.blocks.clear()
            self._taken[book] = book.taken

    @property
    def taken(self) -> list[TokensTaken]:
        """Whose tokens are let in now, for each tokens file."""
        return list(self._taken.values())

    async def _changed(self, read: Callable[[], bool], otherwise: str) -> bool:
        """What ``read`` says; False where it fails, however it does: the watch must not end."""
        try:
            return await self._pool.run(read)
        except LodefsError as error:
            _log.error("%s: %s", otherwise, error)
        except Exception:  # noqa: BLE001 - a deleted token would be good for ever
            _log.exception("%s", otherwise)
        return False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look()
