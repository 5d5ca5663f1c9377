"""``lodefs.log``, ``diff`` and ``blame``: commits, differences, and the origin of each path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Unpack

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.session import Where, opened, revision_of, spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.format.commit import Commit
    from lodefs.chunkstore.repo.history import Blamed, Change


class LogEntry(NamedTuple):
    """A commit and its id, 64 hex digits."""

    id: str
    commit: Commit


def log(
    spec: str | Spec,
    *,
    first_parent: bool = False,
    metadata: Mapping[str, str] | Iterable[str] = (),
    **where: Unpack[Where],
) -> Iterator[LogEntry]:
    """Yields the commit ``REPO[@REV]`` and its ancestors, newest first. ``first_parent``: follow
    only the first parent of merges. ``metadata``: only commits with all of it; a mapping, or texts
    KEY=VALUE or KEY. Commits are read lazily. ``store`` and ``session``: as for ``push``. Raises:
    NotFound, Corrupt."""
    from lodefs.chunkstore.format.metadata import fits
    from lodefs.chunkstore.repo.history import log as commits

    given = map("=".join, metadata.items()) if isinstance(metadata, Mapping) else metadata
    wanted = list(given)
    found = revision_of(spec)
    with opened(**where) as settings:
        for commit_id, commit in commits(
            settings.store, found.repo, found.rev, first_parent=first_parent
        ):
            if fits(commit.metadata, wanted):
                yield LogEntry(commit_id.hex(), commit)


def diff(before: str | Spec, after: str | Spec, **where: Unpack[Where]) -> Iterator[Change]:
    """Yields the paths that differ between ``REPO@A[:PATH]`` and ``REPO@B[:PATH]``. Equal
    directories are not read. ``store`` and ``session``: as for ``push``. Raises: NotFound,
    Corrupt."""
    from lodefs.chunkstore.repo.history import diff as changes
    from lodefs.chunkstore.repo.history import find

    old, new = spec_of(before), spec_of(after)
    with opened(**where) as settings:
        first = find(settings.store, old)
        try:
            second = find(settings.store, new)
        except NotFound as error:
            if new.repo != old.repo and "/" not in new.repo and not new.path:
                error.add_note(f"a revision of the same repository is {old.repo}@{new.repo}")
            raise
        yield from changes(settings.store, first, second)


def blame(spec: str | Spec, **where: Unpack[Where]) -> Iterator[Blamed]:
    """Yields the commit that last changed ``REPO[@REV]:PATH``; for a directory, of each of its
    entries. ``store`` and ``session``: as for ``push``. Raises: NotFound, Corrupt."""
    from lodefs.chunkstore.repo.history import blame as blamed

    with opened(**where) as settings:
        yield from blamed(settings.store, spec_of(spec))
