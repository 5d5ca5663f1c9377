"""Uploads that were answered early: over restarts, damage, and beyond limits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NoSpace, Unavailable
from lodefs.chunkstore.protocol.orders.lfs_orders import Order, Outcome, PutObjects
from lodefs.proxy.lfs import group_commits
from lodefs.proxy.lfs import pushes as pushes_module
from lodefs.proxy.lfs.group_commits import GroupCommits
from lodefs.proxy.lfs.pushes import LOST_S, Pusher, Pushes
from lodefs.proxy.node import Upload

REPO, WHO = "r", "alice"


class MemoryOrders:
    """Implements Orders. Objects are stored when ``open`` is set; ``fault`` fails all."""

    def __init__(self, fault: LodefsError | None = None) -> None:
        self.stored: dict[str, bytes] = {}
        self.commits = 0
        self.fault = fault
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    async def carry_out(self, order: Order) -> Outcome:
        assert isinstance(order, PutObjects)
        self.asked.set()
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        self.stored |= contents(order)
        self.commits += 1
        return Outcome()

    async def close(self) -> None:
        self.fault = Unavailable("the proxy is stopping")
        self.open.set()


def contents(order: PutObjects) -> dict[str, bytes]:
    return {oid: Path(file).read_bytes() for oid, file in order.files.items()}


class Client:
    """Uploads objects to a node of its own."""

    def __init__(self, folder: Path, orders: MemoryOrders) -> None:
        self.node = GroupCommits(orders, folder)
        self.folder = folder
        self.key = ""

    def asks(self, *datas: bytes) -> None:
        oids = [hashlib.sha256(one).hexdigest() for one in datas]
        self.key = self.node.expect(REPO, WHO, oids, oids)

    async def puts(self, data: bytes) -> None:
        oid = hashlib.sha256(data).hexdigest()
        file = self.node.uploads() / f"of-{oid[:8]}"
        file.write_bytes(data)
        await self.node.put(REPO, WHO, Upload(oid, file, len(data)), self.key)

    def kept(self) -> list[Path]:
        return sorted(one for one in self.folder.rglob("*.of-*") if one.is_file())


def run(test: Callable[[MemoryOrders], Awaitable[None]]) -> None:
    async def inside() -> None:
        await test(MemoryOrders())

    asyncio.run(inside())


def test_a_proxy_that_was_killed(tmp_path: Path) -> None:
    """What was answered before the proxy was killed is committed by the next one, before it
    answers the last upload of the same user; what the disk damaged fails that one."""

    async def test(orders: MemoryOrders) -> None:
        killed = Client(tmp_path, orders)
        killed.asks(b"1", b"2", b"3")
        await killed.puts(b"1")
        await killed.puts(b"2")
        assert not orders.stored and len(killed.kept()) == 2
        for file in killed.kept():
            if file.read_bytes() == b"2":
                file.write_bytes(b"x")
        after = Client(tmp_path, orders)
        after.asks(b"3")
        with pytest.raises(InvalidInput, match="push again"):
            await after.puts(b"3")
        assert sorted(orders.stored.values()) == [b"1", b"3"]
        assert not after.kept()

    run(test)


def test_a_proxy_that_stops(tmp_path: Path) -> None:
    """What is not committed when a proxy stops stays for the next one."""

    async def test(orders: MemoryOrders) -> None:
        client = Client(tmp_path, orders)
        orders.open.clear()
        client.asks(b"1", b"2")
        await client.puts(b"1")
        last = asyncio.create_task(client.puts(b"2"))
        await orders.asked.wait()
        await client.node.close()
        with pytest.raises(Unavailable):
            await last
        assert [one.read_bytes() for one in client.kept()] == [b"1"]
        orders.fault = None
        again = Client(tmp_path, orders)
        await again.node.settled(REPO, hashlib.sha256(b"1").hexdigest())
        assert list(orders.stored.values()) == [b"1"] and not again.kept()

    run(test)


def test_a_failed_commit(tmp_path: Path) -> None:
    """The last upload of a batch fails with the commit, and the next ones until the client asks
    about what was lost."""

    async def test(orders: MemoryOrders) -> None:
        client = Client(tmp_path, orders)
        client.asks(b"1", b"2")
        await client.puts(b"1")
        orders.fault = NoSpace("quota")
        with pytest.raises(NoSpace):
            await client.puts(b"2")
        await client.node.settled(REPO, hashlib.sha256(b"1").hexdigest())
        orders.fault = None
        client.asks(b"2")
        with pytest.raises(InvalidInput, match="push again"):
            await client.puts(b"2")
        client.asks(b"1", b"2")
        await client.puts(b"1")
        await client.puts(b"2")
        assert sorted(orders.stored.values()) == [b"1", b"2"] and not client.kept()

    run(test)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object beyond the limits is stored before it is answered; a full group is committed."""
    monkeypatch.setattr(group_commits, "EARLY_BYTES_MAX", 2)
    monkeypatch.setattr(group_commits, "GROUP_MAX", 2)

    async def test(orders: MemoryOrders) -> None:
        client = Client(tmp_path, orders)
        client.asks(b"large", b"1", b"2", b"3")
        await client.puts(b"large")
        assert list(orders.stored.values()) == [b"large"]
        await client.puts(b"1")
        await client.puts(b"2")
        await client.node.settled(REPO, hashlib.sha256(b"2").hexdigest())
        assert (orders.commits, len(orders.stored)) == (2, 3)

    run(test)


