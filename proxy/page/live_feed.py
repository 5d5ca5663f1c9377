"""The live data of the node that the page shows, sent to browsers as it changes.

The format is server-sent events (WHATWG HTML, section 9.2): ``history`` once, then ``sample`` every
SAMPLE_S, which is also the heartbeat, and ``node`` every STATE_S.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.protocol.cache_control import PinView, WarmStatus
from lodefs.chunkstore.protocol.figures.mount_counts import Column, MountCounts, read_all
from lodefs.proxy.api import disclosure
from lodefs.proxy.api.request import Reader
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.node import NodeService

SAMPLE_S = 2.0
STATE_S = 6.0
SAMPLES_MAX = 150  # five minutes
LISTENERS_MAX = 32
RETRY_AFTER_S = 5
SHOWN_MAX = 200  # jobs, pins, peers, datasets
# the next column counts the bytes
_READS = (Column.DIRECT_READS, Column.CACHE_READS, Column.PEERS_READS, Column.STORE_READS)
_HIDDEN = frozenset({"peers", "cache", "store"})


class Sample(msgspec.Struct, array_like=True, frozen=True):
    """Sums since the proxy began, at a Unix time: bytes for readers by Source, as in
    repository_reads.py."""

    time_s: float
    direct_bytes: int
    cache_bytes: int
    peer_bytes: int
    store_bytes: int


class RepositoryBytes(msgspec.Struct, frozen=True):
    """Bytes that readers of a repository got since the proxy began, by Source."""

    repo: str
    by_source: list[int]


class KnownDataset(msgspec.Struct, frozen=True):
    """A commit that this node has used."""

    repo: str
    commit: str
    files: int
    size_bytes: int


class MountView(msgspec.Struct, frozen=True):
    """A mount of this node whose counters the proxy can read. ``waiting``: requests of the kernel
    without an answer yet."""

    mount: str
    repo: str
    commit: str
    reads: int
    read_bytes: int
    waiting: int


class StateView(msgspec.Struct, frozen=True):
    """The present state of the node. ``figures``: the plain numbers of /status."""

    figures: dict[str, object]
    peers: list[object]
    peers_total: int
    jobs: list[WarmStatus]
    pins: list[PinView]
    pinned_bytes: int
    datasets: list[KnownDataset]
    reads: list[RepositoryBytes]
    mounts: list[MountView]


@dataclass(frozen=True, slots=True)
class _Looked:
    """The state at a time, before it is filtered for a reader."""

    at_s: float
    state: StateView


class LiveFeed:
    """Samples a node and sends the samples to listeners. For use on the event loop."""

    def __init__(
        self,
        node: NodeService,
        figures: Callable[[], dict[str, object]],
        *,
        mounts_directories: Sequence[Path] = (),
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """``figures`` returns the server's own fields, as in /status. ``mounts_directories`` have
        the counters of mounts (mount_counts.py)."""
        self._mounts_directories = mounts_directories
        self._node = node
        self._figures = figures
        self._clock_s = clock_s
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._sampled = asyncio.Event()
        self._looked: _Looked | None = None
        self._looking = asyncio.Lock()
        self._closed = False
        self.listeners = 0

    def tick(self) -> None:
        """Called about once a second: takes a sample when one is due."""
        now_s = self._clock_s()
        if self._samples and now_s - self._samples[-1].time_s < SAMPLE_S - 0.5:
            return
        self._samples.append(sample_of(now_s, reads_of(self._node.counts)))
        self._sampled.set()
        self._sampled = asyncio.Event()

    def close(self) -> None:
        self._closed = True
        self._sampled.set()

    def listen(self, reader: Reader) -> AsyncGenerator[bytes, None]:
        """Yields events for one browser, as long as its token is valid. Raises: Unavailable if too
        many listen."""
        if self.listeners >= LISTENERS_MAX or self._closed:
            raise Unavailable(
                f"{self.listeners} pages follow this node already", retry_after_s=RETRY_AFTER_S
            )
        return self._events(reader)

    async def _events(self, reader: Reader) -> AsyncGenerator[bytes, None]:
        self.listeners += 1
        try:
            yield b"retry: 3000\n\n"
            yield _event("history", list(self._samples))
            stated_s = 0.0
            while reader.is_known() and not self._closed:
                if abs(self._clock_s() - stated_s) >= STATE_S:
                    stated_s = self._clock_s()
                    yield _event("node", shown_to(reader, await self.state()))
                await self._sampled.wait()
                if self._samples and not self._closed:
                    yield _event("sample", self._samples[-1])
        finally:
            self.listeners -= 1

    async def state(self) -> StateView:
        """Returns the state of the node, at most some seconds old; shared by all callers."""
        async with self._looking:
            now_s = self._clock_s()
            if self._looked is None or abs(now_s - self._looked.at_s) >= STATE_S - 1:
                self._looked = _Looked(now_s, await self._look())
            return self._looked.state

    async def _look(self) -> StateView:
        await self._node.look()
        status = self._node.status()
        peers = status.get("peers", [])
        assert isinstance(peers, list)
        jobs: list[WarmStatus] = []
        pins: list[PinView] = []
        pinned_bytes = 0
        control = self._node.cache_control
        if control is not None:
            jobs = (await control.warm_jobs()).jobs
            pinned = await control.pins()
            pins, pinned_bytes = pinned.pins, pinned.pinned_bytes
        figures = {key: value for key, value in status.items() if key not in _HIDDEN}
        return StateView(
            figures={**figures, **self._figures(), "listeners": self.listeners},
            peers=peers[:SHOWN_MAX],
            peers_total=len(peers),
            jobs=jobs,
            pins=pins,
            pinned_bytes=pinned_bytes,
            datasets=await self._datasets(),
            mounts=await self._mounts(),
            reads=sorted(reads_of(self._node.counts), key=lambda one: -sum(one.by_source)),
        )

    async def _mounts(self) -> list[MountView]:
        return await asyncio.to_thread(mounts_in, *self._mounts_directories)

    async def _datasets(self) -> list[KnownDataset]:
        try:
            met = await self._node.names.met()
        except LodefsError:
            return []
        return [KnownDataset(one.repo, one.commit, one.files, one.size_bytes) for one in met]


def mounts_in(*directories: Path) -> list[MountView]:
    """Returns the living mounts with counters in directories, busiest first. Those of root and the
    proxy's user come before all others, whose files may claim anything. Blocking."""
    trusted = (0, os.geteuid())
    found = [(one.uid not in trusted, _view(one)) for one in read_all(*directories)]
    found.sort(key=lambda one: (one[0], -one[1].read_bytes))
    return [view for _, view in found]


