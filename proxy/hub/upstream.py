"""Fetches repositories that the store lacks from the hub in the settings, once for the whole site.

The owner of a repository, by rendezvous hashing as for packs, fetches it in a process of its own;
the other nodes ask that node how far it is. The store has its listing first, then file after file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol.orders.hub_orders import (
    FetchOrder,
    HubOrder,
    HubOutcome,
    HubRequest,
)
from lodefs.chunkstore.protocol.orders.store_place import StorePlace
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.runtime.shared_tasks import SharedTasks
from lodefs.proxy.runtime.store_process import StoreProcess

log = logging.getLogger("lodefs.hub")

FETCHES_MAX = 4  # at once, of one node
WAITED_FOR_MAX = 4096  # files of one fetch that clients have waited for
TELL_AGAIN_S = 10.0  # that somebody still waits for a file
FETCH_S_MAX = 24 * 3600.0
ASK_EVERY_S = 1.0
ENDED_MAX = 1024
ENDED_S = 60.0  # how long an outcome is told again
FAILED_S_FIRST = 2.0  # the same of a failure; twice as long after each further one, up to ENDED_S
LINE_BYTES_MAX = 1 << 16
_COMMAND = python_process.command("lodefs.chunkstore.push.hub.hub_fetch")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """The hub, and the store that fetches go to. ``token_file`` has the site's token for it, if it
    has one; no client's is ever sent. ``directory`` is the home of the hub's library."""

    url: str
    place: StorePlace
    directory: Path
    token_file: Path | None
    size_bytes_max: int


class OwnerNodes(Protocol):
    """The other nodes, of which one owns each fetch."""

    def owner(self, key: bytes) -> str | None:
        """Returns the address of the node that owns a key; None if it is this one."""

    async def fetch_hub(self, address: str, request: HubRequest) -> HubOutcome:
        """Makes that node fetch, and returns the progress. Raises: Unavailable, Denied,
        NotFound."""


class _Ended(NamedTuple):
    """An outcome that is told again for a while. ``failures`` are those in a row."""

    until_s: float
    outcome: HubOutcome
    failures: int


_BEGUN = HubOutcome("running")


@dataclass(slots=True, eq=False)
class _Fetch:
    """A fetch of this node. ``is_listed`` is set once the store has the listing, and at the end.
    ``waited_for`` are files with the times when the process was told of them."""

    order: HubOrder
    told: HubOutcome = _BEGUN
    is_listed: asyncio.Event = field(default_factory=asyncio.Event)
    process: StoreProcess | None = None
    waited_for: dict[str, float] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return f"{self.order.repo_url}@{self.order.rev}"

    def wait_for(self, path: str, now_s: float) -> None:
        """Tells the process that somebody waits for a file."""
        if path not in self.waited_for and len(self.waited_for) == WAITED_FOR_MAX:
            return
        if now_s >= self.waited_for.get(path, float("-inf")) + TELL_AGAIN_S:
            self.waited_for[path] = now_s
            if self.process is not None:
                self.process.tell_soon(path)

    def tell(self, outcome: HubOutcome) -> None:
        self.told = outcome
        if outcome.sha or outcome.state != "running":
            self.is_listed.set()


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
        self._asking: SharedTasks[HubRequest, HubOutcome] = SharedTasks()
        self._ended: Lru[HubOrder, _Ended] = Lru(ENDED_MAX)
        self._places = asyncio.Semaphore(FETCHES_MAX)
        self._fetches: dict[_Fetch, asyncio.Task[None]] = {}

    async def reach(self, request: HubRequest) -> HubOutcome:
        return await self._asking.run(request, lambda: self._by_owner(request))

    def begin(self, request: HubRequest) -> HubOutcome:
        return self._begun(request).told

    async def close(self) -> None:
        """Ends the fetches of this node."""
        tasks = [*self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _by_owner(self, request: HubRequest) -> HubOutcome:
        nodes, order = self._nodes, request.order
        owner = nodes.owner(digest_of(order.repo.encode())) if nodes is not None else None
        try:
            while nodes is not None and owner is not None:
                outcome = await nodes.fetch_hub(owner, request)
                if outcome.sha or outcome.state != "running":
                    return outcome
                await asyncio.sleep(ASK_EVERY_S)
        except (Unavailable, Denied, NotFound) as error:
            log.warning("node %s does not fetch %s: %s", owner, order.repo_url, error)
        fetch = await self._listed(request)
        if fetch.told.state == "failed":  # its process may have been killed just now
            fetch = await self._listed(request)
        return fetch.told

    async def _listed(self, request: HubRequest) -> _Fetch:
        fetch = self._begun(request)
        await fetch.is_listed.wait()
        return fetch

    def _begun(self, request: HubRequest) -> _Fetch:
        """Returns the fetch, perhaps one of another revision that is the same commit, which may
        have ended a moment ago."""
        order = request.order
        ended = self._ended.get(order)
        if ended is not None and self._clock_s() < ended.until_s:
            fetch = _Fetch(order)
            fetch.tell(ended.outcome)
            return fetch
        running = (one for one in self._fetches if one.told.state == "running")
        fetch = next((one for one in running if _is_same(one, order)), None) or _Fetch(order)
        if fetch not in self._fetches:
            self._fetches[fetch] = task = asyncio.create_task(self._fetch(fetch))
            task.add_done_callback(lambda _: self._fetches.pop(fetch))
        if request.path:
            fetch.wait_for(request.path, self._clock_s())
        return fetch

    async def _fetch(self, fetch: _Fetch) -> None:
        """Fetches, and remembers the outcome for a while."""
        log.info("fetching %s from %s", fetch.shown, self._settings.url)
        try:
            async with self._places, asyncio.timeout(FETCH_S_MAX):
                outcome = await self._run(fetch)
        except TimeoutError:
            outcome = HubOutcome("failed", f"the fetch took more than {FETCH_S_MAX:g} s")
        except OSError as error:
            outcome = HubOutcome("failed", f"no process can be started: {error}")
        finally:
            fetch.tell(HubOutcome("failed", "the node is stopping"))
        level = logging.INFO if outcome.state == "done" else logging.WARNING
        log.log(level, "%s: %s: %s", fetch.shown, outcome.state, outcome.message)
        self._remember(fetch, outcome)
        fetch.tell(outcome)

    def _remember(self, fetch: _Fetch, outcome: HubOutcome) -> None:
        """Notes an outcome, also for those who ask for the commit by its id."""
        before, failures, for_s = self._ended.get(fetch.order), 0, ENDED_S
        if outcome.state == "failed":
            failures = before.failures + 1 if before is not None else 1
            # The first one is repeated at once: a process may have been killed, and clients that
            # ask by another name may have got the files meanwhile
            for_s = min(ENDED_S, FAILED_S_FIRST * (2.0 ** (failures - 1) - 1))
        for rev in {fetch.order.rev, outcome.sha or fetch.order.rev}:
            order = msgspec.structs.replace(fetch.order, rev=rev)
            self._ended.put(order, _Ended(self._clock_s() + for_s, outcome, failures))

    async def _run(self, fetch: _Fetch) -> HubOutcome:
        """Runs the process. If another fetch has the same commit, its end is awaited, and then the
        process finds that commit in the store."""
        while True:
            try:
                outcome = await self._read(fetch)
            except (InvalidInput, ValueError) as error:
                what = f"the output of the process that fetches is malformed: {error}"
                return HubOutcome("failed", what)
            if isinstance(outcome, HubOutcome):
                return outcome
            task = self._fetches.get(outcome)
            if task is not None:  # it may have ended meanwhile
                await asyncio.wait([task])

    async def _read(self, fetch: _Fetch) -> HubOutcome | _Fetch:
        """Returns the outcome of the process, or the other fetch that has the same commit."""
        settings = self._settings
        environ = _environment(os.environ, settings)
        command = StoreProcess(_COMMAND, settings.place, LINE_BYTES_MAX, environ)
        async with command as process:
            await process.tell(FetchOrder(fetch.order, settings.size_bytes_max))
            fetch.process = process
            for path in fetch.waited_for:
                process.tell_soon(path)
            try:
                return await self._end_of(fetch, process)
            finally:
                fetch.process = None

    async def _end_of(self, fetch: _Fetch, process: StoreProcess) -> HubOutcome | _Fetch:
        async for line in process.lines():
            told = from_json(line, HubOutcome)
            if told.state != "running":
                return told  # the process may wait for requests that hang
            if (twin := self._twin(fetch, told.sha)) is not None:
                return twin
            fetch.tell(told)
            log.info("%s: %s", fetch.shown, told.message)
        return HubOutcome("failed", "the process that fetches ended without an outcome")

    def _twin(self, fetch: _Fetch, sha: str) -> _Fetch | None:
        """Returns another fetch of the same commit."""
        if not sha or fetch.told.sha:
            return None
        order = msgspec.structs.replace(fetch.order, rev=sha)
        others = (one for one in self._fetches if one is not fetch)
        return next((one for one in others if one.told.sha and _is_same(one, order)), None)


def _is_same(fetch: _Fetch, order: HubOrder) -> bool:
    """Whether a fetch is that of an order, or has the commit that the order names by its id."""
    if fetch.told.sha == order.rev:
        order = msgspec.structs.replace(order, rev=fetch.order.rev)
    return fetch.order == order


def _environment(environ: Mapping[str, str], settings: UpstreamSettings) -> dict[str, str]:
    """Returns the environment of the process: that of the proxy, but no token and no settings of
    Hugging Face except ours."""
    kept = {k: value for k, value in environ.items() if not k.startswith(("HF_", "FSSPEC_"))}
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