def test_batches() -> None:
    """An upload is followed by others only if its own batch says so."""
    pushes, alice, bob = Pushes(), Pusher(REPO, "alice"), Pusher(REPO, "bob")
    key = pushes.begin(alice, ["1", "2", "3"], ["1", "2"])
    assert not pushes.is_followed("unknown", alice, "1")
    assert not pushes.is_followed(key, bob, "1")
    assert not pushes.is_followed(key, alice, "3")
    assert pushes.is_followed(key, alice, "1")
    assert not pushes.is_followed(key, alice, "1")
    assert not pushes.is_followed(key, alice, "2")


def test_lost_objects_are_forgotten() -> None:
    """A lost object concerns its own user, for as long as clients repeat."""
    pushes, alice = Pushes(), Pusher(REPO, "alice")
    pushes.lose(alice, "1", now_s=5)
    pushes.check("", Pusher(REPO, "bob"), now_s=5)
    with pytest.raises(InvalidInput, match="such as 1"):
        pushes.check("", alice, now_s=5)
    pushes.check("", alice, now_s=5 + LOST_S)


def test_a_batch_remembers_what_it_has_lost() -> None:
    """Its last upload fails however late it comes, also after another client with the same token
    has asked about what was lost, and if it is repeated; once the object is stored, it succeeds."""
    pushes, alice = Pushes(), Pusher(REPO, "alice")
    key = pushes.begin(alice, ["1", "2"], ["1", "2"])
    assert pushes.is_followed(key, alice, "1")
    pushes.lose(alice, "1", now_s=5)
    pushes.begin(alice, ["1"], ["1"])
    again = pushes.begin(alice, ["2"], ["2"])
    for one in (key, again):
        with pytest.raises(InvalidInput, match="such as 1"):
            pushes.check(one, alice, now_s=5 + 2 * LOST_S)
    pushes.check("", alice, now_s=5)
    pushes.stored(REPO, {"1"})
    for one in (key, again):
        pushes.check(one, alice, now_s=5)


def test_a_last_upload_that_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large upload, which takes longer than lost objects of others are remembered, fails if an
    answered one of its batch was lost."""
    monkeypatch.setattr(pushes_module, "LOST_S", 0.0)

    async def test(orders: MemoryOrders) -> None:
        client = Client(tmp_path, orders)
        client.asks(b"1", b"2")
        await client.puts(b"1")
        orders.fault = NoSpace("quota")
        await client.node.settled(REPO, hashlib.sha256(b"1").hexdigest())
        orders.fault = None
        with pytest.raises(InvalidInput, match="push again"):
            await client.puts(b"2")

    run(test)


def test_a_proxy_that_stops_during_the_last_upload(tmp_path: Path) -> None:
    """The last upload is not answered with success while earlier ones are in the journal alone."""

    async def test(orders: MemoryOrders) -> None:
        client = Client(tmp_path, orders)
        client.asks(b"1", b"2")
        await client.puts(b"1")
        orders.open.clear()
        last = asyncio.create_task(client.puts(b"2"))
        await orders.asked.wait()
        orders.open.set()
        client.node._is_closing = True  # as in the first step of close()
        with pytest.raises(Unavailable, match="stopping"):
            await last

    run(test)
