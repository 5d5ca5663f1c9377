"""Files below a URL of any file system of fsspec, read by the library of that system."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlsplit

from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    SourceChanged,
    Unavailable,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.retrying import patiently
from lodefs.chunkstore.push.archives.zip_list import BoundedZip
from lodefs.chunkstore.push.remote.file_states import listed, state_of
from lodefs.chunkstore.push.remote.http_ranges import facts_of, page_class, read_range
from lodefs.chunkstore.push.remote.remote_files import (
    Listing,
    NoAccess,
    Piece,
    RemoteFile,
    Unreadable,
)
from lodefs.chunkstore.push.workers.source_files import show_path
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.retry_policy import RetryPolicy

T = TypeVar("T")


class Kind(NamedTuple):
    """The traits of one kind of file system. ``package``: what its library is installed as."""

    package: str
    is_concurrent: bool = True  # many threads may read at once
    is_http: bool = False  # paths are those of URLs, and the query belongs to them
    has_states: bool = True
    survives_fork: bool = True  # the library does not use connections of the process before it
    # A range is read by one request; with options (perhaps none), from a file opened with them
    open_options: Mapping[str, Any] | None = None


_GS, _AZURE = Kind("gcsfs"), Kind("adlfs")
_HTTP = Kind("aiohttp", is_http=True)
_SFTP = Kind("paramiko", is_concurrent=False, open_options={})  # its client mixes up answers
_ARCHIVE = Kind("", is_concurrent=False, open_options={})
KINDS: dict[str, Kind] = {
    "gs": _GS,
    "gcs": _GS,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hf": Kind("huggingface_hub", open_options={"cache_type": "none"}),
    "http": _HTTP,
    "https": _HTTP,
    "hdfs": Kind("pyarrow", open_options={}),
    "webhdfs": Kind("requests", open_options={}),
    "sftp": _SFTP,
    "ssh": _SFTP,
    # By default nobody else may open a file that is read, and no other part of the same push
    "smb": Kind("smbprotocol", survives_fork=False, open_options={"share_access": "rwd"}),
    "github": Kind("requests", open_options={}),
    "zip": _ARCHIVE,
    # The header of a member tells nothing of its bytes, and archives are made with fixed times
    "tar": _ARCHIVE._replace(has_states=False),
}
_OTHER = Kind("", is_concurrent=False, open_options={})
# What reads places of this machine, or wraps others
_REFUSED = frozenset(
    ("file", "local", "dir", "data", "reference", "generic", "cached", "blockcache", "filecache",
     "simplecache", "async_wrapper", "asyncwrapper", "dask", "pyscript", "lodefs")
)  # fmt: skip
_SECRET = re.compile("(?i)secret|token|passw|pwd|key|credential|sas|connection_string|auth")
_NO_SOURCE = (
    "is not a kind of source that push reads: it takes s3:// and what fsspec has, or push a "
    "directory"
)
_DENIED, _NO_ACCESS, _GONE = 403, 401, (404, 410)
_INFOS_AT_ONCE = 16


class FsspecFiles:
    """Implements RemoteFiles. A piece comes with the state of its file before and after the read,
    which must be the same; a pinned file system never changes, and is asked once."""

    def __init__(
        self,
        filesystem: Any,
        root: str,
        url: str,
        kind: Kind,
        *,
        location: str,
        is_pinned: bool = False,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``url`` has no secret; ``location`` is the whole URL."""
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._kind = kind
        self._policy = policy
        self._clock = clock
        self._is_pinned = is_pinned
        self.survives_fork = kind.survives_fork
        self.url = url.rstrip("/")
        self.location = location
        self._gate: AbstractContextManager[object] = (
            nullcontext() if kind.is_concurrent else threading.Lock()
        )

    def list(self, path: bytes) -> Listing:
        place = self._place(path)
        if self._kind.is_http:
            place += "/"  # else a server redirects, and links are not below the place
        try:
            found = self._asked(path, lambda: self._filesystem.ls(place, detail=True))
        except NotFound:
            return Listing([], [])
        children = {name: info for info in found if (name := self._name(place, info)) is not None}
        listing = Listing([], [])
        files: dict[bytes, Mapping[str, Any]] = {}
        for name, info in children.items():
            if info["type"] == "directory":
                listing.subdirectories.append(name)
            else:
                files[name] = info
        self._add_files(path, files, listing)
        return listing

    def _add_files(
        self, path: bytes, files: dict[bytes, Mapping[str, Any]], listing: Listing
    ) -> None:
        """Adds files to a listing; asks for facts that the list does not have."""
        unknown = [n for n, i in files.items() if i["type"] != "file" or i.get("size") is None]
        told_of: dict[bytes, Mapping[str, Any] | LodefsError] = dict(files)
        if unknown:
            with ThreadPoolExecutor(_INFOS_AT_ONCE) as threads:
                infos = map_ahead(threads, lambda name: self._told(_below(path, name)), unknown)
                told_of |= zip(unknown, infos, strict=True)
        for name, told in told_of.items():
            if isinstance(told, LodefsError):
                listing.unreadable.append(Unreadable(name, str(told)))
            elif told["type"] != "file" or told.get("size") is None:
                kind = "has no known size" if told["type"] == "file" else "is no regular file"
                listing.unreadable.append(Unreadable(name, f"{show_path(name)} {kind}"))
            else:
                state = listed(self._state(told))
                listing.files.append(RemoteFile(name, int(told["size"]), state))

    def _told(self, path: bytes) -> Mapping[str, Any] | LodefsError:
        """Returns the facts of one file, or why there are none. Raises: NoAccess, Unavailable."""
        try:
            return self._info(path)
        except (NoAccess, Unavailable):
            raise
        except LodefsError as error:
            return error

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        data, before = self._read(path, offset, size_bytes)
        file_size_bytes, state = int(before["size"]), self._state(before)
        if data and not self._is_pinned:
            after = self._info(path)
            if (after["size"], self._state(after)) != (before["size"], state):
                raise SourceChanged(f"{show_path(path)} changed while it was read")
        return Piece(data, file_size_bytes, state)

    def _read(self, path: bytes, offset: int, size_bytes: int) -> tuple[bytes, Mapping[str, Any]]:
        """Returns bytes of a file, and the facts of it from before they were read."""
        if self._kind.is_http and size_bytes:
            place, shown = self._place(path), self._shown(path)
            found = self._asked(
                path, lambda: read_range(self._filesystem, place, shown, offset, size_bytes)
            )
            if found is not None:
                return found
        info = self._info(path)
        size_bytes = max(0, min(size_bytes, int(info["size"]) - offset))
        if not size_bytes:
            return b"", info
        if self._kind.is_http:
            raise SourceChanged(f"{show_path(path)} changed while it was read")
        return self._asked(path, lambda: self._range(path, offset, size_bytes)), info

    def find(self, path: bytes) -> RemoteFile | None:
        try:
            info = self._info(path)
        except NotFound:
            return None
        if info["type"] != "file" or info.get("size") is None:
            return None
        name = self._place(path).partition("?")[0].rpartition("/")[2]
        raw = unquote_to_bytes(name) if self._kind.is_http else _encoded(name)
        return RemoteFile(raw, int(info["size"]), listed(self._state(info)))

    def holds(self, place: str) -> bool:
        """Implements RemoteFiles: the bucket has the store's first object, at the same place."""
        parts = urlsplit(place)
        if KINDS.get(parts.scheme) not in (_GS, _AZURE) or KINDS[parts.scheme] is not self._kind:
            return False
        store, source = f"{parts.netloc}{parts.path}".strip("/") + "/", f"{self._root}/"
        if not (store.startswith(source) or source.startswith(store)):
            return False
        try:
            self._asked(b"", lambda: self._filesystem.info(store + keys.STORE))
        except NotFound:
            return False
        return True

    def close(self) -> None:
        """Implements RemoteFiles. Most file systems close themselves when they are forgotten."""
        close = getattr(getattr(self._filesystem, "client", None), "close", None)
        if close is not None:  # that of SFTP has a thread
            with contextlib.suppress(Exception):
                close()

    def _place(self, path: bytes) -> str:
        """Returns the path of a file as its file system has it."""
        if not path:
            return self._root
        text = quote(path) if self._kind.is_http else path.decode("utf-8", "surrogateescape")
        return f"{self._root}/{text}" if self._root else text

    def _name(self, place: str, info: Mapping[str, Any]) -> bytes | None:
        """Returns the name of what is listed at ``place``; None if it does not lie right there."""
        directory, found = place.strip("/"), str(info["name"]).strip("/")
        if directory and not found.startswith(f"{directory}/"):
            return None  # the mark of the directory itself, or a link that leads elsewhere
        name = found[len(directory) :].strip("/")
        if not self._kind.is_http:
            return _encoded(name.rpartition("/")[2])
        name = name.removeprefix("./")
        if name in ("", ".", "..") or any(sign in name for sign in "/?#"):
            return None
        return unquote_to_bytes(_encoded(name))

    def _state(self, info: Mapping[str, Any]) -> str:
        if not self._kind.has_states:
            return ""
        return state_of(facts_of(info) if self._kind.is_http else info, self._clock())

    def _info(self, path: bytes) -> Mapping[str, Any]:
        place = self._place(path)
        info: Mapping[str, Any] = self._asked(path, lambda: self._filesystem.info(place))
        return info

    def _range(self, path: bytes, offset: int, size_bytes: int) -> bytes:
        """Reads a range that is not empty."""
        place, options = self._place(path), self._kind.open_options
        if options is None:
            return bytes(self._filesystem.cat_file(place, offset, offset + size_bytes))
        with self._filesystem.open(place, "rb", **options) as file:
            file.seek(offset)
            return bytes(file.read(size_bytes))

    def _asked(self, path: bytes, ask: Callable[[], T]) -> T:
        """Returns an answer, after retries. Raises: errors of lodefs."""

        def once() -> T:
            try:
                with self._gate:
                    return ask()
            except Exception as error:
                raise error_of(error, self._shown(path)) from error

        return patiently(once, self._policy)

    def _shown(self, path: bytes) -> str:
        return f"{show_path(path)} in {self.url}" if path else self.url


