"""Proxies for volumes of stores other than the node's: found, or started and kept running.

Each has a directory of its own (own_proxy.OwnProxy), in which a file ``store`` names its store. As
long as that file exists, a proxy that has died is started again. The proxies outlive the process
that started them, and end when nobody has read from them for a day.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.objects.in_place.source_settings import as_table
from lodefs.chunkstore.system.sockets import peer_of
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.interface import NodeMounts
from lodefs.mount.helper.kernel_mounts import KernelMounts
from lodefs.proxies.own_proxy import (
    OwnProxy,
    ask,
    node_proxy,
    own_proxy,
    plain_store,
    ready,
    serve_command,
    serves,
    start,
)
from lodefs.settings.session import Session, absolute

ASK_TIMEOUT_S = 0.5
KEEP_S = 2.0  # how often proxies are checked
IDLE_S = 86400.0  # a proxy without other connections than ours ends after this
RETRY_S = 30.0  # wait after a failed start
_SERVED = ("cache_size_bytes_max", "log_level")  # settings of the node's proxy that apply to all


class StoreProxies:
    """The proxies below ``directory``. For any thread; its own threads start with the first proxy.
    ``say`` logs a line."""

    def __init__(self, session: Session, directory: Path, say: Callable[[str], None]) -> None:
        self._session = session
        self._directory = directory
        self._say = say
        self._node = node_proxy(session)
        self._lock = Lock()
        self._starts: dict[str, Future[None]] = {}
        self._busy_s: dict[str, float] = {}  # when each proxy was last used
        self._retry_s: dict[str, float] = {}  # when each failed start is tried again
        self._closing = Event()
        self._keeper: Thread | None = None

    def proxy_for(self, store: str, timeout_s: float) -> str:
        """Returns the address of the proxy for a store; "" for the node's own. Raises: Unavailable
        while the proxy is being started, or if it does not start."""
        if not store:
            return self._node
        store = absolute(store)
        if serves(self._node, store, ASK_TIMEOUT_S):
            return self._node
        own = own_proxy(self._directory, store)
        try:
            self._begin(own, store).result(timeout_s)
        except LateError:
            raise Unavailable(f"a proxy for {_shown(store)} is being started; try again") from None
        return own.url

    def adopt(self) -> None:
        """Keeps proxies running that an earlier process kept."""
        for file in self._directory.glob("proxy-*/store"):
            with suppress(OSError, ValueError):  # damaged: the next volume writes it again
                if store := file.read_text().strip():
                    self._keep(store)

    def close(self) -> None:
        """Stops keeping them; they continue to run."""
        self._closing.set()
        if self._keeper is not None:
            self._keeper.join()

    def _begin(self, own: OwnProxy, store: str) -> Future[None]:
        """Starts each proxy at most once at a time."""
        with self._lock:
            found = self._starts.get(store)
            if found is None or found.done():
                found = self._starts[store] = Future()
                try:
                    Thread(target=self._start, args=(own, store, found), daemon=True).start()
                except RuntimeError as error:
                    found.set_exception(Unavailable(f"no thread can be started: {error}"))
            return found

    def _start(self, own: OwnProxy, store: str, started: Future[None]) -> None:
        try:
            self._run(own, store)
            self._keep(store)
        except Exception as error:  # noqa: BLE001 - the caller must get any error
            self._retry_s[store] = time.monotonic() + RETRY_S
            why = str(error) if isinstance(error, LodefsError | OSError) else repr(error)
            failure = f"the proxy for {_shown(store)} does not start: {why}"
            self._say(failure)
            started.set_exception(Unavailable(failure))
        else:
            started.set_result(None)

    def _run(self, own: OwnProxy, store: str) -> None:
        """Starts a proxy unless it runs. Raises: Unavailable, Denied, OSError."""
        if not ready(own.url, ASK_TIMEOUT_S):
            _reap(own)
            own.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            config = own.directory / "lodefs.toml"
            config.write_text(self._settings())
            environment = {**self._session.environment, "LODEFS_CONFIG": str(config)}
            start(own, serve_command(own, store), environment)
            self._say(f"a proxy for {_shown(store)} runs; its log is {own.log}")
        _note(own, store)

    def _keep(self, store: str) -> None:
        with self._lock:
            self._busy_s[store] = time.monotonic()
            if self._keeper is None and not self._closing.is_set():
                keeper = Thread(target=self._keep_all, name="store-proxies", daemon=True)
                keeper.start()
                self._keeper = keeper

    def _keep_all(self) -> None:
        while not self._closing.wait(KEEP_S):
            for store in list(self._busy_s):
                with suppress(LodefsError, OSError):
                    self._look_after(own_proxy(self._directory, store), store)

    def _look_after(self, own: OwnProxy, store: str) -> None:
        """Restarts a proxy that has died; ends one that nobody uses."""
        with self._lock:
            start = self._starts.get(store)
        if start is not None and not start.done():
            return  # its store is not recorded yet
        now_s = time.monotonic()
        if not ready(own.url, ASK_TIMEOUT_S):
            if now_s >= self._retry_s.get(store, now_s):
                self._begin(own, store)
            return
        connections = ask(own.url, "/status", timeout_s=ASK_TIMEOUT_S).get("connections")
        if not isinstance(connections, int) or connections > 1:  # one connection is ours
            self._busy_s[store] = now_s
        elif now_s - self._busy_s[store] > IDLE_S:
            del self._busy_s[store]
            _end(own)
            self._say(f"the proxy for {_shown(store)} ends: nobody used it for a day")

    def _settings(self) -> str:
        """Returns the node's settings, without those for its proxy alone, such as addresses."""
        s3, serve = self._session.config.s3, self._session.config.serve
        tables: dict[str, dict[str, object]] = {
            "s3": {
                "endpoint_url": s3.endpoint_url,
                "region": s3.region,
                "transfer_timeout_s": s3.transfer_timeout_s,
            },
            "serve": {name: serve.get(name) for name in _SERVED},
            **{f"sources.{k}": v for k, v in as_table(self._session.config.sources).items()},
        }
        lines = []
        for table, values in tables.items():
            lines.append(f"[{table}]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None]
        return "\n".join(lines) + "\n"


def _shown(store: str) -> str:
    """Returns a store for logs and errors, without settings, which may contain secrets."""
    return plain_store(store)


def _note(own: OwnProxy, store: str) -> None:
    """Records the store of a proxy, completely or not at all."""
    file, unfinished = own.directory / "store", own.directory / "store.new"
    line = f"{store}\n".encode()
    with suppress(OSError):
        if file.read_bytes() == line:
            return
    unfinished.write_bytes(line)
    unfinished.rename(file)


def _end(own: OwnProxy) -> None:
    (own.directory / "store").unlink(missing_ok=True)
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ASK_TIMEOUT_S)
        asking.connect(str(own.socket))
        os.kill(
            peer_of(asking).pid, signal.SIGTERM
        )  # its connection is open, so the number is not reused


def _reap(own: OwnProxy) -> None:
    """Reaps a dead proxy that this process started."""
    with suppress(OSError, ValueError):
        os.waitpid(int(own.pid_file.read_text()), os.WNOHANG)


@contextmanager
def open_node_mounts(
    session: Session, state: Path, owner: str, log: logging.Logger
) -> Iterator[NodeMounts]:
    """Mounts that use the node's proxy, and separate proxies for other stores.

    ``state``: the service's directory, which also holds the state of other proxies. ``owner``: what
    the mounts are labelled with ("docker", "csi"). The end touches no mount. Raises: Unavailable.
    """
    say = partial(log.warning, "%s")
    with MountHelper() as helper, store_proxies(session, state, log) as proxies:
        yield KernelMounts(
            helper, proxies.proxy_for, environ=session.environment, log=say, owner=owner
        )


@contextmanager
def store_proxies(session: Session, state: Path, log: logging.Logger) -> Iterator[StoreProxies]:
    """Yields the proxies of other stores with their state in ``state``, kept running within the
    block."""
    proxies = StoreProxies(session, state / "proxies", partial(log.warning, "%s"))
    proxies.adopt()
    try:
        yield proxies
    finally:
        proxies.close()
