"""Warm jobs of a node over a store in memory."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.protocol.cache_control import (
    WarmRequest,
    WarmStatus,
    encoded,
)
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.reservation import ChunkRun
from lodefs.proxy.fetch.known_damage import KEPT_FOR_S
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.runtime.backoff import Backoff
from lodefs.proxy.service.store_node import StoreNode
from lodefs.proxy.warm import job_run, jobs
from lodefs.proxy.warm.jobs import JOBS_MAX, Warmer
from lodefs.proxy.warm.path_patterns import Selection
from tests.support.chunkstore.handmade import Link, Program
from tests.support.proxy.pack_gate import Gate
from tests.support.proxy.rig import MIB, REPO, Rig, ended, read_path, run, until

BIG = random.Random(1).randbytes(3 * MIB + 12345)
TWIN = BIG[: 2 * MIB] + b"another end"
SMALL = {b"small/%03d" % n: random.Random(n).randbytes(100 + n * 37) for n in range(100)}
FILES: dict[bytes, bytes | Link | Program | None] = {
    b"big": BIG,
    b"copy/big": BIG,
    b"empty": b"",
    b"link": Link(b"big"),
    b"one/two/three": b"deep",
    b"repeated": b"same bytes" * 10_000,
    b"twin": TWIN,
    **SMALL,
}
CONTENTS = {path: content for path, content in FILES.items() if isinstance(content, bytes)}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=10_000, pack_chunks=50)


async def warm(node: StoreNode, request: WarmRequest | None = None) -> WarmStatus:
    """A whole job."""
    return await ended(node, await node.cache_control.warm(request or WarmRequest(REPO)))


async def check_all_here(rig: Rig, node: StoreNode, paths: list[bytes] | None = None) -> None:
    """Every file reads back without a single call to the store."""
    await node.names.snapshot(REPO, "main")
    rig.reset()
    for path in CONTENTS if paths is None else paths:
        assert await read_path(node, path, rev=rig.commit.hex()) == CONTENTS[path]
    assert (rig.objects.ranges, rig.objects.gets) == ([], 0)


def test_everything_is_here_afterwards(rig: Rig) -> None:
    """A job fetches all names and bytes; reading them needs no store, figures are right."""

    async def work(node: StoreNode) -> None:
        status = await warm(node)
        assert (status.state, status.errors) == ("done", [])
        assert status.files_done == status.files_total == len(FILES)
        total = sum(map(len, CONTENTS.values()))
        assert status.bytes_done == status.bytes_total == total
        assert 0 < status.fetched_bytes < total  # twins share
        assert status.commit == rig.commit.hex()
        await check_all_here(rig, node)

    run(rig, work)


def test_each_pack_is_read_once_and_in_order(rig: Rig) -> None:
    """No byte of a pack is asked for twice, and its ranges come in its order."""

    async def work(node: StoreNode) -> None:
        rig.reset()
        await warm(node)
        by_pack: dict[str, list[tuple[int, int]]] = {}
        for key, offset, size in rig.objects.ranges:
            by_pack.setdefault(key, []).append((offset, size))
        assert len(by_pack) > 3
        for ranges in by_pack.values():
            for (first, size), (second, _) in pairwise(ranges):
                assert first + size <= second

    run(rig, work)


def test_a_second_job_fetches_nothing(rig: Rig) -> None:
    """What is here is skipped, also by the next process."""

    async def work(node: StoreNode) -> None:
        await warm(node)
        rig.reset()
        status = await warm(node)
        assert (status.state, status.fetched_bytes, rig.objects.ranges) == ("done", 0, [])

    run(rig, work)

    async def again(node: StoreNode) -> None:
        rig.reset()
        status = await warm(node)
        assert (status.state, status.fetched_bytes, rig.objects.ranges) == ("done", 0, [])

    run(rig, again)


def test_large_files_are_complete_flat_files(rig: Rig, tmp_path: Path) -> None:
    """A dataset file of a MiB or more whose chunks nobody else has is one file of the cache."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, paths=["big"]))

    run(rig, work)
    flats = [path for path in (tmp_path / "cache/flat").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in flats] == [BIG]


