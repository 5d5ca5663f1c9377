"""``lodefs.transaction``: the files that a program writes become one commit."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from secrets import token_hex
from time import time
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, overload

from lodefs.api.pushing import SourceOptions, choices_of, opened_for, push_options
from lodefs.chunkstore.errors import Conflict, InvalidInput, LodefsError
from lodefs.chunkstore.format.journal import End, JournalEntry, RefName
from lodefs.chunkstore.format.metadata import Metadata
from lodefs.chunkstore.format.names import CommitId, Spec, check_ref_name, check_repo
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.push.changes.branch_commits import EMPTY, CommitBase, CommitJob
from lodefs.chunkstore.push.changes.change import names_of
from lodefs.chunkstore.push.changes.commit_changes import base_of
from lodefs.chunkstore.push.changes.staged_file import StagedFile
from lodefs.chunkstore.push.changes.staging import Staging
from lodefs.chunkstore.push.committer import Committer, head_of
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.settings.session import opened, revision_of, spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.changes.overlay import Item
    from lodefs.chunkstore.push.limits import AllowRemovals
    from lodefs.chunkstore.repo.store import Store
    from lodefs.chunkstore.system.progress import Progress
    from lodefs.settings.session import Session

_WAY_OUT = (
    ". Staged changes stay: `with tx: tx.rebase(ours=[...], theirs=[...])` decides for each path "
    "which side wins, and commits"
)


def transaction(
    repo: str | Spec,
    *,
    message: str = "",
    author: str | None = None,
    metadata: Mapping[str, str] | Iterable[str] = (),
    base: str | None = None,
    allow_removals: bool | AllowRemovals = True,
    store: str | None = None,
    session: Session | None = None,
    progress: Progress | None = None,
) -> Transaction:
    """Changes to a branch, ``REPO[@BRANCH]``, that become one commit at the end of a ``with``
    block, or none if the block raises an error. A missing branch is created.

    ``base``: the revision that the changes are meant for; by default the head of the branch when
    the block begins. What others commit meanwhile is kept, if the paths are disjoint. The rest: as
    for ``push``.
    """
    spec = revision_of(repo)
    check_repo(spec.repo)
    check_ref_name(spec.rev)
    options: SourceOptions = {
        "message": message,
        "author": author,
        "metadata": metadata,
        "store": store,
        "session": session,
        "progress": progress,
        "workers": 0,
    }
    return Transaction(spec, base, options, allow_removals)


class Staged:
    """The methods of a transaction and its parts. Paths are relative to the root of the branch. Any
    thread may call a method; one runs at a time.

    Methods raise InvalidInput outside of the ``with`` block; NotFound, NotADirectory and
    InvalidInput for paths; OverQuota, Purged, Unavailable and other errors of the store.
    """

    def __init__(self) -> None:
        self._area: Staging | None = None
        self._stack = ExitStack()

    @overload
    def open(
        self, path: str, mode: Literal["wb", "xb"] = "wb", *, executable: bool = False
    ) -> StagedFile: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["w", "x", "wt", "xt"],
        *,
        executable: bool = False,
        **text: Any,
    ) -> io.TextIOWrapper: ...

    @overload
    def open(
        self, path: str, mode: str, *, executable: bool = False, **text: Any
    ) -> StagedFile | io.TextIOWrapper: ...

    def open(
        self, path: str, mode: str = "wb", *, executable: bool = False, **text: Any
    ) -> StagedFile | io.TextIOWrapper:
        """Opens a file for writing: bytes with "wb", text with "w" (``encoding``, ``errors``,
        ``newline``); "x" instead of "w" refuses an existing file. The file is stored while it is
        written, and exists when it is closed. An error in its block leaves the path as it was.
        """
        if mode not in ("wb", "xb", "w", "x", "wt", "xt"):
            raise InvalidInput(f"mode {mode!r}: a transaction takes 'wb', 'xb', 'w' and 'x'")
        names = names_of(path)
        if "x" in mode and self.exists(path):
            raise InvalidInput(f"{path} exists")
        file = self.staging.create(names, executable=executable)
        if "b" in mode:
            return file
        return _StagedText(file, **{"encoding": "utf-8", **text})

    def put(
        self,
        path: str,
        content: bytes | os.PathLike[str] | BinaryIO,
        *,
        executable: bool | None = None,
    ) -> None:
        """Stores a file with this content: bytes, a local file (pathlib.Path), or an open binary
        file, which is read to its end. ``executable`` None: as the local file is."""
        self.staging.put(names_of(path), content, executable=executable)

    def link(self, path: str, target: str) -> None:
        """Creates a symlink."""
        self.staging.put_link(names_of(path), os.fsencode(target))

    def mkdir(self, path: str) -> None:
        """Creates an empty directory, if it is missing. A file needs no directory made for it."""
        self.staging.make_directory(names_of(path))

    def remove(self, path: str) -> None:
        """Removes a file, or a directory and everything in it."""
        self.staging.remove(names_of(path))

    def rename(self, path: str, to: str) -> None:
        """Moves a file or directory to another path. It replaces a file there."""
        self.staging.rename(names_of(path), names_of(to))

    def copy(self, path: str, to: str) -> None:
        """Copies a file or directory to a second path, and replaces whatever is there."""
        self.staging.copy(names_of(path), names_of(to))

    def copy_from(self, source: str | Spec, to: str) -> None:
        """Copies ``REPO@REV:PATH``, of any repository, to a path. No byte is read."""
        self.staging.copy_from(spec_of(source), names_of(to))

    def read(self, path: str, first: int = 0, end: int | None = None) -> bytes:
        """Returns a file as it is staged, or its bytes [first, end), from the store. Reading a file
        that was just written ends a pack early: do not read back each of many."""
        entry = self.staging.item(names_of(path))
        if not isinstance(entry, TreeEntry) or entry.kind is not Kind.FILE:
            raise InvalidInput(f"{path} is not a file")
        return self.staging.read(entry, first, entry.size_bytes if end is None else end)

    def exists(self, path: str) -> bool:
        """Whether something is staged at a path now."""
        with self.staging.in_use():
            return self.staging.overlay.get(names_of(path, is_root_fine=True)) is not None

    def names(self, path: str = "") -> list[str]:
        """Returns the names in a directory as it is staged."""
        found = self.staging.children(names_of(path, is_root_fine=True))
        return sorted(map(os.fsdecode, found))

    @property
    def is_open(self) -> bool:
        """Whether its block has begun and not ended."""
        return self._area is not None

    @property
    def staging(self) -> Staging:
        """The staging area. Raises: InvalidInput outside of the block."""
        if self._area is None:
            raise InvalidInput(f"{self} is not open: it works in its `with` block")
        return self._area

    def _open(
        self,
        spec: Spec,
        options: SourceOptions,
        *,
        allow_removals: bool | AllowRemovals = True,
        writer: JournalEntry | None = None,
    ) -> None:
        """Opens the staging area of a block. ``writer`` is one of the journal that others share."""
        if self._area is not None:
            raise InvalidInput(f"{self} is already open")
        with ExitStack() as stack:
            settings = stack.enter_context(opened_for(options))
            core = push_options(settings, {**options, "workers": 0}, allow_removals=allow_removals)
            branch = RefName(spec.repo, BRANCHES, spec.rev)
            write = None if writer is None else RefWrite(settings.store, core.clock, shared=writer)
            progress = options.get("progress")
            self._push_session = PushSession(settings.store, branch, core, progress, write)
            self._store_url = settings.store_url
            stack.enter_context(self._push_session.once())
            self._stack = stack.pop_all()

    def _begin(self, area: Staging) -> None:
        self._area = area
        self._stack.callback(area.end)

    @contextmanager
    def _left(self, kind: Any, error: Any, trace: Any) -> Iterator[Staging | None]:
        """Ends the block: returns what there is to commit, and closes all. In a process that was
        forked within the block it does nothing, since the block is the parent's."""
        area, stack = self._area, self._stack
        if area is None or not area.is_own:
            yield None
            return
        try:
            if kind is not None:
                stack.__exit__(kind, error, trace)
                yield None
                return
            with stack:
                yield area
        finally:
            self._area = None


