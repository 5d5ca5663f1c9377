"""A commit of Git becomes a commit of a store, with the same files.

Small files come from Git. A pointer of Git LFS becomes a file with the segments of the object that
the store has already, so that none of its bytes is read or sent. A tag keeps the id of Git
(chunkstore/format/foreign/git.py, docs/decisions/0095).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import msgspec

from lodefs.chunkstore.errors import Conflict, InvalidInput, NotFound
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.foreign import git, lfs
from lodefs.chunkstore.format.foreign.git_url import HEAD
from lodefs.chunkstore.format.foreign.lfs import Pointer
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, check_ref_name, check_repo, split_path
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.push.archives.unpacking import based
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult, CommitJob
from lodefs.chunkstore.push.changes.commit_changes import base_of
from lodefs.chunkstore.push.changes.overlay import ChangedDirectory, Names
from lodefs.chunkstore.push.changes.staging import Staging
from lodefs.chunkstore.push.committer import head_of
from lodefs.chunkstore.push.git.blobs import BlobReader
from lodefs.chunkstore.push.git.git_repository import (
    SUBMODULE,
    SYMLINK,
    GitAccess,
    GitCommit,
    GitRepository,
)
from lodefs.chunkstore.push.git.lfs_client import LfsServer
from lodefs.chunkstore.push.git.lfs_objects import check_objects, stored_objects
from lodefs.chunkstore.push.git.listing import ListedFile, Lister, Listing, OpenSubmodule
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

_WHOLE_BYTES_MAX = 4 << 20  # larger files are streamed
_TAG_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class GitSource:
    """What to import: the URL of a repository, or the path of one, and a branch, tag or commit.
    ``lfs_repos`` are the repositories of the store in which objects of Git LFS are looked for;
    none: the one that is imported into. ``open_submodule`` None leaves submodules empty.
    ``fetch_lfs``: fetch objects that the store lacks from the repository's own LFS server."""

    url: str
    rev: str = HEAD
    lfs_repos: Sequence[str] = ()
    open_submodule: OpenSubmodule | None = None
    fetch_lfs: bool = False


@dataclass(slots=True, kw_only=True)
class GitResult(ChangesResult):
    """The result of an import. ``git_commit`` is the id of Git's commit; ``lfs_files`` were taken
    over with the segments of their objects, and ``kept_files`` from the commit before;
    ``lfs_fetched_bytes`` came from the LFS server of Git."""

    git_commit: str = ""
    lfs_files: int = 0
    kept_files: int = 0
    lfs_fetched_bytes: int = 0


def import_git(
    store: Store,
    source: GitSource,
    access: GitAccess,
    repo: str,
    branch: str,
    options: PushOptions,
    progress: Progress | None = None,
) -> GitResult:
    """Commits the files of a Git commit to a branch, whose whole content they become, and tags the
    commit with the id of Git.

    Raises: NotFound for a revision or an object of Git LFS; Denied for a server that wants
    credentials or leads elsewhere; TooLarge; Conflict if the branch moved meanwhile;
    TooManyRemovals; what the store raises. After an error nothing is committed.
    """
    check_repo(repo)
    check_ref_name(branch)
    progress = progress or Progress()
    progress.phase = "fetching from Git"
    repository = GitRepository(source.url, access)
    found = repository.fetch(repository.resolve(source.rev))
    job = _Import(store, source, repository, found)
    named = replace(
        options,
        author=options.author or found.author,
        message=options.message or found.message,
        metadata=tuple(sorted({**dict(options.metadata), **job.metadata}.items())),
    )
    session = PushSession(store, RefName(repo, BRANCHES, branch), named, progress)
    result = session.run(lambda: job.attempt(session))
    if not options.dry_run:
        _tag(store, repo, found.id, CommitId(bytes.fromhex(result.commit)))
    return result


def imported(store: Store, repo: str, git_commit: str, *, submodules: bool) -> CommitId | None:
    """Returns the commit that was made from a Git commit, with submodules or without; None if
    there is none."""
    try:
        at = store.resolve(repo, f"git:{git_commit}")
        metadata = dict(store.commit(repo, at).metadata)
    except NotFound:
        return None
    return at if (git.SUBMODULES in metadata) == submodules else None


