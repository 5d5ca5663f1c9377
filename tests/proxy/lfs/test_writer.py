"""The process that writes for Git LFS: started, ended and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NotFound, Unavailable
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.protocol.orders.lfs_orders import (
    AddLock,
    ListLocks,
    Order,
    Outcome,
    PutObjects,
)
from lodefs.chunkstore.protocol.orders.store_place import StorePlace
from lodefs.chunkstore.repo.store import create_store
from lodefs.proxy.lfs import writer
from lodefs.proxy.lfs.writer import LfsProcess, LfsSettings, _Waiting

LIST = ListLocks("r")


def process_of(folder: Path) -> LfsProcess:
    place = StorePlace(str(folder / "store"), None, None, str(folder / "push-index"))
    return LfsProcess(LfsSettings(place, folder / "lfs"))


def test_it_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that comes while an idle process ends is carried out by another one."""
    monkeypatch.setattr(writer, "IDLE_S", 0.0)
    create_store(DirectoryObjects(str(tmp_path / "store")))

    async def orders() -> list[Outcome]:
        process = process_of(tmp_path)
        found = [await process.carry_out(LIST) for _ in range(2)]
        await process.close()
        return found

    assert asyncio.run(orders()) == [Outcome()] * 2


def test_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the store is the error of the order; a process that ends is one that a client
    may ask again after."""

    async def order() -> None:
        process = process_of(tmp_path)
        try:
            await process.carry_out(LIST)
        finally:
            await process.close()

    with pytest.raises(NotFound, match="store"):
        asyncio.run(order())
    for command in (["true"], [str(tmp_path / "missing")]):
        monkeypatch.setattr(writer, "_COMMAND", command)
        with pytest.raises(Unavailable, match="repeat"):
            asyncio.run(order())


def test_uploads_share_a_commit(tmp_path: Path) -> None:
    """Objects that wait for the same repository are taken together, in front of other orders."""

    async def taken() -> list[Order]:
        process = process_of(tmp_path)
        lock = AddLock("r", "a", "x")
        put = [PutObjects("r", {"1": "f"}), PutObjects("s", {}), PutObjects("r", {})]
        orders: list[Order] = [put[0], lock, *put[1:]]
        loop = asyncio.get_running_loop()
        process._waiting.extend(_Waiting(order, loop.create_future()) for order in orders)
        return [one.order for one in process._next()]

    assert asyncio.run(taken()) == [PutObjects("r", {"1": "f"}), PutObjects("r", {})]
