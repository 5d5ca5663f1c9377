"""The one way through the trees of commits: directories are read side by side, those that are new.

One tree after the other would cost a round trip for every directory. PackReader brings trees that
lie near each other with one GET, so neighbours in the order of their names are few reads.
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

AHEAD = 32  # directories that are read, or wait to be looked at, at once; bounds memory
BAD_TREE = (*UNREADABLE, InvalidInput, Purged)  # what is wrong with a tree, and not with the store

Node = TypeVar("Node")
Content = TypeVar("Content")
Root = TypeVar("Root")


@dataclass(frozen=True, slots=True)
class Visited(Generic[Node, Content]):
    """A directory that was met, and what is in it, or why that cannot be read."""

    node: Node
    outcome: Content | LodefsError

    @property
    def error(self) -> LodefsError | None:
        """One of BAD_TREE; None if it could be read."""
        return self.outcome if isinstance(self.outcome, LodefsError) else None

    @property
    def content(self) -> Content:
        """Raises: its error, so that nobody takes a lost tree for an empty one."""
        if isinstance(self.outcome, LodefsError):
            raise self.outcome
        return self.outcome


def walk(
    read: Callable[[Node], tuple[Content, Sequence[Node]]],
    roots: Iterable[Node],
    executor: Executor,
    is_new: Callable[[Node], bool],
) -> Iterator[Visited[Node, Content]]:
    """``roots`` and all directories below them, a directory before what is in it.

    ``read`` gives what is in a directory, and the directories there; threads of ``executor`` call
    it. What is not new is left out, with all below it: ``is_new`` is asked once of each, in the
    thread that iterates. A further root is taken when too few directories wait to be read. Raises:
    what ``read`` raises besides BAD_TREE.
    """

    def outcome(node: Node) -> tuple[Content | LodefsError, Sequence[Node]]:
        try:
            return read(node)
        except BAD_TREE as error:
            return error, ()

    beginnings = filter(is_new, roots)
    waiting: list[Node] = []  # the next one last: the deepest go first, so few wait
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
    """A directory at a path below a root, and what the caller calls that root."""

    root: Root
    path: bytes
    entry: TreeEntry


def walk_trees(
    packs: PackReader,
    roots: Iterable[Place[Root]],
    executor: Executor,
    is_new: Callable[[Place[Root]], bool] = lambda _: True,
) -> Iterator[Visited[Place[Root], list[TreeEntry]]]:
    """As ``walk``, with the entries of each directory; by default equal ones at each of their
    paths. Raises: Unavailable, Denied."""

    def read(place: Place[Root]) -> tuple[list[TreeEntry], list[Place[Root]]]:
        entries = packs.read_tree(place.entry)
        return entries, [
            Place(place.root, join(place.path, entry.name), entry)
            for entry in entries
            if entry.kind is Kind.DIRECTORY
        ]

    return walk(read, roots, executor, is_new)


def join(path: bytes, name: bytes) -> bytes:
    """A path one name longer."""
    return path + b"/" + name if path else name