def _view(mount: MountCounts) -> MountView:
    return MountView(
        mount=mount.description.mountpoint.decode("utf-8", "replace"),
        repo=mount.description.repo,
        commit=mount.description.commit,
        reads=sum(mount[column] for column in _READS),
        read_bytes=sum(mount[Column(column + 1)] for column in _READS),
        waiting=mount[Column.WAITING],
    )


def sample_of(now_s: float, reads: Iterable[RepositoryBytes]) -> Sample:
    """Returns the sum of what readers got."""
    sums = [0, 0, 0, 0]
    for one in reads:
        for n, size_bytes in enumerate(one.by_source):
            sums[n] += size_bytes
    return Sample(round(now_s, 1), *sums)


def reads_of(counts: Counts) -> Iterator[RepositoryBytes]:
    """Yields what readers got, by repository."""
    for repo, figures in counts.reads.figures().items():
        yield RepositoryBytes(repo, list(figures[1::2]))


def shown_to(reader: Reader, state: StateView) -> StateView:
    """Returns what a reader may know: only repositories of its token."""
    may_read = reader.may_read
    pins = [one for one in state.pins if may_read(one.repo)]
    jobs = [one for one in state.jobs if may_read(one.repo)][:SHOWN_MAX]
    figures, pinned_bytes = state.figures, state.pinned_bytes
    if reader.is_limited:
        places = disclosure.places_of(figures)
        jobs = [disclosure.redacted_job(one, places) for one in jobs]
        figures = disclosure.without_places(figures)
        pinned_bytes = sum(one.size_bytes for one in pins)
    return msgspec.structs.replace(
        state,
        figures=figures,
        pinned_bytes=pinned_bytes,
        jobs=jobs,
        pins=pins[:SHOWN_MAX],
        datasets=[one for one in state.datasets if may_read(one.repo)][:SHOWN_MAX],
        mounts=[one for one in state.mounts if may_read(one.repo)][:SHOWN_MAX],
        reads=list(islice((one for one in state.reads if may_read(one.repo)), SHOWN_MAX)),
    )


def _event(name: str, data: object) -> bytes:
    """Returns one event. JSON has no raw line breaks, so it is one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
