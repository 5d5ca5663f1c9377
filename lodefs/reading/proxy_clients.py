"""The connections of one program to the node's proxy, one for each thread that reads.

The proxy is found as commands find it: the one that the program names, then the environment, the
settings files, the node's proxy, and the user's own, which is started. Nothing is asked before the
first request, and no thread is started. A forked child makes connections of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.chunkstore.protocol.read_client import Client, Outage
from lodefs.chunkstore.protocol.trace_context import trace_of_environment
from lodefs.chunkstore.system import after_fork
from lodefs.proxies.own_proxy import is_own, proxy_url, start_again
from lodefs.settings.session import Session

TIMEOUT_S = 60.0  # for a request, retries and a restart of the proxy included
ASK_S = 1.0  # for the proxy, which may be gone while its cache is read
REVIVE_PAUSE_S = 1.0


class ProxyOptions(NamedTuple):
    """A program's options for the proxy; None: as in the settings. ``token`` defaults to
    LODEFS_TOKEN."""

    proxy: str | None = None
    store: str | None = None
    token: str | None = None
    timeout_s: float = TIMEOUT_S


class ProxyClients:
    """Clients of one proxy. For any thread."""

    def __init__(self, options: ProxyOptions) -> None:
        self.options = options
        self._session = Session(dict(os.environ))
        self._session.apply_options(store=options.store, proxy=options.proxy)
        self._token = options.token or os.environ.get("LODEFS_TOKEN") or None
        self._url = ""
        self._is_own = False
        self._revive_s = 0.0
        self.reset()
        after_fork.renew(self)

    def reset(self) -> None:
        """Drops connections, as in a forked child: they belong to its parent."""
        self._finding = Lock()
        self._outage = Outage()
        self._idle: list[Client] = []

    @property
    def url(self) -> str:
        """The proxy's address. The first call finds it, and may start a proxy.

        Raises: InvalidInput if nothing names a proxy or a store; Unavailable.
        """
        if not self._url:
            with self._finding:
                if not self._url:
                    url = proxy_url(self._session)
                    self._is_own = is_own(self._session, url)
                    self._url = url
        return self._url

    @property
    def is_beside(self) -> bool:
        """Whether the proxy may be on this machine: its address is a Unix socket."""
        return self.url.startswith("unix:")

    @contextmanager
    def client(self, timeout_s: float | None = None) -> Iterator[Client]:
        """Yields a client for this thread alone, until the end of the block. ``timeout_s``: a
        shorter limit for all its requests together."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._made()
        client.begin(0.0 if timeout_s is None else self.options.timeout_s - timeout_s)
        idle = self._idle
        yield client  # after an error it is dropped, since its connection may be mid-request
        idle.append(client)

    @contextmanager
    def beside(self) -> Iterator[Client]:
        """Yields a client for questions about the node's cache that no reader waits for. Raises:
        NotFound if the proxy is on another machine."""
        if not self.is_beside:
            raise NotFound(f"{self.url} may be on another machine")
        with self.client(ASK_S) as client:
            yield client

    def control(self) -> ControlClient:
        """Returns a client for warming and pins."""
        return ControlClient(self.url, self._token)

    def close(self) -> None:
        """Closes the connections, and the lease of a proxy that was started."""
        while self._idle:
            self._idle.pop().close()
        self._session.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__ failed
            self.close()

    def _made(self) -> Client:
        return Client(
            parse_address(self.url),
            token=self._token,
            timeout_s=self.options.timeout_s,
            outage=self._outage,
            before_blocking=self._revive if self._is_own else lambda: None,
        ).traced(trace_of_environment(self._session.environment))

    def _revive(self) -> None:
        """Starts the user's own proxy again if it was killed. Called before each wait."""
        now_s = time.monotonic()
        if now_s < self._revive_s:
            return
        self._revive_s = now_s + REVIVE_PAUSE_S
        with suppress(LodefsError, OSError):  # the request itself reports the error
            start_again(self._session, self._url)
