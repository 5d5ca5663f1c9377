"""Where a mount is to be made, and of what: checks of the directory, and what the proxy says.

Who is handed a mount out by the node needs the first alone, and waits for no import of the rest.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
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
    """The absolute path of an empty directory that can be mounted on. InvalidInput, InUse.

    A dead lodefs mount that was left there (its process was killed) is taken away first.
    """
    place = canonical(mountpoint)
    found = mount_table.on_top(place)
    if found is not None and found.is_lodefs:
        state = state_of_mount(found)
        if state.pid or not may_ask(found) or not mount_table.is_dead(place):
            also = (
                ""
                if state.supervised
                else f", 'lodefs mount --take-over {mountpoint}' goes on with it"
            )
            raise InUse(
                f"{mountpoint}: {found.repo}@{found.commit} is mounted here; "
                f"'lodefs unmount {mountpoint}' takes it away{also}"
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
    """Ask the proxy what the revision and the path are now: from here on they are fixed.

    ``timeout_s``: for all of it, ``read_timeout_s`` where that is not given. NotFound,
    InvalidInput where the path is not a directory or the options are wrong, Unavailable.
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
            f"{path!r} is no directory of the snapshot: only directories are mounted"
        )
    return Job(options, snapshot, node)


def prepare(options: MountOptions) -> Job:
    """Check the mount point and resolve what is to be mounted there.

    Raises: as ``check_mountpoint`` and ``resolve``.
    """
    from lodefs.mount.kernel import passed_device

    passed_fd = passed_device.passed(options.mountpoint)
    if passed_fd is not None:
        passed_device.take(passed_fd)
        return resolve(options)
    place = check_mountpoint(options.mountpoint)
    return resolve(msgspec.structs.replace(options, mountpoint=place))


def request_handover(mountpoint: str) -> Taken:
    """Ask the processes of a mount for it; they serve on until ``confirm``.

    Raises: InvalidInput (no lodefs mount there, or a dead one), Unavailable (it does not answer),
    InUse (another take-over is under way), Denied, UnknownFormat.
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
            f"{mountpoint}: nobody serves this mount any more; 'lodefs mount' there takes it "
            "away and mounts anew"
        )
    raise Unavailable(
        f"{mountpoint}: the mount has no socket for this user: it is somebody else's, or was "
        "made without a directory for it"
    )


def may_ask(found: mount_table.Mount) -> bool:
    """Whether a question through the kernel comes back: one who serves their own mount may let root
    wait for ever, also at the end of the process that asked."""
    is_root = os.geteuid() == 0 and namespaces.in_first_user_namespace()
    return not is_root or found.owner == 0


def state_of_mount(found: mount_table.Mount) -> State:
    """Who answers for a mount: process 0 where nobody does, or root may not ask.

    Asked at its socket: what is asked through the kernel may have to wait behind reads.
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
    """The absolute path without symlinks, found without touching a mount that may be stuck
    there. InvalidInput as of ``mountpoints.real``."""
    path = mountpoints.plain(mountpoint)
    if mount_table.on_top(path) is not None:
        return path
    return mountpoints.real(path)
