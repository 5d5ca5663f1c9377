"""Scans a source that a URL names, as scanner.py scans a directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import NAME_BYTES_MAX
from lodefs.chunkstore.push.ignore_rules import FILE_NAME, SIZE_BYTES_MAX, IgnoreRules
from lodefs.chunkstore.push.remote.remote_files import (
    LISTED_NS,
    RemoteFile,
    RemoteFiles,
    stat_of_state,
)
from lodefs.chunkstore.push.scanner import (
    FILE,
    Columns,
    Row,
    ScannedDirectory,
    Skipped,
    SourceNotes,
    below,
    walk,
)
from lodefs.chunkstore.push.workers.source_files import show_path
from lodefs.chunkstore.system.safe_open import PATH_BYTES_MAX


@dataclass(slots=True)
class RemoteScan:
    """A walk through ``remote`` that leaves out what ``ignore`` and files of patterns exclude.
    ``skipped`` names what else it leaves out if ``skip_unreadable`` is set: keys that cannot be
    paths of files."""

    remote: RemoteFiles
    skip_unreadable: bool = False
    ignore: IgnoreRules = field(default_factory=IgnoreRules)
    top_names: list[bytes] = field(default_factory=list)  # in the root, also of what is left out
    skipped: list[Skipped] = field(default_factory=list)
    notes: SourceNotes = field(default_factory=SourceNotes)

    def __iter__(self) -> Iterator[ScannedDirectory]:
        """Yields directories in the order of Scan. Raises: InvalidInput for names that cannot be
        those of files; what the source raises."""
        return walk(self._visit)

    def _visit(self, path: bytes, depth: int) -> ScannedDirectory:
        listing = self.remote.list(path)
        files, subdirectories = listing.files, listing.subdirectories
        if not depth:
            self.top_names = [*(file.name for file in files), *subdirectories]
            if not self.top_names and not listing.unreadable:
                raise NotFound(self._nothing())
        self.ignore.enter(path, self._patterns(path, files))
        if self.ignore:
            excludes = self.ignore.excludes
            files = [f for f in files if not excludes(below(path, f.name), is_directory=False)]
            subdirectories = [
                name
                for name in subdirectories
                if not excludes(below(path, name), is_directory=True)
            ]
        subdirectories = sorted(n for n in subdirectories if self._is_name(path, n, "/"))
        directories = set(subdirectories)
        for name, reason in listing.unreadable:
            if not self.ignore.excludes(below(path, name), is_directory=False):
                self._leave(path, name, reason)
        rows = [
            _row(file)
            for file in files
            if self._is_name(path, file.name) and self._is_alone(path, file.name, directories)
        ]
        self.notes.stateless_files += sum(not file.state and file.size_bytes > 0 for file in files)
        self.notes.note_excluded([row[0] for row in rows], subdirectories)
        return ScannedDirectory(path, depth, Columns(rows), subdirectories, LISTED_NS)

    def _nothing(self) -> str:
        if self.remote.find(b"") is not None:
            return f"{self.remote.url} is one file: name its path, as in REPO:PATH"
        return f"there is nothing below {self.remote.url}/: check the name"

    def _patterns(self, path: bytes, files: list[RemoteFile]) -> bytes | None:
        """Returns the content of a directory's file of patterns."""
        for file in files:
            if file.name == FILE_NAME and file.size_bytes:
                if file.size_bytes > SIZE_BYTES_MAX:
                    raise InvalidInput(
                        f"a {FILE_NAME.decode()} has {file.size_bytes:,} bytes; the limit is "
                        f"{SIZE_BYTES_MAX:,}"
                    )
                return bytes(self.remote.read(below(path, file.name), 0, file.size_bytes).data)
        return None

    def _is_name(self, path: bytes, name: bytes, after: str = "") -> bool:
        """Whether a commit can have a name, which ``after`` follows in the source. Raises:
        InvalidInput."""
        is_name = name not in (b"", b".", b"..") and not any(sign in name for sign in b"/\0")
        if is_name and len(name) <= NAME_BYTES_MAX and len(path) + len(name) < PATH_BYTES_MAX:
            return True  # a server whose directories have themselves as subdirectories has no end
        shown = show_path(below(path, name) if path else name) + after
        return self._leave(
            path,
            name,
            f"{shown} in {self.remote.url} cannot be the path of a file: a name in it is empty, "
            f"'.' or '..', has '/', NUL or more than {NAME_BYTES_MAX} bytes; or all of it has more "
            f"than {PATH_BYTES_MAX:,}",
        )

    def _is_alone(self, path: bytes, name: bytes, directories: set[bytes]) -> bool:
        """Whether a file's name is not also that of a directory. Raises: InvalidInput."""
        if name not in directories:
            return True
        shown = show_path(below(path, name))
        return self._leave(
            path,
            name,
            f"{shown} in {self.remote.url} is an object, and others lie below {shown}/: a path "
            "cannot be a file and a directory",
        )

    def _leave(self, path: bytes, name: bytes, reason: str) -> bool:
        if not self.skip_unreadable:
            raise InvalidInput(f"{reason}; --exclude leaves it out, --skip-unreadable all such")
        self.skipped.append(Skipped(below(path, name), reason))
        return False


def _row(file: RemoteFile) -> Row:
    stat = stat_of_state(file.size_bytes, file.state)
    return file.name, FILE, file.size_bytes, stat.mtime_ns, stat.inode, stat.ctime_ns
