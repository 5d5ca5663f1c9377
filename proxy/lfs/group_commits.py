"""The uploads of all clients, in as few commits as possible.

An upload that others of its batch follow is answered as soon as it is safe on the node's disk, so
that clients, which send few at a time, do not wait for a commit each. The last one of a batch waits
until all before it are committed, and fails if one could not be
(docs/decisions/0098-answers-before-commits.md).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.protocol.orders.lfs_orders import Order, Outcome, PutObjects
from lodefs.proxy.lfs.pushes import Pusher, Pushes
from lodefs.proxy.lfs.upload_journal import Kept, UploadJournal
from lodefs.proxy.node import Upload

log = logging.getLogger("lodefs.lfs")

# Larger objects take longer to send than to commit, so that others fill the time.
EARLY_BYTES_MAX = 8 << 20
KEPT_MAX, KEPT_BYTES_MAX = 1000, 256 << 20  # answered and not committed; beyond them, all wait
GROUP_MAX, GROUP_BYTES_MAX, GROUP_S_MAX = 500, 64 << 20, 1.0  # a commit begins at the latest


class Orders(Protocol):
    """Carries out orders, one after the other."""

    async def carry_out(self, order: Order) -> Outcome:
        """As of proxy.node.LfsWriter."""

    async def close(self) -> None:
        """Fails the orders that are not carried out."""


class GroupCommits:
    """Implements proxy.node.LfsWriter. For use on the event loop only."""

    def __init__(self, orders: Orders, directory: Path) -> None:
        """Commits what an earlier proxy has left, too."""
        self._orders = orders
        self._directory = directory / "uploads"
        self._journal = UploadJournal(directory / "journal")
        self._pushes = Pushes()
        self._gathered: dict[str, list[Kept]] = {}  # by repository
        self._under_way: dict[asyncio.Task[None], list[Kept]] = {}
        self._is_closing = False
        self._has_directory = False
        shutil.rmtree(self._directory, ignore_errors=True)  # what a killed proxy has left
        for kept, is_whole in self._journal.left():
            if is_whole:
                self._gather(kept)
            else:
                self._lose([kept], "the node's disk has damaged it")

    def uploads(self) -> Path:
        if not self._has_directory:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._has_directory = True
        return self._directory

    async def carry_out(self, order: Order) -> Outcome:
        return await self._orders.carry_out(order)

    def expect(self, repo: str, name: str, asked: Collection[str], missing: Collection[str]) -> str:
        return self._pushes.begin(Pusher(repo, name), asked, missing)

    async def put(self, repo: str, name: str, upload: Upload, key: str) -> None:
        pusher, file, kept = Pusher(repo, name), upload.file, None
        if self._has_room(upload.size_bytes):
            kept = await asyncio.to_thread(self._journal.keep, pusher, upload)
            file = kept.file
        if self._pushes.is_followed(key, pusher, upload.oid) and kept is not None:
            self._gather(kept)
            return
        self._flush(repo)  # shares a commit with what follows
        try:
            await self._orders.carry_out(PutObjects(repo, {upload.oid: str(file)}))
        finally:
            await asyncio.to_thread(_remove, file)
        self._pushes.stored(repo, {upload.oid})
        await self._until(lambda one: one.pusher == pusher)
        if self._is_closing:  # the next proxy commits what was answered
            raise Unavailable("the proxy is stopping: push again")
        self._pushes.check(key, pusher, time.monotonic())

    async def settled(self, repo: str, oid: str) -> None:
        self._flush(repo)
        await self._until(lambda one: (one.pusher.repo, one.oid) == (repo, oid))

    async def close(self) -> None:
        self._is_closing = True
        await self._orders.close()
        await self._until(lambda _: True)

    def _has_room(self, size_bytes: int) -> bool:
        groups = [*self._gathered.values(), *self._under_way.values()]
        sizes_bytes = [one.size_bytes for group in groups for one in group]
        return (
            size_bytes <= EARLY_BYTES_MAX
            and len(sizes_bytes) < KEPT_MAX
            and sum(sizes_bytes) + size_bytes <= KEPT_BYTES_MAX
        )

    def _gather(self, kept: Kept) -> None:
        repo = kept.pusher.repo
        group = self._gathered.setdefault(repo, [])
        if not group:
            asyncio.get_running_loop().call_later(GROUP_S_MAX, self._flush, repo)
        group.append(kept)
        if len(group) >= GROUP_MAX or sum(one.size_bytes for one in group) >= GROUP_BYTES_MAX:
            self._flush(repo)

    def _flush(self, repo: str) -> None:
        """Begins the commit of what was gathered. After ``close``, the next proxy does."""
        group = self._gathered.pop(repo, [])
        if group and not self._is_closing:
            task = asyncio.create_task(self._commit(repo, group))
            self._under_way[task] = group
            task.add_done_callback(self._under_way.pop)

    async def _commit(self, repo: str, group: list[Kept]) -> None:
        files = {one.oid: str(one.file) for one in group}
        try:
            await self._orders.carry_out(PutObjects(repo, files))
        except LodefsError as error:
            if not self._is_closing:
                self._lose(group, error)
        else:
            self._pushes.stored(repo, files.keys())
            await asyncio.to_thread(_remove, *(one.file for one in group))

    def _lose(self, group: list[Kept], why: object) -> None:
        for one in group:
            self._pushes.lose(one.pusher, one.oid, time.monotonic())
            _remove(one.file)
        names = f"{len(group)} objects of {group[0].pusher.repo}, such as {group[0].oid},"
        log.warning("%s were uploaded, and cannot be stored: %s", names, why)

    async def _until(self, matches: Callable[[Kept], bool]) -> None:
        """Waits for the commits under way that have such objects."""
        if tasks := [task for task, group in self._under_way.items() if any(map(matches, group))]:
            await asyncio.wait(tasks)


def _remove(*files: Path) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()
