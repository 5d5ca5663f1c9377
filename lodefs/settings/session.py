"""One run of the command line: its settings, and the stores and files that it has open."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.format.foreign.git_url import is_git_url, spec_of_url
from lodefs.chunkstore.format.names import Spec, parse_spec
from lodefs.chunkstore.system import safe_open
from lodefs.settings import config

if TYPE_CHECKING:
    from lodefs.chunkstore.objects.interface import ObjectStore, ServerCopy
    from lodefs.chunkstore.objects.open_url import StoreOptions
    from lodefs.chunkstore.objects.s3.sigv4 import Credentials
    from lodefs.chunkstore.repo.store import Store


# For the first answer of a store, whose address may be wrong. There is time for two attempts.
FIRST_TIMEOUT_S = 8.0
FIRST_TIME_S_MAX = 10.0  # until the last attempt begins
ATTEMPTS_MAX = 10  # at a call to a store that has answered before, in about 20 s
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NO_COLON = re.compile(r"(s3|file|https?)//[^/]", re.IGNORECASE)  # s3//bucket
NO_STORE = (
    "no store is given: use --store URL, LODEFS_STORE or `store` in ~/.config/lodefs/lodefs.toml"
)
PROXY_IS_NOT_ENOUGH = "; this command reads the store directly, so --proxy is not enough"


class Session:
    """The state that commands share. The entry point makes one; the store is opened on first
    use."""

    def __init__(self, environment: Mapping[str, str], *, umask: int | None = None) -> None:
        """``environment`` and ``umask`` of this process's start, for a program that replaces it."""
        self.environment = environment
        self.umask = umask
        self.debug = bool(environment.get("LODEFS_DEBUG"))
        self.exit_code = 0
        self.on_renamed: Callable[[str], object] = lambda _to: None  # called with the new name
        self.command_options: Mapping[
            str, str | None
        ] = {}  # --store and --proxy of the command itself
        self._store_option: str | None = None
        self._proxy_option: str | None = None
        self._credentials: Credentials | None = None
        self._opened: list[ObjectStore | ServerCopy] = []
        self._kept_fds: dict[str, int] = {}  # by purpose

    def apply_options(self, *, store: str | None = None, proxy: str | None = None) -> None:
        """Applies options of the command line, which override all other settings."""
        self._store_option = store or self._store_option
        self._proxy_option = proxy or self._proxy_option

    def with_credentials(self, credentials: Credentials) -> Session:
        """Another session of the same settings, whose stores are reached with these."""
        other = Session(self.environment, umask=self.umask)
        other.apply_options(store=self._store_option, proxy=self._proxy_option)
        other._credentials = credentials
        return other

    @cached_property
    def config(self) -> config.Config:
        return config.load(self.environment)

    @property
    def store_url(self) -> str:
        """The URL of the store; a directory as an absolute path. Raises: InvalidInput if none is
        configured."""
        url = self._store_option or self.config.store
        if not url:
            raise InvalidInput(NO_STORE + (PROXY_IS_NOT_ENOUGH if self._proxy_option else ""))
        return absolute(url)

    @property
    def has_store(self) -> bool:
        return bool(self._store_option or self.config.store)

    @property
    def proxy_option(self) -> str | None:
        return self._proxy_option

    @property
    def proxy_url(self) -> str | None:
        """The proxy that options or settings name; None for the node's, or the user's own."""
        return self._proxy_option or self.config.proxy

    @cached_property
    def store(self) -> Store:
        from lodefs.chunkstore.repo.store import open_store  # imports all of the formats

        found = open_store(self.objects(self.store_url))
        found.on_renamed = self.on_renamed
        return found

    def objects(self, url: str) -> ObjectStore:
        """Returns the object store at ``url``, closed with the session."""
        from lodefs.chunkstore.objects.open_url import open_objects  # boto3 comes with this

        objects = open_objects(url, self._store_options())
        self._opened.append(objects)
        return objects

    def server_copy(self, source_url: str, destination_url: str) -> ServerCopy | None:
        """Copies by the server, if two stores are on one server; closed with the session."""
        from lodefs.chunkstore.objects.open_url import open_server_copy

        options = self._store_options()
        copies = open_server_copy(absolute(source_url), absolute(destination_url), options)
        if copies is not None:
            self._opened.append(copies)
        return copies

    def _store_options(self) -> StoreOptions:
        from dataclasses import replace

        from lodefs.chunkstore.objects.open_url import StoreOptions

        settings = self.config.s3
        options = StoreOptions(
            endpoint_url=settings.endpoint_url,
            region=settings.region,
            sources=self.config.sources,
            first_timeout_s=FIRST_TIMEOUT_S,
            first_time_s_max=FIRST_TIME_S_MAX,
            attempts_max=ATTEMPTS_MAX,
            credentials=self._credentials,
        )
        if settings.transfer_timeout_s is not None:
            options = replace(options, transfer_timeout_s=settings.transfer_timeout_s)
        return options

    def store_at(self, url: str) -> Store:
        """Returns the store at ``url``, whatever the settings name; closed with the session."""
        from lodefs.chunkstore.repo.store import open_store

        return open_store(self.objects(absolute(url)))

    def home_cache(self) -> Path:
        """``~/.cache/lodefs``, for the push index and proxies that are started for a user."""
        base = self.environment.get("XDG_CACHE_HOME")
        return Path(base or os.path.join(config.home(self.environment), ".cache")) / "lodefs"

    def make_home_cache(self) -> Path:
        """Creates ``home_cache``, for this user alone. Raises: Denied."""
        directory = self.home_cache()
        try:
            safe_open.make_own(directory)
        except OSError as error:
            raise Denied(f"{directory}: {error.strerror}: the cache cannot be created") from error
        return directory

    def keep_open(self, name: str, fd: int) -> None:
        """Keeps a descriptor open until another one has the same purpose, or the session is
        closed."""
        former = self._kept_fds.pop(name, None)
        self._kept_fds[name] = fd
        if former is not None:
            os.close(former)

    def close(self) -> None:
        while self._kept_fds:
            os.close(self._kept_fds.popitem()[1])
        while self._opened:
            self._opened.pop().close()


