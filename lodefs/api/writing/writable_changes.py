"""``lodefs.commit``, ``status`` and ``restore``: the changes in a writable mount."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Unpack

import msgspec

from lodefs.api.pushing import ReaderOptions, push_options
from lodefs.api.writing import base_tags, commit_ends, writable
from lodefs.chunkstore.errors import (
    Conflict,
    Diverged,
    InUse,
    InvalidInput,
    NotFound,
)
from lodefs.chunkstore.format.names import (
    CommitId,
    Spec,
    check_new_ref_name,
    parse_id,
    split_path,
)
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.system import safe_open
from lodefs.cli.parameters import option
from lodefs.mount.kernel import namespaces
from lodefs.mount.writable import writable_mount
from lodefs.mount.writable.upper_place import NotedCommit, Record, UpperPlace
from lodefs.mount.writable.writable_mount import WritableUnmounted
from lodefs.settings.session import Session, Where, opened

if TYPE_CHECKING:
    from lodefs.chunkstore.format.commit import Commit
    from lodefs.chunkstore.format.tree import TreeEntry
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.changes.upper_changes import Renamed, UpperChanges
    from lodefs.chunkstore.push.scanner import Skipped
    from lodefs.chunkstore.repo.history import Change
    from lodefs.chunkstore.repo.store import Store

WRITERS_NAMED_MAX = 5
POLL_S = 0.2
HOLES_MAX = 16  # times the size of their disk that changed files may have


class WritableStatus(NamedTuple):
    """The changes in a writable mount. ``commit``: its base; ``head``: the present head of its
    branch, "" if there is none. ``skipped``: what no commit can hold."""

    mountpoint: str
    repo: str
    branch: str  # "" if a tag or a commit was mounted
    path: bytes  # the mounted path in the repository
    commit: str
    head: str
    is_mounted: bool
    is_read_only: bool  # a commit is under way, or was interrupted
    differences: list[Change | Renamed]
    skipped: list[Skipped]


def commit(
    directory: str | os.PathLike[str],
    *,
    branch: Annotated[
        str | None, option("Commit to this branch, now and later.", metavar="NAME")
    ] = None,
    base: Annotated[
        str | None,
        option("If the commit that was changed is gone: take this one for it.", metavar="REV"),
    ] = None,
    wait_s: float = 0.0,
    **options: Unpack[ReaderOptions],
) -> ChangesResult:
    """Commits the changes in a writable mount, mounted or kept. The mount then shows the new commit
    without changes, with what others have committed to the branch since.

    ``branch``: another branch, which is created if it is missing. ``base``: the revision to use as
    the base, if that is gone (a retention policy, a deleted branch); changed paths replace its own.
    ``wait_s``: how long to wait for files that are open for writing. ``message``, ``author``,
    ``dry_run``, ``workers``, ``progress``, ``store`` and ``session``: as for ``push``.

    The call commits all or nothing, and changes stay until they are committed. Raises: InUse, with
    the processes that have files open for writing; Diverged, with the paths that others changed
    too; NotFound, InvalidInput, NoSpace, Denied, Unavailable.
    """
    with opened(options.get("session"), store=options.get("store")) as session:
        place = writable.place_of(session, os.fspath(directory))
        with place.locked():
            record = writable_mount.catch_up(place, *commit_ends.mounter_of(session))
            record = commit_ends.settled(session, place, record)
            goes_to = branch_of(session, record, branch)
            if options.get("dry_run"):
                return _committed(session, place, record, goes_to, base, options)[0]
            with _resting(session, place, record, wait_s):
                result, has_changes = _committed(session, place, record, goes_to, base, options)
                if not result.unchanged or (result.commit != record.commit and has_changes):
                    commit_ends.go_on(session, place, record, result.commit, goes_to)
                elif goes_to.rev != record.branch:
                    place.write(msgspec.structs.replace(record, branch=goes_to.rev))
            return result


def commit_and_unmount(
    directory: str | os.PathLike[str],
    *,
    branch: str | None = None,
    **options: Unpack[ReaderOptions],
) -> tuple[ChangesResult, WritableUnmounted]:
    """Commits the changes, unmounts the mount, and leaves nothing of it. Raises: InUse if something
    was changed after the commit; the mount then stays."""
    result = commit(directory, branch=branch, **options)
    with opened(options.get("session"), store=options.get("store")) as session:
        place = writable.place_of(session, os.fspath(directory))
        with place.locked():
            record = writable_mount.recorded(place)
            with _resting(session, place, record, 0):
                repo = base_tags.present_name(session, record)
                if next(_changes_of(session, place, record, repo).listed(), None) is not None:
                    raise InUse(
                        f"{directory} was changed after the commit {result.commit[:12]}, and "
                        "stays mounted: repeat the command"
                    )
                done = writable.take_away(session, place, record, discard=True)
    return result, done


def status(directory: str | os.PathLike[str], **where: Unpack[Where]) -> WritableStatus:
    """Returns the changes in a writable mount, mounted or kept, that would be committed. Files are
    read only if their size does not decide. ``store`` and ``session``: as for ``push``. Raises:
    NotFound, Denied, Unavailable; SourceChanged for files that change meanwhile."""
    with opened(**where) as session:
        place = writable.place_of(session, os.fspath(directory))
        record = writable_mount.recorded(place)
        repo, head = base_tags.present_name(session, record), None
        if record.branch:
            repo, head = _located(session, repo, record.branch)
        found = _changes_of(session, place, record, repo)
        return WritableStatus(
            record.mountpoint,
            repo,
            record.branch,
            record.path,
            record.commit,
            "" if head is None else head.hex(),
            writable_mount.mounted_on(record) is not None,
            writable_mount.is_read_only(record),
            list(found.listed()),
            found.skipped,
        )


def restore(
    directory: str | os.PathLike[str],
    paths: Iterable[str | bytes | os.PathLike[str]],
    **where: Unpack[Where],
) -> None:
    """Puts files and directories of a writable mount back as they are in its base. ``paths`` are
    relative to the mount. Each is replaced when its bytes are there; the bytes of an interrupted
    call are used again. ``store`` and ``session``: as for ``push``. Raises: NotFound for a path
    that is not in the base; InvalidInput, NoSpace, Denied, Corrupt, Unavailable."""
    with opened(**where) as session:
        place = writable.place_of(session, os.fspath(directory))
        with place.locked():
            record = writable_mount.catch_up(place, *commit_ends.mounter_of(session))
            record, _ = commit_ends.mended(session, place, record)
            if writable_mount.mounted_on(record) is None:
                raise InvalidInput(
                    f"{directory} is not mounted: mount it first (`lodefs mount --writable`)"
                )
            wanted = [_below(record, os.fsencode(path)) for path in paths]
            for path in wanted:
                _restore(session, place, record, path)


def _committed(
    session: Session,
    place: UpperPlace,
    record: Record,
    goes_to: Spec,
    base: str | None,
    options: ReaderOptions,
) -> tuple[ChangesResult, bool]:
    """Returns the result of a commit, and whether there are changes (True also if that is
    unknown)."""
    from lodefs.chunkstore.push.changes.commit_changes import commit_changes

    def note(commit: CommitId) -> None:
        noted = NotedCommit(commit.hex(), goes_to.repo, goes_to.rev)
        writable_mount.note_commit(place, noted)

    found = _changes_of(session, place, record, goes_to.repo, base)
    _check_sizes(found)
    core = replace(push_options(session, options), on_commit=note)
    try:
        result = commit_changes(
            session.store, goes_to.repo, goes_to.rev, found.changes, core,
            base=CommitId(parse_id(found.base.spec.rev)), progress=options.get("progress"),
        )  # fmt: skip
    except Conflict as error:
        raise Diverged(
            f"{error}; the changes stay in {record.mountpoint}: commit them to another branch "
            f"(`lodefs commit --branch NAME`), and merge it (`lodefs merge`)"
        ) from error
    has_changes = next(found.listed(), None) is not None if result.unchanged else True
    _note(result, found, record)
    return result, has_changes


def _changes_of(
    session: Session, place: UpperPlace, record: Record, repo: str, instead: str | None = None
) -> UpperChanges:
    """``repo``: the present name of the repository. ``instead``: what is taken for the base, if
    that is gone."""
    from lodefs.chunkstore.push.changes.overlay import RecentTrees
    from lodefs.chunkstore.push.changes.upper_changes import read_upper
    from lodefs.chunkstore.push.changes.upper_directory import AS_ROOT, AS_USER, UpperBase
    from lodefs.chunkstore.repo.history import find_in

    store = session.store
    spec, commit = _base(session, record, repo, instead)
    root, trees = find_in(store.packs, commit.root, spec), RecentTrees(store.packs)
    base = UpperBase(spec, root, trees, is_other=instead is not None)
    is_root = os.geteuid() == 0 and namespaces.in_first_user_namespace()
    prefix = AS_ROOT if is_root else AS_USER
    number = record.generation
    without = place.restoring(number)
    return read_upper(place.upper(number), base, xattr_prefix=prefix, without=without)


def _check_sizes(found: UpperChanges) -> None:
    """Raises InvalidInput for files that no disk of this size can hold: holes and hard links cost
    nothing there, but are read and stored whole."""
    from lodefs.chunkstore.push.changes.upper_directory import UpperKind
    from lodefs.chunkstore.push.workers.source_files import show_path

    disk = os.statvfs(found.upper)
    disk_bytes = disk.f_blocks * disk.f_frsize  # 0: it has no limit
    files = [one for one in found.entries if one.kind is UpperKind.FILE]
    size_bytes = sum(one.size_bytes for one in files)
    if disk_bytes and size_bytes > HOLES_MAX * disk_bytes:
        largest = max(files, key=attrgetter("size_bytes"))
        raise InvalidInput(
            f"the changed files have {size_bytes:,} bytes, with holes and hard links, which is "
            f"more than {HOLES_MAX} times their disk; the largest is {show_path(largest.path)} "
            f"with {largest.size_bytes:,}: truncate or remove it"
        )


def _base(session: Session, record: Record, repo: str, instead: str | None) -> tuple[Spec, Commit]:
    """Returns the directory that was mounted, and its commit in ``repo``. Raises: NotFound, with
    the way out; InvalidInput for another commit if that one is there."""
    store = session.store
    try:
        commit = store.commit(repo, CommitId(parse_id(record.commit)))
    except NotFound as error:
        if instead is None:
            error.add_note(base_tags.way_out(record))
            raise
    else:
        if instead is None:
            return Spec(repo, record.commit, record.path), commit
        raise InvalidInput(
            f"--base {instead}: the changes are to {record.commit[:12]}, which is there, and counts"
        )
    found = store.resolve(repo, instead)
    return Spec(repo, found.hex(), record.path), store.commit(repo, found)


def branch_of(session: Session, record: Record, branch: str | None) -> Spec:
    """Returns the branch that a commit of a writable mount goes to: ``branch``, or its own. Raises:
    InvalidInput, NotFound."""
    name = record.branch if branch is None else branch
    if not name:
        raise InvalidInput(
            f"{record.mountpoint} shows {record.repo}@{record.options.rev}, which is not a branch: "
            "name one by --branch, which is created if it is missing"
        )
    if branch is not None:
        check_new_ref_name(branch)
    repo, head = _located(session, record.repo, name)
    if branch is not None and session.store.refs(repo).head(TAGS, name) is not None:
        raise InvalidInput(f"{name} is a tag of {repo}: name a branch by --branch")
    if branch is None and head is None:
        raise NotFound(
            f"{repo} no longer has the branch {name}: `lodefs undelete` brings it back, or "
            "--branch NAME commits to another one"
        )
    return Spec(repo, name)


def _located(session: Session, repo: str, branch: str) -> tuple[str, CommitId | None]:
    """Returns the present name of a repository, and the head of its branch."""
    head = session.store.refs(repo).head(BRANCHES, branch)
    if head is None and (to := session.store.new_name(repo)) is not None:
        session.store.on_renamed(to)
        repo, head = to, session.store.refs(to).head(BRANCHES, branch)
    return repo, head


@contextmanager
def _resting(session: Session, place: UpperPlace, record: Record, wait_s: float) -> Iterator[None]:
    """The mount accepts no changes during the block, and accepts them again after an error, unless
    a commit has them. Raises: InUse."""
    deadline_s = time.monotonic() + wait_s
    while writers := writable_mount.set_read_only(place, record, read_only=True):
        if time.monotonic() >= deadline_s:
            named = [f"{one.path} (process {one.pid}, {one.name})" for one in writers]
            more = len(named) - WRITERS_NAMED_MAX
            rest = f" and {more:,} more" if more > 0 else ""
            raise InUse(
                f"files are open for writing: {', '.join(named[:WRITERS_NAMED_MAX])}{rest}; close "
                "them, or wait for them (--wait S)"
            )
        time.sleep(POLL_S)
    try:
        place.use_reserve()
        yield
    finally:
        commit_ends.end(session, place, record)


def _note(result: ChangesResult, found: UpperChanges, record: Record) -> None:
    """Names what a commit does not keep, in the words of users."""
    head = found.upper + b"/"
    mountpoint = os.fsencode(record.mountpoint) + b"/"
    result.skipped += found.skipped
    notes = result.notes
    notes.hard_linked_files += found.hard_linked_files
    notes.set_id_files += found.set_id_files
    notes.private_named = [mountpoint + path.removeprefix(head) for path in notes.private_named]


def _below(record: Record, path: bytes) -> bytes:
    """Returns a path in the mount, relative to it. Raises: InvalidInput."""
    root = os.fsencode(record.mountpoint)
    if path.startswith(b"/"):
        if not path.startswith(root + b"/"):
            raise InvalidInput(f"{os.fsdecode(path)} is not below {record.mountpoint}")
        path = path[len(root) :]
    names = split_path(path)
    if not names:
        raise InvalidInput(
            f"{record.mountpoint} is the whole mount: `lodefs unmount --discard` drops all changes"
        )
    return b"/".join(names)


def _restore(session: Session, place: UpperPlace, record: Record, path: bytes) -> None:
    """Pulls the path next to its place, which the upper place records, and moves it there."""
    from lodefs.chunkstore.format.tree import Kind
    from lodefs.chunkstore.pull.pull import pull

    above, _, last = os.fsdecode(path).rpartition("/")
    at = b"/".join(one for one in (record.path, path) if one)
    spec = Spec(record.repo, record.commit, at)
    is_directory = _in_base(session.store, spec, path, record.mountpoint).kind is Kind.DIRECTORY
    beside = f".{last[:200]}.lodefs-restore"
    _note_restoring(place, record, os.fsencode(os.path.join(above, beside)))
    with _made(record.mountpoint, above) as fd:
        with safe_open.closing(safe_open.make_within(fd, beside)) as beside_fd:
            pull(session.store, spec, Path(f"/proc/self/fd/{beside_fd}"), sync=False)
        _remove(fd, last)
        source = beside if is_directory else f"{beside}/{last}"
        os.rename(source, last, src_dir_fd=fd, dst_dir_fd=fd)
        if not is_directory:
            os.rmdir(beside, dir_fd=fd)
    place.note_restoring(record.generation, b"")


def _in_base(store: Store, spec: Spec, path: bytes, mountpoint: str) -> TreeEntry:
    """Returns the base's entry for a path of the mount, which is ``spec`` in the store. Raises:
    NotFound."""
    from lodefs.chunkstore.repo.history import find_in

    spec, commit_id = store.locate(spec)
    root = store.commit(spec.repo, commit_id).root
    try:
        return find_in(store.packs, root, spec)
    except NotFound as error:
        raise NotFound(
            f"{os.fsdecode(path)} is not in {spec.repo}@{spec.rev[:12]}, the base of {mountpoint}: "
            f"name a path as it is below {mountpoint}, and remove what is new there with rm"
        ) from error


def _note_restoring(place: UpperPlace, record: Record, path: bytes) -> None:
    """A restore uses a path; what one that was killed has left at another is removed."""
    left = place.restoring(record.generation)
    if left and left != path:
        above, _, last = os.fsdecode(left).rpartition("/")
        with suppress(InvalidInput, FileNotFoundError), _made(record.mountpoint, above) as fd:
            _remove(fd, last)
    place.note_restoring(record.generation, path)


@contextmanager
def _made(mountpoint: str, directory: str) -> Iterator[int]:
    """Yields a descriptor of a directory of the mount, created if it is missing. Raises:
    InvalidInput."""
    try:
        with safe_open.closing(safe_open.open_plain(mountpoint, safe_open.PLACE)) as root_fd:
            fd = safe_open.make_within(root_fd, directory)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise InvalidInput(
            f"{directory} leads through {error.filename}, which is no longer a directory: "
            "restore that first"
        ) from error
    with safe_open.closing(fd):
        yield fd


def _remove(dir_fd: int, name: str) -> None:
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=dir_fd)
        except IsADirectoryError:
            safe_open.remove_tree(name, dir_fd)
