"""One file of a revision becomes one local file, under any name."""

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
    """Copies the file at ``spec`` to ``target``, which comes to be in one step, whole. One that is
    there already is fine if it is the same.

    Raises: InvalidInput if something else is there; NotFound if its directory is missing; what
    ``pull`` raises. After an interruption, repeat it: it goes on.
    """
    entry = find(store, spec)
    directory, name = os.path.split(os.path.abspath(target))
    if not os.path.isdir(directory):
        raise NotFound(f"{directory} does not exist, and {name} was to come there")
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
                raise InvalidInput(f"{target} exists, and is not {spec}: nothing was changed")
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
    """Never over what came meanwhile, where the file system has hard links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        os.rename(source, target)
    else:
        os.unlink(source)