def open_fsspec_files(url: str) -> FsspecFiles:
    """Opens ``SCHEME://...[?OPTION=VALUE&...]``. Raises: InvalidInput; Denied, NotFound and
    Unavailable, since some file systems connect when they are opened."""
    scheme = url.partition(":")[0].lower()
    kind = KINDS.get(scheme, _OTHER)
    shown = shown_url(url)
    _check_url(scheme, url)
    place, options = (url, {}) if kind.is_http else _options_in(url)
    try:
        from fsspec.dircache import DirCache
        from fsspec.registry import available_protocols
    except ImportError as error:
        raise _missing(scheme, "lodefs[fsspec]", kind.package) from error
    if scheme not in available_protocols():
        raise InvalidInput(f"{scheme}:// {_NO_SOURCE}")
    if kind.is_http:  # paths are quoted here
        options = {"encoded": True, "client_kwargs": {"response_class": page_class()}}
    location = url
    try:
        if kind is _SFTP:
            options.setdefault("host_key_policy", _known_hosts())
        filesystem, root = _file_system(scheme, place, options)
        if scheme == "hf":
            root, location = _pinned(filesystem, root)
        else:
            filesystem.dircache = DirCache(use_listings_cache=False)  # a state is asked for anew
        if kind.is_http:
            root = place
        if channel := getattr(getattr(filesystem, "ftp", None), "get_channel", None):
            channel().settimeout(_SFTP_TIMEOUT_S)
    except ImportError as error:
        if kind.package:
            raise _missing(scheme, kind.package) from error
        raise InvalidInput(f"{scheme}:// needs a library: {error}") from error
    except Exception as error:
        raise error_of(error, shown) from error
    return FsspecFiles(filesystem, root, shown, kind, location=location, is_pinned=scheme == "hf")


