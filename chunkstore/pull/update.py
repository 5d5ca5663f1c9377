"""Plans an update of a copy: which paths it replaces, and whether they are as they were pulled.

It examines only what differs between the two versions. Each such path must be as in the old
version, missing, or already as in the new one, as an interrupted update leaves it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import CommitId, parse_id
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.pull.target import DirectoryHandles, check_is_not_state, has_content
from lodefs.chunkstore.repo.history import Change, diff
from lodefs.chunkstore.repo.store import Store

NAMED_MAX = 10  # how many paths an error lists
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_OTHER = (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO)


@dataclass(slots=True)
class Update:
    """The steps of an update, each in the order of paths. ``gone`` must be removed first."""

    gone: list[tuple[bytes, TreeEntry]] = field(default_factory=list)
    directories: list[bytes] = field(default_factory=list)
    symlinks: list[tuple[bytes, TreeEntry]] = field(default_factory=list)
    files: list[tuple[bytes, TreeEntry]] = field(default_factory=list)
    removed: int = 0  # files and symlinks


def plan_update(store: Store, before: TreeEntry, after: TreeEntry, target_fd: int) -> Update:
    """Plans how a copy of ``before`` becomes one of ``after``. Changes nothing. Raises:
    InvalidInput, which names paths that were changed in the copy."""
    plan = Update()
    changed: dict[bytes, None] = {}
    with DirectoryHandles(target_fd) as handles:
        changes = list(diff(store, before, after))
        dropped, made = _dropped(changes), _made(changes)
        for change in changes:
            check_is_not_state(change.path)
            if _is_as(change.path, change.after, handles):
                plan.removed += _is_leaf(change.before) and change.after is None
                continue
            is_absent = _is_as(change.path, None, handles)
            is_old = is_absent or _is_as(change.path, change.before, handles)
            if not is_old or not _holds_only(change, dropped, handles, is_absent=is_absent):
                changed[change.path] = None
            if is_absent and change.after is not None:
                in_the_way = _in_the_way(change.path, handles)
                if in_the_way is not None and in_the_way not in made:
                    changed[in_the_way] = None
            _add(plan, change, is_absent=is_absent)
    if changed:
        raise InvalidInput(
            f"the pull would replace changes in the copy: {named(changed)}. "
            "Nothing was written: save or undo these changes, and repeat the pull"
        )
    return plan


def carry_out(plan: Update, target_fd: int) -> None:
    """Removes what must go, deepest paths first, and makes directories and symlinks, and parents
    that somebody removed from the copy."""
    with DirectoryHandles(target_fd) as handles:
        for path, entry in reversed(plan.gone):
            parent, _, name = path.rpartition(b"/")
            at = handles.directory(parent)
            if entry.kind is Kind.DIRECTORY:
                os.rmdir(name, dir_fd=at)
            else:
                os.unlink(name, dir_fd=at)
    with DirectoryHandles(target_fd) as handles:  # directories that were opened before may be gone
        for path in _missing_parents(plan, handles):
            parent, _, name = path.rpartition(b"/")
            os.mkdir(name, dir_fd=handles.directory(parent))
        for path in plan.directories:
            parent, _, name = path.rpartition(b"/")
            os.mkdir(name, dir_fd=handles.directory(parent))
        for path, entry in plan.symlinks:
            parent, _, name = path.rpartition(b"/")
            os.symlink(entry.target, name, dir_fd=handles.directory(parent))


def named(paths: Iterable[bytes]) -> str:
    """Returns paths for a message: the first few, each once, and how many more there are."""
    known = list(dict.fromkeys(paths))
    names = [path.decode("utf-8", "backslashreplace") for path in known[:NAMED_MAX]]
    more = f" and {len(known) - NAMED_MAX:,} more" if len(known) > NAMED_MAX else ""
    return f"{', '.join(names)}{more}"


def _missing_parents(plan: Update, handles: DirectoryHandles) -> list[bytes]:
    """Returns missing directories that the plan needs and does not make; parents first."""
    paths = (*plan.directories, *(path for path, _ in (*plan.symlinks, *plan.files)))
    seen, missing = set(plan.directories), []
    for parent in {path.rpartition(b"/")[0] for path in paths}:
        while parent and parent not in seen:
            seen.add(parent)
            if not _is_as(parent, None, handles):
                break
            missing.append(parent)
            parent = parent.rpartition(b"/")[0]
    return sorted(missing)


def _add(plan: Update, change: Change, *, is_absent: bool) -> None:
    path, before, after = change.path, change.before, change.after
    plan.removed += _is_leaf(before) and after is None
    stays = before is not None and after is not None and before.kind is after.kind is Kind.FILE
    if (
        before is not None and not stays and not is_absent
    ):  # another file replaces a file in one step
        plan.gone.append((path, before))
    if after is None:
        return
    if after.kind is Kind.DIRECTORY:
        plan.directories.append(path)
    elif after.kind is Kind.SYMLINK:
        plan.symlinks.append((path, after))
    else:
        plan.files.append((path, after))


def _dropped(changes: Sequence[Change]) -> dict[bytes, set[bytes]]:
    """Returns the names to remove, by the directory that is removed with them."""
    found: dict[bytes, set[bytes]] = {}
    for change in changes:
        if change.before is not None:
            parent, _, name = change.path.rpartition(b"/")
            found.setdefault(parent, set()).add(name)
    return found


def _made(changes: Sequence[Change]) -> set[bytes]:
    """Returns the new directories."""
    return {c.path for c in changes if c.after is not None and c.after.kind is Kind.DIRECTORY}


def _in_the_way(path: bytes, handles: DirectoryHandles) -> bytes | None:
    """Returns a parent of a missing path that is not a directory; None if there is none."""
    found = None
    while path := path.rpartition(b"/")[0]:
        try:
            handles.directory(path)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            found = path
        else:
            break
    return found


def _holds_only(
    change: Change,
    dropped: dict[bytes, set[bytes]],
    handles: DirectoryHandles,
    *,
    is_absent: bool,
) -> bool:
    """Whether a directory to remove has only contents of the dataset."""
    before, after = change.before, change.after
    goes = after is None or after.kind is not Kind.DIRECTORY
    if before is None or before.kind is not Kind.DIRECTORY or not goes or is_absent:
        return True
    names = {os.fsencode(name) for name in os.listdir(handles.directory(change.path))}
    return names <= dropped.get(change.path, set())


def _is_as(path: bytes, entry: TreeEntry | None, handles: DirectoryHandles) -> bool:
    """Whether a path of the copy matches an entry; None: nothing is there."""
    parent, _, name = path.rpartition(b"/")
    try:
        if entry is None:
            os.stat(name, dir_fd=handles.directory(parent), follow_symlinks=False)
            return False
        if entry.kind is Kind.FILE:
            return has_content(path, entry, handles)
        if entry.kind is Kind.SYMLINK:
            return os.readlink(name, dir_fd=handles.directory(parent)) == entry.target
        seen = os.stat(name, dir_fd=handles.directory(parent), follow_symlinks=False)
        return stat.S_ISDIR(seen.st_mode)
    except OSError as error:
        if error.errno in _ABSENT:
            return entry is None
        if error.errno in _OTHER:
            return False
        raise


def _is_leaf(entry: TreeEntry | None) -> bool:
    return entry is not None and entry.kind is not Kind.DIRECTORY


# A finished copy records what it is in an extended attribute of its directory, which moves with it
# and is in no commit. It is a hint: an update compares what it replaces with the recorded version.
NAME = "user.lodefs.pulled"

Identity = dict[str, str]  # store, repo, commit and path (hex), as in the state of a pull


def write_record(target: Path, identity: Identity) -> None:
    """Records what a directory is a copy of, if its file system supports that."""
    with suppress(OSError):
        os.setxattr(target, NAME, json.dumps(identity, sort_keys=True).encode())


def recorded_commit(target: Path, identity: Identity) -> CommitId | None:
    """Returns the commit that a directory is a copy of; None if that is unknown, or for another
    repository or path than in ``identity``."""
    try:
        found = from_json(os.getxattr(target, NAME), Identity)
        commit = parse_id(found["commit"])
    except (OSError, InvalidInput, KeyError):
        return None
    same = all(found.get(key) == identity[key] for key in ("store", "repo", "path"))
    return CommitId(commit) if same else None
