"""Warming all nodes of a cluster over their peer doors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.cache_control import RUNNING, WarmRequest, WarmStatus
from lodefs.chunkstore.protocol.orders.hub_orders import HubOrder, HubOutcome, HubRequest
from lodefs.proxy.warm import cluster_jobs
from tests.support.proxy.cluster import SECRET, Member, cluster_of, slow_clock_s
from tests.support.proxy.rig import MIB, REPO, Rig, read_path

BIG = random.Random(1).randbytes(4 * MIB + 123)
SMALL = {b"small/%03d" % n: random.Random(n).randbytes(500 + n * 37) for n in range(200)}
FILES = {b"big": BIG, **SMALL}
TOTAL_BYTES = sum(map(len, FILES.values()))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(cluster_jobs, "ASK_EVERY_S", 0.01)
    return Rig(tmp_path, FILES, chunk_size_bytes=20_000, pack_chunks=50)


async def over(member: Member, status: WarmStatus) -> WarmStatus:
    """A job when it has ended on all nodes."""
    async with asyncio.timeout(60):
        while status.state in RUNNING:
            status = await member.node.cache_control.warm_status(status.id)
            turn = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.002, turn.set_result, None)
            await turn
    return status


async def warm_all(member: Member, **more: object) -> WarmStatus:
    """A whole job for all nodes."""
    request = WarmRequest(REPO, all_nodes=True, **more)  # type: ignore[arg-type]
    return await over(member, await member.node.cache_control.warm(request))


def test_all_nodes_have_it_and_the_store_sent_it_once(rig: Rig) -> None:
    """One node is asked: all are warm and pinned afterwards, for one reading of the store."""

    async def run() -> None:
        async with cluster_of(rig, 4, clock_s=slow_clock_s) as members:
            rig.reset()
            status = await warm_all(members[1], pin_s=600)
            assert (status.state, status.errors) == ("done", [])
            assert status.bytes_done == status.bytes_total == 4 * TOTAL_BYTES
            assert {node.address for node in status.nodes} == {
                "",
                *(member.address for member in members if member is not members[1]),
            }
            stored = sum(info.size_bytes for info in rig.objects.list("packs/"))
            assert sum(size for _, _, size in rig.objects.ranges) <= 1.05 * stored
            rig.reset()
            for member in members:
                assert len((await member.node.cache_control.pins()).pins) == 1
                for path, content in FILES.items():
                    assert await read_path(member.node, path, rev=rig.commit.hex()) == content
            assert rig.objects.ranges == []

    asyncio.run(run())


def test_a_node_that_is_down_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are warmed; the job fails with the address of the one that never answered."""
    monkeypatch.setattr(cluster_jobs, "SILENT_S_MAX", 0.5)

    async def run() -> None:
        async with cluster_of(rig, 3) as members:
            await members[2].stop()
            status = await warm_all(members[0])
            assert status.state == "failed"
            assert status.errors[0].message.startswith(members[2].address)
            states = {node.address: node.state for node in status.nodes}
            assert states == {"": "done", members[1].address: "done", members[2].address: "failed"}

    asyncio.run(run())


def test_a_node_of_another_cluster_is_an_error(rig: Rig) -> None:
    """A node with another secret fails the job at once, by name and with the reason, also where
    missing nodes are skipped."""

    async def run() -> None:
        secrets = [SECRET, SECRET, b"another secret, of another cluster"]
        async with cluster_of(rig, 3, secrets=secrets) as members:
            status = await warm_all(members[0], skip_missing=True)
            assert status.state == "failed"
            (error,) = status.errors
            assert error.error == "Denied"
            assert error.message.startswith(members[2].address)
            assert "peer_secret_file" in error.message

    asyncio.run(run())


def test_a_job_has_the_id_that_it_was_given(rig: Rig) -> None:
    """A start that is sent twice makes one job; an id of another form is refused."""

    async def run() -> None:
        async with cluster_of(rig, 2) as members:
            peers = members[0].node._warmer._peers
            assert peers is not None
            (address,) = peers.members()
            job_id = "0123456789abcdef"
            for _ in range(2):
                assert await peers.start(address, WarmRequest(REPO), job_id) == job_id
            (job,) = (await members[1].node.cache_control.warm_jobs()).jobs
            assert (await over(members[1], job)).state == "done"
            with pytest.raises(InvalidInput, match="16 hex"):
                await peers.start(address, WarmRequest(REPO), "../evil")

    asyncio.run(run())


def test_cancelling_reaches_the_others(rig: Rig) -> None:
    """A job that is cancelled on one node ends on all of them."""

    async def run() -> None:
        async with cluster_of(rig, 3) as members:
            request = WarmRequest(REPO, all_nodes=True)
            status = await members[0].node.cache_control.warm(request)
            await members[0].node.cache_control.cancel_warm(status.id)
            for member in members:
                for job in (await member.node.cache_control.warm_jobs()).jobs:
                    assert (await over(member, job)).state in ("cancelled", "done")

    asyncio.run(run())


