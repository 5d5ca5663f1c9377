"""Checks the directory of a mount, and asks the proxy what to mount.

A process that gets a mount from the node needs only the check, and does not import the rest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format.names import split_path
from lodefs.chunkstore.format.tree import Kind
from lodefs.mount.kernel import mount_table, mountpoints, namespaces
from lodefs.mount.mount_spec import Job
from lodefs.mount.options import MODE_MAX_BELOW, MountOptions, check_mode

if TYPE_CHECKING:
    from lodefs.mount.process.handover import State, Taken


def check_mountpoint(mountpoint: str) -> str:
    """Returns the absolute path of an empty directory that can be mounted on. Raises: InvalidInput,
    InUse.

    First removes a dead lodefs mount whose process was killed.
    """
    place = canonical(mountpoint)
    found = mount_table.on_top(place)
    if found is not None and found.is_lodefs:
        state = state_of_mount(found)
        if state.pid or not may_ask(found) or not mount_table.is_dead(place):
            also = (
                ""
                if state.supervised
                else f", 'lodefs mount --take-over {mountpoint}' continues it"
            )
            raise InUse(
                f"{mountpoint}: {found.repo}@{found.commit} is mounted here; "
                f"'lodefs unmount {mountpoint}' unmounts it{also}"
            )
        from lodefs.mount.kernel import mount_syscalls

        mount_syscalls.detach(place, lazy=True)
    try:
        if not stat.S_ISDIR(os.stat(place).st_mode):
            raise InvalidInput(f"{mountpoint} is not a directory")
        with os.scandir(place) as entries:
            if next(entries, None) is not None:
                raise InvalidInput(f"{mountpoint} is not empty; mount on an empty directory")
    except FileNotFoundError as error:
        raise InvalidInput(f"{mountpoint} does not exist; create it with mkdir -p") from error
    except OSError as error:
        raise InvalidInput(f"{mountpoint} cannot be mounted on: {error.strerror}") from error
    return place


def resolve(options: MountOptions, timeout_s: float | None = None) -> Job:
    """Asks the proxy what the revision and the path are now. From here on they are fixed.

    ``timeout_s``: for all of it, by default ``read_timeout_s``. Raises: NotFound, Unavailable;
    InvalidInput if the path is not a directory or the options are wrong.
    """
    from lodefs.chunkstore.protocol.connection import parse_address
    from lodefs.chunkstore.protocol.read_client import Client
    from lodefs.chunkstore.protocol.trace_context import trace_of_environment

    check_mode(options.mode, MODE_MAX_BELOW)
    client = Client(
        parse_address(options.proxy),
        token=options.token,
        timeout_s=options.read_timeout_s if timeout_s is None else timeout_s,
    ).traced(trace_of_environment(os.environ))
    client.begin()
    try:
        snapshot = client.snapshot(options.repo, options.rev)
        client.mounted(snapshot)
        node = snapshot.root
        for name in split_path(options.path):
            try:
                node = client.lookup(node.ino, name)
            except NotFound as error:
                path = options.path.decode("utf-8", "backslashreplace")
                raise NotFound(f"{options.repo}@{options.rev} has no {path!r}") from error
    finally:
        client.close()
    if node.kind != Kind.DIRECTORY:
        path = options.path.decode("utf-8", "backslashreplace")
        raise InvalidInput(
            f"{path!r} is not a directory of the snapshot: only directories can be mounted"
        )
    return Job(options, snapshot, node)


def prepare(options: MountOptions) -> Job:
    """Checks the mount point, and resolves what to mount there. Meanwhile it loads what workers
    read the node's cache with: each would do that by itself, in the moment of the first reads.

    Raises what ``check_mountpoint`` and ``resolve`` raise.
    """
    from lodefs.mount.kernel import passed_device

    passed_fd = passed_device.passed(options.mountpoint)
    if passed_fd is not None:
        passed_device.take(passed_fd)
    else:
        place = check_mountpoint(options.mountpoint)
        options = msgspec.structs.replace(options, mountpoint=place)
    with _beside(_load_cache_reader):
        return resolve(options)


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """Does some work in a thread during a block, or not at all if no thread can be started."""
    thread = Thread(target=work)
    try:
        thread.start()
    except RuntimeError:
        yield
        return
    try:
        yield
    finally:
        thread.join()  # the process will fork


def _load_cache_reader() -> None:
    from lodefs.chunkstore.nodecache import cached_snapshot

    with suppress(ImportError):  # workers then ask the proxy for everything
        cached_snapshot.load()


def request_handover(mountpoint: str) -> Taken:
    """Asks the processes of a mount for it; they continue to serve until ``confirm``.

    Raises: InvalidInput (no lodefs mount, or a dead one), Unavailable (no answer), InUse (another
    take-over is under way), Denied, UnknownFormat.
    """
    from lodefs.mount.process import control_socket, handover

    found = mount_table.served(canonical(mountpoint))
    if found is None or not found.is_lodefs:
        raise InvalidInput(f"{mountpoint}: there is no lodefs mount here; see 'lodefs mounts'")
    place = control_socket.find(found.device)
    if place is not None:
        try:
            return handover.take(place)
        except Unavailable:
            if not mount_table.is_dead(found.mountpoint):
                raise
    if place is not None or mount_table.is_dead(found.mountpoint):
        raise InvalidInput(
            f"{mountpoint}: no process serves this mount any more; 'lodefs mount' there removes it "
            "and mounts again"
        )
    raise Unavailable(
        f"{mountpoint}: this user sees no socket of the mount: it belongs to another user, or was "
        "made without a directory for sockets"
    )


def may_ask(found: mount_table.Mount) -> bool:
    """Whether a question through the kernel would come back. The owner of a mount may let root wait
    for ever, even at the end of the process that asked."""
    is_root = os.geteuid() == 0 and namespaces.in_first_user_namespace()
    return not is_root or found.owner == 0


def state_of_mount(found: mount_table.Mount) -> State:
    """Returns the state of a mount; process 0 if no process answers, or root may not ask.

    Asks at the mount's socket, since a question through the kernel may wait behind reads.
    """
    from lodefs.mount.process import control_socket, handover

    place = control_socket.find(found.device)
    if place is not None:
        with suppress(LodefsError):
            return handover.state_of(place)
    if not may_ask(found):
        return handover.State(0, supervised=True)
    return handover.State(mount_table.pid_of(found.mountpoint) or 0, supervised=True)


def canonical(mountpoint: str) -> str:
    """Returns the absolute path without symlinks, found without touching a mount that may be stuck
    there. Raises: InvalidInput, as ``mountpoints.real`` does."""
    path = mountpoints.plain(mountpoint)
    if mount_table.on_top(path) is not None:
        return path
    return mountpoints.real(path)