@pytest.mark.parametrize(
    ("paths", "globs", "expected"),
    [
        (["small"], [], list(SMALL)),
        (["small/007", "one"], [], [b"small/007", b"one/two/three"]),
        ([], ["small/*9"], [path for path in SMALL if path.endswith(b"9")]),
        ([], ["**/big"], [b"big", b"copy/big"]),
    ],
)
def test_a_part_of_a_snapshot(
    rig: Rig, paths: list[str], globs: list[str], expected: list[bytes]
) -> None:
    """Just the files that were asked for come."""

    async def work(node: StoreNode) -> None:
        status = await warm(node, WarmRequest(REPO, paths=paths, globs=globs))
        assert status.state == "done"
        assert status.files_done == status.files_total == len(expected)
        assert status.bytes_done == sum(len(CONTENTS[path]) for path in expected)
        await check_all_here(rig, node, expected)

    run(rig, work)


def test_what_matches_nothing_is_an_error_before_any_fetch(rig: Rig) -> None:
    """A misspelt path fails the job, by name, and nothing is fetched."""

    async def work(node: StoreNode) -> None:
        rig.reset()
        request = WarmRequest(REPO, paths=["small", "smal"], globs=["*.jpg"])
        status = await warm(node, request)
        assert (status.state, status.errors[0].error) == ("failed", "NotFound")
        assert "smal, *.jpg" in status.errors[0].message
        assert node.counts.values[Counter.FETCHES] == 0

    run(rig, work)


def test_bad_requests_are_refused_at_once(rig: Rig) -> None:
    """What cannot be begun has no job."""

    async def work(node: StoreNode) -> None:
        for request, kind in (
            (WarmRequest("no/such"), NotFound),
            (WarmRequest(REPO, rev="v9"), NotFound),
            (WarmRequest("../x"), InvalidInput),
            (WarmRequest(REPO, rev="a/b"), InvalidInput),
            (WarmRequest(REPO, paths=["a/../b"]), InvalidInput),
            (WarmRequest(REPO, all_nodes=True), InvalidInput),
        ):
            with pytest.raises(kind):
                await node.cache_control.warm(request)
        assert (await node.cache_control.warm_jobs()).jobs == []
        with pytest.raises(NotFound):
            await node.cache_control.warm_status("0" * 16)

    run(rig, work)


def test_pinned_data_survives_eviction_and_restart(rig: Rig) -> None:
    """What was warmed with a pin is there when everything else has gone."""

    async def work(node: StoreNode) -> None:
        status = await warm(node, WarmRequest(REPO, paths=["small"], pin_s=3600))
        assert status.state == "done"
        assert status.pinned_until_s is not None
        await warm(node, WarmRequest(REPO, paths=["big"]))
        node._cache.eviction.free(1000 * MIB)
        await check_all_here(rig, node, list(SMALL))

    run(rig, work)

    async def next_process(node: StoreNode) -> None:
        node._cache.eviction.free(1000 * MIB)
        (pin,) = (await node.cache_control.pins()).pins
        assert (pin.path, pin.is_complete) == ("small", True)
        await check_all_here(rig, node, list(SMALL))

    run(rig, next_process)


def test_data_that_is_here_is_pinned_too(rig: Rig) -> None:
    """A pin holds what was read before, flat files and all, and not only what it fetches."""

    async def work(node: StoreNode) -> None:
        await warm(node)
        status = await warm(node, WarmRequest(REPO, pin_s=3600))
        assert status.fetched_bytes == 0
        node._cache.eviction.free(1000 * MIB)
        await check_all_here(rig, node)

    run(rig, work)


def test_asking_again_renews_the_pin(rig: Rig) -> None:
    """The same files have one pin, however often and in whatever order they are asked for."""

    async def work(node: StoreNode) -> None:
        for pin_s, paths in ((3600, ["small", "big"]), (7200, ["big", "small"])):
            await warm(node, WarmRequest(REPO, paths=paths, pin_s=pin_s))
        (pin,) = (await node.cache_control.pins()).pins
        assert pin.pinned_until_s > node._cache.now_s() + 7000

    run(rig, work)


def test_more_than_the_cache_holds_is_refused(rig: Rig) -> None:
    """A job that cannot fit fails before it fetches, pinned or not; what fits beside pins goes."""

    async def work() -> None:
        async with rig.node(rig.settings(4 * MIB)) as node:
            status = await warm(node, WarmRequest(REPO, paths=["big"], pin_s=60))
            assert status.state == "done"
            fetches = node.counts.values[Counter.FETCHES]
            for request in (
                WarmRequest(REPO, pin_s=60),
                WarmRequest(REPO),
                WarmRequest(REPO, paths=["twin"]),
            ):
                status = await warm(node, request)
                assert (status.state, status.errors[0].error) == ("failed", "NoSpace")
                assert "are pinned" in status.errors[0].message
            assert node.counts.values[Counter.FETCHES] == fetches
            assert (await warm(node, WarmRequest(REPO, paths=["small"]))).state == "done"

    asyncio.run(work())