def body_of(data: bytes) -> Callable[[], Awaitable[bytes]]:
    """A request's body."""

    async def read() -> bytes:
        return data

    return read


def test_a_body_must_be_the_one_that_was_signed(rig: Rig) -> None:
    """Whoever changes the body on its way is refused, and so is rubbish that was signed."""

    async def run() -> None:
        async with cluster_of(rig, 2) as members:
            peer_server = members[0].node.peer_server
            assert peer_server is not None
            good = msgspec.json.encode(WarmRequest(REPO))
            target = f"{wire.PEER_WARM}?digest={digest_of(good).hex()}"
            with pytest.raises(Denied, match="signed request"):
                await peer_server._jobs.answer(
                    "POST", target, body_of(good.replace(REPO.encode(), b"evil"))
                )
            with pytest.raises(Denied):
                await peer_server._jobs.answer("POST", wire.PEER_WARM, body_of(good))
            rubbish = b"{"
            with pytest.raises(InvalidInput):
                await peer_server._jobs.answer(
                    "POST",
                    f"{wire.PEER_WARM}?digest={digest_of(rubbish).hex()}",
                    body_of(rubbish),
                )
            for path in (f"{wire.PEER_WARM}/xyz", f"{wire.PEER_WARM}/{'0' * 16}"):
                with pytest.raises(NotFound):
                    await peer_server._jobs.answer("GET", path, body_of(b""))
            assert (await peer_server._jobs.answer("POST", target, body_of(good))).status == 202

    asyncio.run(run())


def test_a_job_that_was_passed_on_is_not_passed_on_again(rig: Rig) -> None:
    """Whatever a node is asked by another, it warms itself alone."""

    async def run() -> None:
        async with cluster_of(rig, 2) as members:
            peer_server = members[0].node.peer_server
            assert peer_server is not None
            data = msgspec.json.encode(WarmRequest(REPO, all_nodes=True))
            target = f"{wire.PEER_WARM}?digest={digest_of(data).hex()}"
            answer = await peer_server._jobs.answer("POST", target, body_of(data))
            status = msgspec.json.decode(answer.body, type=WarmStatus)
            assert (await over(members[0], status)).nodes == []
            assert (await members[1].node.cache_control.warm_jobs()).jobs == []

    asyncio.run(run())


def test_errors_of_the_other_node_are_its_own(rig: Rig) -> None:
    """What the other node says comes through; silence is Unavailable."""

    async def run() -> None:
        async with cluster_of(rig, 2) as members:
            peers = members[0].node._warmer._peers
            assert peers is not None
            (address,) = peers.members()
            with pytest.raises(NotFound, match="no/such"):
                await peers.start(address, WarmRequest("no/such"), "0" * 16)
            with pytest.raises(NotFound):
                await peers.progress(address, "0" * 16)
            await members[1].stop()
            with pytest.raises(Unavailable):
                await peers.progress(address, "0" * 16)

    asyncio.run(run())


class Upstream:
    """Implements Upstream: it notes what it is asked to begin."""

    def __init__(self) -> None:
        self.begun: list[HubRequest] = []

    async def reach(self, request: HubRequest) -> HubOutcome:
        raise AssertionError("another node's order is only begun")

    def begin(self, request: HubRequest) -> HubOutcome:
        self.begun.append(request)
        return HubOutcome("running", "half", "0" * 40)


def test_fetches_from_a_hub(rig: Rig) -> None:
    """All nodes name the same owner, which begins what it is sent; one without a hub refuses, and
    so does one that gets another body than was signed."""
    order = HubOrder("dataset", "org/name", "main", "datasets/org/name")
    request = HubRequest(order, "data/x")

    async def run() -> None:
        async with cluster_of(rig, 3) as members:
            pool = members[0].node._pools.jobs
            jobs = [member.peering.jobs(pool) for member in members]
            key = digest_of(b"datasets/org/name")
            owner = {
                one.owner(key) or member.address for one, member in zip(jobs, members, strict=True)
            }
            assert len(owner) == 1
            one, other = members[0], members[1]
            with pytest.raises(NotFound, match="hub"):
                await jobs[0].fetch_hub(other.address, request)
            upstream = Upstream()
            assert other.node.peer_server is not None
            other.node.peer_server._upstream = upstream
            outcome = await jobs[0].fetch_hub(other.address, request)
            assert outcome == HubOutcome("running", "half", "0" * 40)
            assert upstream.begun == [request]
            with pytest.raises(Denied, match="does not match"):
                await other.node.peer_server._hub_answer(f"{wire.PEER_HUB}?digest=00", b"{}")
            assert one.node.upstream is None

    asyncio.run(run())