class _Import:
    """One import, with what its attempts share."""

    def __init__(
        self, store: Store, source: GitSource, repository: GitRepository, commit: GitCommit
    ) -> None:
        self._store = store
        self._source = source
        self._repository = repository
        self._commit = commit
        self._what = f"{source.url}@{commit.id[:12]}"
        self.fetched_bytes = 0
        self._attempts = 0
        self.metadata = {git.SOURCE: source.url, git.COMMIT: commit.id}
        if source.open_submodule is not None:
            self.metadata[git.SUBMODULES] = "yes"

    def attempt(self, session: PushSession) -> GitResult:
        """Implements what PushSession.run repeats."""
        session.progress.phase = "listing"
        self.fetched_bytes = 0
        base = base_of(session, None, head_of(session))
        listing = Lister(self._source.open_submodule).listed(self._repository, self._commit.id)
        self._attempts += 1
        # An attempt is repeated if the store lacks what it relied on: then Git has it
        kept = self._kept(listing, base.totals) if self._attempts == 1 else {}
        staging = Staging(session, base, root=ChangedDirectory(None, {}))
        with staging.in_use():
            for path, entry in kept.items():
                staging.overlay.put(_names(path), entry)
        session.progress.phase = "reading files"
        session.progress.files_total = len(listing.files)
        session.progress.files_done = len(kept)
        session.learn()
        lfs_files = self._put_files(staging, session, listing, kept.keys())
        root = staging.overlay.root
        if isinstance(root, ChangedDirectory):
            based(root, base.root, staging.trees)
        result = staging.commit(CommitJob(None, is_whole=True, check_all=True))
        return GitResult(
            **{name: getattr(result, name) for name in ChangesResult.__dataclass_fields__},
            git_commit=self._commit.id,
            lfs_files=lfs_files,
            kept_files=len(kept),
            lfs_fetched_bytes=self.fetched_bytes,
        )

    def _kept(self, listing: Listing, before: Commit) -> dict[bytes, TreeEntry]:
        """Returns the entries of the branch's head that are the same files, if an import has made
        it and this machine still has that commit of Git."""
        metadata = dict(before.metadata)
        commit_id = metadata.get(git.COMMIT, "")
        is_alike = (git.SUBMODULES in metadata) == (git.SUBMODULES in self.metadata)
        if not is_alike or not git.is_id(commit_id) or not self._repository.has(commit_id):
            return {}
        try:
            lister = Lister(self._source.open_submodule, may_fetch=False)
            same = set(listing.same_as(lister.listed(self._repository, commit_id)))
        except NotFound:  # of a submodule
            return {}
        there = _entries(self._store, before.root)
        return {path: there[path] for path in same if path in there}

    def _put_files(
        self, staging: Staging, session: PushSession, listing: Listing, kept: Collection[bytes]
    ) -> int:
        """Puts all files but those that are kept. Returns the number of those in Git LFS."""
        pointers: dict[bytes, Pointer] = {}
        progress = session.progress
        with ExitStack() as stack:
            readers = [stack.enter_context(one.blobs()) for one in listing.repositories]
            for path in sorted(set(listing.files).difference(kept)):
                listed = listing.files[path]
                reader = readers[listed.repository]
                pointer = _pointer(reader, listed)
                if pointer is not None:
                    pointers[path] = pointer
                    continue
                _put(staging, _names(path), listed, reader)
                progress.files_done += 1
                progress.bytes_done += listed.file.size_bytes
        repos = self._source.lfs_repos or [session.branch.repo]
        objects = stored_objects(self._store, repos, pointers.values())
        if self._source.fetch_lfs:
            missing = {path: one for path, one in pointers.items() if one.oid not in objects}
            self._fetch_objects(staging, session, listing, missing)
            pointers = {path: one for path, one in pointers.items() if path not in missing}
        way_out = f"`git lfs push --all` sends them to the LFS server of {repos[0]} (docs/git.md)"
        check_objects(pointers, objects, self._what, way_out)
        with staging.in_use():
            for path, pointer in pointers.items():
                executable = listing.files[path].file.executable
                entry = msgspec.structs.replace(objects[pointer.oid], executable=executable)
                staging.overlay.put(_names(path), entry)
        return len(pointers)

    def _fetch_objects(
        self,
        staging: Staging,
        session: PushSession,
        listing: Listing,
        missing: Mapping[bytes, Pointer],
    ) -> None:
        """Puts files whose objects come from the LFS servers of their repositories."""
        session.progress.phase = "fetching from Git LFS"
        session.progress.bytes_total += sum(one.size_bytes for one in missing.values())
        for number, repository in enumerate(listing.repositories):
            paths: dict[Pointer, list[bytes]] = {}
            for path, pointer in missing.items():
                if listing.files[path].repository == number:
                    paths.setdefault(pointer, []).append(path)
            if not paths:
                continue
            server = LfsServer(repository, repository.limits.fetch_s_max)
            actions = server.actions(paths)
            for pointer, places in paths.items():
                if pointer.oid not in actions:
                    check_objects({places[0]: pointer}, {}, self._what, "its LFS server lacks it")
                with server.fetched(pointer, actions[pointer.oid]) as file:
                    for path in places:
                        file.seek(0)
                        executable = listing.files[path].file.executable
                        staging.put(_names(path), file, executable=executable)
                self.fetched_bytes += pointer.size_bytes
                session.progress.bytes_done += pointer.size_bytes * len(places)


