"""The composition root: from a Config to a serving proxy, and its shutdown."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.installed_version import installed_version
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.observing import Observation
from lodefs.chunkstore.objects.open_url import StoreOptions, open_mirrored, open_objects
from lodefs.chunkstore.objects.s3.boto import REGION, node_credentials
from lodefs.chunkstore.protocol.figures.figure_files import (
    directories_of,
    directory_of,
    private_directory_of,
)
from lodefs.chunkstore.protocol.orders.store_place import StorePlace
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system import fd_limit, sockets
from lodefs.chunkstore.system.private_file import check_private
from lodefs.chunkstore.system.systemd.notify import READY, STOPPING, SystemdNotifier
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.scrub import ScrubSettings
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.config import PLAIN_TOKENS, Config, cache_size_bytes
from lodefs.proxy.data import processors
from lodefs.proxy.data.processes import DataProcesses, DataSettings, descriptors
from lodefs.proxy.fetch.data_plane import DataPlane
from lodefs.proxy.git.imports import GitSettings
from lodefs.proxy.http.admission import ClientLimits
from lodefs.proxy.http.door_tls import DoorTls
from lodefs.proxy.http.endpoint import Endpoint
from lodefs.proxy.http.local_readers import local_readers
from lodefs.proxy.http.request_origin import HostNames
from lodefs.proxy.http.server import ProxyServer
from lodefs.proxy.http.tokens import TokenBook
from lodefs.proxy.hub.upstream import UpstreamSettings
from lodefs.proxy.lfs.writer import LfsSettings
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.metrics.other_families import MoreFamilies
from lodefs.proxy.metrics.server_metrics import MetricInputs, MetricSettings
from lodefs.proxy.metrics.store_calls import StoreCalls, outcome_of
from lodefs.proxy.node import NodeService
from lodefs.proxy.peers.peering import Peering, join_cluster
from lodefs.proxy.peers.server import PeerServer
from lodefs.proxy.read.last_seen import known_store, store_or_error
from lodefs.proxy.runtime.backoff import Backoff
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.s3.forwarding import RawS3
from lodefs.proxy.service.component_families import component_families
from lodefs.proxy.service.idle_exit import IdleExit
from lodefs.proxy.service.job_families import JobFamilies
from lodefs.proxy.service.mount_families import MountFamilies
from lodefs.proxy.service.store_node import NodeSettings, StoreNode
from lodefs.proxy.service.systemd import CLIENTS, PEERS, S3, Listeners, failures_are_over
from lodefs.proxy.tracing.spans import NO_TRACER, Tracer
from lodefs.proxy.tracing.traced_objects import TracedObjects


class OpenedNode(NamedTuple):
    """A node, and the server for other nodes if it has any. ``is_lost``: only a new node can
    continue."""

    node: NodeService
    peer_server: PeerServer | None = None
    peer_tls: ssl.SSLContext | None = None
    is_lost: Callable[[], bool] = lambda: False


NodeOpener = Callable[[Config, StoreCalls], AbstractAsyncContextManager[OpenedNode]]
DATA_PROCESSES_DEFAULT_MAX = 8
FILES_FOR_DATA_MIN = 1024
THROTTLED_S_MAX = 5.0  # that a thread waits for a throttling store, since clients retry
_log = logging.getLogger("lodefs.proxy")


@asynccontextmanager
async def open_store_node(config: Config, calls: StoreCalls) -> AsyncIterator[OpenedNode]:
    """Opens the node over the store, the cache and the cluster that ``config`` names, and closes it
    at the end."""

    def observe(seen: Observation) -> None:
        outcome = outcome_of(seen.error)
        calls.add(seen.operation, outcome, size_bytes=seen.size_bytes, elapsed_s=seen.seconds)

    options = StoreOptions(
        endpoint_url=config.endpoint_url,
        region=config.region,
        sources=config.sources,
        transfer_timeout_s=config.transfer_timeout_s,
        throttled_s_max=THROTTLED_S_MAX,
        calls_max=config.fetch_concurrency,
        connections_max=config.fetch_concurrency,
        observe=observe,
        on_retry=lambda error: calls.retried(retry_reason(error)),
    )
    objects: ObjectStore
    if config.mirrors:
        objects = mirrored = open_mirrored(config.store, config.mirrors, options)
        calls.mirrors = lambda: mirrored.stores
    else:
        objects = open_objects(config.store, options)
    try:
        traced = TracedObjects(objects) if config.otlp_endpoint else objects
        store = await asyncio.to_thread(store_or_error, traced)
        shares = shares_of(config)
        async with join_cluster(config, shares.peer_sockets) as part:
            node = _open_node((store, traced), config, shares, part.peering if part else None)
            try:
                tls = part.tls if part else None
                yield OpenedNode(node, node.peer_server, tls, node.is_cache_lost)
            finally:
                await node.close()
    finally:
        objects.close()


def retry_reason(error: Unavailable) -> str:
    """Returns why a call to the store is retried, as a label of metrics."""
    if error.is_throttled:
        return "throttled"
    return "unreached" if error.is_unreached else "failed"


def _open_node(
    opened: tuple[Store | LodefsError, ObjectStore],
    config: Config,
    shares: fd_limit.DescriptorShares,
    peering: Peering | None,
) -> StoreNode:
    """Opens a node, and sets its cache's limit, since only an open cache knows its present size.
    ``opened`` is the store, or why it cannot be read, and its objects."""
    counts = Counts()
    settings = CacheSettings(
        config.cache_dir,
        cache_size_bytes(config),
        unwritten_size_bytes_max=config.unwritten_size_bytes_max,
        open_files_max=shares.cache_files,
        index_files_max=shares.index_files,
    )
    call_soon = asyncio.get_running_loop().call_soon_threadsafe
    cache = Cache(settings, counts, call_soon=call_soon)
    if config.access:  # readers of its files could read everything in the cache
        config.cache_dir.chmod(0o700)
    try:
        store = known_store(*opened, cache.kv)
        cache.set_limit(cache_size_bytes(config, cache.used_bytes))
        node_settings = NodeSettings(
            cache.settings,
            fetch_threads=config.fetch_concurrency,
            scrub=ScrubSettings(config.scrub_bytes_per_s_max, config.scrub_days),
            upstream=upstream_settings(config),
            lfs=LfsSettings(_written_place(config, "lfs"), _directory(config, "lfs")),
            git=git_settings(config),
        )
        with ExitStack() as started:
            data = _start_data(config, opened[1], cache)
            if data is not None:
                started.callback(data.processes.close)
            node = StoreNode(store, node_settings, counts, cache=cache, peering=peering, data=data)
            started.pop_all()  # the node ends them
            return node
    except BaseException:
        cache.close()
        raise


def _start_data(config: Config, objects: ObjectStore, cache: Cache) -> DataPlane | None:
    """Starts the data processes that the settings ask for. They hold the lock of the cache's
    writers."""
    count = data_processes_of(config)
    if not count:
        return None
    processes = DataProcesses(DataSettings(count, (cache.directory.writers_fd,)))
    timeout_s = config.transfer_timeout_s
    return DataPlane(processes, objects, transfer_timeout_s=timeout_s)


async def serve(
    config: Config,
    stop: asyncio.Event,
    *,
    environ: Mapping[str, str],
    open_node: NodeOpener = open_store_node,
) -> None:
    """Serves until ``stop`` is set, then lets running answers end and closes the cache.

    If the cache's directory is removed meanwhile, it does all of this and starts again, but keeps
    the sockets; if the store does not answer then, it tries again for five minutes. Raises: the
    errors of opening the store, the cache, the tokens file or a socket.
    """
    systemd = SystemdNotifier(environ)
    calls = StoreCalls()
    with (
        open_listeners(config, environ, systemd) as listeners,
        open_endpoints(config, listeners) as endpoints,
        open_tracer(config) as tracer,
        ExitStack() as more,
    ):
        unused: IdleExit | None = None
        peers: socket.socket | None = None  # listens for other nodes
        while not stop.is_set():
            begun_s = time.monotonic()
            systemd.set_status(f"Opening {config.store} and the cache {config.cache_dir}")
            async with AsyncExitStack() as entered:
                enter = partial(_enter, entered, partial(open_node, config, calls), stop)
                # A new cache does not know the store's settings, so the store must answer again
                again = Backoff(sleep=partial(_pause, stop, systemd))
                opened = await (enter() if unused is None else again(enter))
                if opened is None:
                    break
                served = list(endpoints)
                if opened.peer_server is not None and config.peer_listen is not None:
                    if peers is None:
                        peers = more.enter_context(listeners.tcp(PEERS, config.peer_listen))
                    served.append(
                        Endpoint(peers, peer_server=opened.peer_server, tls=opened.peer_tls)
                    )
                unused = unused or IdleExit(config, stop.set)
                failures_are_over(environ, systemd)
                serving = _Serving(config, opened, systemd, unused, calls, tracer)
                await serving.run(served, stop, begun_s)
    _log.info("stopped")


async def _enter(
    entered: AsyncExitStack,
    open_node: Callable[[], AbstractAsyncContextManager[OpenedNode]],
    stop: asyncio.Event,
) -> OpenedNode | None:
    """Opens a node, which ``entered`` closes; None after ``stop``."""
    return None if stop.is_set() else await entered.enter_async_context(open_node())


async def _pause(stop: asyncio.Event, systemd: SystemdNotifier, seconds: float) -> None:
    """Waits until a node is opened once more, or until ``stop`` is set."""
    systemd.alive()
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


class _Serving:
    """A node that is being served, until it must end or is lost."""

    def __init__(
        self,
        config: Config,
        opened: OpenedNode,
        systemd: SystemdNotifier,
        unused: IdleExit,
        calls: StoreCalls,
        tracer: Tracer,
    ) -> None:
        self._config = config
        self._opened = opened
        self._systemd = systemd
        self._unused = unused
        self._ended = asyncio.Event()
        settings = MetricSettings(
            config.metrics_repositories_max, config.price_per_1000_gets, config.price_per_gb
        )
        mounts = directories_of(config.socket_path) if config.socket_path else ()
        more = families_beside(config.socket_path) if config.socket_path else tuple
        self._server = ProxyServer(
            opened.node,
            version=version(),
            store=config.store,
            metric_inputs=MetricInputs(calls, settings, more, mounts, tracer),
            limits=limits_of(config),
            hot_path=config.log_level != "debug",  # in debug mode every request is logged
            on_sweep=self._look,
        )

    async def run(self, endpoints: list[Endpoint], stop: asyncio.Event, begun_s: float) -> None:
        """Serves until ``stop`` is set or the node is lost, then ends all answers."""
        server, systemd, store = self._server, self._systemd, self._config.store
        await server.start(endpoints)
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._ended.set())
        try:
            where = ", ".join(str(endpoint) for endpoint in endpoints)
            startup_s = round(time.monotonic() - begun_s, 3)
            extra = {"pid": os.getpid(), "startup_s": startup_s}
            _log.info("ready: %s on %s", store, where, extra=extra)
            systemd.send(READY)
            systemd.set_status(f"Serving {store} on {where}")
            await self._ended.wait()
        finally:
            is_end = stopping.done()
            stopping.cancel()
            if is_end:
                systemd.send(STOPPING)
            systemd.set_status("Waiting for running answers")
            _log.info("stopping")
            await server.stop(self._config.shutdown_timeout_s, close_endpoints=is_end)

    def _look(self) -> None:
        """Called once a second."""
        self._systemd.alive()
        self._unused.look(self._server.use)
        if self._ended.is_set() or self._unused.is_near:
            return
        if self._opened.is_lost():
            _log.error("the cache directory was removed: starting a new one")
            self._ended.set()


@contextmanager
def open_tracer(config: Config) -> Iterator[Tracer]:
    """Yields the tracer that the settings ask for. Raises: InvalidInput if its package is
    missing."""
    if config.otlp_endpoint is None:
        yield NO_TRACER
        return
    try:
        from lodefs.proxy.tracing.otlp_tracer import OtlpTracer  # here, since an extra installs it
    except ImportError as error:
        raise InvalidInput(
            f"otlp_endpoint: needs OpenTelemetry: pip install 'lodefs[otel]' ({error})"
        ) from error
    tracer = OtlpTracer(config.otlp_endpoint, ratio=config.trace_ratio, version=version())
    try:
        yield tracer
    finally:
        tracer.close()


def version() -> str:
    return installed_version() or "0+unknown"


def shares_of(config: Config) -> fd_limit.DescriptorShares:
    """Returns the proxy's shares of this process's open files."""
    return fd_limit.shares(
        fd_limit.limit(),
        fetches_max=config.fetch_concurrency,
        in_cluster=config.in_cluster,
        data_sockets=descriptors(data_processes_of(config)),
    )


def data_processes_of(config: Config) -> int:
    """Returns how many data processes the settings ask for; by default one for every two
    processors, and none if the limit of open files is low."""
    if config.data_processes is not None:
        return config.data_processes
    if fd_limit.limit() < FILES_FOR_DATA_MIN:
        return 0
    return min(processors.count() // 2, DATA_PROCESSES_DEFAULT_MAX)


def limits_of(config: Config) -> ClientLimits:
    return ClientLimits(
        connections_max=config.connections_max,
        streams_max=config.streams_max,
        idle_timeout_s=config.idle_timeout_s,
        write_timeout_s=config.write_timeout_s,
        sockets_max=shares_of(config).connections,
    )


@contextmanager
def open_listeners(
    config: Config, environ: Mapping[str, str], systemd: SystemdNotifier
) -> Iterator[Listeners]:
    """Yields the sockets from systemd; closes unused ones at the end."""
    wanted = {CLIENTS: config.listen, PEERS: config.peer_listen, S3: config.s3_listen}
    listeners = Listeners(environ, systemd, wanted)
    try:
        yield listeners
    finally:
        listeners.close()


@contextmanager
def open_endpoints(config: Config, listeners: Listeners) -> Iterator[list[Endpoint]]:
    """Yields all endpoints, listening. At the end it closes them and removes the Unix socket's
    file.

    Sockets from systemd units replace those that the settings name.
    """
    tcp = _tcp_endpoint(config)
    local = local_readers(config.access)
    endpoints: list[Endpoint] = []
    own_path = config.socket_path
    inode = 0
    try:
        given = listeners.given
        for listener in given:
            if sockets.is_unix(listener):
                endpoints.append(Endpoint(listener, is_local=True, local_readers=local))
            else:
                _check_given(config, listener)
                endpoints.append(tcp(listener))
        if own_path is not None and not any(map(sockets.is_unix, given)):
            listener = sockets.listen_unix(
                own_path, mode=config.socket_mode, group=config.socket_group
            )
            inode = own_path.lstat().st_ino
            make_figures_directory(own_path, config)
            name = f"unix:{own_path}"
            endpoints.append(Endpoint(listener, name=name, is_local=True, local_readers=local))
        if config.listen is not None and all(map(sockets.is_unix, given)):
            listener = listeners.tcp(CLIENTS, config.listen)
            endpoints.append(tcp(listener))
        if config.s3_listen is not None:
            listener = listeners.tcp(S3, config.s3_listen)
            endpoints.append(replace(tcp(listener), s3=s3_settings(config)))
        yield endpoints
    finally:
        if own_path is not None and inode:
            sockets.remove_unix(own_path, inode)
        for endpoint in endpoints:
            endpoint.listener.close()


def families_beside(socket_path: Path) -> MoreFamilies:
    """Returns the families of all programs that count in the directories beside the socket."""
    figures = directories_of(socket_path)
    mounts, jobs = MountFamilies(*figures), JobFamilies(private_directory_of(socket_path))
    return lambda: itertools.chain(mounts(), jobs(), component_families(*figures))


def make_figures_directory(socket_path: Path, config: Config) -> None:
    """Makes the directories in which mounts and components of the socket's users count, with a
    separate one for root. Without these the proxy does not see them."""
    directory, private = directory_of(socket_path), private_directory_of(socket_path)
    mode = 0o1700
    for bit, rights in ((0o020, 0o070), (0o002, 0o007)):
        mode |= rights if config.socket_mode & bit else 0
    try:
        # First, since root's programs use the other one if it is missing
        private.mkdir(0o700, exist_ok=True)
        private.chmod(0o700)
        directory.mkdir(0o700, exist_ok=True)
        if config.socket_group is not None:
            shutil.chown(directory, group=config.socket_group)
        directory.chmod(mode)
    except (OSError, LookupError) as error:
        _log.warning("mounts cannot count in %s and are not in /metrics: %s", directory, error)


def _tcp_endpoint(config: Config) -> Callable[[socket.socket], Endpoint]:
    """Returns a function that makes endpoints for TCP clients, all with the same tokens and
    certificate."""
    tokens = None
    if config.tokens_file is not None:
        tokens = TokenBook(config.tokens_file, s3=config.s3_listen is not None)
    names = HostNames(config.host_names)
    certificate = None
    if config.tls_cert_file is not None and config.tls_key_file is not None:
        certificate = DoorTls(config.tls_cert_file, config.tls_key_file)
    return lambda listener: Endpoint(
        listener,
        tokens,
        info_is_open=config.metrics_anonymous or tokens is None,
        tls=certificate.context if certificate is not None else None,
        certificate=certificate,
        host_names=names,
    )


def _check_given(config: Config, listener: socket.socket) -> None:
    """Closes systemd's TCP socket if the settings do not allow it. Raises: InvalidInput."""
    problem = ""
    if config.tokens_file is None and not config.allow_anonymous:
        problem = "needs tokens_file or allow_anonymous"
    elif config.plain_tokens_refused(listener.getsockname()[0]):
        problem = PLAIN_TOKENS
    if problem:
        listener.close()
        raise InvalidInput(f"systemd's TCP socket: {problem}")


