"""The one way to walk the trees of commits: it reads new directories, many at once.

One tree after the other would cost a round trip for every directory. PackReader reads trees that
lie close together with one GET, so neighbours in the order of their names need few reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from lodefs.chunkstore.errors import UNREADABLE, InvalidInput, LodefsError, Purged
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.repo.pack_reader import PackReader

AHEAD = 32  # directories being read or waiting to be used; bounds memory
BAD_TREE = (*UNREADABLE, InvalidInput, Purged)  # problems of a tree, and not of the store

Node = TypeVar("Node")
Content = TypeVar("Content")
Root = TypeVar("Root")


@dataclass(frozen=True, slots=True)
class Visited(Generic[Node, Content]):
    """A visited directory, and its contents, or why they cannot be read."""

    node: Node
    outcome: Content | LodefsError

    @property
    def error(self) -> LodefsError | None:
        """One of BAD_TREE; None if the directory could be read."""
        return self.outcome if isinstance(self.outcome, LodefsError) else None

    @property
    def content(self) -> Content:
        """The contents. Raises the error, so that nobody takes a lost tree for an empty one."""
        if isinstance(self.outcome, LodefsError):
            raise self.outcome
        return self.outcome


def walk(
    read: Callable[[Node], tuple[Content, Sequence[Node]]],
    roots: Iterable[Node],
    executor: Executor,
    is_new: Callable[[Node], bool],
) -> Iterator[Visited[Node, Content]]:
    """Yields ``roots`` and all directories below them, each directory before its contents.

    ``read`` returns the contents of a directory and its subdirectories; threads of ``executor``
    call it. Directories that are not new are skipped with all below them. ``is_new`` is called once
    for each, in the iterating thread. It takes another root when too few directories wait to be
    read. Raises: what ``read`` raises besides BAD_TREE.
    """

    def outcome(node: Node) -> tuple[Content | LodefsError, Sequence[Node]]:
        try:
            return read(node)
        except BAD_TREE as error:
            return error, ()

    beginnings = filter(is_new, roots)
    waiting: list[Node] = []  # the next one is last: the deepest go first, so few wait
    reading: deque[tuple[Node, Future[tuple[Content | LodefsError, Sequence[Node]]]]] = deque()
    try:
        while True:
            while len(reading) < AHEAD:
                node = waiting.pop() if waiting else next(beginnings, None)
                if node is None:
                    break
                reading.append((node, executor.submit(outcome, node)))
            if not reading:
                return
            node, future = reading.popleft()
            found, below = future.result()
            waiting += reversed([one for one in below if is_new(one)])
            yield Visited(node, found)
    finally:
        for _, future in reading:
            future.cancel()


class Place(NamedTuple, Generic[Root]):
    """A directory at a path below a root, and the caller's name for that root."""

    root: Root
    path: bytes
    entry: TreeEntry


def walk_trees(
    packs: PackReader,
    roots: Iterable[Place[Root]],
    executor: Executor,
    is_new: Callable[[Place[Root]], bool] = lambda _: True,
) -> Iterator[Visited[Place[Root], list[TreeEntry]]]:
    """Does what ``walk`` does, with the entries of each directory. By default it yields equal
    directories at each of their paths. Raises: Unavailable, Denied."""

    def read(place: Place[Root]) -> tuple[list[TreeEntry], list[Place[Root]]]:
        entries = packs.read_tree(place.entry)
        return entries, [
            Place(place.root, join(place.path, entry.name), entry)
            for entry in entries
            if entry.kind is Kind.DIRECTORY
        ]

    return walk(read, roots, executor, is_new)


def join(path: bytes, name: bytes) -> bytes:
    """Returns a path extended by one name."""
    return path + b"/" + name if path else name
