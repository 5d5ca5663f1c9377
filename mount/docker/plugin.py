"""The plugin's process: everything put together, from the first message to systemd to the last.

It ends without touching a mount: containers go on reading, and the next one finds everything again.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound, told
from lodefs.chunkstore.nodeapi.figures.component_counts import ComponentCounts
from lodefs.chunkstore.system import sockets
from lodefs.chunkstore.system.systemd_notify import READY, STOPPING, SystemdNotifier
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
from lodefs.mount.docker.reconciler import Upkeep
from lodefs.mount.docker.volume import about
from lodefs.mount.docker.volume_files import Damaged, Records
from lodefs.mount.docker.volume_table import Slot, VolumeTable, machine_clock
from lodefs.mount.docker.volumes import ANSWER_TIMEOUT_S, Volumes
from lodefs.mount.node.deadline_calls import Calls
from lodefs.mount.node.end_signals import asked_to_end
from lodefs.mount.node.interface import NodeMounts

SOCKET = Path("/run/docker/plugins/lodefs.sock")
STATE = Path("/var/lib/lodefs/docker")
WATCHDOG_S = 5.0
FIRST_LOOK_S = 2.0  # dockerd waits meanwhile
STOP_TIMEOUT_S = 3.0
WORK_END_S = 20.0  # for what goes on in the background when the plugin is told to end
SLOW_S = 0.5
STATES = ("mounted", "unmounted", "dead", "damaged")  # of volumes, as metrics name them
_log = logging.getLogger("lodefs.docker")

OpenNode = Callable[[], AbstractContextManager[NodeMounts]]
"""Makes the node. Its end touches no mount."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one plugin. ``figures``: where it counts for the proxy, as ComponentCounts has it."""

    socket: Path = SOCKET
    state: Path = STATE
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    figures: tuple[Path, ...] = ()
    version: str = ""


def run(
    settings: Settings, open_node: OpenNode, split_url: SplitUrl, environ: Mapping[str, str]
) -> None:
    """Serve until SIGTERM or SIGINT. Must be called in the main thread.

    InUse (socket or state of another plugin), Denied, InvalidInput, Unavailable.
    """
    notifier = SystemdNotifier(environ)
    with open_node() as node, asked_to_end() as end, _listening(settings, environ) as listener:
        records = Records(settings.state)
        try:
            with _serving(settings, node, records, split_url, listener) as (upkeep, publish):
                notifier.send(READY)
                ended = False
                while not ended:
                    if upkeep.is_well():
                        notifier.alive()
                    publish()
                    ended = end.wait(WATCHDOG_S)
                notifier.send(STOPPING)
                _log.info("told to end; mounts stay")
        finally:
            records.close()


@contextmanager
def _serving(
    settings: Settings,
    node: NodeMounts,
    records: Records,
    split_url: SplitUrl,
    listener: socket.socket,
) -> Iterator[tuple[Upkeep, Callable[[], None]]]:
    """Upkeep, and what has the proxy see the figures."""
    table = VolumeTable(records, machine_clock())
    calls, chores = Calls(), Calls()
    woken = threading.Event()
    volumes = Volumes(
        table,
        node,
        calls,
        split_url,
        answer_timeout_s=settings.answer_timeout_s,
        on_change=woken.set,
    )
    upkeep = Upkeep(table, node, volumes, chores, woken)
    operations = map(_operation, METHODS)
    counts = ComponentCounts(
        "docker", operations, version=settings.version, directories=settings.figures
    )
    server = Server(listener, answering(volumes, counts))
    upkeep.start()
    upkeep.looked.wait(FIRST_LOOK_S)  # else what is mounted would be said not to be
    server.start()
    _log.info("serving %d volumes of %s", len(table.slots()), settings.state)
    try:
        yield upkeep, lambda: counts.publish(by_state(table.slots()))
    finally:
        server.stop(STOP_TIMEOUT_S)
        counts.close()
        upkeep.stop(STOP_TIMEOUT_S)
        ends_s = time.monotonic() + WORK_END_S
        for work in (calls, chores):
            if not work.wait_idle(max(0.0, ends_s - time.monotonic())):
                _log.warning("work that is not done is left to the next start")


def state_of(slot: Slot) -> str:
    """A volume's state, one of STATES."""
    if isinstance(slot.record, Damaged):
        return "damaged"
    if slot.standing is None:
        return "unmounted"
    return "mounted" if slot.standing.alive else "dead"


def by_state(slots: Iterable[Slot]) -> dict[str, int]:
    """How many volumes are in each state."""
    return {**dict.fromkeys(STATES, 0), **Counter(map(state_of, slots))}


def _operation(path: str) -> str:
    return path.rpartition(".")[2]


def answering(volumes: Volumes, counts: ComponentCounts | None = None) -> Answer:
    """How calls are answered: errors of ours as ``Err``, and never with anything that was sent."""
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
            # dockerd asks for a volume before it makes it
            level = logging.DEBUG if expected else logging.WARNING
            _log.log(level, "%s: %s", name, told(str(error)), extra=_about(body))
            return HttpReply(200, encode_error(str(error)))
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the server
            _log.exception("%s", name, extra=_about(body))
            return HttpReply(500, encode_error(f"{type(error).__name__} (a fault of lodefs)"))
        finally:
            elapsed_s = time.monotonic() - begun_s
            level = logging.WARNING if elapsed_s > SLOW_S else logging.DEBUG
            if _log.isEnabledFor(level):
                _log.log(level, "%s took %.3f s", name, elapsed_s, extra=_about(body))

    return answer


def _about(body: bytes) -> dict[str, str] | None:
    """The ``extra`` of a line about a call, where it names a volume."""
    name = volume_in(body)
    return about(name) if name else None


@contextmanager
def _listening(settings: Settings, environ: Mapping[str, str]) -> Iterator[socket.socket]:
    """The socket of systemd where there is one, else our own, whose file goes at the end."""
    given = sockets.inherited(environ)
    if len(given) > 1 or not all(map(sockets.is_unix, given)):
        raise InvalidInput("systemd must hand over one Unix socket, and nothing else")
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
