"""Reloads the tokens and certificates of all endpoints when their files change. It never does so on
the event loop, which a slow disk would block."""

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
    """Watches the endpoints' files of tokens and certificates, from ``start`` to ``close``."""

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
        """Reads what has changed, and voids what the fast path learned before. An unreadable file
        does not keep others from being read."""
        for certificate in self._certificates:
            if await self._changed(certificate.refresh, "the certificate stays unchanged"):
                _log.info("new connections get the new certificate")
        for book, endpoints in self._endpoints.items():
            changed = await self._changed(book.reload, "the tokens stay unchanged")
            if changed or book.taken.digest != self._taken[book].digest:
                for endpoint in endpoints:
                    endpoint.blocks.clear()
            self._taken[book] = book.taken

    @property
    def taken(self) -> list[TokensTaken]:
        """Returns, for each tokens file, whose tokens are accepted now."""
        return list(self._taken.values())

    async def _changed(self, read: Callable[[], bool], otherwise: str) -> bool:
        """Returns the result of ``read``; False after any error, since the watch must not end."""
        try:
            return await self._pool.run(read)
        except LodefsError as error:
            _log.error("%s: %s", otherwise, error)
        except Exception:  # noqa: BLE001 - a deleted token would stay valid
            _log.exception("%s", otherwise)
        return False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look()
