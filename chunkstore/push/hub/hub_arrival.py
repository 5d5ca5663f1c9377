"""The files of a commit of the Hugging Face Hub arrive on a branch: those that somebody waits for
first, and large ones piece by piece, so that their beginning can be read before their end is there.

The branch is the repository as far as it has come: a file that is too short is the beginning of
one. Another process goes on from it. A file is whole only if its bytes have the hub's tag.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from itertools import count
from operator import attrgetter
from typing import NamedTuple, NoReturn, Protocol

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, LodefsError, NotFound
from lodefs.chunkstore.format.foreign import git, hub
from lodefs.chunkstore.format.foreign.hub import Tag
from lodefs.chunkstore.format.names import CommitId, Digest, split_path
from lodefs.chunkstore.format.tree import EMPTY_DIGEST, Kind, Segment, TreeEntry
from lodefs.chunkstore.push.changes.contents import ContentWriter
from lodefs.chunkstore.push.changes.overlay import Names, RecentTrees
from lodefs.chunkstore.push.fragmentation import join
from lodefs.chunkstore.push.hub.growing_branch import GrowingBranch
from lodefs.chunkstore.push.remote.remote_files import Piece
from lodefs.chunkstore.push.workers.source_files import show_path
from lodefs.chunkstore.types import Buffer

PIECE_BYTES = 4 << 20
REQUESTS_MAX = 16  # at once; as many pieces may be in memory
FILE_REQUESTS_MAX = 6  # for one file, so that a slow one does not delay others
WAKE_S = 0.5  # how often new wishes are looked for while no piece comes
TURNS_MAX = 256  # files whose pieces come in turn
COMMIT_S = 60.0  # between two commits
COMMIT_BYTES = 1 << 30
# While somebody waits: clients give up after 10 s without a byte
COMMIT_WANTED_S = 1.0
WANTED_S = 30.0  # how long a client that waited is taken to wait still


class Ranges(Protocol):
    """The files of one commit of the hub. Any thread."""

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        """As of RemoteFiles."""
        ...


class Earlier(NamedTuple):
    """The trees of an earlier commit of the repository: its tags, and its files."""

    tags: TreeEntry
    files: TreeEntry


class _Hash(Protocol):
    def update(self, data: Buffer, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(slots=True, eq=False)
class _File:
    """A file that is coming. ``segments`` are those that the store has; ``writer`` takes what came
    after them."""

    path: bytes
    names: Names
    tag: Tag
    check: _Hash
    digest: blake3 = field(default_factory=blake3)
    segments: list[Segment] = field(default_factory=list)
    writer: ContentWriter | None = None
    coming: deque[tuple[int, Future[Piece]]] = field(default_factory=deque)
    asked_bytes: int = 0
    got_bytes: int = 0

    def next_range(self) -> tuple[int, int] | None:
        """Returns offset and size of the next piece to ask for; None after the last one."""
        offset = self.asked_bytes
        size_bytes = min(PIECE_BYTES, self.tag.size_bytes - offset)
        self.asked_bytes += size_bytes
        return (offset, size_bytes) if size_bytes else None

    def hash(self, data: Buffer) -> None:
        self.check.update(data)
        self.digest.update(data)

    @property
    def is_whole(self) -> bool:
        return self.got_bytes == self.tag.size_bytes

    def entry(self) -> TreeEntry:
        """Returns the file as far as the store has it."""
        return TreeEntry(
            self.names[-1],
            Kind.FILE,
            size_bytes=self.got_bytes,
            digest=Digest(self.digest.digest()),
            segments=join(self.segments),
        )


class Arrival:
    """Reads what a branch lacks of a listing. For one thread.

    ``wanted`` returns the paths that clients have begun to wait for since the last call;
    ``earlier`` are commits from which equal files are taken.
    """

    def __init__(
        self,
        branch: GrowingBranch,
        listing: TreeEntry,
        remote: Ranges,
        *,
        earlier: Sequence[Earlier] = (),
        wanted: Callable[[], Iterable[bytes]] = tuple,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._branch = branch
        self._listing = listing
        self._remote = remote
        self._earlier = earlier
        self._wanted = wanted
        self._clock_s = clock_s
        self._trees = RecentTrees(branch.store.packs)
        self._numbers = count()
        self._files: dict[bytes, _File] = {}  # that are coming
        self._turns: deque[_File] = deque()  # those with more to ask for
        self._jumped: set[bytes] = set()  # files that came before their turn
        self._rest = self._walk(listing, b"")
        self._requests = 0  # under way
        self._new_bytes = 0  # since the last commit
        self._is_changed = False
        self._committed_s = clock_s()
        self._wanted_until_s = float("-inf")

    def run(self) -> CommitId:
        """Returns the commit that has all files. Raises: Corrupt for a file that is not as listed;
        what reading and the store raise. What has come until then is kept."""
        threads = ThreadPoolExecutor(REQUESTS_MAX)
        try:
            self._read_all(threads)
        except LodefsError:
            with suppress(LodefsError):  # the first error is the one to report
                self._commit()
            raise
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # after an error some may hang
        return self._commit()

    def _read_all(self, threads: ThreadPoolExecutor) -> None:
        while True:
            while self._requests < REQUESTS_MAX and (found := self._next()) is not None:
                file, offset, size_bytes = found
                asked = threads.submit(self._remote.read, file.path, offset, size_bytes)
                file.coming.append((size_bytes, asked))
                self._requests += 1
            if not self._requests:
                return
            self._take_done()
            if self._is_due():
                self._commit()

    def _next(self) -> tuple[_File, int, int] | None:
        """Returns the next piece to ask for; None if there is none now."""
        for path in self._wanted():
            self._wanted_until_s = self._clock_s() + WANTED_S
            if path not in self._files and len(self._turns) < TURNS_MAX:
                self._begin_wanted(path)
        while True:
            for _ in range(len(self._turns)):
                file = self._turns.popleft()
                if len(file.coming) == FILE_REQUESTS_MAX:
                    self._turns.append(file)
                elif (place := file.next_range()) is not None:
                    self._turns.append(file)
                    return file, *place
            if not self._begin_next():
                return None

    def _take_done(self) -> None:
        """Waits for the next piece of any file, for a moment."""
        firsts = {one.coming[0][1]: one for one in self._files.values() if one.coming}
        done, _ = wait(firsts, WAKE_S, return_when=FIRST_COMPLETED)
        for asked in done:
            file = firsts[asked]
            size_bytes, _ = file.coming.popleft()
            self._requests -= 1
            self._take(file, size_bytes, asked.result())

    def _begin_next(self) -> bool:
        """Begins the next file of the listing that must be read. Returns whether there is one."""
        for path, tag, there in self._rest:
            if path in self._jumped:
                self._jumped.discard(path)
            elif path not in self._files and self._begin(path, tag, there):
                return True
        return False

    def _begin_wanted(self, path: bytes) -> None:
        names = tuple(split_path(path))
        listed = self._at(self._listing, names)
        tag = None if listed is None else hub.decode_tag(listed.target)
        if tag is not None:
            there = self._branch.staging.overlay.get(names)
            if self._begin(path, tag, there if isinstance(there, TreeEntry) else None):
                self._jumped.add(path)

    def _walk(
        self, directory: TreeEntry, path: bytes
    ) -> Iterator[tuple[bytes, Tag, TreeEntry | None]]:
        """Yields the files of the listing below a directory, and what the branch has of them."""
        there = self._children(tuple(split_path(path)))
        for entry in self._trees.read_tree(directory):
            below = path + b"/" + entry.name if path else entry.name
            if entry.kind is Kind.DIRECTORY:
                yield from self._walk(entry, below)
            elif (tag := hub.decode_tag(entry.target)) is not None:
                yield below, tag, there.get(entry.name)

    def _children(self, names: Names) -> dict[bytes, TreeEntry]:
        try:
            found = self._branch.staging.children(names)
        except NotFound:
            return {}
        return {name: one for name, one in found.items() if isinstance(one, TreeEntry)}

    def _begin(self, path: bytes, tag: Tag, there: TreeEntry | None) -> bool:
        """Begins to read a file, unless nothing of it must be read. Returns whether it does."""
        if there is not None and there.size_bytes == tag.size_bytes:
            return False
        names = tuple(split_path(path))
        check = sha256() if hub.is_lfs(tag.etag) else sha1(usedforsecurity=False)
        if not hub.is_lfs(tag.etag):
            check.update(git.blob_head(tag.size_bytes))
        file = _File(path, names, tag, check)
        if not tag.size_bytes:
            self._check(file)
            self._put(names, TreeEntry(names[-1], Kind.FILE, digest=EMPTY_DIGEST))
            return False
        if (known := self._known(names, tag)) is not None:
            self._put(names, known)
            return False
        if there is not None and there.size_bytes < tag.size_bytes:
            self._go_on_from(file, there)
        self._files[path] = file
        self._turns.appendleft(file)
        return True

    def _known(self, names: Names, tag: Tag) -> TreeEntry | None:
        """Returns the same file of an earlier commit, if there is one."""
        for one in self._earlier:
            listed = self._at(one.tags, names)
            if listed is not None and (before := hub.decode_tag(listed.target)) is not None:
                found = self._at(one.files, names) if before.etag == tag.etag else None
                if found is not None and found.size_bytes == tag.size_bytes:
                    return found
        return None

    def _at(self, root: TreeEntry, names: Names) -> TreeEntry | None:
        """Returns the file or symlink at a path."""
        entry: TreeEntry | None = root
        for name in names:
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            entry = _child(self._trees.read_tree(entry), name)
        return None if entry is None or entry.kind is Kind.DIRECTORY else entry

    def _go_on_from(self, file: _File, there: TreeEntry) -> None:
        """Takes the beginning of a file that another process has read."""
        packs = self._branch.store.packs
        for first in range(0, there.size_bytes, PIECE_BYTES):
            file.hash(packs.read_range(there, first, min(first + PIECE_BYTES, there.size_bytes)))
        file.segments = list(there.segments)
        file.asked_bytes = file.got_bytes = there.size_bytes

    def _take(self, file: _File, size_bytes: int, piece: Piece) -> None:
        """Takes the next piece of a file. Raises: Corrupt."""
        listed_bytes, there_bytes = file.tag.size_bytes, piece.file_size_bytes
        if (there_bytes, len(piece.data)) != (listed_bytes, size_bytes):
            why = f"has {listed_bytes:,} bytes in the hub's list, and {there_bytes:,} there"
            self._refuse(file, why)
        contents = self._branch.staging.contents
        if file.writer is None:
            file.writer = ContentWriter(contents, next(self._numbers))
        file.hash(piece.data)
        file.got_bytes += size_bytes
        self._new_bytes += size_bytes
        self._is_changed = True
        if file.is_whole:
            self._check(file)
        file.writer.add(piece.data, final=file.is_whole)
        if file.is_whole and not file.segments:
            entry = contents.staged(file.writer.number, file.names[-1], executable=False)
            self._put(file.names, entry)
            del self._files[file.path]

    def _check(self, file: _File) -> None:
        """Raises: Corrupt for a file whose bytes do not have the hub's tag."""
        if (found := file.check.hexdigest()) != file.tag.etag:
            self._refuse(
                file, f"has the ETag {file.tag.etag} on the hub, and its bytes have {found}"
            )

    def _refuse(self, file: _File, why: str) -> NoReturn:
        self._files.pop(file.path, None)
        if self._branch.staging.overlay.get(file.names) is not None:
            # its beginning, so that it is read anew
            self._branch.staging.overlay.remove(file.names)
        raise Corrupt(f"{show_path(file.path)} {why}: no client gets it as a whole file")

    def _put(self, names: Names, entry: TreeEntry) -> None:
        self._branch.staging.overlay.put_file(names, entry)
        self._is_changed = True

    def _is_due(self) -> bool:
        now_s = self._clock_s()
        every_s = COMMIT_WANTED_S if now_s < self._wanted_until_s else COMMIT_S
        is_time = self._new_bytes >= COMMIT_BYTES or now_s >= self._committed_s + every_s
        return self._is_changed and is_time

    def _commit(self) -> CommitId:
        """Commits what has come, also the beginnings of files."""
        contents = self._branch.staging.contents
        coming = [file for file in self._files.values() if file.writer is not None]
        staged: list[TreeEntry] = []
        for file in coming:
            assert file.writer is not None
            if not file.is_whole:
                file.writer.add(b"", final=True)
            name, number = file.names[-1], file.writer.number
            staged.append(contents.staged(number, name, executable=False))
            file.writer = None
        self._branch.settle()
        for file, entry in zip(coming, staged, strict=True):
            file.segments += contents.settled(entry).segments
            self._put(file.names, file.entry())
            if file.is_whole:
                del self._files[file.path]
        self._new_bytes, self._committed_s, self._is_changed = 0, self._clock_s(), False
        return self._branch.commit()


def _child(entries: Sequence[TreeEntry], name: bytes) -> TreeEntry | None:
    at = bisect_left(entries, name, key=attrgetter("name"))
    return entries[at] if at < len(entries) and entries[at].name == name else None