def _put(staging: Staging, names: Names, listed: ListedFile, reader: BlobReader) -> None:
    file = listed.file
    if file.mode == SUBMODULE:
        staging.make_directory(names)
    elif file.mode == SYMLINK:
        staging.put_link(names, reader.read(file.oid, file.size_bytes))
    elif file.size_bytes <= _WHOLE_BYTES_MAX:
        content = reader.read(file.oid, file.size_bytes)
        staging.put(names, content, executable=file.executable)
    else:
        with reader.opened(file.oid, file.size_bytes) as stream:
            staging.put(names, stream, executable=file.executable)


def _pointer(reader: BlobReader, listed: ListedFile) -> Pointer | None:
    """Returns the pointer that a file is, if Git LFS has its content."""
    file = listed.file
    if not listed.is_lfs or file.mode == SYMLINK or file.size_bytes >= lfs.POINTER_BYTES_MAX:
        return None
    return lfs.parse_pointer(reader.read(file.oid, file.size_bytes))


def _names(path: bytes) -> Names:
    """Returns the names in a path of Git. Raises: InvalidInput for one that no directory has."""
    names = tuple(split_path(path))
    if b"/".join(names) != path:
        raise InvalidInput(f"{path.decode('utf-8', 'backslashreplace')!r} is not a path of a file")
    return names


def _entries(store: Store, root: TreeEntry) -> dict[bytes, TreeEntry]:
    """Returns all files, symlinks and empty directories below a root, by path."""
    found = dict(store.packs.walk(root))
    filled = {path.rpartition(b"/")[0] for path in found}
    return {path: entry for path, entry in found.items() if path not in filled}


def _tag(store: Store, repo: str, git_commit: str, commit: CommitId) -> None:
    """Tags the commit with the id of Git, unless the tag is at an equal one. Raises: Conflict if
    others keep moving the tag; what point_ref raises."""
    name = git.tag_of(git_commit)
    refs = store.refs(repo)
    for _ in range(_TAG_ATTEMPTS_MAX):
        latest = refs.latest(TAGS, name)
        if latest is not None and latest.commit is not None:
            there = store.commit(repo, latest.commit).root
            if there.digest == store.commit(repo, commit).root.digest:
                return
        sequence = None if latest is None else latest.sequence
        try:
            point_ref(store, RefName(repo, TAGS, name), commit, expected_sequence=sequence)
        except Conflict as error:
            last = error
        else:
            return
    raise last
