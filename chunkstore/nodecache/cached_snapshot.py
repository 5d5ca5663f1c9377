"""Reads one snapshot on a node: from the cache's files first, and from the proxy otherwise.

It finds the bytes, as extents, for two kinds of readers. A mount's worker has a thread that
maintains the cache's view, and reads into the kernel's messages (mount/read). A Python program has
no such thread, and reads into its own buffers (lodefs/reading).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.protocol.wire import CachePlace, Entry, Snapshot, UsageReport
from lodefs.chunkstore.system import after_fork
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.types import Buffer

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import CacheView, Extent, OpenFile

    Piece: TypeAlias = Extent | Buffer  # bytes of a file: their extent, or the bytes themselves

ROUND_S = 2.0  # between two runs of maintain
RETRY_S = 10.0  # after the cache could not be opened
ASK_AGAIN_S = 30.0  # for the proxy's cache, which may have changed
COMPLAINT_PAUSE_S = 10.0
COMING_MAX = 64  # files of which the proxy has said how far they are fetched

Opener = Callable[[CachePlace, Snapshot], "CacheView"]
Connect = Callable[[], AbstractContextManager[Client]]
T = TypeVar("T")


class CachedSnapshot:
    """The parts of ``snapshot`` that are in the cache. For any thread, and for forked children.

    ``view`` is the cache as it can be read now, or None: then the proxy is asked for everything.
    ``connect`` returns a client for maintenance; it raises NotFound if the proxy runs on another
    machine. ``log`` logs a line. ``nodes`` keeps known entries.
    """

    def __init__(
        self,
        connect: Connect,
        snapshot: Snapshot,
        log: Callable[[str], None] = lambda _line: None,
        *,
        nodes: Lru[int, Entry] | None = None,
        opener: Opener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view: CacheView | None = None
        self.snapshot = snapshot
        self._connect = connect
        self._log = log
        self._nodes = nodes
        self._opener = opener or _open_view
        self._clock = clock
        self.reset()
        after_fork.renew(self)

    def reset(self) -> None:
        """Drops the view, as a forked child must: the next reader opens the index."""
        if self.view is not None:
            self.view.abandon()
            after_fork.keep_for_ever(self.view)
        self.view = None
        self._next_turn_s = self._next_try_s = self._next_complaint_s = self._clock()
        self._turn = Lock()
        self._place: CachePlace | None = None
        self._said = ""
        self._reads = self._read_bytes = 0
        self._coming: Lru[int, int] = Lru(COMING_MAX)  # coming_end, by inode number

    # --- locations of bytes

    def ask(self, question: Callable[[CacheView], T | None], *, eager: bool = True) -> T | None:
        """Returns the index's answer; None if the proxy must be asked. Raises: NotFound if the name
        certainly does not exist.

        ``eager`` looks for new rows if the index does not know. Single names do not need it, since
        readers keep the proxy's answers.
        """
        view = self.current()
        return None if view is None else self._ask(view, question, eager=eager)

    def _ask(
        self, view: CacheView, question: Callable[[CacheView], T | None], *, eager: bool = True
    ) -> T | None:
        try:
            found = question(view)
            if found is None and eager and self.catch_up(view):
                found = question(view)
        except NotFound:
            raise
        except (LodefsError, OSError) as error:
            self.failed(view, error)
            return None
        return found

    def find(
        self, ino: int, first: int, size_bytes: int, node: Entry | None = None
    ) -> list[Extent] | None:
        """Returns the extents of a range of a file, fewer bytes only at the file's end; None unless
        the index knows all of them. ``node`` is the file's entry, if the caller has it."""
        view = self.current()
        if view is None:
            return None
        if node is None and self._nodes is not None:
            node = self._nodes.get(ino)
        if node is None or node.content:  # others are small, and rarely read twice
            flat = view.known_flat(ino)
            if flat is not None:
                size = min(size_bytes, flat.size_bytes - first)
                return [(flat, first, size)] if size > 0 else []
            told = view.told(ino, first, size_bytes)
            if told is not None:
                return [told]
        return self._ask(view, lambda view: self._find(view, ino, first, size_bytes, node))

    def _find(
        self, view: CacheView, ino: int, first: int, size_bytes: int, node: Entry | None
    ) -> list[Extent] | None:
        if node is None:
            node = self.node(view, ino)
            if node is None or node.kind != Kind.FILE:
                return None
        size = min(size_bytes, node.size_bytes - first)
        return view.find(node, first, size) if size > 0 else []

    def node(self, view: CacheView, ino: int) -> Entry | None:
        """Returns the entry with a number, from memory or from the index."""
        if self._nodes is None:
            return view.node(ino)
        node = self._nodes.get(ino)
        if node is None:
            node = view.node(ino)
            if node is not None:
                self._nodes.put(ino, node)
        return node

    def fetch(self, client: Client, ino: int, first: int, size_bytes: int) -> list[Piece]:
        """Has the proxy fetch a range of a file, fewer bytes only at its end. Returns extents, or
        bytes for what cannot be read from here. Raises: the errors of ``client``. The caller must
        take the bytes before the client's next request."""
        view = self.view
        if view is None:
            return [client.read(ino, first, size_bytes)]
        pieces: list[Piece] = []
        at, end = first, first + size_bytes
        while at < end:
            told = client.locate(ino, at, end - at)
            self._coming.put(ino, told[-1].coming_end if isinstance(told, list) else 0)
            if not isinstance(told, list):
                return [*pieces, bytes(told)] if pieces else [told]
            for place in told:
                end = min(end, place.file_size_bytes)
                if at >= end:
                    break
                file = view.tell(ino, place)
                if file is None:
                    return [*pieces, bytes(client.read(ino, at, end - at))]
                size = min(end - at, place.size_bytes)
                pieces.append((file, place.offset, size))
                at += size
        return pieces

    def is_coming(self, ino: int, end: int) -> bool:
        """Whether the bytes of a file up to ``end`` are in the cache, or on their way to it, as far
        as the proxy has said so."""
        return end <= (self._coming.get(ino) or 0)

    def render(
        self,
        pieces: Sequence[Piece],
        room: Callable[[int], memoryview],
        fill: Callable[[memoryview, OpenFile, int], bool],
        read: Callable[[int, int], Buffer],
    ) -> memoryview:
        """Copies ``pieces``, one after the other, into the room that the caller provides.

        ``fill`` reads a file of the cache from an offset on until the memory is full, and returns
        False if the file has become shorter. Then ``read(at, size_bytes)`` asks the proxy for that
        piece, which begins ``at`` bytes after the first one; it may use the room.
        """
        used = set[int]() if self.view is None else self.view.used
        while True:
            buffer = room(sum([size_of(piece) for piece in pieces]))
            at = 0
            for number, piece in enumerate(pieces):
                size = size_of(piece)
                if not isinstance(piece, tuple):
                    buffer[at : at + size] = piece
                elif fill(buffer[at : at + size], piece[0], piece[1]):
                    used.add(piece[0].number)
                else:
                    self._truncated(piece[0])
                    pieces = [*pieces[:number], bytes(read(at, size)), *pieces[number + 1 :]]
                    break
                at += size
            else:
                return buffer

    def count(self, size_bytes: int, file: OpenFile | None = None) -> None:
        """Counts bytes that were read without the proxy. ``file`` is set if they came from it and
        not through ``render``. Threads that count at once may lose a count, which is harmless."""
        self._reads += 1
        self._read_bytes += size_bytes
        view = self.view
        if file is not None and view is not None:
            view.used.add(file.number)

    def _truncated(self, file: OpenFile) -> None:
        if self.view is not None:
            self.view.forget(file)
        now_s = self._clock()
        if now_s >= self._next_complaint_s:
            self._next_complaint_s = now_s + COMPLAINT_PAUSE_S
            self._log(f"the cache file {file.number:08x} is truncated: the proxy is asked instead")

    # --- upkeep

    def current(self) -> CacheView | None:
        """Returns the cache as it can be read now. A reader that finds maintenance due runs it."""
        if self._clock() >= self._next_turn_s:
            with self._turn:
                if self._clock() >= self._next_turn_s:  # no other reader has run it meanwhile
                    self.maintain()
                    self._next_turn_s = self._clock() + ROUND_S
        return self.view

    def catch_up(self, view: CacheView) -> bool:
        """Called when a reader missed something. Returns whether the index has more now."""
        return view.catch_up()

    def maintain(self) -> None:
        """Opens the cache, closes evicted files, and reports use, as far as they are due."""
        view = self.view
        if view is not None and not view.is_current():
            self.view = view = None  # the proxy has another cache, or a new one
            self._next_try_s = self._clock()
        if view is None:
            if self._clock() >= self._next_try_s:
                self._open()
            return
        try:
            view.catch_up()
            view.close_evicted()
            if self._clock() >= self._next_try_s:
                self._ask_again()
        except (LodefsError, OSError) as error:
            self.failed(view, error)
        self.report(view)

    def failed(self, view: CacheView, error: Exception) -> None:
        """Gives up a view whose index cannot be read. A new one is opened later."""
        if self.view is view:
            self.view = None
            self._next_try_s = self._clock() + RETRY_S
            self.say_once(f"the node's cache cannot be read, so lodefs asks the proxy: {error}")

    def say_once(self, text: str) -> None:
        """Logs a line unless it equals the last one."""
        if text != self._said:
            self._said = text
            self._log(text)

    def _ask_again(self) -> None:
        """Asks the proxy for its cache again, since a restarted proxy may have another one."""
        self._next_try_s = self._clock() + ASK_AGAIN_S
        with suppress(LodefsError), self._connect() as client:
            if client.cache_place() != self._place:
                self.view = None
                self._next_try_s = self._clock()

    def _open(self) -> None:
        self._next_try_s = self._clock() + RETRY_S
        try:
            with self._connect() as client:
                self._place = place = client.cache_place()
        except (NotFound, Denied):
            self.say_once("the proxy shares no cache, so lodefs asks it for everything")
            return
        except LodefsError:
            return  # the proxy is gone; reads report that themselves
        try:
            with after_fork.index_lock:
                self.view = self._opener(place, self.snapshot)
        except (LodefsError, OSError) as error:
            self.say_once(f"the node's cache is not read directly: {error}")
            return
        self._said = ""
        self._next_try_s = self._clock() + ASK_AGAIN_S

    def report(self, view: CacheView) -> None:
        """Reports to the proxy what was read, so that it evicts other files and its counters are
        right."""
        numbers, view.used = view.used, set()
        scattered, view.scattered = view.scattered, set()
        stored_bytes, view.stored_bytes = view.stored_bytes, 0
        reads, read_bytes = self._reads, self._read_bytes
        if not numbers and not reads:
            return
        used = UsageReport(
            list(islice(numbers, wire.USED_NUMBERS_MAX)),
            reads,
            read_bytes,
            self.snapshot.repo,
            self.snapshot.commit,
            list(islice(scattered, wire.SCATTERED_MAX)),
            stored_bytes,
        )
        with suppress(LodefsError):  # the files' next use counts; the counters are sent next time
            with self._connect() as client:
                client.report(used)
            self._reads -= reads
            self._read_bytes -= read_bytes

    def close(self) -> None:
        """Reports what was read since the last report."""
        with self._turn:
            if self.view is not None:
                self.report(self.view)


def size_of(piece: Piece) -> int:
    """Returns how many bytes of a file a piece has."""
    return piece[2] if isinstance(piece, tuple) else len(piece)


def load() -> None:
    """Imports the modules that the first view would import otherwise, while readers wait for the
    interpreter's lock."""
    import pickle  # noqa: F401 - rocksdict loads it when it opens an index

    from lodefs.chunkstore.format import pack  # noqa: F401
    from lodefs.chunkstore.nodecache import kv_rocks, view  # noqa: F401


def _open_view(place: CachePlace, snapshot: Snapshot) -> CacheView:
    """Opens a view. The import is here so that only programs that can read a cache load it."""
    from lodefs.chunkstore.nodecache.view import open_view

    return open_view(place, snapshot)
