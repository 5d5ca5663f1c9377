"""The plugin's process, which puts all parts together, from start to end.

It ends without touching a mount: containers read on, and the next plugin finds everything again.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound, Unavailable, told
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.chunkstore.system import sockets
from lodefs.chunkstore.system.systemd.notify import READY, STOPPING, SystemdNotifier
from lodefs.mount.docker import earlier_mounts
from lodefs.mount.docker.http_server import Answer, HttpReply, Server
from lodefs.mount.docker.options import SplitUrl
from lodefs.mount.docker.protocol import (
    METHODS,
    UNHEARD,
    MalformedError,
    encode_answer,
    encode_error,
    volume_in,
)
from lodefs.mount.docker.status import by_state
from lodefs.mount.docker.upkeep import Upkeep
from lodefs.mount.docker.volume import about
from lodefs.mount.docker.volume_files import Records
from lodefs.mount.docker.volumes import ANSWER_TIMEOUT_S, ReadToken, Volumes
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.end_signals import asked_to_end
from lodefs.mount.service.interface import MountService
from lodefs.mount.service.machine_clock import container_boot_id
from lodefs.mount.volumes.changes import VolumeWriter

SOCKET = Path("/run/docker/plugins/lodefs.sock")
STATE = Path("/var/lib/lodefs/docker")
INTERVAL_S = 5.0
PING_TIMEOUT_S = 1.0
STOP_TIMEOUT_S = 3.0
WORK_END_S = 20.0  # for background work to end with the plugin
SLOW_S = 0.5
_log = logging.getLogger("lodefs.docker")

OpenService = Callable[[], AbstractContextManager[tuple[MountService, Callable[[], None]]]]
"""The mount service and, if it is in this process, a function that starts its upkeep. Its end
touches no mount."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one plugin. ``figures``: where it counts for the proxy (see ComponentCounts)."""

    socket: Path = SOCKET
    state: Path = STATE
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    figures: tuple[Path, ...] = ()
    version: str = ""


