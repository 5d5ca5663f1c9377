"""Warming all nodes: sums, nodes that forget, are silent, refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import (
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.protocol.cache_control import RUNNING, WarmRequest, WarmStatus
from lodefs.proxy.cache.pins import Pin
from lodefs.proxy.service.store_node import StoreNode
from lodefs.proxy.warm.cluster_jobs import (
    ASK_EVERY_S,
    PAUSES,
    SILENT_S_MAX,
    SKIP_S_MAX,
    STARTS_MAX,
    ClusterWarmer,
)
from tests.support.proxy.rig import REPO, Rig, until

FILES = {b"f/%d" % n: b"%d" % n * 5000 for n in range(30)}
REQUEST = WarmRequest(REPO, all_nodes=True)


class MemoryPeers:
    """A PeerJobClient over the warmers of other nodes in this process.

    ``failing`` maps addresses to what every call to them raises.
    """

    def __init__(self, warmers: dict[str, ClusterWarmer]) -> None:
        self.warmers = warmers
        self.failing: dict[str, LodefsError] = {}
        self.deaf: dict[str, LodefsError] = {}  # raised after a start was taken
        self.asked: list[tuple[str, WarmRequest]] = []

    def members(self) -> list[str]:
        return list(self.warmers)

    def own(self) -> list[str]:
        return ["a:1"]

    async def release(self, address: str, owner: str) -> None:
        self._check(address)
        await self.warmers[address].release(owner, everywhere=False)

    async def start(self, address: str, request: WarmRequest, job_id: str) -> str:
        self._check(address)
        self.asked.append((address, request))
        begun = await self.warmers[address].start(request, job_id)
        if address in self.deaf:
            raise self.deaf.pop(address)
        return begun.id

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
    """Three nodes over one store; the first is asked. ``now_s`` is its clock, by which it sleeps,
    too."""

    def __init__(self, nodes: list[StoreNode]) -> None:
        self.now_s = 0.0
        self.all = nodes
        self.peers = MemoryPeers({"b:1": nodes[1]._warmer, "c:1": nodes[2]._warmer})
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.warmer = ClusterWarmer(
            nodes[0]._warmer._warmer,
            self.peers,  # type: ignore[arg-type]
            clock_s=lambda: self.now_s,
            sleep=self._sleep,
        )
        self._warmers = [nodes[0]._warmer, *self.peers.warmers.values()]

    async def _sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now_s + seconds, woken))
        await woken

    async def settle(self) -> None:
        """Waits until all that can end has ended, and whoever attends to a node sleeps."""
        await until(lambda: not any(warmer.running for warmer in self._warmers))
        await until(lambda: len(self.warmer._tasks) == len(self._sleepers))

    async def go(self, seconds: float) -> None:
        """Time goes by; nobody asks for anything."""
        await self.settle()
        end_s = self.now_s + seconds
        while self._sleepers and min(due_s for due_s, _ in self._sleepers) <= end_s:
            due_s, woken = min(self._sleepers, key=lambda one: one[0])
            self._sleepers.remove((due_s, woken))
            self.now_s = max(self.now_s, due_s)
            woken.set_result(None)
            await self.settle()
        self.now_s = end_s

    async def look(self, job_id: str) -> WarmStatus:
        """The state a while later, when all that can end has ended."""
        await self.go(2 * ASK_EVERY_S)
        return await self.warmer.status(job_id)

    async def close(self) -> None:
        """Ends what attends to the others."""
        for task in self.warmer._tasks:
            task.cancel()
        await asyncio.gather(*self.warmer._tasks, return_exceptions=True)


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
            made = Nodes(nodes)
            stack.push_async_callback(made.close)
            yield made

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


def test_nodes_that_are_named_are_warmed_and_no_others(tmp_path: Path) -> None:
    """Not even the one that is asked; what an owner has pinned there goes at once."""

    async def work(nodes: Nodes) -> None:
        request = WarmRequest(REPO, nodes=["c"], pin_s=600, owner="slurm-7")
        job = await nodes.warmer.start(request)
        status = await nodes.look(job.id)
        assert (status.state, status.files_done) == ("done", len(FILES))
        assert [address for address, _ in nodes.peers.asked] == ["c:1"]
        assert [len(pins(one)) for one in nodes.all] == [0, 0, 1]
        await nodes.warmer.release("slurm-8", everywhere=True)
        assert len(pins(nodes.all[2])) == 1
        await nodes.warmer.release("slurm-7", everywhere=True)
        assert not pins(nodes.all[2])
        with pytest.raises(InvalidInput, match="d is not a node"):
            await nodes.warmer.start(WarmRequest(REPO, nodes=["c", "d"]))

    run(tmp_path, work)


def test_all_of_an_owner_ends_though_a_node_is_silent(tmp_path: Path) -> None:
    """The job is cancelled, and the nodes that answer keep no pin."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.failing["c:1"] = Unavailable("no route")
        job = await nodes.warmer.start(
            WarmRequest(REPO, nodes=["a", "b", "c"], pin_s=600, owner="slurm-7")
        )
        assert (await nodes.look(job.id)).state in RUNNING
        assert [len(pins(one)) for one in nodes.all] == [1, 1, 0]
        await nodes.warmer.release("slurm-7", everywhere=True)
        assert (await nodes.warmer.status(job.id)).state == "cancelled"
        assert not any(pins(one) for one in nodes.all)

    run(tmp_path, work)


