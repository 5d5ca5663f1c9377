"""Turns members of archives into a directory of a commit: staged contents, and their names.

It refuses and names members that no careful program would unpack: paths and links that lead out of
the archive, devices, and names that come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotADirectory
from lodefs.chunkstore.format.names import NAME_BYTES_MAX
from lodefs.chunkstore.format.tree import Kind, TreeEntry, symlink
from lodefs.chunkstore.push.archives.members import DAMAGED, Budget, Member, MemberKind, members
from lodefs.chunkstore.push.changes.contents import BLOCK_SIZE_BYTES, Contents
from lodefs.chunkstore.push.changes.overlay import (
    ChangedDirectory,
    Names,
    Overlay,
    TreeReader,
    is_directory,
)
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.chunkstore.push.workers.source_files import show_path
from lodefs.chunkstore.system.safe_open import PATH_BYTES_MAX


class _Refused(InvalidInput):
    """A member that must not be unpacked; the message says why, without its name."""


class Unpacking:
    """A directory that archives are unpacked into, one after the other. For one thread."""

    def __init__(
        self,
        contents: Contents,
        numbers: Iterator[int],
        count: Callable[[int], None],
        ignore: IgnoreRules,
        *,
        skip_unreadable: bool,
    ) -> None:
        """``numbers`` are those of contents. ``count`` is called with the bytes of each file before
        it is read; it may raise."""
        self._contents = contents
        self._numbers = numbers
        self._count = count
        self._ignore = ignore
        self._skip_unreadable = skip_unreadable
        self._overlay = Overlay(_no_tree, None)
        self.skipped: list[Skipped] = []
        self.excluded = 0

    @property
    def root(self) -> ChangedDirectory:
        """The directory unpacked so far; contents are staged."""
        assert isinstance(self._overlay.root, ChangedDirectory)
        return self._overlay.root

    def add(self, name: str, stream: BinaryIO, size_bytes_max: int | None) -> None:
        """Unpacks one archive. Raises: InvalidInput for a member that is refused, or an archive
        that is damaged or too large; what storing raises."""
        found = 0
        try:
            for member in members(name, stream, Budget(name, size_bytes_max)):
                found += 1
                self._take(name, member)
        except DAMAGED as error:
            raise InvalidInput(
                f"{name} is cut off or damaged: {error}. Nothing was committed"
            ) from error
        if not found:
            raise InvalidInput(f"{name} has no members: it would empty the branch")

    def _take(self, archive: str, member: Member) -> None:
        try:
            names = _names(member.path)
            if not names and member.kind is MemberKind.DIRECTORY:
                return  # the one that was packed
            if not names:
                raise _Refused("has no name")
            if self._is_excluded(names, is_directory=member.kind is MemberKind.DIRECTORY):
                self.excluded += 1
                return
            self._put(names, member)
        except (_Refused, NotADirectory) as error:
            reason = f"{show_path(member.path[:PATH_BYTES_MAX])} in {archive} {error}"
            if not self._skip_unreadable:
                raise InvalidInput(
                    f"{reason}; --exclude leaves it out, --skip-unreadable all such"
                ) from error
            self.skipped.append(Skipped(member.path, reason))

    def _put(self, names: Names, member: Member) -> None:
        there = self._there(names)
        if member.kind is MemberKind.DIRECTORY:
            if there is not None and not is_directory(there):
                raise _Refused("comes twice, as a directory and as something else")
            self._overlay.make_directory(names)
            return
        if there is not None:
            raise _Refused("comes twice")
        self._overlay.put_file(names, self._entry(names, member))

    def _entry(self, names: Names, member: Member) -> TreeEntry:
        match member.kind:
            case MemberKind.FILE:
                return self._file(names, member)
            case MemberKind.SYMLINK:
                self._check_link(names, member.target)
                return symlink(names[-1], member.target)
            case MemberKind.HARD_LINK:
                linked = self._there(_names(member.target))
                if not isinstance(linked, TreeEntry) or linked.kind is not Kind.FILE:
                    shown = show_path(member.target)
                    raise _Refused(f"is a hard link to {shown}, which is not a file before it")
                return msgspec.structs.replace(linked, name=names[-1])
            case _:
                raise _Refused(f"is {member.target.decode()}")

    def _file(self, names: Names, member: Member) -> TreeEntry:
        number = next(self._numbers)
        self._count(member.size_bytes)
        try:
            content = member.read()
        except (NotImplementedError, RuntimeError) as error:
            raise _Refused(f"cannot be read: {error}") from error
        if member.size_bytes <= BLOCK_SIZE_BYTES:
            self._contents.read_small(number, _whole(content, member.size_bytes))
        else:
            self._contents.read_stream(number, content)
        return self._contents.staged(number, names[-1], executable=member.executable)

    def _there(self, names: Names) -> TreeEntry | ChangedDirectory | None:
        try:
            return self._overlay.get(names)
        except NotADirectory as error:
            raise _Refused("leads through a file or a symlink") from error

    def _check_link(self, names: Names, target: bytes) -> None:
        """Raises: _Refused for a symlink that is no link, or leads out of the archive, perhaps
        through another one: only what is a directory so far has a known '..'."""
        place = names[:-1]
        leads_out = target.startswith(b"/")
        for name in target.split(b"/"):
            if name == b"..":
                leads_out |= not place or (
                    place != names[: len(place)] and not is_directory(self._there(place))
                )
                place = place[:-1]
            elif name not in (b"", b"."):
                place += (name,)
        if not target or b"\0" in target or leads_out:
            raise _Refused(f"is a symlink that leads out of the archive: {show_path(target)}")

    def _is_excluded(self, names: Names, *, is_directory: bool) -> bool:
        if not self._ignore:
            return False
        last = len(names)
        return any(
            self._ignore.excludes(b"/".join(names[:end]), is_directory=is_directory or end < last)
            for end in range(1, last + 1)
        )


def based(item: ChangedDirectory, there: TreeEntry | None, trees: TreeReader) -> None:
    """Says of a new directory what it replaces, so that what is equal is taken from there."""
    stack = [(item, there)]
    while stack:
        directory, base = stack.pop()
        if base is None or base.kind is not Kind.DIRECTORY:
            continue
        directory.base = base
        before = {entry.name: entry for entry in trees.read_tree(base)}
        stack += [
            (child, before.get(name))
            for name, child in directory.children.items()
            if isinstance(child, ChangedDirectory)
        ]


def _names(path: bytes) -> Names:
    """Returns the names in a member's path. Raises: _Refused for a path that leads out."""
    if path.startswith(b"/"):
        raise _Refused("has an absolute path")
    if len(path) > PATH_BYTES_MAX:
        raise _Refused(f"has a path of more than {PATH_BYTES_MAX:,} bytes")
    names = tuple(name for name in path.split(b"/") if name not in (b"", b"."))
    if b".." in names:
        raise _Refused("has '..' in its path")
    if b"\0" in path or any(len(name) > NAME_BYTES_MAX for name in names):
        raise _Refused(f"has a name with NUL, or of more than {NAME_BYTES_MAX} bytes")
    return names


def _whole(content: BinaryIO, size_bytes: int) -> bytes:
    """Returns all bytes of a small content. Raises: EOFError if there are fewer or more."""
    found = []
    left = size_bytes + 1
    while left and (more := content.read(left)):
        found.append(more)
        left -= len(more)
    if left != 1:
        raise EOFError("a member has another size than its header says")
    return b"".join(found)


def _no_tree(_entry: TreeEntry) -> list[TreeEntry]:
    raise LodefsError("an archive has no stored directories")