class Transaction(Staged):
    """Made by ``lodefs.transaction``. ``result``: that of the last commit, None before the first.

    The block commits at its end. If that fails, staged changes stay, and another block of the same
    transaction continues with them. An error that the block raises discards them.
    """

    def __init__(
        self,
        spec: Spec,
        base: str | None,
        options: SourceOptions,
        allow_removals: bool | AllowRemovals,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.result: ChangesResult | None = None
        self._base_rev = base
        self._job = CommitJob(way_out=_WAY_OUT)
        self._options = options
        self._allow_removals = allow_removals
        self._kept: tuple[CommitBase, Item] | None = (
            None  # the staged changes after a failed commit
        )
        self._id = token_hex(8)
        self._writer: JournalEntry | None = None  # if others share it

    def detached(self) -> DetachedTransaction:
        """Begins a transaction that no process holds: a value that can be pickled, whose parts may
        be written, and which may be committed, by any process on any machine. It must not be open.
        Raises: InvalidInput; NotFound for ``base``; what the store raises."""
        if self.is_open or self._kept is not None:
            raise InvalidInput(f"{self} has begun: detach one that has staged nothing")
        with opened_for(self._options) as settings:
            core = push_options(settings, {**self._options, "workers": 0})
            branch = RefName(self.spec.repo, BRANCHES, self.spec.rev)
            session = PushSession(settings.store, branch, core)
            settings.store.ensure_writable()
            try:
                session.write.begin()
                base = head_of(session).id
                repo = session.branch.repo
                if self._base_rev is not None:
                    base = settings.store.resolve(repo, self._base_rev)
            except BaseException:
                session.write.close()
                raise
            return DetachedTransaction(
                id=self._id,
                store_url=settings.store_url,
                spec=Spec(repo, self.spec.rev),
                base=base,
                writer=session.write.begin(),
                message=core.message,
                author=core.author,
                metadata=core.metadata,
            )

    def commit(self, message: str | None = None) -> ChangesResult:
        """Commits what is staged so far, and continues: later changes are another commit. Raises:
        Conflict, with the paths that others changed too, and all stays staged; InvalidInput if a
        file is open; TooManyRemovals, OverQuota."""
        with self.staging.in_use():
            result = self._commit(message)
            if not result.unchanged:
                self.staging.go_on(CommitId(bytes.fromhex(result.commit)))
            return result

    def rebase(self, ours: Iterable[str | bytes] = (), theirs: Iterable[str | bytes] = ()) -> None:
        """Stages the same changes on the present head of the branch. A path that others changed too
        stays as it is staged if it is one of ``ours`` or below one, and becomes as in the branch
        with ``theirs``; "" is everything. Raises: Conflict, with such paths that neither decides;
        then nothing has changed."""
        choices = {path: not taken for path, taken in choices_of(ours, theirs).items()}
        self.staging.rebase(replace(self._job, choices=choices))

    def discard(self) -> None:
        """Discards what is staged, and ends the transaction."""
        with self.staging.in_use():
            self.__exit__(InvalidInput, InvalidInput("discarded"), None)

    def fork(self) -> Part:
        """Returns a part of the transaction for another process, on this machine or another one. It
        begins with the changes staged now."""
        with self.staging.in_use():
            root = self.staging.store_root()
            self._push_session.begin()
            return Part(self._id, self._store_url, self.spec, root)

    def merge(self, parts: Iterable[Part]) -> None:
        """Stages what parts have written, as their processes returned them. Raises: Conflict, with
        the paths that two parts changed, or a part and the transaction. The parts before that one
        are staged, and it is not."""
        job = replace(self._job, way_out=": let each part write paths of its own")
        with self.staging.in_use():
            for part in parts:
                before, after = part.written(self._id)
                if after is not None:
                    self.staging.take(before, after, job)
                    self._job = replace(self._job, check_all=True)

    def __enter__(self) -> Self:
        removals, writer = self._allow_removals, self._writer
        self._open(self.spec, self._options, allow_removals=removals, writer=writer)
        try:
            session, store = self._push_session, self._push_session.store
            if self._kept is not None:
                (base, root), self._kept = self._kept, None
                self._begin(Staging(session, base, root=root))
                self._job = replace(self._job, check_all=True)
                return self
            head = head_of(session)
            if self._base_rev is not None:
                asked = store.resolve(self.spec.repo, self._base_rev)
                self._job = replace(self._job, base=asked)
            self._begin(Staging(session, base_of(session, self._job.base, head)))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._left(kind, *error) as staging:
            if staging is None:
                return
            staging.settled()
            if not staging.is_changed:
                return
            try:
                self._commit(None)
            except LodefsError:
                self._kept = staging.base, staging.overlay.root
                raise

    def _commit(self, message: str | None) -> ChangesResult:
        options = self._push_session.options
        text = options.message if message is None else message
        self._push_session.options = replace(options, message=text, time_s=int(time()))
        sent_before_bytes = self._push_session.progress.bytes_sent
        try:
            self.result = self.staging.commit(self._job)
        finally:
            self._push_session.options = options
        self.result.stored_bytes = self._push_session.progress.bytes_sent - sent_before_bytes
        self._job = replace(self._job, check_all=False)
        return self.result


class Part(Staged):
    """Made by ``Transaction.fork``, for another process. Pickle it and send it there, write to it
    in a ``with`` block, and return it for ``Transaction.merge``. It stays small, whatever was
    written. The process needs credentials for the store, as for a push.
    """

    def __init__(
        self,
        transaction: str,
        store_url: str,
        spec: Spec,
        before: TreeEntry | None,
        writer: JournalEntry | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._writer = writer
        self._transaction = transaction
        self._store_url = store_url
        self._before = before
        self._after: TreeEntry | None = None
        self._is_written = False

    def written(self, transaction: str) -> tuple[TreeEntry | None, TreeEntry | None]:
        """Returns, for ``Transaction.merge``, the root before and after it. Raises:
        InvalidInput."""
        if self._transaction != transaction:
            raise InvalidInput("this part is of another transaction")
        if not self._is_written:
            raise InvalidInput(
                "this part was not written: merge what the other process returned, after its "
                "`with` block"
            )
        return self._before, self._after

    def __enter__(self) -> Self:
        options: SourceOptions = {"store": self._store_url, "workers": 0}
        self._open(self.spec, options, writer=self._writer)
        root = self._after if self._is_written else self._before
        self._begin(Staging(self._push_session, EMPTY, root=root))
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._left(kind, *error) as staging:
            if staging is not None:
                self._after = staging.store_root()
                Committer(self._push_session).publish()
                self._is_written = True

    def __reduce__(self) -> tuple[Any, ...]:
        if self._area is not None:
            raise InvalidInput("pickle a part before its `with` block or after it, not within")
        state = {"_after": self._after, "_is_written": self._is_written}
        made_of = (self._transaction, self._store_url, self.spec, self._before, self._writer)
        return Part, made_of, state

    def __str__(self) -> str:
        return f"a part of the transaction of {self.spec.repo}@{self.spec.rev}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedTransaction:
    """Made by ``Transaction.detached``. What its parts have sent is kept for as long as they are
    written, and for the grace time of gc runs after that: commit or abort it before."""

    id: str
    store_url: str
    spec: Spec
    base: CommitId | None
    writer: JournalEntry
    message: str
    author: str
    metadata: Metadata

    def fork(self) -> Part:
        """Returns a part for one task, as ``Transaction.fork`` makes it; it begins with the base.
        Raises: Conflict if the transaction is over."""
        with opened(None, store=self.store_url) as settings:
            store = settings.store
            self._require_open(store)
            root = None if self.base is None else store.commit(self.spec.repo, self.base).root
            return Part(self.id, self.store_url, self.spec, root, self.writer)

    @contextmanager
    def resumed(self) -> Iterator[Transaction]:
        """Opens the transaction for a block, at whose end it commits and is over. ``merge`` takes
        the parts. After an error nothing is committed, and another block may follow. Raises:
        Conflict if it is over; what the block of a transaction raises."""
        options: SourceOptions = {
            "message": self.message,
            "author": self.author,
            "metadata": dict(self.metadata),
            "store": self.store_url,
            "workers": 0,
        }
        with opened(None, store=self.store_url) as settings:
            self._require_open(settings.store)
        base = None if self.base is None else self.base.hex()
        one = Transaction(self.spec, base, options, allow_removals=True)
        one._id, one._writer = self.id, self.writer
        with one:
            yield one
        self.abort()

    def abort(self) -> None:
        """Ends it; what its parts have sent is garbage then, unless it was committed before."""
        with opened(None, store=self.store_url) as settings:
            StoreJournal(settings.store.objects).put_end(End(self.writer.number, None))

    def _require_open(self, store: Store) -> None:
        """Raises: Conflict."""
        end = StoreJournal(store.objects).end(self.writer.number)
        if end is not None and end.intent is None:
            raise Conflict(
                f"the transaction of {self.spec.repo}@{self.spec.rev} is over: it was committed or "
                "aborted, or a gc run took it for dead, since no part was written for its grace "
                "time. Begin another one"
            )


class _StagedText(io.TextIOWrapper):
    """A text file that is discarded if its block raises an error."""

    def __init__(self, file: StagedFile, **text: Any) -> None:
        super().__init__(file, **text)
        self._file = file

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.discard()