def test_what_files_share_is_counted_once(tmp_path: Path) -> None:
    """A dataset whose files are alike may be larger than the cache."""
    same = random.Random(5).randbytes(MIB)
    rig = Rig(tmp_path, {b"%d" % n: same for n in range(20)}, chunk_size_bytes=50_000)

    async def work() -> None:
        async with rig.node(rig.settings(4 * MIB)) as node:
            status = await warm(node, WarmRequest(REPO, pin_s=60))
            assert (status.state, status.bytes_done) == ("done", 20 * MIB)

    asyncio.run(work())


def test_readers_share_the_fetches_of_a_job(rig: Rig) -> None:
    """Somebody who reads what is on its way waits for it, and it is fetched once."""

    async def work(node: StoreNode) -> None:
        await node.names.snapshot(REPO, "main")
        await read_path(node, b"one/two/three")
        gate = Gate(rig)
        rig.reset()
        job = await node.cache_control.warm(WarmRequest(REPO, paths=["big"]))
        await until(lambda: node._fetcher.bulk_bytes > 0 or gate.held > 3)
        reading = asyncio.create_task(read_path(node, b"big"))
        gate.open()
        assert await reading == BIG
        assert (await ended(node, job)).state == "done"
        ranges = sorted(rig.objects.ranges)
        for (key, first, size), (other, second, _) in pairwise(ranges):
            assert key != other or first + size <= second

    run(rig, work)


def test_damage_costs_only_its_files(rig: Rig) -> None:
    """A pack whose bytes are wrong is named with a file of it; the others come, and when it is
    whole again these do, too."""
    bad = max(rig.objects.list(keys.PACKS), key=lambda info: info.size_bytes).key

    def damaged(key: str, part: Part) -> Part:
        if key == bad and part.data:
            return structs.replace(part, data=bytes(len(part.data)))
        return part

    async def work(node: StoreNode) -> None:
        await node.names.snapshot(REPO, "main")
        rig.objects.answer = damaged
        status = await warm(node)
        assert status.state == "failed"
        assert {error.error for error in status.errors} == {"Corrupt"}
        assert status.files_total is not None
        assert 0 < status.files_done < status.files_total
        rig.objects.answer = lambda _key, part: part
        rig.clock_s = lambda: KEPT_FOR_S
        assert (await warm(node)).state == "done"

    rig.clock_s = lambda: 0.0
    run(rig, work)


def test_a_damaged_directory_costs_what_is_below(rig: Rig) -> None:
    """A directory that cannot be read is named; everything else comes, and all of it later."""
    root = rig.store.commit(REPO, rig.commit).root
    (small,) = [entry for entry in rig.store.packs.read_tree(root) if entry.name == b"small"]
    bad = keys.pack(small.segments[0].pack)

    def damaged(key: str, part: Part) -> Part:
        return structs.replace(part, data=bytes(len(part.data))) if key == bad else part

    async def work(node: StoreNode) -> None:
        rig.objects.answer = damaged
        status = await warm(node)
        assert status.state == "failed"
        assert [(error.error, error.path) for error in status.errors] == [("Corrupt", "small")]
        assert status.files_done == len(FILES) - len(SMALL)
        rig.objects.answer = lambda _key, part: part
        rig.clock_s = lambda: KEPT_FOR_S
        assert (await warm(node)).state == "done"
        await check_all_here(rig, node)

    rig.clock_s = lambda: 0.0
    run(rig, work)


def test_a_store_that_refuses_ends_the_job(rig: Rig) -> None:
    """Denied is told at once, and once."""

    def refuse(_key: str, _part: Part) -> Part:
        raise Denied("no credentials")

    async def work(node: StoreNode) -> None:
        await node.names.snapshot(REPO, "main")
        rig.objects.answer = refuse
        status = await warm(node)
        assert (status.state, [error.error for error in status.errors]) == ("failed", ["Denied"])

    run(rig, work)


def test_an_outage_is_sat_out(rig: Rig) -> None:
    """A store that does not answer for a while delays a job, and does not fail it."""
    failures = 15

    def flaky(_key: str, part: Part) -> Part:
        nonlocal failures
        failures -= 1
        if failures > 0:
            raise Unavailable("away")
        return part

    async def pause(_seconds: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.002, turn.set_result, None)
        await turn

    async def work(node: StoreNode) -> None:
        warmer = Warmer(node._warmer._warmer._context, backoff=lambda: Backoff(sleep=pause))
        await node.names.snapshot(REPO, "main")
        rig.objects.answer = flaky
        job = await warmer.start(WarmRequest(REPO))
        await until(lambda: not job.is_running)
        assert (job.state, job.errors) == ("done", [])
        assert failures < 0
        await warmer.close()

    run(rig, work)


