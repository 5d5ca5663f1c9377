"""``LodefsFileSystem``: datasets as files of fsspec. It is synchronous; writing.py writes.

A revision is resolved once. From then on this file system, its copies in forked processes and its
pickled copies read the same commit, whatever happens to the branch.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import isfilelike

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.fs.os_errors import os_error, raising_os_errors
from lodefs.fs.running_cache import RunningCache
from lodefs.fs.writing import WritingFileSystem, WrittenFile, split_head
from lodefs.reading.file_bytes import Span, bounds
from lodefs.reading.proxy_clients import TIMEOUT_S, ProxyClients, ProxyOptions
from lodefs.reading.snapshot import Snapshot, open_snapshot
from lodefs.reading.urls import SCHEME, decoded_path, encoded_path, parse_url, stripped

if TYPE_CHECKING:
    from lodefs.api.transactions import Transaction

BLOCK_BYTES = 64 << 10  # read at once when lines are read
COPY_BYTES = 8 << 20
SNAPSHOTS_MAX = 32  # snapshots that are kept open
_OF_FSSPEC = {"use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop"}
_MISSING = (FileNotFoundError, NotADirectoryError)
_FILE, _DIRECTORY = int(Kind.FILE), int(Kind.DIRECTORY)
_commits_of: dict[ProxyOptions, dict[str, str]] = {}  # by REPO@REV, for the whole process


class _OneCommit(type(AbstractFileSystem)):  # type: ignore[misc]  # fsspec has no types
    """fsspec makes an instance for each thread, and forgets all in a forked child. Instances share
    the commits of revisions, unless a separate instance is asked for."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        fs = super().__call__(*args, **kwargs)
        if not kwargs.get("skip_instance_cache"):
            fs._commits = _commits_of.setdefault(fs._clients.options, fs._commits)
        return fs


