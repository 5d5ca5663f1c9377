"""Pulls one file of a revision into one local file with any name."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.pull.pull import PullResult, pull
from lodefs.chunkstore.pull.target import DirectoryHandles, has_content, translated
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.repo.store import Store


def is_file(store: Store, spec: Spec) -> bool:
    """Whether a revision has a regular file at a path. Raises: NotFound."""
    return find(store, spec).kind is Kind.FILE


def pull_file(store: Store, spec: Spec, target: Path, *, sync: bool = True) -> PullResult:
    """Copies the file at ``spec`` to ``target``, which appears complete, in one step. An equal
    existing file is accepted.

    Raises: InvalidInput if something else exists there; NotFound if its directory is missing; what
    ``pull`` raises. After an interruption, a repetition continues.
    """
    entry = find(store, spec)
    directory, name = os.path.split(os.path.abspath(target))
    if not os.path.isdir(directory):
        raise NotFound(f"{directory} does not exist: make it first, since {name} goes there")
    with translated(target):
        if os.path.lexists(target):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with DirectoryHandles(fd) as handles:
                    is_same = not target.is_symlink() and target.is_file()
                    is_same = is_same and has_content(os.fsencode(name), entry, handles)
            finally:
                os.close(fd)
            if not is_same:
                raise InvalidInput(f"{target} exists, and differs from {spec}: nothing was changed")
            found = PullResult(store.locate(spec)[1], unchanged=True)
            found.add(entry)
            return found
    beside = Path(directory, f".{name[:200]}.lodefs-pull")
    result = pull(store, spec, beside, sync=sync)
    with translated(target):
        _move(beside / os.fsdecode(entry.name), target)
        with suppress(OSError):
            os.rmdir(beside)
    return result


def _move(source: Path, target: Path) -> None:
    """Renames a file. It replaces no file that appeared meanwhile, if the file system has hard
    links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        os.rename(source, target)
    else:
        os.unlink(source)
