"""``lodefs.cp`` and ``lodefs.mv``: copy and move paths within the store. No bytes move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple, Unpack

from lodefs.api.pushing import CommitOptions, opened_for, push_options
from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotADirectory, NotFound
from lodefs.chunkstore.format.names import Spec, parse_spec
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.cli.parameters import option
from lodefs.settings.session import Session, spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.changes.change import Change
    from lodefs.chunkstore.repo.store import Store


class Moved(NamedTuple):
    """The commits of ``mv``. ``removed``: the second one, if it moved from another branch or
    repository."""

    copied: ChangesResult
    removed: ChangesResult | None = None


class _Way(NamedTuple):
    """A path of a commit (``source.rev`` is its id), and the path of a branch that it goes to."""

    source: Spec
    entry: TreeEntry
    to: Spec


def cp(
    source: str | Spec,
    to: str,
    *,
    allow_removals: Annotated[
        bool, option("Copy even if that removes more than half of the files at PATH.")
    ] = False,
    **options: Unpack[CommitOptions],
) -> ChangesResult:
    """Commits a copy of ``REPO@REV:PATH`` at another path, ``REPO[@BRANCH]:PATH``, also in another
    repository of the store. No file is read, and no bytes of files are stored.

    A directory replaces what is there. If ``to`` ends with a slash, or a file is copied to a
    directory, the copy goes into that directory and keeps its name. The rest: as for ``push``.

    Raises: NotFound, InvalidInput, TooManyRemovals, Conflict.
    """
    from lodefs.chunkstore.push.changes.change import CopyFrom

    spec = spec_of(source)
    options["message"] = options.get("message") or f"copy {spec}"
    with opened_for(options) as settings:
        way = _way(settings.store, spec, to)
        copied = CopyFrom(way.source, way.to.path)
        return _commit(settings, way.to, copied, options, allow_removals=allow_removals)


def mv(source: str | Spec, to: str, **options: Unpack[CommitOptions]) -> Moved:
    """Moves ``REPO[@BRANCH]:PATH`` to another path, which ``cp`` explains. Only a file replaces a
    file. No bytes of files move.

    Within one branch this is one commit. Otherwise it is one in each branch: first the copy, then
    the removal of what was copied. If the removal fails, the error says so, and the call can be
    repeated. Raises: NotFound, InvalidInput, Conflict.
    """
    from lodefs.chunkstore.push.changes.change import CopyFrom, Remove, Rename

    spec = spec_of(source)
    if not spec.path:
        raise InvalidInput(f"{spec}: name what to move, REPO[@BRANCH]:PATH")
    options["message"] = options.get("message") or f"move {spec}"
    with opened_for(options) as settings:
        store = settings.store
        spec, _ = store.locate(spec)
        _require_branch(store, spec)
        way = _way(store, spec, to)
        if (spec.repo, spec.rev) == (way.to.repo, way.to.rev):
            return Moved(_commit(settings, spec, Rename(spec.path, way.to.path), options))
        _check_replaced(store, way)
        copied = _commit(settings, way.to, CopyFrom(way.source, way.to.path), options)
        try:
            at = way.source.rev
            return Moved(copied, _commit(settings, spec, Remove(spec.path), options, base=at))
        except LodefsError as error:
            error.add_note(f"{way.to} has the copy, and {spec} still exists: repeat the command")
            raise


def _commit(
    settings: Session,
    branch: Spec,
    change: Change,
    options: CommitOptions,
    *,
    base: str | None = None,
    allow_removals: bool = True,
) -> ChangesResult:
    from lodefs.chunkstore.push.changes.commit_changes import commit_changes

    store, core = settings.store, push_options(settings, options, allow_removals=allow_removals)
    at = None if base is None else store.locate(Spec(branch.repo, base))[1]
    return commit_changes(store, branch.repo, branch.rev, [change], core, base=at)


def _way(store: Store, spec: Spec, to: str) -> _Way:
    """Raises: NotFound; InvalidInput if a path or a name is missing."""
    from lodefs.chunkstore.repo.history import find_in

    target = parse_spec(to)
    if ":" not in to:
        raise InvalidInput(f"{to}: name the path, {target.repo}@{target.rev}:PATH")
    spec, commit_id = store.locate(spec)
    entry = find_in(store.packs, store.commit(spec.repo, commit_id).root, spec)
    is_inside = to.endswith("/") or not target.path
    if is_inside or (entry.kind is not Kind.DIRECTORY and _is_directory(_found(store, target))):
        name = spec.path.rpartition(b"/")[2]
        if not name:
            raise InvalidInput(f"{spec} is a whole version and has no name: name its path in {to}")
        place = target.path + b"/" + name if target.path else name
        target = Spec(target.repo, target.rev, place)
    return _Way(Spec(spec.repo, commit_id.hex(), spec.path), entry, target)


def _found(store: Store, place: Spec) -> TreeEntry | None:
    """Returns the entry at a path; None if there is none, or no such branch."""
    from lodefs.chunkstore.repo.history import find

    try:
        return find(store, place)
    except (NotFound, NotADirectory):
        return None


def _is_directory(entry: TreeEntry | None) -> bool:
    return entry is not None and entry.kind is Kind.DIRECTORY


def _check_replaced(store: Store, way: _Way) -> None:
    """Raises: InvalidInput if a directory would replace something else, or be replaced by a
    file."""
    there = _found(store, way.to)
    is_other = there is not None and there.digest != way.entry.digest
    if is_other and (_is_directory(there) or _is_directory(way.entry)):
        raise InvalidInput(f"{way.to} exists: remove it first")


def _require_branch(store: Store, spec: Spec) -> None:
    """Raises: NotFound; InvalidInput for a tag or a commit."""
    if store.refs(spec.repo).head(BRANCHES, spec.rev) is None:
        store.resolve(spec.repo, spec.rev)
        raise InvalidInput(f"{spec.repo}@{spec.rev} is not a branch, and only branches change")