class LodefsFileSystem(WritingFileSystem, metaclass=_OneCommit):
    """``proxy`` (unix:/PATH or http://HOST:PORT), ``store`` and ``token``: as for commands, with
    the same defaults. ``timeout_s``: of a request, a restart of the proxy included. ``autocommit``:
    each writing call outside of a transaction, and each closed file, is a commit; without it they
    are refused. Raises: TypeError for an option that neither this nor every file system of fsspec
    has."""

    protocol = SCHEME
    root_marker = ""
    async_impl = False
    cachable = True

    def __init__(
        self,
        proxy: str | None = None,
        store: str | None = None,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        autocommit: bool = False,  # noqa: FBT002
        **storage_options: Any,
    ) -> None:
        if unknown := sorted(storage_options.keys() - _OF_FSSPEC):
            raise TypeError(
                f"lodefs' file system has no option {', '.join(map(repr, unknown))}; it takes "
                "proxy, store, token, timeout_s and autocommit"
            )
        super().__init__(**storage_options)
        self._autocommit = autocommit
        self._clients = ProxyClients(ProxyOptions(proxy, store, token, timeout_s))
        self._commits: dict[str, str] = {}  # by REPO@REV; part of a pickle
        self._snapshots: dict[str, Snapshot] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (
            type(self),
            self.storage_args,
            dict(self.storage_options),
            dict(self._commits),
        )

    # --- names

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return stripped(os.fspath(path))

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:  # noqa: ARG004
        return {}

    @property
    def fsid(self) -> str:
        """The store that the data comes from."""
        return f"{SCHEME}-{self._clients.url}"

    @raising_os_errors
    def resolve(self, path: str) -> str:
        """Returns the same URL with the commit instead of its revision, which always means the
        same."""
        head, inner = split_head(self._strip_protocol(path))
        snapshot = self._snapshot(head)
        tail = f"/{inner}" if inner else ""
        return f"{SCHEME}://{snapshot.repo}@{snapshot.commit}{tail}"

    @raising_os_errors
    def snapshot(self, path: str) -> Snapshot:
        """Returns the snapshot that contains a path."""
        return self._snapshot(split_head(self._strip_protocol(path))[0])

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forgets the commits of revisions: of ``path``, or all."""
        if path is None:
            self._commits.clear()
            self._snapshots.clear()
        else:
            head = split_head(self._strip_protocol(path))[0]
            self._commits.pop(head, None)
            self._snapshots.pop(head, None)
        super().invalidate_cache(path)

    def _begin(self, head: str, message: str) -> Transaction:
        """Returns a transaction on a branch, based on the commit that this file system has read."""
        from lodefs.api.transactions import transaction

        spec = parse_url(head)
        store, base = self._clients.options.store, self._commits.get(head)
        return transaction(spec, message=message, base=base, store=store)

    def _committed(self, head: str, done: Transaction) -> None:
        """Makes reads of the branch see a new commit."""
        if done.result is not None:
            self._commits[head] = done.result.commit
            self._snapshots.pop(head, None)

    def _snapshot(self, head: str) -> Snapshot:
        if self._intrans and (staged := self.transaction.snapshot(head)) is not None:
            return staged  # type: ignore[no-any-return]  # a StagedSnapshot, which has the same methods
        found = self._snapshots.get(head)
        if found is not None:
            return found
        spec = parse_url(head)
        found = open_snapshot(spec.repo, self._commits.get(head, spec.rev), self._clients)
        commit = self._commits.setdefault(head, found.commit)
        if commit != found.commit:  # another thread was first, and the branch has moved
            found = open_snapshot(spec.repo, commit, self._clients)
        while len(self._snapshots) >= SNAPSHOTS_MAX:
            self._snapshots.pop(next(iter(self._snapshots)), None)
        return self._snapshots.setdefault(head, found)

    def _at(self, path: str) -> tuple[Snapshot, bytes]:
        """Returns the snapshot that contains a path, and the path in it."""
        head, inner = split_head(self._strip_protocol(path))
        return self._snapshot(head), encoded_path(inner)

    def _file(self, path: str) -> tuple[Snapshot, Entry]:
        snapshot, inner = self._at(path)
        node = snapshot.entries.followed(inner)
        if node.kind != _FILE:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return snapshot, node

    # --- entries

    @raising_os_errors
    def info(self, path: str, **kwargs: Any) -> Info:
        """``name``, ``size``, ``type``, ``ETag`` (the content's digest), ``executable``,
        ``islink``, ``destination``, ``commit``, ``mtime``. Repeated calls need no request."""
        path = self._strip_protocol(path)
        if kwargs.get("refresh"):
            self.invalidate_cache(path)
        snapshot, inner = self._at(path)
        return info_of(snapshot, path, inner, snapshot.entries.entry(inner))

    @raising_os_errors
    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:  # noqa: FBT002
        """Returns the entries of a directory, or the file itself."""
        path = self._strip_protocol(path)
        if kwargs.get("refresh"):
            self.invalidate_cache(path)
        snapshot, inner = self._at(path)
        if snapshot.entries.followed(inner).kind != _DIRECTORY:
            return [self.info(path)] if detail else [path]
        nodes = snapshot.entries.children(inner)
        if not detail:
            return [f"{path}/{decoded_path(node.name)}" for node in nodes]
        return list(infos_of(snapshot, path, inner, nodes))

    @raising_os_errors
    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,  # noqa: FBT002
        detail: bool = False,  # noqa: FBT002
        **_: Any,
    ) -> Any:
        """Returns all files below a path, in one walk, which does not follow symlinks to
        directories."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        snapshot, inner = self._at(path)
        found: dict[str, Info] = {}
        try:
            info = self.info(path)
        except _MISSING:
            return {} if detail else []
        if info["type"] == "directory":
            if withdirs:
                found[path] = info
            for directory, nodes in snapshot.entries.walk(inner, maxdepth):
                below = directory[len(inner) :].lstrip(b"/")
                name = f"{path}/{decoded_path(below)}" if below else path
                for one in infos_of(snapshot, name, directory, nodes):
                    if withdirs or one["type"] != "directory":
                        found[one["name"]] = one
        else:
            found[path] = info
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,  # noqa: FBT002
        on_error: Any = "omit",
        **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Like fsspec's. Symlinks to directories are listed, and not followed."""
        detail = kwargs.pop("detail", False)
        path = self._strip_protocol(path)
        try:
            infos = self.ls(path, detail=True)
        except OSError as error:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(error)
            return
        if [info["name"] for info in infos] == [path]:  # the path is a file
            yield path, {} if detail else [], {"": infos[0]} if detail else [""]
            return
        dirs = {_last(info["name"]): info for info in infos if info["type"] == "directory"}
        files = {_last(info["name"]): info for info in infos if info["type"] != "directory"}
        level: tuple[str, Any, Any] = (path, dirs, files) if detail else (
            path, list(dirs), list(files)
        )  # fmt: skip
        if topdown:
            yield level
        if maxdepth is None or maxdepth > 1:
            deeper = None if maxdepth is None else maxdepth - 1
            for name in level[1]:  # the caller may have removed some
                if name in dirs and not dirs[name]["islink"]:
                    more = {"topdown": topdown, "on_error": on_error, "detail": detail}
                    yield from self.walk(f"{path}/{name}", deeper, **more)
        if not topdown:
            yield level

    @raising_os_errors
    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is something at a path; False for an unknown revision, too."""
        try:
            self.info(path)
        except _MISSING:
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Whether there is a directory at a path."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Whether there is a file at a path."""
        return self._type(path) == "file"

    def _type(self, path: str) -> str:
        """Returns the type of the entry at a path. "" if there is none, and for a name without a
        revision, which fsspec asks for when it goes up from a path."""
        try:
            return str(self.info(path)["type"])
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
                return ""
            raise

    def ukey(self, path: str) -> str:
        """Returns the digest of the content, which is the same for equal files of all commits."""
        return str(self.info(path)["ETag"])

    def checksum(self, path: str) -> int:
        """Returns the digest as a number."""
        return int(self.ukey(path), 16)

    @raising_os_errors
    def modified(self, path: str) -> datetime:
        """Returns the time of the commit, since files have no times."""
        snapshot, inner = self._at(path)
        snapshot.entries.entry(inner)
        return snapshot.time.astimezone(UTC)

    created = modified

    # --- bytes

    @raising_os_errors
    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Returns a file's bytes, or a slice of them."""
        snapshot, node = self._file(path)
        return snapshot.bytes.read(node, *bounds((start, end), node.size_bytes))

    def cat(
        self,
        path: Any,
        recursive: bool = False,  # noqa: FBT002
        on_error: str = "raise",
        **kwargs: Any,
    ) -> Any:
        """Like fsspec's; ``start`` and ``end`` apply to each file. Several files that are not on
        the node are read in parallel."""
        start, end = kwargs.pop("start", None), kwargs.pop("end", None)
        paths = self.expand_path(path, recursive=recursive, **kwargs)
        if len(paths) == 1 and isinstance(path, str) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0], start, end)
        files = [one for one in paths if not (recursive and self.isdir(one))]
        results = self.cat_ranges(files, start, end, on_error="return")
        for result in results if on_error == "raise" else ():
            if isinstance(result, Exception):
                raise result
        return {
            one: result
            for one, result in zip(files, results, strict=True)
            if on_error == "return" or not isinstance(result, Exception)
        }

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,  # noqa: ARG002
        on_error: str = "return",
        **kwargs: Any,  # noqa: ARG002
    ) -> list[Any]:
        """Slices of files. Those on the node are read at once, the others merged and in
        parallel."""
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        firsts: list[int | None] = starts if isinstance(starts, list) else [starts] * len(paths)
        lasts: list[int | None] = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(firsts) == len(lasts):
            raise ValueError("paths, starts and ends must have the same length")
        results: list[Any] = [None] * len(paths)
        wanted: dict[Snapshot, list[tuple[int, Entry, Span]]] = {}
        for number, path in enumerate(paths):
            try:
                snapshot, node = self._file(path)
            except (LodefsError, OSError) as error:
                results[number] = os_error(error, path) if isinstance(error, LodefsError) else error
            else:
                span = (firsts[number], lasts[number])
                wanted.setdefault(snapshot, []).append((number, node, span))
        for snapshot, ranges in wanted.items():
            found = snapshot.bytes.tried_many([(node, span) for _, node, span in ranges])
            for (number, _, _), result in zip(ranges, found, strict=True):
                if isinstance(result, LodefsError):
                    results[number] = os_error(result, paths[number])
                else:
                    results[number] = result
        for result in results if on_error == "raise" else ():
            if isinstance(result, Exception):
                raise result
        return results

    @raising_os_errors
    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,  # noqa: ARG002, FBT002
        cache_options: Any = None,
        **kwargs: Any,
    ) -> LodefsFile | WrittenFile:
        if mode != "rb":
            return self._create(path, mode)
        snapshot, node = self._file(path)
        kwargs.setdefault("cache_type", RunningCache.name)
        size_bytes = BLOCK_BYTES if block_size in (None, "default") else block_size
        file = LodefsFile(
            self,
            path,
            block_size=size_bytes,
            cache_options=cache_options,
            **{**kwargs, "size": node.size_bytes},
        )
        file.source = (snapshot, node)
        return file

    @raising_os_errors
    def get_file(
        self,
        rpath: str,
        lpath: Any,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **_: Any,
    ) -> None:
        """Copies a file. The local file gets its name when it is complete."""
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        if outfile is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        snapshot, node = self._file(rpath)
        callback.set_size(node.size_bytes)
        if outfile is not None:
            _copy(snapshot, node, outfile, callback)
            return
        target = os.fspath(lpath)
        folder = os.path.dirname(target)
        os.makedirs(folder or ".", exist_ok=True)
        partial = os.path.join(folder, f".{uuid4().hex}.part")
        try:
            with open(partial, "xb") as file:
                _copy(snapshot, node, file, callback)
            os.replace(partial, target)
        except BaseException:
            if os.path.exists(partial):
                os.unlink(partial)
            raise


class LodefsFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An open file. Reads continue if the proxy is restarted, or the branch is deleted."""

    source: tuple[Snapshot, Entry] | None = None

    @raising_os_errors
    def _fetch_range(self, start: int, end: int) -> bytes:
        if self.source is None:
            self.source = self.fs._file(self.path)
        snapshot, node = self.source
        return snapshot.bytes.read(node, start, end)


def _restored(
    kind: type[LodefsFileSystem], args: Any, options: dict[str, Any], commits: dict[str, str]
) -> LodefsFileSystem:
    """Returns a file system from a pickle. If this process has another commit for one of its
    revisions, it becomes a separate instance, since a job must read one commit."""
    fs = kind(*args, **options)
    if any(fs._commits.get(head, commit) != commit for head, commit in commits.items()):
        fs = kind(*args, **options, skip_instance_cache=True)
    fs._commits.update(commits)
    return fs


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _copy(snapshot: Snapshot, node: Entry, file: Any, callback: Any) -> None:
    for first in range(0, node.size_bytes, COPY_BYTES):
        piece = snapshot.bytes.read(node, first, first + COPY_BYTES)
        file.write(piece)
        callback.relative_update(len(piece))


_DIRECTORY, _SYMLINK = int(Kind.DIRECTORY), int(Kind.SYMLINK)

Info = dict[str, Any]


def infos_of(snapshot: Snapshot, path: str, inner: bytes, nodes: list[Entry]) -> Iterator[Info]:
    """Yields fsspec's records for the entries of a directory."""
    prefix = inner + b"/" if inner else b""
    for node in nodes:
        name = f"{path}/{node.name.decode('utf-8', 'surrogateescape')}"
        if node.kind == _SYMLINK:
            yield info_of(snapshot, name, prefix + node.name, node)
        else:
            yield _plain_info(snapshot, name, node)


def info_of(snapshot: Snapshot, name: str, inner: bytes, node: Entry) -> Info:
    """Returns fsspec's record for an entry. A symlink looks like its target; one that leads out of
    the snapshot has the type "other"."""
    if node.kind != _SYMLINK:
        return _plain_info(snapshot, name, node)
    target = snapshot.entries.target(inner, node)
    info = _plain_info(snapshot, name, node if target is None else target)
    info["islink"] = True
    info["destination"] = decoded_path(node.target)
    if target is None:
        info["type"] = "other"
    return info


def _plain_info(snapshot: Snapshot, name: str, node: Entry) -> Info:
    return {
        "name": name,
        "size": node.size_bytes,
        "type": "directory" if node.kind == _DIRECTORY else "file",
        "ETag": node.digest.hex(),
        "executable": node.executable,
        "islink": False,
        "commit": snapshot.commit,
        "mtime": snapshot.time_s,
    }
