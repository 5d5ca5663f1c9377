"""Mounts for one process and what it starts, in a mount namespace of theirs; they end with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec

from lodefs.api.mounting import options_of
from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.nodeapi.wire import Failure, error_of
from lodefs.mount.kernel import namespaces
from lodefs.mount.lifecycle.mount_target import check_mountpoint
from lodefs.mount.lifecycle.mounter import mount
from lodefs.mount.lifecycle.process_end import die_with_parent
from lodefs.mount.options import MountOptions
from lodefs.settings.datasets import Dataset, check_places
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session

PROXY_UNUSED_TIMEOUT_S = 2.0  # of a proxy that is started for such mounts: it ends with the last


def prepare(
    session: Session,
    datasets: Sequence[Dataset],
    *,
    read_timeout_s: float | None = None,
    log_path: str = "",
) -> list[MountOptions]:
    """What is to be mounted. Makes directories that are missing, and starts a proxy if none runs.

    InvalidInput (directories), Unavailable.
    """
    places = [(os.path.realpath(dataset.directory), dataset) for dataset in datasets]
    return _prepare(session, places, read_timeout_s, log_path)


def mount_in_container(places: Sequence[tuple[str, Dataset]], session: Session) -> None:
    """Mount datasets on directories, as absolute paths without symlinks, of a container that is
    being made in this process's namespaces; they end with these. Errors as of ``mounter.mount``."""
    for one in _prepare(session, places):
        mount(one, fork=True)


def _prepare(
    session: Session,
    places: Sequence[tuple[str, Dataset]],
    read_timeout_s: float | None = None,
    log_path: str = "",
) -> list[MountOptions]:
    check_places(places)
    for place, _ in places:
        _make(place)
        check_mountpoint(place)
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
        os.makedirs(place, exist_ok=True)
    except FileExistsError:
        return  # a later check says what it is
    except OSError as error:
        raise InvalidInput(
            f"{place} does not exist, and cannot be created: {error.strerror}; name a directory "
            "that is there, or one below your home or /tmp"
        ) from error


def enter(mounts: Sequence[MountOptions]) -> None:
    """Take this process into a mount namespace, and a user namespace where it needs one, with
    these mounts, which end with it, however it ends.

    The process may have no threads, and keeps no child. Errors as of ``mounter.mount``, and
    Unsupported where there can be no namespaces. After an error nothing stays mounted once this
    process has ended.
    """
    here = os.getcwd()
    namespaces.enter_new(user=not namespaces.may_mount())
    _mount_in_child([msgspec.structs.replace(one, ends_with=os.getpid()) for one in mounts])
    with suppress(OSError):  # it may lie where a mount is by now
        os.chdir(here)


def _mount_in_child(mounts: Sequence[MountOptions]) -> None:
    """In a child that ends, so that the mounts' processes are nobody's children."""
    receiver, sender = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    child = os.fork()
    if not child:
        _answer(mounts, parent, sender)
    os.close(sender)
    with open(receiver, "rb") as answer:
        told = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if told:
        raise error_of(msgspec.msgpack.decode(told, type=Failure))
    if code:
        raise Unavailable(f"the process that mounts ended with {code}")


def _answer(mounts: Sequence[MountOptions], parent: int, sender: int) -> NoReturn:
    code = 1
    try:
        die_with_parent(parent)
        for one in mounts:
            mount(one, fork=True)
        code = 0
    except LodefsError as error:
        os.write(sender, msgspec.msgpack.encode(Failure(type(error).__name__, str(error))))
    finally:
        os._exit(code)


def become(program: str, command: Sequence[str]) -> NoReturn:
    """Run a program in the place of this process; ``command`` is its name and arguments. Raises:
    OSError."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    os.execv(program, list(command))