def pins(node: StoreNode) -> dict[bytes, Pin]:
    """What a node has pinned."""
    return node._cache.pins.listed()


def test_a_silent_node_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    """Silence is no failure for a while; after it the job fails, by name, and the others count."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.failing["c:1"] = Unavailable("no route")
        job = await nodes.warmer.start(REQUEST)
        status = await nodes.look(job.id)
        assert status.state in RUNNING
        assert (status.nodes[2].error, status.bytes_total) == ("no route", None)
        await nodes.go(SILENT_S_MAX + PAUSES.pause_s_max)
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
        begin = nodes.peers.warmers["b:1"].start

        async def restarted(request: WarmRequest, job_id: str | None = None) -> WarmStatus:
            begun = await begin(request, job_id)
            nodes.peers.warmers["b:1"]._warmer._jobs.clear()
            nodes.peers.warmers["b:1"].start = begin  # type: ignore[method-assign]
            return begun

        nodes.peers.warmers["b:1"].start = restarted  # type: ignore[method-assign]
        job = await nodes.warmer.start(REQUEST)
        assert (await nodes.warmer.status(job.id)).state in RUNNING
        await nodes.go(10.0)
        assert (await nodes.look(job.id)).state == "done"
        assert [address for address, _ in nodes.peers.asked].count("b:1") == 2

    run(tmp_path, work)

    async def forgetful(nodes: Nodes) -> None:
        async def forget(_job_id: str) -> WarmStatus:
            raise NotFound("never heard of it")

        nodes.peers.warmers["b:1"].status = forget  # type: ignore[method-assign, assignment]
        job = await nodes.warmer.start(REQUEST)
        await nodes.go(100.0)
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


def test_a_node_that_was_busy_gets_its_share_although_nobody_asks(tmp_path: Path) -> None:
    """A detached job: a node that has too much to do for minutes, and one that is started anew
    meanwhile, are warm in the end, without anybody asking how far it is."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.failing["b:1"] = Unavailable("8 warm jobs run already", retry_after_s=5.0)
        nodes.peers.failing["c:1"] = Unavailable("Connection refused")
        job = await nodes.warmer.start(REQUEST)
        await nodes.go(SILENT_S_MAX / 2)
        del nodes.peers.failing["c:1"]
        await nodes.go(4 * SILENT_S_MAX)
        del nodes.peers.failing["b:1"]
        await nodes.go(2 * PAUSES.pause_s_max)
        assert all(not warmer.running for warmer in nodes._warmers)
        assert [len(warmer.jobs()) for warmer in nodes.peers.warmers.values()] == [1, 1]
        assert (await nodes.warmer.status(job.id)).state == "done"

    run(tmp_path, work)


def test_a_busy_node_is_not_given_up_at_its_first_silent_answer(tmp_path: Path) -> None:
    """A node that says for minutes that it has too much to do was heard of: one lost answer after
    that is no silence, also if silent nodes are to be skipped; half a minute without any is."""

    async def work(nodes: Nodes) -> None:
        silent = Unavailable("connection reset")
        nodes.peers.failing["b:1"] = Unavailable("8 warm jobs run already", retry_after_s=5.0)
        request = WarmRequest(REPO, all_nodes=True, skip_missing=True)
        jobs = [await nodes.warmer.start(one) for one in (REQUEST, request)]
        await nodes.go(4 * SILENT_S_MAX)
        nodes.peers.failing["b:1"] = silent
        await nodes.go(PAUSES.pause_s_max)
        seen = [(await nodes.warmer.status(job.id)).nodes[1] for job in jobs]
        assert [node.error for node in seen] == [str(silent)] * 2
        assert all(node.state in RUNNING for node in seen)
        await nodes.go(SILENT_S_MAX + PAUSES.pause_s_max)
        ends = [(await nodes.warmer.status(job.id)).nodes[1].state for job in jobs]
        assert ends == ["failed", "skipped"]

    run(tmp_path, work)


