"""Histories of one store with honest and hostile repositories, and of the nodes that read it.

A history is a list of steps. ``play`` performs it and checks every honest byte that it reads, in
each way in which bytes leave a node: ranged reads of the proxy, what the hot path sends, what a
mount reads from the cache's files, and whole files that are handed to the kernel.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.format.inodes import ROOT_INO
from lodefs.chunkstore.format.names import split_path
from lodefs.chunkstore.nodecache.view import CacheView, open_view
from lodefs.chunkstore.protocol.cache_control import WarmRequest
from lodefs.chunkstore.protocol.wire import CachePlace, Entry, Snapshot
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.node import SnapshotFile
from lodefs.proxy.service.store_node import NodeSettings, StoreNode
from tests.adversary.hostile_repo import Claims, FileClaim, TreeClaim, lying_commit
from tests.support.chunkstore.handmade import Files, Handmade
from tests.support.proxy.cluster import cluster_of
from tests.support.proxy.rig import MIB, Rig, ended

SIZES_BYTES = (40_000, 200_000, 1_200_000)  # one chunk, several, a flat file
PATHS = (b"one", b"d/several", b"large", b"d/e/large")
VARIANTS = 3
CACHE_SIZE_BYTES_MAX = 64 * MIB
SMALL_CACHE_SIZE_BYTES_MAX = 4 * MIB


def content(size_bytes: int, variant: int) -> bytes:
    """One of the few contents of all histories."""
    return random.Random(f"{size_bytes} {variant}").randbytes(size_bytes)


CONTENTS = {size: [content(size, n) for n in range(VARIANTS)] for size in SIZES_BYTES}


def honest_files(variant: int) -> Files:
    """A dataset; different variants share files."""
    one, several, large = SIZES_BYTES
    return {
        b"one": CONTENTS[one][variant],
        b"d/several": CONTENTS[several][variant],
        b"large": CONTENTS[large][variant],
        b"d/e/large": CONTENTS[large][(variant + 1) % VARIANTS],
    }


@dataclass(frozen=True, slots=True)
class Push:
    """An honest push; ``pack_chunks`` says how its bytes fall into packs."""

    repo: int
    variant: int
    pack_chunks: int


@dataclass(frozen=True, slots=True)
class Lie:
    """A push that claims to be an honest dataset, with other bytes behind some of it."""

    about: int
    behind: int
    how: tuple[Literal["same", "other", "short", "stretched"], ...]  # for each of PATHS
    tree: Literal["", "d", "d/e", "root"] = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A ranged read of a file of a commit, by its number; ``first`` and ``size`` in 1/16."""

    commit: int
    path: int
    first: int
    size: int
    node: int


@dataclass(frozen=True, slots=True)
class Warm:
    """All of a commit is brought to a node."""

    commit: int
    node: int


@dataclass(frozen=True, slots=True)
class Restart:
    """All nodes end and start again on their caches."""


Step = Push | Lie | Read | Warm | Restart

_few = st.integers(0, VARIANTS - 1)
_which = st.integers(0, 7)
_pushes = st.builds(
    Push, repo=st.integers(0, 1), variant=_few, pack_chunks=st.sampled_from([3, 99])
)
_lies = st.builds(
    Lie,
    about=_few,
    behind=_few,
    how=st.tuples(*[st.sampled_from(["same", "other", "short", "stretched"])] * len(PATHS)),
    tree=st.sampled_from(["", "", "d", "d/e", "root"]),
)
_reads = st.builds(
    Read,
    commit=_which,
    path=st.integers(0, len(PATHS) - 1),
    first=st.integers(0, 15),
    size=st.sampled_from([1, 1, 16]),
    node=st.integers(0, 1),
)
_warms = st.builds(Warm, commit=_which, node=st.integers(0, 1))
histories = st.tuples(
    st.lists(st.one_of(_lies, _pushes), min_size=1, max_size=3),
    st.lists(
        st.one_of(_reads, _reads, _reads, _reads, _lies, _pushes, _warms, st.just(Restart())),
        min_size=2,
        max_size=14,
    ),
).map(lambda parts: [*parts[0], *parts[1]])


class WrongBytes(Exception):
    """An honest commit showed bytes that are not its own."""