_SFTP_TIMEOUT_S = 60.0


def _file_system(scheme: str, place: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Returns the file system of a URL, and the path in it."""
    import fsspec

    inside, _, archive = place.partition("::")
    if scheme != "zip" or not archive:
        found: tuple[Any, str] = fsspec.core.url_to_fs(place, skip_instance_cache=True, **options)
        return found
    opened = BoundedZip(fsspec.open(archive, "rb").open(), shown_url(archive))
    system = fsspec.filesystem("zip", fo=opened, skip_instance_cache=True, **options)
    return system, system._strip_protocol(inside)


def _known_hosts() -> Any:
    """Returns a policy of paramiko that trusts the same hosts as ssh; fsspec's trusts all."""
    import paramiko

    def check(_policy: Any, _client: Any, hostname: str, key: Any) -> None:
        path = os.path.expanduser("~/.ssh/known_hosts")
        known = paramiko.HostKeys(path if os.path.exists(path) else None)
        if not known.check(hostname, key):
            raise NoAccess(
                f"the key of the host {hostname} is not in {path}: run `ssh` to that host once, "
                "compare its fingerprint, and push again"
            )

    return type("KnownHosts", (paramiko.MissingHostKeyPolicy,), {"missing_host_key": check})()


def _pinned(filesystem: Any, root: str) -> tuple[str, str]:
    """Returns the path and the URL of the commit that a revision of a repository is now."""
    from huggingface_hub import HfApi

    found = filesystem.resolve_path(root)
    if not hasattr(found, "repo_id"):
        raise InvalidInput(
            f"hf://{root} is a bucket of Hugging Face, which reports no file states: download it "
            "and push the directory"
        )
    api = HfApi(endpoint=filesystem.endpoint, token=filesystem.token)
    asked = {"repo_type": found.repo_type, "revision": found.revision}
    sha = api.repo_info(found.repo_id, **asked).sha
    path = dataclasses.replace(found, revision=sha, _raw_revision=None).unresolve()
    return path, f"hf://{path}"


def shown_url(url: str) -> str:
    """Returns a URL for messages: without a password, and without a query, which may sign it."""
    return re.sub("//[^/@]*@", "//***@", url.partition("?")[0])


def _check_url(scheme: str, url: str) -> None:
    """Raises: InvalidInput for a kind that is no source, and for a password in a URL."""
    parts = [part.partition(":")[0].lower() for part in url.split("::")]
    if refused := next((part for part in parts if part in _REFUSED), None):
        raise InvalidInput(f"{refused}:// {_NO_SOURCE}")
    if any(part.password for part in map(urlsplit, url.split("::")) if "@" in part.netloc):
        raise InvalidInput(
            f"{shown_url(url)} has a password, which others can see: put it into "
            f"FSSPEC_{scheme.upper()}_PASSWORD, or into a file in ~/.config/fsspec"
        )


def _options_in(url: str) -> tuple[str, dict[str, Any]]:
    """Returns the place and the options that a URL names. Raises: InvalidInput for a secret."""
    place, _, query = url.partition("?")
    found = dict(parse_qsl(query, keep_blank_values=True))
    if secret := next(filter(_SECRET.search, found), None):
        raise InvalidInput(
            f"{secret!r} in a URL is visible to others: the library of {place.partition(':')[0]} "
            "takes it from its own environment or from a file in ~/.config/fsspec"
        )
    return place, {name: _value_of(text) for name, text in found.items()}


def _value_of(text: str) -> str | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdigit() else text


def _missing(scheme: str, *packages: str) -> InvalidInput:
    names = " ".join(f"'{name}'" if "[" in name else name for name in packages if name)
    return InvalidInput(f"{scheme}:// needs a library that is not installed: pip install {names}")


def error_of(error: Exception, what: str) -> LodefsError:
    """Returns the error of lodefs for one that a file system has raised. ``what`` names the
    place."""
    if isinstance(error, LodefsError):
        return error
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # fsspec's HTTP says so of any failure
    answer = getattr(error, "response", None)
    codes = [
        str(getattr(one, name, ""))
        for one in (error, answer)
        for name in ("status", "status_code", "code")
    ]
    status = next((int(code) for code in codes if code.isdigit()), 0)
    told = f"{type(error).__name__}{f' {status}' if status else ''}"
    names = {kind.__name__ for kind in type(error).__mro__}
    if status == _NO_ACCESS or any("Auth" in name for name in names):
        return NoAccess(f"{what} cannot be read with these credentials ({told})")
    if status == _DENIED or isinstance(error, PermissionError):
        return Denied(f"{what} may not be read ({told})")
    if status in _GONE or isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound(f"{what} does not exist")
    if isinstance(error, TypeError | ValueError | NotImplementedError):
        return InvalidInput(f"{what} cannot be opened: {_words_of(error)}")
    return Unavailable(f"{what} cannot be read: {told}: {_words_of(error)}")


def _words_of(error: Exception) -> str:
    """Returns the message of an error, with URLs as messages may have them."""
    return re.sub(r"\w+://[^\s'\"]+", lambda url: shown_url(url[0]), str(error))


def _below(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