def test_a_start_that_was_taken_without_a_word_makes_no_second_job(tmp_path: Path) -> None:
    """The answer to a start was lost: it is started again, and is the same job."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.deaf["b:1"] = DeadlineExceeded("no answer within 10 s")
        job = await nodes.warmer.start(REQUEST)
        await nodes.go(10.0)
        assert (await nodes.warmer.status(job.id)).state == "done"
        assert [address for address, _ in nodes.peers.asked].count("b:1") == 2
        assert len(nodes.peers.warmers["b:1"].jobs()) == 1

    run(tmp_path, work)


def test_missing_nodes_are_skipped_if_asked_for(tmp_path: Path) -> None:
    """A node that does not answer within seconds is left out, by name; the job is done, and its
    figures are those of the others. A node that refuses is an error all the same."""

    async def work(nodes: Nodes) -> None:
        nodes.peers.failing["c:1"] = Unavailable("Connection refused")
        request = WarmRequest(REPO, all_nodes=True, skip_missing=True)
        job = await nodes.warmer.start(request)
        assert nodes.peers.asked == [] or not nodes.peers.asked[0][1].skip_missing
        await nodes.go(SKIP_S_MAX + PAUSES.pause_s_max)
        status = await nodes.warmer.status(job.id)
        assert (status.state, status.errors_total) == ("done", 0)
        assert status.files_done == status.files_total == 2 * len(FILES)
        assert [(one.state, one.error) for one in status.nodes][2] == (
            "skipped",
            "Connection refused",
        )
        nodes.peers.failing["c:1"] = Denied("another secret")
        job = await nodes.warmer.start(request)
        await nodes.go(1.0)
        assert (await nodes.warmer.status(job.id)).state == "failed"

    run(tmp_path, work)


@pytest.mark.parametrize("lost", [DeadlineExceeded("no answer within 10 s"), Denied("a proxy")])
def test_a_start_with_a_lost_answer_is_cancelled_too(tmp_path: Path, lost: LodefsError) -> None:
    """A start is on its way when the job is cancelled, the node takes it after it was asked to
    cancel, and its answer is lost: it is asked to cancel once more."""

    async def work(nodes: Nodes) -> None:
        taken, going = asyncio.Event(), asyncio.Event()
        begin, cancel = nodes.peers.start, nodes.peers.cancel
        cancelled: list[str] = []

        async def deaf(address: str, request: WarmRequest, job_id: str) -> str:
            if address == "b:1":
                taken.set()
                await going.wait()
                await begin(address, request, job_id)
                raise lost
            return await begin(address, request, job_id)

        async def counted(address: str, job_id: str) -> None:
            known = [one.id for one in nodes.peers.warmers[address].jobs()]
            if job_id in known:
                cancelled.append(address)
            await cancel(address, job_id)

        nodes.peers.start = deaf  # type: ignore[method-assign]
        nodes.peers.cancel = counted  # type: ignore[method-assign]
        job = await nodes.warmer.start(REQUEST)
        await taken.wait()
        await nodes.warmer.cancel(job.id)
        assert "b:1" not in cancelled
        going.set()
        await until(lambda: "b:1" in cancelled)
        await until(lambda: not nodes.peers.warmers["b:1"].running)

    run(tmp_path, work)


def test_a_job_that_begins_while_it_is_cancelled_ends(tmp_path: Path) -> None:
    """A start that is on its way when the job is cancelled leaves nothing running."""

    async def work(nodes: Nodes) -> None:
        taken, going = asyncio.Event(), asyncio.Event()
        begin = nodes.peers.warmers["b:1"].start

        async def slow(request: WarmRequest, job_id: str | None = None) -> WarmStatus:
            taken.set()
            await going.wait()
            return await begin(request, job_id)

        nodes.peers.warmers["b:1"].start = slow  # type: ignore[method-assign]
        job = await nodes.warmer.start(REQUEST)
        await taken.wait()
        await nodes.warmer.cancel(job.id)
        going.set()
        await until(lambda: not nodes.warmer._tasks)
        (other,) = nodes.peers.warmers["b:1"].jobs()
        assert other.state in ("cancelled", "done")

    run(tmp_path, work)