@dataclass(slots=True)
class _World:
    """A store, what its commits are to show, and the nodes that run."""

    rig: Rig
    nodes_count: int
    cache_size_bytes_max: int
    commits: list[tuple[str, str, Files | None]] = field(default_factory=list)  # None: hostile
    nodes: list[StoreNode] = field(default_factory=list)
    views: dict[tuple[bytes, str], CacheView] = field(default_factory=dict)
    honest_reads: int = 0

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self.nodes_count == 1:
                settings = NodeSettings(
                    CacheSettings(
                        self.rig.directory / "cache-0",
                        self.cache_size_bytes_max,
                        free_size_bytes_min=0,
                    )
                )
                self.nodes = [await stack.enter_async_context(self.rig.node(settings))]
            else:
                cluster = cluster_of(
                    self.rig, self.nodes_count, cache_size_bytes_max=self.cache_size_bytes_max
                )
                members = await stack.enter_async_context(cluster)
                self.nodes = [member.node for member in members]
            yield
            self.views.clear()

    def view(self, place: CachePlace, snapshot: Snapshot) -> CacheView:
        """That of a mount of the snapshot, which knows what the node has written by now."""
        which = place.directory, snapshot.commit
        view = self.views.get(which)
        if view is None:
            ticks = count(step=3600)  # each look for news is due
            view = self.views[which] = open_view(place, snapshot, clock=lambda: float(next(ticks)))
        else:
            view.catch_up()
            view.close_evicted()
        return view

    def push(self, step: Push) -> None:
        repo = f"honest/{step.repo}"
        maker = Handmade(self.rig.store, chunk_size_bytes=60_000, pack_chunks=step.pack_chunks)
        files = honest_files(step.variant)
        commit = maker.commit(repo, files, message=f"{len(self.commits)}")
        self.commits.append((repo, commit.hex(), files))

    def lie(self, step: Lie) -> None:
        files = honest_files(step.about)
        claims: dict[bytes, FileClaim | TreeClaim] = {}
        for path, how in zip(PATHS, step.how, strict=True):
            behind = honest_files(step.behind)[path]
            assert isinstance(behind, bytes)
            if how != "same":
                behind = behind if how == "other" else behind[: len(behind) // 2]
                claims[path] = FileClaim(behind, stretched=how == "stretched")
        if step.tree:
            below = b"" if step.tree == "root" else step.tree.encode() + b"/"
            there = honest_files(step.behind).items()
            within = {path[len(below) :]: what for path, what in there if path.startswith(below)}
            claims[below.rstrip(b"/")] = TreeClaim(within)
        commit = lying_commit(self.rig.store, "hostile", files, _outermost(claims))
        self.commits.append(("hostile", commit.hex(), None))


def _outermost(claims: Claims) -> Claims:
    """A lying directory hides what lies below it."""
    trees = [path for path, claim in claims.items() if isinstance(claim, TreeClaim)]
    return {
        path: claim
        for path, claim in claims.items()
        if not any(path != tree and path.startswith(tree + b"/" * bool(tree)) for tree in trees)
    }


async def play(
    steps: Sequence[Step], directory: Path, *, nodes: int = 1, small_cache: bool = False
) -> int:
    """Performs the steps with the caches of nodes in a directory; how many honest reads were
    compared. WrongBytes."""
    limit = SMALL_CACHE_SIZE_BYTES_MAX if small_cache else CACHE_SIZE_BYTES_MAX
    world = _World(Rig(directory, {}), nodes, limit)
    left = list(steps)
    while left:
        async with world.started():
            while left and not isinstance(step := left.pop(0), Restart):
                await _perform(world, step)
            await _read_all_honest(world)
    return world.honest_reads


async def _perform(world: _World, step: Step) -> None:
    match step:
        case Push():
            world.push(step)
        case Lie():
            world.lie(step)
        case Warm():
            await _warm(world, step)
        case Read():
            repo, commit, files = world.commits[step.commit % len(world.commits)]
            path = PATHS[step.path]
            node = world.nodes[step.node % len(world.nodes)]
            await _read(world, node, (repo, commit), path, files, (step.first, step.size))


async def _read_all_honest(world: _World) -> None:
    for number, (repo, commit, files) in enumerate(world.commits):
        for path in PATHS if files is not None else ():
            node = world.nodes[number % len(world.nodes)]
            await _read(world, node, (repo, commit), path, files, (0, 16))


async def _warm(world: _World, step: Warm) -> None:
    repo, commit, _ = world.commits[step.commit % len(world.commits)]
    node = world.nodes[step.node % len(world.nodes)]
    with suppress(LodefsError):
        await ended(node, await node.cache_control.warm(WarmRequest(repo, rev=commit)))


async def _read(
    world: _World,
    node: StoreNode,
    which: tuple[str, str],
    path: bytes,
    files: Files | None,
    part: tuple[int, int],
) -> None:
    """One read of a file, compared if its commit is honest; then all that the cache has of it."""
    try:
        snapshot = await node.names.snapshot(*which)
        file = await node.names.file(snapshot, path)
        if not isinstance(file, SnapshotFile):
            raise NotFound(f"{path!r} is no file")
        first = file.entry.size_bytes * part[0] // 16
        size = min(file.entry.size_bytes * part[1] // 16, file.entry.size_bytes - first)
        async with aclosing(await node.files.open(file, first, size)) as stream:
            got = b"".join([bytes(stream.first), *[bytes(piece) async for piece in stream]])
    except LodefsError:
        if files is not None:
            raise
        return
    if files is None:
        return
    want = files[path]
    assert isinstance(want, bytes)
    world.honest_reads += 1
    _compare(got, want[first : first + size], f"{which} {path!r} by the proxy")
    extent = node.files.hit(file.content_id, first, size)
    if extent is not None:
        sent = os.pread(extent.fd, extent.size_bytes, extent.offset)
        _compare(sent, want[first : first + size], f"{which} {path!r} by the hot path")
    _look(world.view(node.cache_place(), snapshot), path, want)


def _look(view: CacheView, path: bytes, want: bytes) -> None:
    """What a mount finds in the cache's files by itself."""
    entry = _walk(view, path)
    if entry is None:
        return
    if entry.size_bytes != len(want):
        raise WrongBytes(f"{path!r} has another size for a mount")
    for first in range(0, len(want), 150_000):
        size = min(150_000, len(want) - first)
        found = view.find(entry, first, size)
        if found is not None:
            got = b"".join(os.pread(file.fd, size, offset) for file, offset, size in found)
            _compare(got, want[first : first + size], f"{path!r} by a mount")
    flat = view.complete_flat(entry)
    if flat is not None:
        _compare(os.pread(flat.fd, len(want) + 1, 0), want, f"{path!r} by passthrough")


def _walk(view: CacheView, path: bytes) -> Entry | None:
    found, ino = None, ROOT_INO
    for name in split_path(path):
        found = view.lookup(ino, name)
        if found is None:
            return None
        ino = found.ino
    return found


def _compare(got: bytes, want: bytes, what: str) -> None:
    if got != want:
        raise WrongBytes(what)
