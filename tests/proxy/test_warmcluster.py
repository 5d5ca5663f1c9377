"""Warming all nodes: sums, nodes that forget, are silent, refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from chunkstore.errors import Denied, LodefsError, NotFound, Unavailable
from chunkstore.upkeep import RUNNING, WarmRequest, WarmStatus
from proxy.storenode import StoreNode
from proxy.testing_rig import REPO, Rig, until
from proxy.warmcluster import ASK_EVERY_S, SILENT_S_MAX, STARTS_MAX, ClusterWarmer

FILES = {b"f/%d" % n: b"%d" % n * 5000 for n in range(30)}
REQUEST = WarmRequest(REPO, all_nodes=True)


class MemoryPeers:
    """proxy.warmcluster.PeerJobs over the warmers of other nodes in this process.

    ``failing`` maps addresses to what every call to them raises.
    """

    def __init__(self, warmers: dict[str, ClusterWarmer]) -> None:
        self.warmers = warmers
        self.failing: dict[str, LodefsError] = {}
        self.asked: list[tuple[str, WarmRequest]] = []

    def members(self) -> list[str]:
        return list(self.warmers)

    async def start(self, address: str, request: WarmRequest) -> str:
        self._check(address)
        self.asked.append((address, request))
        return (await self.warmers[address].start(request)).id

    async def progress(self, address: str, job_id: str) -> WarmStatus:
        self._check(address)
        return await self.warmers[address].status(job_id)

    async def cancel(self, address: str, job_id: str) -> None:
        self._check(address)
        await self.warmers[address].cancel(job_id)

    def _check(self, address: str) -> None:
        if address in self.failing:
            raise self.failing[address]


class Nodes:
    """Three nodes over one store; the first is asked. ``now_s`` is its clock."""

    def __init__(self, nodes: list[StoreNode]) -> None:
        self.now_s = 0.0
        self.peers = MemoryPeers({"b:1": nodes[1]._warmer, "c:1": nodes[2]._warmer})
        self.warmer = ClusterWarmer(
            nodes[0]._warmer._warmer, self.peers, clock_s=lambda: self.now_s
        )
        self._warmers = [nodes[0]._warmer, *self.peers.warmers.values()]

    async def look(self, job_id: str) -> WarmStatus:
        """The state a while later, when all that can end has ended."""
        await until(lambda: not any(warmer.running for warmer in self._warmers))
        self.now_s += ASK_EVERY_S
        return await self.warmer.status(job_id)


def run(tmp_path: Path, work: Callable[[Nodes], Coroutine[object, object, None]]) -> None:
    """Something done with three nodes."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Nodes]:
        async with AsyncExitStack() as stack:
            first = Rig(tmp_path / "0", FILES)
            nodes = []
            for number in range(3):
                rig = Rig(tmp_path / str(number), FILES)
                rig.store = first.store
                nodes.append(await stack.enter_async_context(rig.node()))
            yield Nodes(nodes)

    async def whole() -> None:
        async with opened() as nodes:
            await work(nodes)

    asyncio.run(whole())


def test_all_nodes_are_warmed(tmp_path: Path) -> None:
    """The job is done when all nodes are, its figures are their sums, all of one commit."""

    async def work(nodes: Nodes) -> None:
        job = await nodes.warmer.start(REQUEST)
        status = await nodes.look(job.id)
        assert status.state == "done"
        assert status.files_done == status.files_total == 3 * len(FILES)
        assert status.bytes_done == 3 * sum(map(len, FILES.values()))
        assert [(node.address, node.state) for node in status.nodes] == [
            ("", "done"),
            ("b:1", "done"),
            ("c:1", "done"),
        ]
        passed_on = WarmRequest(REPO, rev=job.commit)
        assert nodes.peers.asked == [("b:1", passed_on), ("c:1", passed_on)]
        assert nodes.warmer.jobs() == [await nodes.warmer.status(job.id)]

    run(tmp_path, work)


def test_a_silent_node_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    """Silence is no failure for a while; after it the job fails, by name, and the others count."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.failing["c:1"] = Unavailable("no route")
        job = await nodes.warmer.start(REQUEST)
        status = await nodes.look(job.id)
        assert status.state in RUNNING
        assert (status.nodes[2].error, status.bytes_total) == ("no route", None)
        nodes.now_s += SILENT_S_MAX
        status = await nodes.look(job.id)
        assert (status.state, status.errors_total) == ("failed", 1)
        assert status.errors[0].message == "c:1: no route"
        assert status.files_done == 2 * len(FILES)

    run(tmp_path, work)


def test_a_node_that_comes_back_in_time_is_done_too(tmp_path: Path) -> None:
    """A node that was away gets its share when it is there again."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.failing["b:1"] = Unavailable("restarting")
        job = await nodes.warmer.start(REQUEST)
        await nodes.look(job.id)
        del nodes.peers.failing["b:1"]
        await nodes.look(job.id)
        assert (await nodes.look(job.id)).state == "done"

    run(tmp_path, work)


def test_a_node_that_forgot_its_job_is_asked_again(tmp_path: Path) -> None:
    """A restarted node is given the job anew; one that forgets again and again is given up."""

    async def work(nodes: Nodes) -> None:
        job = await nodes.warmer.start(REQUEST)
        nodes.peers.warmers["b:1"]._warmer._jobs.clear()
        status = await nodes.look(job.id)
        assert status.state in RUNNING
        await nodes.look(job.id)
        assert (await nodes.look(job.id)).state == "done"
        assert [address for address, _ in nodes.peers.asked].count("b:1") == 2

    run(tmp_path, work)

    async def forgetful(nodes: Nodes) -> None:
        async def forget(_job_id: str) -> WarmStatus:
            raise NotFound("never heard of it")

        job = await nodes.warmer.start(REQUEST)
        nodes.peers.warmers["b:1"].status = forget  # type: ignore[method-assign]
        for _ in range(2 * STARTS_MAX):
            status = await nodes.look(job.id)
        assert status.state == "failed"
        assert [address for address, _ in nodes.peers.asked].count("b:1") <= STARTS_MAX

    run(tmp_path / "forgetful", forgetful)


@pytest.mark.parametrize("error", [Denied("another cluster"), NotFound("no such repository")])
def test_a_node_that_refuses_fails_its_share(tmp_path: Path, error: LodefsError) -> None:
    """What will not get better fails at once, and the job with it."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.failing["c:1"] = error
        job = await nodes.warmer.start(REQUEST)
        status = await nodes.look(job.id)
        assert (status.state, status.errors[0].error) == ("failed", type(error).__name__)
        assert [node.state for node in status.nodes] == ["done", "done", "failed"]

    run(tmp_path, work)


def test_cancelling_ends_it_everywhere(tmp_path: Path) -> None:
    """A cancelled job runs nowhere any more, also where a node does not answer."""

    async def work(nodes: Nodes) -> None:
        job = await nodes.warmer.start(REQUEST)
        status = await nodes.warmer.cancel(job.id)
        assert status.state == "cancelled" or all(one.state == "done" for one in status.nodes[1:])
        assert not nodes.warmer.running

    run(tmp_path, work)
