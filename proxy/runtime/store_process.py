"""A process of lodefs that writes into the store for the proxy, so that cutting and compressing
never delay reads. It takes and gives lines of JSON."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping

import msgspec

from lodefs.chunkstore import python_process
from lodefs.chunkstore.protocol.orders.store_place import StorePlace


class StoreProcess:
    """One such process, for the time of a block, whose end kills it. For the event loop."""

    def __init__(
        self,
        command: list[str],
        place: StorePlace,
        line_bytes_max: int,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``environ`` is the environment to make the process's from, by default the proxy's."""
        self._command = command
        self._place = place
        self._line_bytes_max = line_bytes_max
        self._environ = python_process.environment(os.environ if environ is None else environ)

    async def __aenter__(self) -> StoreProcess:
        """Raises: OSError."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environ,
            cwd="/",
            limit=self._line_bytes_max,
        )
        try:
            await self.tell(self._place)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def tell(self, value: object) -> None:
        """Sends a structure. Raises: OSError if the process has ended."""
        self.tell_soon(value)
        assert self._process.stdin is not None
        await self._process.stdin.drain()

    def tell_soon(self, value: object) -> None:
        """Sends a structure without waiting until the process takes it."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")

    async def line(self) -> bytes:
        """Returns the next line; b"" at the end. Raises: ValueError for one that is too long."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields the lines until the process ends."""
        while line := await self.line():
            yield line

    async def end(self) -> int:
        """Waits until the process has ended, and returns its exit code."""
        return await self._process.wait()
