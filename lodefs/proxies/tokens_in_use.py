"""Checks that the proxies of this machine use the present tokens of a tokens file."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.protocol.wire import SOCKET_DEFAULT
from lodefs.proxies.own_proxy import ask, own_proxy
from lodefs.proxy.http.tokens import TokensTaken, file_digest
from lodefs.settings.session import Session

TAKEN_TIMEOUT_S = 10.0  # a proxy reads the file once a second
ASK_TIMEOUT_S = 3.0
POLL_S = 0.1
UNREAD = "it has not read the present file"
_NOBODY = (errno.ENOENT, errno.ECONNREFUSED)  # no proxy runs, and one that starts reads the file


def digest_or_none(path: Path) -> str | None:
    """Returns the ``file_digest`` of a file; None if it does not exist or cannot be read."""
    try:
        return file_digest(path) or None
    except InvalidInput:
        return None


def await_taken(
    session: Session, path: Path, before: str | None, timeout_s: float | None = None
) -> bool:
    """Waits until each proxy here that uses a tokens file has read its present content. False if no
    proxy here uses it. ``before``: the ``digest_or_none`` of the file before the change, which
    identifies a proxy that sees the file at another path.

    Raises: Unavailable, with the proxies that have not read it in time, and why. A proxy that does
    not answer, or does not say what it has read, counts if the settings name it or the file.
    """
    ends_s = time.monotonic() + (TAKEN_TIMEOUT_S if timeout_s is None else timeout_s)
    while True:
        found = {url: _told(session, url, path, before) for url in _proxies(session)}
        late = {url: why for url, why in found.items() if why}
        if not late:
            return "" in found.values()
        if time.monotonic() > ends_s:
            named = "; ".join(f"{url}: {why}" for url, why in late.items())
            raise Unavailable(
                f"the proxy may still accept tokens that {path} does not have: {named}"
            )
        time.sleep(POLL_S)


def _proxies(session: Session) -> Sequence[str]:
    """Returns the addresses at which a proxy may answer: that of the settings, else the node's and
    the user's own."""
    if session.proxy_url:
        return [session.proxy_url]
    node = str(session.config.serve.get("socket_path") or SOCKET_DEFAULT)
    own = [own_proxy(session.home_cache(), session.store_url).url] if session.has_store else []
    return [f"unix:{node}", *own]


def _told(session: Session, url: str, path: Path, before: str | None) -> str | None:
    """Returns the reason why a proxy has not read the file; "" if it has; None if it uses another
    file or none, or if no proxy is there."""
    try:
        token = session.environment.get("LODEFS_TOKEN")
        status = ask(url, "/status", token, timeout_s=ASK_TIMEOUT_S)
    except LodefsError as error:
        return str(error) if _is_meant(session, path) and not _is_nobody(error) else None
    if "tokens" not in status and not _is_meant(session, path):
        return None
    return untaken(status, path, before)


def _is_nobody(error: BaseException | None) -> bool:
    """Whether an error means that nobody listens, even if it was wrapped."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in _NOBODY


def _is_meant(session: Session, path: Path) -> bool:
    """Whether the settings name this proxy, or this file."""
    named = session.config.serve.get("tokens_file")
    return bool(session.proxy_url or (named and _same(str(named), path)))


def _same(one: str, path: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(path)


def untaken(status: Mapping[str, object], path: Path, before: str | None) -> str | None:
    """Returns the reason why a proxy has not read the file, given its ``/status``."""
    try:
        taken = from_json(msgspec.json.encode(status.get("tokens")), list[TokensTaken])
    except InvalidInput:
        return "it does not report which tokens it has read: restart it if its version differs"
    try:
        now = file_digest(path)
    except InvalidInput as error:
        return str(error)
    for one in taken:
        if one.digest == now:
            return ""
        if _same(one.file, path) or one.digest == before:
            return one.problem or UNREAD
    return None