def absolute(url: str) -> str:
    """Returns a store's URL that is valid in any working directory. Raises: InvalidInput if it is
    empty, or is a URL without its colon."""
    if not url:
        raise InvalidInput("the store's URL is empty: perhaps a variable is not set")
    if _SCHEME.match(url):
        return url
    if _NO_COLON.match(url):
        scheme, _, rest = url.partition("//")
        meant = f"{scheme}:///{rest}" if scheme.lower() == "file" else f"{scheme}://{rest}"
        raise InvalidInput(f"{url} lacks a colon: {meant} (for a directory of that name: ./{url})")
    return str(Path(url).expanduser().absolute())


def split_settings(url: str) -> tuple[str, str]:
    """Returns a store's URL without its settings, and the settings with their '?'. In a path '?' is
    an ordinary character."""
    if not _SCHEME.match(url):
        return url, ""
    head, mark, settings = url.partition("?")
    return head, mark + settings


class Where(TypedDict, total=False):
    """The store of a call. ``store``: its URL, by default from the settings; ``session``: the
    settings themselves, by default from environment and files."""

    store: str | None
    session: Session | None


class NodeWhere(Where, total=False):
    """The store and the proxy of a call."""

    proxy: str | None


@contextmanager
def opened(
    session: Session | None = None, *, store: str | None = None, proxy: str | None = None
) -> Iterator[Session]:
    """``session`` if there is one. Otherwise a new one from environment and settings files,
    overridden by ``store`` and ``proxy``, which is closed at the end of the block."""
    if session is not None:
        yield session
        return
    made = Session(dict(os.environ))
    made.apply_options(store=store, proxy=proxy)
    try:
        yield made
    finally:
        made.close()


def spec_of(spec: str | Spec) -> Spec:
    """Parses ``REPO[@REV][:PATH]``; REPO may be the URL of a Git repository, which the node's proxy
    imports. Raises: InvalidInput."""
    if isinstance(spec, Spec):
        return spec
    return spec_of_url(spec) if is_git_url(spec) else parse_spec(spec)


def revision_of(spec: str | Spec) -> Spec:
    """Parses ``REPO[@REV]`` for calls on whole revisions. Raises: InvalidInput for a path."""
    found = spec_of(spec)
    if found.path:
        raise InvalidInput(f"{found}: this call takes REPO[@REV], without a path")
    return found