def test_jobs_are_bounded(rig: Rig) -> None:
    """More jobs than may run are refused, until one of them ends."""

    async def work(node: StoreNode) -> None:
        await node.names.snapshot(REPO, "main")
        gate = Gate(rig)
        jobs = [await node.cache_control.warm(WarmRequest(REPO)) for _ in range(JOBS_MAX)]
        with pytest.raises(Unavailable, match="run already"):
            await node.cache_control.warm(WarmRequest(REPO))
        gate.open()
        for job in jobs:
            assert (await ended(node, job)).state == "done"
        assert (await warm(node)).state == "done"
        listed = [job.id for job in (await node.cache_control.warm_jobs()).jobs]
        assert listed[1:] == [job.id for job in reversed(jobs)]

    run(rig, work)


def test_closing_ends_jobs_and_keeps_their_pins(rig: Rig) -> None:
    """A proxy that stops in the middle leaves the pin, so that the next one goes on under it."""

    async def stopped() -> None:
        async with rig.node() as node:
            await node.names.snapshot(REPO, "main")
            await warm(node, WarmRequest(REPO, paths=["small"], pin_s=600))
            gate = Gate(rig)
            await node.cache_control.warm(WarmRequest(REPO, pin_s=600))
            await until(lambda: gate.held > 0)
            gate.open()

    asyncio.run(stopped())
    rig.objects.answer = lambda _key, part: part

    async def next_process(node: StoreNode) -> None:
        states = {pin.path: pin.is_complete for pin in (await node.cache_control.pins()).pins}
        assert states == {"small": True, "": False}
        assert (await warm(node, WarmRequest(REPO, pin_s=600))).state == "done"
        assert all(pin.is_complete for pin in (await node.cache_control.pins()).pins)

    run(rig, next_process)


def test_a_cache_that_keeps_nothing_fails_the_job(rig: Rig) -> None:
    """A job never says done when its bytes did not stay."""

    class Refusing(Cache):
        def store(self, *_given: object, **_more: object) -> list[ChunkRun]:
            return []

    async def work() -> None:
        async with rig.node(cache=Refusing) as node:
            status = await warm(node)
            assert (status.state, status.errors[0].error) == ("failed", "NoSpace")

    asyncio.run(work())


def test_many_batches_are_one_job(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are planned a few at a time, all come all the same."""
    monkeypatch.setattr(job_run, "FILES_TOGETHER_MAX", 7)

    async def work(node: StoreNode) -> None:
        status = await warm(node, WarmRequest(REPO, pin_s=60))
        assert (status.state, status.files_done) == ("done", len(FILES))
        await check_all_here(rig, node)

    run(rig, work)


def test_names_that_are_not_text(tmp_path: Path) -> None:
    """Any bytes may stand in a path."""
    name = b"\xff %s\n" % "ü".encode()
    rig = Rig(tmp_path, {b"d/" + name: b"x" * 100, b"e": b"y"})

    async def work(node: StoreNode) -> None:
        status = await warm(node, WarmRequest(REPO, paths=[encoded(b"d/" + name)], pin_s=9))
        assert (status.state, status.files_done) == ("done", 1)

    run(rig, work)


def test_figures_of_the_node(rig: Rig) -> None:
    """Pins and jobs are among what /status and /metrics show."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, pin_s=60))
        assert node.status()["warm_jobs"] == 0
        assert (await node.cache_control.pins()).pinned_bytes == node.status()["cache_used_bytes"]

    run(rig, work)
    assert Counts().values[Counter.PINNED_FULL] == 0


def test_patterns_are_made_ready_beside_the_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While patterns become what they mean, the proxy answers others: that is another thread's."""
    threads: list[threading.Thread] = []

    class Watched(Selection):
        def __init__(self, paths: Sequence[bytes], globs: Sequence[bytes]) -> None:
            threads.append(threading.current_thread())
            super().__init__(paths, globs)

    monkeypatch.setattr(jobs, "Selection", Watched)

    async def work(node: StoreNode) -> None:
        status = await warm(node, WarmRequest(REPO, paths=["big"], globs=["small/*"]))
        assert (status.state, status.files_done) == ("done", 1 + len(SMALL))

    run(rig, work)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