def _directory(config: Config, name: str) -> Path:
    """Returns a directory in the cache's for what only this node needs."""
    return config.cache_dir.absolute() / name


def _written_place(config: Config, name: str) -> StorePlace:
    """Returns the store for a process that writes into it, with a push index of its own."""
    store = config.store if "://" in config.store else str(Path(config.store).absolute())
    index_dir = str(_directory(config, name) / "push-index")
    return StorePlace(store, config.endpoint_url, config.region, index_dir)


def upstream_settings(config: Config) -> UpstreamSettings | None:
    """Returns the settings of fetches from a hub, if there are any. Raises: InvalidInput if others
    may read the token."""
    if config.hub_upstream is None:
        return None
    if config.hub_token_file is not None:
        check_private(config.hub_token_file, f"hub_token_file {config.hub_token_file}")
    return UpstreamSettings(
        url=config.hub_upstream,
        place=_written_place(config, "hub"),
        directory=_directory(config, "hub"),
        token_file=config.hub_token_file,
        size_bytes_max=config.hub_size_bytes_max,
    )


def git_settings(config: Config) -> GitSettings | None:
    """Returns the settings of imports from Git, if any are allowed. Raises: InvalidInput if others
    may read the credentials."""
    if not config.git_allowed:
        return None
    if config.git_credentials_file is not None:
        file = config.git_credentials_file
        check_private(file, f"git_credentials_file {file}")
    return GitSettings(
        allowed=config.git_allowed,
        lfs_repos=config.git_lfs_repos,
        credentials_file=config.git_credentials_file,
        size_bytes_max=config.git_size_bytes_max,
        place=_written_place(config, "git"),
        directory=_directory(config, "git"),
    )


def s3_settings(config: Config) -> S3Settings:
    other = None
    if config.s3_forward is not None:
        other = RawS3(config.s3_forward, config.region or REGION, node_credentials())
    is_s3 = config.store.startswith("s3://")
    return S3Settings(
        config.s3_bucket,
        dict(config.s3_buckets),
        config.s3_domain or "",
        other,
        withheld=config.store.removeprefix("s3://").partition("/")[0] if is_s3 else "",
    )
