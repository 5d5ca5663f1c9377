"""``lodefs.snapshot`` and ``lodefs.open``: read a version from a program."""

from __future__ import annotations

import os
from typing import IO, Any

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.reading.proxy_clients import TIMEOUT_S, ProxyClients, ProxyOptions
from lodefs.reading.snapshot import Snapshot, check_mode, open_snapshot
from lodefs.reading.urls import decoded_path, parse_url
from lodefs.settings.session import revision_of

COMMIT_CHARS = 64
OPENED_MAX = 8  # snapshots that ``open`` keeps
_VARIABLES = ("LODEFS_CONFIG", "LODEFS_PROXY", "LODEFS_STORE", "LODEFS_TOKEN")


def snapshot(
    spec: str | Spec,
    *,
    proxy: str | None = None,
    store: str | None = None,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Snapshot:
    """Returns the commit that ``REPO[@REV]`` is now; the snapshot stays at that commit.

    ``proxy``, ``store`` and ``token`` default to the settings; a proxy is started if none runs.
    ``timeout_s``: of a request, a restart of the proxy included. Raises: NotFound, Unavailable,
    Denied, InvalidInput.
    """
    found = revision_of(spec)
    clients = ProxyClients(ProxyOptions(proxy, store, token, timeout_s))
    return open_snapshot(found.repo, found.rev, clients)


class _Opened:
    """State that calls of ``open`` share: connections, and snapshots by commit."""

    def __init__(self) -> None:
        self._clients: dict[object, ProxyClients] = {}
        self._snapshots: dict[object, Snapshot] = {}  # no lock, since a fork could find it held

    def snapshot(self, spec: Spec, options: ProxyOptions) -> Snapshot:
        """Returns the snapshot of the commit that a revision names now."""
        settings = (options, *map(os.environ.get, _VARIABLES))
        clients = self._clients.get(settings)
        if clients is None:
            clients = self._clients.setdefault(settings, ProxyClients(options))
        commit = spec.rev
        if len(commit) != COMMIT_CHARS:
            with clients.client() as client:
                commit = client.snapshot(spec.repo, spec.rev).commit
        key = (settings, spec.repo, commit)
        found = self._snapshots.get(key)
        if found is None:
            found = open_snapshot(spec.repo, commit, clients)
            while len(self._snapshots) >= OPENED_MAX:
                self._snapshots.pop(next(iter(self._snapshots)), None)
            self._snapshots[key] = found
        return found


_opened = _Opened()


def open(  # noqa: A001 - lodefs.open
    url: str,
    mode: str = "rb",
    *,
    proxy: str | None = None,
    store: str | None = None,
    token: str | None = None,
    **text: Any,
) -> IO[Any]:
    """Opens a file, ``lodefs://REPO@REV/PATH``, for reading: bytes with "rb", text with "r"
    (``encoding``, ``errors``, ``newline``). Each call looks a branch up anew.

    A ``snapshot`` opens many files faster. Raises: NotFound, InvalidInput, Unavailable.
    """
    check_mode(mode)
    spec = parse_url(url)
    if not spec.path:
        raise InvalidInput(f"{url} names a revision, not a file: lodefs://REPO@REV/PATH")
    found = _opened.snapshot(spec, ProxyOptions(proxy, store, token))
    return found.open(decoded_path(spec.path), mode, **text)