def run(
    settings: Settings,
    open_service: OpenService,
    split_url: SplitUrl,
    read_token: ReadToken,
    environ: Mapping[str, str],
    writer: VolumeWriter | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. Must be called in the main thread.

    Raises: InUse (socket or state of another plugin), Denied, InvalidInput, Unavailable.
    """
    notifier = SystemdNotifier(environ)
    with asked_to_end() as end, _listening(settings, environ) as listener:
        records = Records(settings.state)
        try:
            with open_service() as (service, start_service):
                plugin = _Plugin(settings, records, service, split_url, read_token, writer)
                plugin.take_over()
                start_service()
                with plugin.serving(listener):
                    notifier.send(READY)
                    plugin.round()
                    while not end.wait(INTERVAL_S):
                        notifier.alive()
                        plugin.round()
                    notifier.send(STOPPING)
                    _log.info("ending on a signal; mounts stay")
        finally:
            records.close()


class _Plugin:
    """The parts of one plugin."""

    def __init__(
        self,
        settings: Settings,
        records: Records,
        service: MountService,
        split_url: SplitUrl,
        read_token: ReadToken,
        writer: VolumeWriter | None,
    ) -> None:
        self._settings = settings
        self._folder = records.earlier_mounts
        self._service = service
        self._read_token = read_token
        self._is_taken_over = False
        self._calls, self._chores = Calls(), Calls()
        self._volumes = Volumes(
            records,
            service,
            self._calls,
            split_url=split_url,
            read_token=read_token,
            answer_timeout_s=settings.answer_timeout_s,
            writer=writer,
            on_change=self._begin_upkeep,
        )
        self._upkeep = Upkeep(self._volumes, service, self._chores)
        self._counts = ComponentCounts(
            "docker",
            map(_operation, METHODS),
            version=settings.version,
            directories=settings.figures,
        )

    def take_over(self) -> None:
        """Gives the service the mounts of older plugins, once it answers."""
        try:
            self._service.ping(PING_TIMEOUT_S)
        except LodefsError as error:
            _log.warning("nothing can be mounted yet: %s", error)
            return
        self._is_taken_over = earlier_mounts.hand_over(
            self._volumes, self._service, self._folder, container_boot_id(), self._read_token
        )

    def round(self) -> None:
        """Does the work of every few seconds. Never raises."""
        try:
            if not self._is_taken_over:
                self.take_over()
            self._upkeep.round()
            self._counts.publish(by_state(self._volumes.list()))
        except LodefsError as error:
            _log.warning("upkeep: %s", error)
        except Exception:  # noqa: BLE001 - a bug must not end the plugin
            _log.exception("upkeep")

    def _begin_upkeep(self) -> None:
        with suppress(Unavailable):  # the next round is soon enough
            self._chores.begin("upkeep", self._upkeep.round)

    @contextmanager
    def serving(self, listener: socket.socket) -> Iterator[None]:
        """Answers dockerd during the block."""
        server = Server(listener, answering(self._volumes, self._counts))
        server.start()
        count = len(self._volumes.records())
        _log.info("serving %d volumes of %s", count, self._settings.state)
        try:
            yield
        finally:
            server.stop(STOP_TIMEOUT_S)
            self._counts.close()
            ends_s = time.monotonic() + WORK_END_S
            for work in (self._calls, self._chores):
                if not work.wait_idle(max(0.0, ends_s - time.monotonic())):
                    _log.warning("unfinished work is left to the next start")


def _operation(path: str) -> str:
    return path.rpartition(".")[2]


def answering(volumes: Volumes, counts: ComponentCounts | None = None) -> Answer:
    """Answers calls. Errors of lodefs become ``Err``; an answer never repeats what was sent."""
    counted = counts or ComponentCounts("docker")

    def answer(path: str, body: bytes) -> HttpReply:
        method, unheard = METHODS.get(path), UNHEARD.get(path)
        if method is None:
            return HttpReply(404, encode_error(f"there is no method {path[:100]}"))
        name, begun_s = path.lstrip("/"), time.monotonic()
        try:
            with counted.call(_operation(path)):
                reply = encode_answer(method(volumes, body))
            return HttpReply(200, reply, partial(unheard, volumes, body) if unheard else None)
        except MalformedError as error:
            return HttpReply(400, encode_error(str(error)))  # dockerd puts the method in front
        except LodefsError as error:
            expected = isinstance(error, NotFound) and name == "VolumeDriver.Get"
            # dockerd asks for a volume before it creates it
            level = logging.DEBUG if expected else logging.WARNING
            _log.log(level, "%s: %s", name, told(str(error)), extra=_about(body))
            return HttpReply(200, encode_error(str(error)))
        except Exception as error:  # noqa: BLE001 - a bug must not end the server
            _log.exception("%s", name, extra=_about(body))
            return HttpReply(500, encode_error(f"{type(error).__name__} (a fault of lodefs)"))
        finally:
            elapsed_s = time.monotonic() - begun_s
            level = logging.WARNING if elapsed_s > SLOW_S else logging.DEBUG
            if _log.isEnabledFor(level):
                _log.log(level, "%s took %.3f s", name, elapsed_s, extra=_about(body))

    return answer


def _about(body: bytes) -> dict[str, str] | None:
    """Returns the ``extra`` of a log line about a call, if the call names a volume."""
    name = volume_in(body)
    return about(name) if name else None


@contextmanager
def _listening(settings: Settings, environ: Mapping[str, str]) -> Iterator[socket.socket]:
    """Yields the socket from systemd if there is one. Otherwise it yields our own, and removes its
    file at the end."""
    given = sockets.inherited(environ)
    if len(given) > 1 or not all(map(sockets.is_unix, given)):
        raise InvalidInput("systemd must pass exactly one Unix socket")
    inode = 0
    if given:
        [listener] = given
    else:
        listener = sockets.listen_unix(settings.socket, mode=0o600)
        inode = settings.socket.lstat().st_ino
    try:
        yield listener
    finally:
        if inode:
            sockets.remove_unix(settings.socket, inode)
        listener.close()
