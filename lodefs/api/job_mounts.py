"""Mounts for one process and its children, in a mount namespace of their own; they end with it.

The node's mount service hands the mounts out if it can; otherwise this process makes them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from lodefs.api.attaching import attach_client
from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.protocol.wire import Failure, error_of, failure_of
from lodefs.chunkstore.system.processes import die_with_parent
from lodefs.mount.attach.client import AttachClient, Attached
from lodefs.mount.kernel import mountpoints, namespaces
from lodefs.mount.kernel.device import check_device
from lodefs.mount.options import MountOptions
from lodefs.mount.process.mount_target import check_mountpoint
from lodefs.proxies.own_proxy import proxy_url
from lodefs.settings.datasets import Dataset, check_places
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.api.writing.job_changes import JobChanges

PROXY_UNUSED_TIMEOUT_S = 2.0  # a proxy started for such mounts ends after the last one
Say = Callable[[str], None]


class Prepared(NamedTuple):
    """``attached``: what the node hands out, by path, over a connection. The rest is mounted by
    this process, or takes changes."""

    attached: Sequence[tuple[str, Attached]]
    client: AttachClient | None
    own: Sequence[MountOptions]
    changes: JobChanges | None = None

    def put(self) -> None:
        """Mounts what was handed out, in this process's mount namespace. After that the node may
        forget it. Raises: InvalidInput, Unsupported."""
        for place, one in self.attached:
            one.put(place)
        self.close()

    def close(self) -> None:
        """Lets go of what was handed out."""
        if self.client is not None:
            self.client.close()


def prepare(
    session: Session,
    datasets: Sequence[Dataset],
    *,
    read_timeout_s: float | None = None,
    log_path: str = "",
    changes: JobChanges | None = None,
    say: Say = lambda _line: None,
) -> Prepared:
    """Returns the mounts to make. Fills ``changes`` with the mounts that take changes, and creates
    missing directories. If the node's mount service cannot be used, calls ``say``, and starts a
    proxy unless one runs.

    Raises: InvalidInput (directories), NotFound, Denied, Unavailable.
    """
    places = [(mountpoints.real(dataset.directory), dataset) for dataset in datasets]
    _check(places)
    read_only = [one for one in places if not one[1].is_writable]
    # A shared mount has no read limit and no log of a single job.
    client = None if read_timeout_s or log_path else attach_client(session, say)
    attached, left = _attached(client, read_only)
    own = _own(session, left, read_timeout_s, log_path)
    if changes is not None:
        changes.places = [one for one in places if one[1].is_writable]
        check_device()
        proxy = proxy_url(session, PROXY_UNUSED_TIMEOUT_S)  # started in this mount namespace
        session.apply_options(proxy=proxy)
    return Prepared(attached, client, own, changes)


def mount_in_container(
    places: Sequence[tuple[str, Dataset]], session: Session, say: Say = lambda _line: None
) -> None:
    """Mounts datasets on directories of a container that is being made in this process's
    namespaces. The directories are absolute paths without symlinks. The mounts end with the
    namespaces, and changes are kept. Raises what ``prepare``, ``mounter.mount`` and
    ``mount_writable`` raise."""
    read_only = [one for one in places if not one[1].is_writable]
    check_places(places)
    for place, _ in places:
        _make(place)
    for place, _ in read_only:
        check_mountpoint(place)
    client = attach_client(session, say)
    attached, left = _attached(client, read_only)
    Prepared(attached, client, ()).put()
    for one in _own(session, left):
        _mount(one)
    for place, dataset in places:
        if dataset.is_writable:
            _mount_for_changes(session, place, dataset)


def _mount_for_changes(session: Session, place: str, dataset: Dataset) -> None:
    from lodefs.api.writing.writable import mount_writable  # a while to import, and rarely needed

    session.apply_options(proxy=proxy_url(session, PROXY_UNUSED_TIMEOUT_S))
    wanted = MountFile(spec=dataset.spec, directory=place)
    mount_writable(session, wanted, fork=True, leaves_namespace=True)


def _check(places: Sequence[tuple[str, Dataset]]) -> None:
    check_places(places)
    for place, _ in places:
        _make(place)
        check_mountpoint(place)


def _attached(
    client: AttachClient | None, places: Sequence[tuple[str, Dataset]]
) -> tuple[list[tuple[str, Attached]], list[tuple[str, Dataset]]]:
    """Returns the mounts that the node hands out, and those that it does not."""
    attached, left = [], []
    for place, dataset in places:
        one = client.attach(dataset.spec) if client is not None else None
        if one is not None:
            attached.append((place, one))
        else:
            left.append((place, dataset))
    return attached, left


def _own(
    session: Session,
    places: Sequence[tuple[str, Dataset]],
    read_timeout_s: float | None = None,
    log_path: str = "",
) -> list[MountOptions]:
    if not places:
        return []
    from lodefs.api.mounting import options_of

    check_device()
    found = []
    for place, dataset in places:
        wanted = MountFile(spec=dataset.spec, directory=place, read_timeout_s=read_timeout_s)
        options = options_of(
            session, wanted, log_path, proxy_unused_timeout_s=PROXY_UNUSED_TIMEOUT_S
        )
        found.append(msgspec.structs.replace(options, leaves_namespace=True))
    return found


def _make(place: str) -> None:
    try:
        mountpoints.make(place)
    except NotADirectoryError:
        return  # a later check names its kind
    except OSError as error:
        raise InvalidInput(
            f"{place} does not exist, and cannot be created: {error.strerror}; name a directory "
            "that exists, or one below your home or /tmp"
        ) from error


def enter(prepared: Prepared) -> None:
    """Moves this process into a mount namespace with these mounts, and a user namespace if it needs
    one. The mounts end with the process, however it ends.

    The process must have no threads, and keeps no child. Raises what ``mounter.mount`` raises, and
    Unsupported if namespaces are not available. After an error, all mounts end with the process.
    """
    namespaces.enter_new(user=not namespaces.may_mount())
    prepared.put()  # before the fork: a child would keep the descriptors
    if prepared.own or prepared.changes is not None:
        own = [msgspec.structs.replace(one, ends_with=os.getpid()) for one in prepared.own]
        _mount_in_child(own, prepared.changes)


def _mount_in_child(mounts: Sequence[MountOptions], changes: JobChanges | None) -> None:
    """Mounts in a child that ends, so that init adopts the processes of the mounts."""
    receiver, sender = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    child = os.fork()
    if not child:
        _answer(mounts, changes, parent, sender)
    os.close(sender)
    with open(receiver, "rb") as answer:
        told = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if told:
        raise error_of(msgpack_decoder(Failure).decode(told))
    if code:
        raise Unavailable(f"the mounting process ended with {code}")


def _mount(options: MountOptions) -> None:
    from lodefs.mount.process.mounter import mount  # a third of all imports, often not needed

    mount(options, fork=True)


def _answer(
    mounts: Sequence[MountOptions], changes: JobChanges | None, parent: int, sender: int
) -> NoReturn:
    code = 1
    try:
        die_with_parent(parent)
        for one in mounts:
            _mount(one)
        if changes is not None:
            changes.mount(ends_with=parent)
        code = 0
    except LodefsError as error:
        os.write(sender, msgspec.msgpack.encode(failure_of(error)))
    finally:
        os._exit(code)


def exec_command(program: str, command: Sequence[str], session: Session) -> NoReturn:
    """Replaces this process by a program; ``command``: its name and arguments. It gets the
    environment and umask that this process was started with. Raises: OSError."""
    with suppress(OSError):
        os.chdir(os.getcwd())  # a mount may cover it by now
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    if session.umask is not None:
        os.umask(session.umask)
    os.execve(program, list(command), session.environment)
