"""Fetches repositories that the store lacks from the hub in the settings, once for the whole site.

The owner of a repository, by rendezvous hashing as for packs, fetches it in a process of its own;
the other nodes ask that node until it has ended. The store then has it for everybody.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol.hub_fetch import FetchOrder, HubOrder, HubOutcome
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.runtime.shared_tasks import SharedTasks

log = logging.getLogger("lodefs.hub")

FETCHES_MAX = 2  # at once, of one node
FETCH_S_MAX = 24 * 3600.0
ASK_EVERY_S = 1.0
ENDED_MAX = 1024
ENDED_S = 60.0  # how long an outcome is told again
LINE_BYTES_MAX = 1 << 16
_COMMAND = python_process.command("lodefs.chunkstore.push.remote.hub_fetch")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """The hub, and the store that fetches go to. ``token_file`` has the site's token for it, if it
    has one; no client's is ever sent. ``directory`` is where the process keeps its push index."""

    url: str
    store: str
    endpoint_url: str | None
    region: str | None
    directory: Path
    token_file: Path | None
    size_bytes_max: int


class OwnerNodes(Protocol):
    """The other nodes, of which one owns each fetch."""

    def owner(self, key: bytes) -> str | None:
        """Returns the address of the node that owns a key; None if it is this one."""

    async def fetch_hub(self, address: str, order: HubOrder) -> HubOutcome:
        """Makes that node fetch, and returns the progress. Raises: Unavailable, Denied,
        NotFound."""


class HubUpstream:
    """Implements proxy.node.Upstream. For use on the event loop only."""

    def __init__(
        self,
        settings: UpstreamSettings,
        nodes: OwnerNodes | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._nodes = nodes
        self._clock_s = clock_s
        self._asking: SharedTasks[HubOrder, HubOutcome] = SharedTasks()
        self._ended: Lru[HubOrder, tuple[float, HubOutcome]] = Lru(ENDED_MAX)
        self._told: dict[HubOrder, HubOutcome] = {}
        self._places = asyncio.Semaphore(FETCHES_MAX)
        self._tasks: dict[HubOrder, asyncio.Task[HubOutcome]] = {}  # fetches of this node

    async def fetch(self, order: HubOrder) -> HubOutcome:
        return await self._asking.run(order, lambda: self._by_owner(order))

    def begin(self, order: HubOrder) -> HubOutcome:
        until_s, ended = self._ended.get(order) or (0.0, None)
        if ended is not None and self._clock_s() < until_s:
            return ended
        if order not in self._tasks:
            self._tasks[order] = task = asyncio.create_task(self._fetch(order))
            task.add_done_callback(lambda _: self._tasks.pop(order))
        return self._told.get(order) or HubOutcome("running")

    async def close(self) -> None:
        """Ends the fetches of this node."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _by_owner(self, order: HubOrder) -> HubOutcome:
        nodes = self._nodes
        owner = nodes.owner(digest_of(order.repo.encode())) if nodes is not None else None
        try:
            while nodes is not None and owner is not None:
                outcome = await nodes.fetch_hub(owner, order)
                if outcome.state != "running":
                    return outcome
                await asyncio.sleep(ASK_EVERY_S)
        except (Unavailable, Denied, NotFound) as error:
            log.warning("node %s does not fetch %s: %s", owner, order.repo_url, error)
        outcome = self.begin(order)
        task = self._tasks.get(order)
        return outcome if task is None else await asyncio.shield(task)

    async def _fetch(self, order: HubOrder) -> HubOutcome:
        """Fetches, and remembers the outcome for a while."""
        shown = f"{order.repo_url}@{order.rev}"
        log.info("fetching %s from %s", shown, self._settings.url)
        try:
            async with self._places, asyncio.timeout(FETCH_S_MAX):
                outcome = await self._run(order)
        except TimeoutError:
            outcome = HubOutcome("failed", f"the fetch took more than {FETCH_S_MAX:g} s")
        except OSError as error:
            outcome = HubOutcome("failed", f"no process can be started: {error}")
        finally:
            self._told.pop(order, None)
        level = logging.INFO if outcome.state == "done" else logging.WARNING
        log.log(level, "%s: %s: %s", shown, outcome.state, outcome.message)
        self._ended.put(order, (self._clock_s() + ENDED_S, outcome))
        return outcome

    async def _run(self, order: HubOrder) -> HubOutcome:
        settings = self._settings
        whole = FetchOrder(
            order,
            settings.store,
            settings.endpoint_url,
            settings.region,
            str(settings.directory / "push-index"),
            settings.size_bytes_max,
        )
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(os.environ, settings),
            cwd="/",
            limit=LINE_BYTES_MAX,
        )
        assert process.stdin is not None and process.stdout is not None
        last = HubOutcome("failed", "the process that fetches has ended without an outcome")
        try:
            process.stdin.write(msgspec.json.encode(whole))
            process.stdin.close()
            async for line in process.stdout:
                last = from_json(line, HubOutcome)
                if last.state == "running":
                    self._told[order] = last
                    log.info("%s@%s: %s", order.repo_url, order.rev, last.message)
            await process.wait()
        except (InvalidInput, ValueError) as error:
            return HubOutcome(
                "failed", f"the output of the process that fetches is malformed: {error}"
            )
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return last if last.state != "running" else HubOutcome("failed", "the process was killed")


def _environment(environ: Mapping[str, str], settings: UpstreamSettings) -> dict[str, str]:
    """Returns the environment of the process: that of the proxy, but no token and no settings of
    Hugging Face except ours."""
    kept = python_process.environment(environ)
    kept = {name: value for name, value in kept.items() if not name.startswith(("HF_", "FSSPEC_"))}
    kept.pop("HUGGING_FACE_HUB_TOKEN", None)
    token = settings.token_file or settings.directory / "no-token"
    return kept | {
        "HF_ENDPOINT": settings.url,
        "HF_TOKEN_PATH": str(token),
        "HF_HOME": str(settings.directory / "hf-home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "FSSPEC_CONFIG_DIR": str(settings.directory / "no-settings"),
    }
