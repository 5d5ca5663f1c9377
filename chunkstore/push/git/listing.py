"""The files that a Git commit becomes: with those of its submodules if these are asked for, and
without what ``.gitattributes`` leaves out of archives (export-ignore)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput, NotFound, TooLarge
from lodefs.chunkstore.format.foreign.git_url import GitUrl, parse_git_url, relative_to
from lodefs.chunkstore.push.git.git_repository import SUBMODULE, GitFile, GitRepository

SUBMODULES_MAX = 1000
DEPTH_MAX = 10  # of submodules in submodules
ATTRIBUTES = b".gitattributes"
_EXPORT_IGNORE, _FILTER = "export-ignore", "filter"

OpenSubmodule = Callable[[GitUrl], GitRepository]
"""Opens the repository of a submodule. Raises: Denied for a URL that may not be read."""


class ListedFile(NamedTuple):
    """A file, and the number of its repository. ``is_lfs``: an attribute says that Git LFS has
    its content. A directory of a submodule that was not asked for has no repository."""

    file: GitFile
    repository: int
    is_lfs: bool = False


@dataclass(slots=True)
class Listing:
    """The files of a commit by path. ``repositories`` are the commit's own and its submodules',
    with the commits of those. ``rules`` are all files with attributes."""

    files: dict[bytes, ListedFile] = field(default_factory=dict)
    repositories: list[GitRepository] = field(default_factory=list)
    rules: set[tuple[bytes, str]] = field(default_factory=set)

    def same_as(self, before: Listing) -> Iterator[bytes]:
        """Yields the paths whose files are those of another listing, under the same rules."""
        if self.rules != before.rules:
            return
        for path, one in self.files.items():
            there = before.files.get(path)
            if there is not None and (there.file, there.is_lfs) == (one.file, one.is_lfs):
                yield path


class Lister:
    """Lists commits. ``open_submodule`` None: submodules become empty directories, as in a clone.
    ``may_fetch``: fetch the commits of submodules that this machine lacks."""

    def __init__(
        self, open_submodule: OpenSubmodule | None = None, *, may_fetch: bool = True
    ) -> None:
        self._open = open_submodule
        self._may_fetch = may_fetch

    def listed(self, repository: GitRepository, commit_id: str) -> Listing:
        """Lists a fetched commit. Raises: TooLarge; InvalidInput for submodules without a URL; what
        fetching raises."""
        listing = Listing()
        self._add(listing, repository, commit_id, b"", 0)
        return listing

    def _add(
        self, listing: Listing, repository: GitRepository, commit_id: str, at: bytes, depth: int
    ) -> None:
        number = len(listing.repositories)
        if number > SUBMODULES_MAX or depth > DEPTH_MAX:
            raise TooLarge(
                f"{repository.url} brings the submodules to more than {SUBMODULES_MAX:,}, or more "
                f"than {DEPTH_MAX} in each other: import it without submodules"
            )
        listing.repositories.append(repository)
        files = repository.files(commit_id)
        values = _attributes(repository, commit_id, files)
        ignored = {path for path, found in values.items() if _is_set(found, _EXPORT_IGNORE)}
        for path, file in files.items():
            if path.rpartition(b"/")[2] == ATTRIBUTES:
                listing.rules.add((at + path, file.oid))
            if file.mode != SUBMODULE and not _is_below(path, ignored):
                is_lfs = values.get(path, {}).get(_FILTER.encode()) == b"lfs"
                listing.files[at + path] = ListedFile(file, number, is_lfs)
        modules = {path: one.oid for path, one in files.items() if one.mode == SUBMODULE}
        modules = {path: oid for path, oid in modules.items() if not _is_below(path, ignored)}
        if self._open is None:
            for path, oid in modules.items():
                listing.files[at + path] = ListedFile(GitFile(SUBMODULE, oid, 0), number)
        elif modules:
            self._add_modules(listing, repository, commit_id, modules, at, depth)
        if len(listing.files) > repository.limits.files_max:
            raise TooLarge(
                f"{repository.url} has more than {repository.limits.files_max:,} files with its "
                "submodules: import it without them"
            )

    def _add_modules(
        self,
        listing: Listing,
        repository: GitRepository,
        commit_id: str,
        modules: Mapping[bytes, str],
        at: bytes,
        depth: int,
    ) -> None:
        assert self._open is not None
        urls = repository.submodules(commit_id)
        for path, oid in modules.items():
            shown = (at + path).decode("utf-8", "backslashreplace")
            if path not in urls:
                raise InvalidInput(f"the submodule {shown} has no URL in .gitmodules")
            module = self._open(_url_of(repository, urls[path], shown))
            if self._may_fetch:
                module.fetch(oid)
            elif not module.has(oid):
                raise NotFound(f"this machine lacks the commit {oid[:12]} of the submodule {shown}")
            self._add(listing, module, oid, at + path + b"/", depth + 1)


def _url_of(repository: GitRepository, text: str, shown: str) -> GitUrl:
    try:
        if "://" in repository.url:
            return relative_to(parse_git_url(repository.url), text)
        return parse_git_url(text)
    except InvalidInput as error:
        raise InvalidInput(f"the submodule {shown}: {error}") from error


def _attributes(
    repository: GitRepository, commit_id: str, files: Mapping[bytes, GitFile]
) -> dict[bytes, dict[bytes, bytes]]:
    """Returns the attributes of the files and directories of a commit, if it sets any."""
    if not any(path.rpartition(b"/")[2] == ATTRIBUTES for path in files):
        return {}
    directories = {above + b"/" for path in files for above in _above(path)}
    return repository.attributes(commit_id, [*files, *directories], (_EXPORT_IGNORE, _FILTER))


def _is_set(values: Mapping[bytes, bytes], name: str) -> bool:
    return values.get(name.encode()) == b"set"


def _above(path: bytes) -> Iterator[bytes]:
    """Yields the directories above a path."""
    end = path.find(b"/")
    while end >= 0:
        yield path[:end]
        end = path.find(b"/", end + 1)


def _is_below(path: bytes, ignored: set[bytes]) -> bool:
    """Whether a path, or a directory above it, is ignored."""
    return bool(ignored) and (
        path in ignored
        or path + b"/" in ignored
        or any(above + b"/" in ignored for above in _above(path))
    )
