"""The composition root: from a Config to a serving proxy, and back to nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import NamedTuple

from chunkstore import sockets
from chunkstore.errors import InvalidInput
from chunkstore.location import StoreOptions, open_objects
from chunkstore.sdnotify import READY, STOPPING, SystemdNotifier
from chunkstore.store import Store, open_store
from chunkstore.wrappers import Observation
from proxy.cache import Cache, CacheSettings
from proxy.config import Config, cache_size_bytes
from proxy.doors import Door
from proxy.listeners import CLIENTS, PEERS, Listeners
from proxy.meter import Counts
from proxy.metrics import StoreCalls
from proxy.node import Node
from proxy.peers.desk import PeerDesk
from proxy.peers.opening import open_part
from proxy.peers.peering import Peering
from proxy.server import Limits, ProxyServer
from proxy.storenode import NodeSettings, StoreNode
from proxy.tokens import TokenBook
from proxy.unused import UnusedEnd


class Opened(NamedTuple):
    """A node, and what answers other nodes where it is not alone."""

    node: Node
    desk: PeerDesk | None = None
    peer_tls: ssl.SSLContext | None = None


NodeOpener = Callable[[Config, StoreCalls], AbstractAsyncContextManager[Opened]]
_log = logging.getLogger("lodefs.proxy")


@asynccontextmanager
async def open_store_node(config: Config, calls: StoreCalls) -> AsyncIterator[Opened]:
    """The node over the store, the cache and the cluster that ``config`` names; closed at the
    end."""

    def observe(seen: Observation) -> None:
        outcome = "ok" if seen.error is None else seen.error.__name__
        calls.add(seen.operation, outcome, size_bytes=seen.size_bytes, elapsed_s=seen.seconds)

    options = StoreOptions(
        endpoint_url=config.endpoint_url,
        region=config.region,
        transfer_timeout_s=config.transfer_timeout_s,
        calls_max=config.fetch_concurrency,
        connections_max=config.fetch_concurrency,
        observe=observe,
    )
    objects = open_objects(config.store, options)
    try:
        store = await asyncio.to_thread(open_store, objects)
        async with open_part(config) as part:
            node = _open_node(store, config, part.peering if part else None)
            try:
                yield Opened(node, node.peer_desk, part.tls if part else None)
            finally:
                await node.close()
    finally:
        objects.close()


def _open_node(store: Store, config: Config, peering: Peering | None) -> StoreNode:
    """A node whose cache has its limit: only an open cache knows what it uses already."""
    counts = Counts()
    settings = CacheSettings(config.cache_dir, cache_size_bytes(config))
    cache = Cache(settings, counts)
    try:
        limit_bytes = cache_size_bytes(config, cache.used_bytes)
        cache.settings = replace(settings, size_bytes_max=limit_bytes)
        node_settings = NodeSettings(cache.settings, fetch_threads=config.fetch_concurrency)
        return StoreNode(store, node_settings, counts, cache=cache, peering=peering)
    except BaseException:
        cache.close()
        raise


async def serve(
    config: Config,
    stop: asyncio.Event,
    *,
    environ: Mapping[str, str],
    open_node: NodeOpener = open_store_node,
) -> None:
    """Serve until ``stop`` is set, then let running answers end and close the cache.

    Raises what opening the store, the cache, the tokens file or a socket raises.
    """
    started_s = time.monotonic()
    systemd = SystemdNotifier(environ)
    calls = StoreCalls()
    with (
        open_listeners(config, environ, systemd) as listeners,
        open_doors(config, listeners) as doors,
    ):
        systemd.tell(f"Opening {config.store} and the cache {config.cache_dir}")
        async with open_node(config, calls) as opened, AsyncExitStack() as more:
            if opened.desk is not None and config.peer_listen is not None:
                doors.append(more.enter_context(peer_door(config, listeners, opened)))
            unused = UnusedEnd(config, stop.set)

            def on_sweep() -> None:
                systemd.alive()
                unused.look(server.use)

            server = ProxyServer(
                opened.node,
                version=version(),
                store=config.store,
                store_calls=calls,
                limits=limits_of(config),
                hot_path=config.log_level != "debug",  # so that every request is logged
                on_sweep=on_sweep,
            )
            await server.start(doors)
            try:
                where = ", ".join(str(door) for door in doors)
                startup_s = round(time.monotonic() - started_s, 3)
                extra = {"pid": os.getpid(), "startup_s": startup_s}
                _log.info("ready: %s on %s", config.store, where, extra=extra)
                systemd.send(READY)
                systemd.tell(f"Serving {config.store} on {where}")
                await stop.wait()
            finally:
                systemd.send(STOPPING)
                systemd.tell("Waiting for answers that run")
                _log.info("stopping")
                await server.stop(config.shutdown_timeout_s)
    _log.info("stopped")


def version() -> str:
    """The version of lodefs that runs."""
    try:
        return version_of("lodefs")
    except PackageNotFoundError:
        return "0+unknown"


def limits_of(config: Config) -> Limits:
    """The server's part of the settings."""
    return Limits(
        connections_max=config.connections_max,
        streams_max=config.streams_max,
        idle_timeout_s=config.idle_timeout_s,
        write_timeout_s=config.write_timeout_s,
    )


@contextmanager
def open_listeners(
    config: Config, environ: Mapping[str, str], systemd: SystemdNotifier
) -> Iterator[Listeners]:
    """The sockets that systemd hands over; what nobody takes of them is closed at the end."""
    listeners = Listeners(environ, systemd, {CLIENTS: config.listen, PEERS: config.peer_listen})
    try:
        yield listeners
    finally:
        listeners.close()


@contextmanager
def peer_door(config: Config, listeners: Listeners, opened: Opened) -> Iterator[Door]:
    """The door of other nodes, listening."""
    assert config.peer_listen is not None
    listener = listeners.tcp(PEERS, config.peer_listen)
    try:
        yield Door(listener, desk=opened.desk, tls=opened.peer_tls)
    finally:
        listener.close()


@contextmanager
def open_doors(config: Config, listeners: Listeners) -> Iterator[list[Door]]:
    """All doors, listening; at the end they are closed and the Unix socket's file is removed.

    Sockets that units of systemd hand over are taken instead of those that the settings name.
    """
    tokens = TokenBook(config.tokens_file) if config.tokens_file is not None else None
    info_is_open = config.metrics_anonymous or tokens is None
    doors: list[Door] = []
    own_path = config.socket_path
    inode = 0
    try:
        given = listeners.given
        for listener in given:
            if sockets.is_unix(listener):
                doors.append(Door(listener, is_local=True))
            elif tokens is None and not config.allow_anonymous:
                listener.close()
                raise InvalidInput("systemd's TCP socket needs tokens_file or allow_anonymous")
            else:
                doors.append(Door(listener, tokens, info_is_open=info_is_open))
        if own_path is not None and not any(map(sockets.is_unix, given)):
            listener = sockets.listen_unix(
                own_path, mode=config.socket_mode, group=config.socket_group
            )
            inode = own_path.lstat().st_ino
            doors.append(Door(listener, name=f"unix:{own_path}", is_local=True))
        if config.listen is not None and all(map(sockets.is_unix, given)):
            listener = listeners.tcp(CLIENTS, config.listen)
            doors.append(Door(listener, tokens, info_is_open=info_is_open))
        yield doors
    finally:
        if own_path is not None and inode:
            sockets.remove_unix(own_path, inode)
        for door in doors:
            door.listener.close()
