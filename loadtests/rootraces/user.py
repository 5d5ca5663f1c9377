"""The ordinary user: processes that change names of theirs as fast as they can."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from loadtests.rootraces.world import USER
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.processes import die_with_parent

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
Move = Callable[[], None]
"""One change of names; errors do not matter."""


@contextmanager
def attacking(moves: Sequence[Sequence[Move]]) -> Iterator[Callable[[bool], None]]:
    """A process of the user for each sequence of moves, which it repeats. What is given stops them
    (True) and lets them go on (False)."""
    children = [_start(one) for one in moves]

    def hold(still: bool) -> None:  # noqa: FBT001 - of one word
        for child in children:
            os.kill(child, signal.SIGSTOP if still else signal.SIGCONT)
            if still:
                os.waitpid(child, os.WUNTRACED)

    try:
        yield hold
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _start(moves: Sequence[Move]) -> int:
    parent, child = os.getpid(), os.fork()
    if child:
        return child
    try:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        die_with_parent(parent)  # which another user's process would forget
        while True:
            for move in moves:
                with suppress(OSError):
                    move()
    finally:
        os._exit(1)


def swaps(name: str, target: str) -> list[Move]:
    """A directory and a symlink to ``target`` take turns at a name, at once, so that root may be
    between them at any place; it is missing for moments. Whatever root leaves there, they go on."""
    aside, link = f"{name}.aside", f"{name}.link"
    return [
        lambda: os.mkdir(name),
        lambda: os.symlink(target, link),
        lambda: _exchange(name, link),
        lambda: _exchange(name, link),
        lambda: os.rename(name, aside),
        lambda: os.rename(aside, name),
        lambda: _exchange(name, link),
        lambda: _exchange(name, link),
    ]


def _exchange(one: str, other: str) -> None:
    """renameat2(2)."""
    libc.call("renameat2", _AT_FDCWD, one.encode(), _AT_FDCWD, other.encode(), _RENAME_EXCHANGE)


def plants(name: str, target: str) -> list[Move]:
    """A symlink, a directory, a FIFO and a hard link are put at a name and taken away."""
    return [
        lambda: os.symlink(target, name),
        lambda: os.unlink(name),
        lambda: os.mkdir(name),
        lambda: os.rmdir(name),
        lambda: os.mkfifo(name),
        lambda: os.unlink(name),
        lambda: os.link(f"{target}/file", name),
        lambda: os.unlink(name),
    ]
