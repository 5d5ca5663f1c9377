"""The subject of doctor: the settings of this user and machine, and the proxy that answers here."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.protocol.wire import SOCKET_DEFAULT
from lodefs.doctor.check import Finding, warning
from lodefs.proxies.own_proxy import ask, own_proxy, plain_store, served_store
from lodefs.proxy.config import CACHE_DIR_DEFAULT, Config
from lodefs.settings.config import S3Config
from lodefs.settings.session import Session

ASK_TIMEOUT_S = 3.0


class ProxySeen(msgspec.Struct, frozen=True):
    """The proxy at ``url``, and its own status, or the error if it does not answer.

    ``expected``: settings name the proxy, or its socket exists, so that it ought to run."""

    url: str
    expected: bool
    status: Mapping[str, object] | None = None
    error: LodefsError | None = None

    @property
    def node(self) -> Mapping[str, object]:
        """The status of its node; empty if it does not answer."""
        found = (self.status or {}).get("node")
        return found if isinstance(found, dict) else {}

    @property
    def socket(self) -> Path | None:
        """Its Unix socket; None for a proxy on TCP."""
        return Path(self.url.removeprefix("unix:")) if self.url.startswith("unix:") else None


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """All that checks need to know. ``mistakes``: errors in the settings; if there are any,
    ``config`` may be None. ``config``: settings of this node's proxy, None without a store."""

    environment: Mapping[str, str]
    version: str
    is_root: bool
    store_url: str | None
    s3: S3Config
    config: Config | None
    mistakes: tuple[str, ...]
    serve_names: frozenset[str]  # of the settings that [serve] has
    proxy: ProxySeen
    cache_dir: Path

    @property
    def proxy_serves_store(self) -> bool:
        """Whether the proxy answers, and serves the store of the settings, if they name one."""
        if self.proxy.status is None:
            return False
        served = str(served_store(self.proxy.status))
        return self.store_url is None or plain_store(served) == plain_store(self.store_url)


def subject_of(
    session: Session, *, version: str, config: Config | None, mistakes: tuple[str, ...]
) -> Subject:
    """Gathers what doctor examines. Waits for each possible proxy, ASK_TIMEOUT_S at most. Unless
    there are ``mistakes``, the settings of ``session`` must be readable."""
    store_url, s3, serve = None, S3Config(), frozenset[str]()
    with suppress(LodefsError):
        store_url = session.store_url
    with suppress(LodefsError):
        s3, serve = session.config.s3, frozenset(session.config.serve)
    proxy = _proxy(session, store_url, expected="socket_path" in serve, config=config)
    return Subject(
        environment=session.environment,
        version=version,
        is_root=os.geteuid() == 0,
        store_url=store_url,
        s3=s3,
        config=config,
        mistakes=mistakes,
        serve_names=serve,
        proxy=proxy,
        cache_dir=_cache_dir(session, proxy, store_url, config, named="cache_dir" in serve),
    )


def _proxy(
    session: Session, store_url: str | None, *, expected: bool, config: Config | None
) -> ProxySeen:
    token = session.environment.get("LODEFS_TOKEN")
    named = session.proxy_option
    with suppress(LodefsError):
        named = session.proxy_url
    if named:
        return _seen(named, token, expected=True)
    place = config.socket_path if config is not None else Path(SOCKET_DEFAULT)
    node = None
    if place is not None and (expected or _is_there(place)):
        node = _seen(f"unix:{place}", token, expected=True)
        if node.status is not None or isinstance(node.error, Denied):
            return node
    own = None if store_url is None else own_proxy(session.home_cache(), store_url)
    if own is not None and _is_there(own.socket):
        seen = _seen(own.url, token, expected=False)
        if seen.status is not None:
            return seen
    return node or ProxySeen(f"unix:{place}", expected=False)


def _is_there(path: Path) -> bool:
    """Whether the file exists; True also if this user may not look."""
    try:
        return path.exists()
    except OSError:
        return True


def _seen(url: str, token: str | None, *, expected: bool) -> ProxySeen:
    place = url.removeprefix("unix:")
    if url.startswith("unix:") and os.path.exists(place) and not os.access(place, os.W_OK):
        return ProxySeen(url, expected, error=Denied(f"{place}: this user may not open the socket"))
    try:
        return ProxySeen(url, expected, status=ask(url, "/status", token, timeout_s=ASK_TIMEOUT_S))
    except (Unavailable, Denied, InvalidInput) as error:
        return ProxySeen(url, expected, error=error)


def _cache_dir(
    session: Session, proxy: ProxySeen, store_url: str | None, config: Config | None, *, named: bool
) -> Path:
    """Returns the cache of the running proxy, else of the settings, else of the user's own
    proxy."""
    running = proxy.node.get("cache")
    if isinstance(running, str):
        return Path(running)
    if config is not None and (named or proxy.expected):
        return config.cache_dir
    if store_url is not None and not os.access(CACHE_DIR_DEFAULT, os.W_OK):
        return own_proxy(session.home_cache(), store_url).directory / "cache"
    return CACHE_DIR_DEFAULT if config is None else config.cache_dir


USER = "lodefs"
_ACL = "system.posix_acl_access"


def unreadable(subject: Subject, check: str, path: Path) -> list[Finding]:
    """Returns a warning for root about a file that this machine's service may not read. None if it
    may, if the service's user does not exist, or if the proxy is not the service."""
    place = subject.proxy.socket
    if not subject.is_root or (place is not None and str(place) != SOCKET_DEFAULT):
        return []
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return []
    groups = os.getgrouplist(USER, user.pw_gid)
    if may_read(path.stat(), user.pw_uid, groups) or _ACL in os.listxattr(path):
        return []
    mend = f"chown root:{USER} {path}; chmod 0640 {path}"
    return [warning(check, f"the service's user {USER} cannot read {path}", mend)]


def may_read(found: os.stat_result, uid: int, groups: list[int]) -> bool:
    """Whether the mode lets a user other than root read a file."""
    if found.st_uid == uid:
        return bool(found.st_mode & stat.S_IRUSR)
    if found.st_gid in groups:
        return bool(found.st_mode & stat.S_IRGRP)
    return bool(found.st_mode & stat.S_IROTH)
