"""A store: its settings, its repositories, and the meaning of revisions."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Corrupt,
    Expired,
    InvalidInput,
    LodefsError,
    NotFound,
    Renamed,
    Unavailable,
    UnknownFormat,
    Unsupported,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.commit import SIZE_BYTES_MAX as COMMIT_SIZE_BYTES_MAX
from lodefs.chunkstore.format.commit import Commit, commit_id_of, decode_commit, encode_commit
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.format.names import (
    ID_HEX_CHARS_MIN,
    CommitId,
    Spec,
    check_new_ref_name,
    check_repo,
    is_commit_prefix,
    is_hex,
    parse_revision,
)
from lodefs.chunkstore.format.repo_settings import Deletion, encode_expired
from lodefs.chunkstore.objects.interface import NoSuchBucket, ObjectStore, exists, read_whole
from lodefs.chunkstore.objects.mirrored import is_replaced
from lodefs.chunkstore.protocol.access import hidden
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, Refs, singular
from lodefs.chunkstore.repo.repo_settings import SettingsLog
from lodefs.chunkstore.system.durations import utc_text
from lodefs.chunkstore.types import Buffer

VERSION = 2
_MERGED_VERSION = 3  # set when packs are first merged; otherwise like version 2
SIZE_BYTES_MAX = 64 * 1024  # limit for store.json, which has less than 1 KiB today
_KIND = "store"
_NAMED_MAX = 8  # candidates that an error lists
_RENAMED_MAX = 8  # how many renames are followed
_LISTED_FIRST, _LISTED_GROWTH, _LISTED_MAX = 4, 4, 1000  # objects in one list of names


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that are fixed when a store is created."""

    store_id: str  # 32 hex characters, random
    chunking: ChunkingParams


class _Chunking(msgspec.Struct, forbid_unknown_fields=True):
    algorithm: str
    size_bytes_min: int
    size_bytes_average: int
    size_bytes_max: int


class _SettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    store_id: str
    chunking: _Chunking
    upgraded_s: int | None  # unused


_ALGORITHM = "fastcdc-2016"  # chunking.py describes it


def encode_settings(settings: Settings) -> bytes:
    """Returns the bytes of store.json."""
    params = settings.chunking
    sizes = (params.size_bytes_min, params.size_bytes_average, params.size_bytes_max)
    body = _SettingsBody(settings.store_id, _Chunking(_ALGORITHM, *sizes), upgraded_s=None)
    return seal(_KIND, VERSION, body)


def decode_settings(data: Buffer, what: str = keys.STORE) -> Settings:
    """Returns settings from the bytes of store.json. Raises: Corrupt, UnknownFormat."""
    versions = dict.fromkeys((VERSION, _MERGED_VERSION), _SettingsBody)
    body = unseal(_KIND, versions, data, what)
    chunking = body.chunking
    if chunking.algorithm != _ALGORITHM:
        raise UnknownFormat(
            f"{what} names the chunking algorithm {chunking.algorithm!r}, which this lodefs does "
            "not know: a newer lodefs is needed"
        )
    try:
        params = ChunkingParams(
            chunking.size_bytes_min, chunking.size_bytes_average, chunking.size_bytes_max
        )
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    return Settings(body.store_id, params)


class Store:
    """One prefix of an object store that holds repositories. Safe for many threads."""

    def __init__(self, objects: ObjectStore, settings: Settings, *, probed: bool = False) -> None:
        self.objects = objects
        self.settings = settings
        self.packs = PackReader(objects)
        self._probe_lock = threading.Lock()  # guards the flag, and lets one thread probe
        self._probed = probed
        self.on_renamed: Callable[[str], object] = lambda _to: None  # called with new names

    @property
    def url(self) -> str:
        """The location of the store, for messages."""
        return self.objects.url

    def ensure_writable(self) -> None:
        """Probes the store before the first write through this object. Raises: Unavailable if it is
        gone; Unsupported, Denied."""
        with self._probe_lock:
            if not self._probed:
                require_there(self.objects)
                probe(self.objects)
                self._probed = True

    def repos(
        self, below: str = "", *, after: str = "", start: str = "", deleted: bool = False
    ) -> Iterator[str]:
        """Yields the names of the repositories that have refs, by the bytes of NAME/refs/. A
        repository with many objects costs two lists, others much less: lists grow as the reader
        goes on. ``below`` is a prefix of the names; ``after`` a repository that they follow;
        ``start`` a key that NAME/refs/ follows; ``deleted`` includes deleted ones."""
        start = f"{after}/refs0" if after else start  # '0' follows '/'
        after = start and keys.REPOS + start
        limit = _LISTED_FIRST
        while True:
            listed = list(self.objects.list(keys.REPOS + below, after=after, limit=limit))
            for info in listed:
                if info.key <= after:
                    continue
                parts = info.key.split("/")
                cut = next((n for n, part in enumerate(parts) if part in ("commits", "refs")), None)
                if cut is None:
                    after = info.key  # not an object of lodefs
                    continue
                repo = "/".join(parts[1:cut])
                if parts[cut] == "refs" and (deleted or not self._is_deleted(repo, info.key)):
                    yield repo
                # '0' follows '/': past all commits, or all refs, of this repository
                after = "/".join(parts[: cut + 1]) + "0"
            if len(listed) < limit:
                return
            limit = min(_LISTED_GROWTH * limit, _LISTED_MAX)

    def has_refs(self, repo: str) -> bool:
        """Whether a repository has, or had, branches or tags, and is not deleted."""
        first = self._first(f"{keys.REPOS}{repo}/refs/")
        return first is not None and not self._is_deleted(repo, first)

    def settings_log(self, repo: str, clock: Callable[[], float] = time.time) -> SettingsLog:
        """Returns the settings log of a repository. Raises: InvalidInput for a malformed name."""
        return SettingsLog(self.objects, repo, clock)

    def deletion(self, repo: str) -> Deletion | None:
        """Returns when a repository was deleted, and what it had; None if it was not, or has
        branches or tags again. Settings record a deletion, but it counts only if no ref is left."""
        found = self.settings_log(repo).newest().deletion
        return None if found is None or self._is_living(repo) else found

    def _is_living(self, repo: str) -> bool:
        """Whether a repository has branches or tags."""
        refs = self.refs(repo)
        return any(chain(refs.living(BRANCHES), refs.living(TAGS)))

    def new_name(self, repo: str) -> str | None:
        """Returns the present name of a repository that was renamed, if the old name still leads
        there, even during the rename. A repository that has the old name itself takes
        precedence."""
        at = repo
        for _ in range(_RENAMED_MAX):
            found = self.settings_log(at).newest().deletion
            if found is None or found.renaming is None or time.time() >= found.renaming.until_s:
                break
            at = found.renaming.to
        return None if at == repo else at

    def locate(self, spec: Spec) -> tuple[Spec, CommitId]:
        """Returns ``spec`` with the present name of its repository, if it was renamed, and the
        commit of its revision, as ``resolve`` does."""
        try:
            return spec, self.resolve(spec.repo, spec.rev)
        except Renamed as error:
            self.on_renamed(error.to)
            found = Spec(error.to, spec.rev, spec.path)
            return found, self.resolve(found.repo, found.rev)

    def refs(self, repo: str) -> Refs:
        """Returns the branches and tags of a repository. Raises: InvalidInput for a malformed
        name."""
        return Refs(self.objects, repo)

    def require_repo(self, repo: str) -> None:
        """Raises: NotFound if a repository has no commits and no refs. The error's ``instead``
        lists what exists."""
        check_repo(repo)
        first = self._first(f"{keys.REPOS}{repo}/refs/")
        if first is not None and self._is_deleted(repo, first):
            self._check_renamed(repo)
            raise NotFound(self._deleted_text(repo))
        if first is not None or self._has(keys.commits(repo)):
            return
        require_there(self.objects)
        error = hidden(repo)
        error.instead = partial(self._instead_of, repo)
        raise error

    def _instead_of(self, repo: str) -> str:
        there = list(islice(chain(self.repos(f"{repo}/"), self.repos()), _NAMED_MAX))
        known = ", ".join(dict.fromkeys(there))
        return f"{self.url} has {known or 'none yet'}{self._path_hint(repo)}"

    def _path_hint(self, repo: str) -> str:
        """Returns how to write REPO/PATH if there is a repository REPO; otherwise ""."""
        parts = repo.split("/")
        for cut in range(len(parts) - 1, 0, -1):
            parent = "/".join(parts[:cut])
            if self._has(keys.commits(parent)):
                return f"; a path follows a colon: {parent}:{'/'.join(parts[cut:])}"
        return ""

    def resolve(self, repo: str, rev: str) -> CommitId:
        """Returns the current commit of ``rev``: a branch, otherwise a tag, otherwise a commit id
        or a prefix of one; the import of a Git commit (git:ID); or a commit before any of these
        (main~2). Raises: NotFound, which names what exists; InvalidInput if a prefix fits several
        commits; Renamed."""
        name, steps = parse_revision(rev)
        return self.before(repo, self._named(repo, name), rev, steps)

    def before(self, repo: str, start: CommitId, rev: str, steps: Sequence[int]) -> CommitId:
        """Returns the commit to which the steps of the revision ``rev`` lead from ``start``.
        Raises: NotFound, which says how many commits there are; Expired; Corrupt."""
        at = start
        for number, parent in enumerate(steps):
            parents = self.commit(repo, at).parents
            if parent > len(parents):
                first = f"is the first commit, {number} before {parse_revision(rev).name}"
                why = first if not parents else f"has no parent {parent}"
                raise NotFound(f"there is no {repo}@{rev}: {at.hex()[:12]} {why}")
            at = parents[parent - 1]
        return at

    def _named(self, repo: str, rev: str) -> CommitId:
        """Returns the commit that a name stands for."""
        check_repo(repo)
        refs = self.refs(repo)
        if (git_id := git.id_in(rev)) is not None:
            return self._made_from(repo, git_id)
        if (name := git.name_in(rev)) is not None:
            raise NotFound(
                f"{repo}@{rev}: only Git knows where {name} is now: `lodefs import-git URL@{name} "
                f"{repo}` asks it, and nodes ask it for repositories that their settings allow"
            )
        for kind in (BRANCHES, TAGS):
            entry = refs.latest(kind, rev)
            if entry is not None and entry.commit is not None:
                return entry.commit
        found = self._commits_of(repo, rev)
        if len(found) > 1:
            named = ", ".join(name[: len(rev) + 6] for name in found)
            raise InvalidInput(f"{rev} is the beginning of several commits of {repo}: {named}")
        if found and self.deletion(repo) is None:
            return CommitId(bytes.fromhex(found[0]))
        raise self._unknown(repo, rev)

    def _made_from(self, repo: str, git_id: str) -> CommitId:
        """Returns the commit that was made from a Git commit, by the beginning of its id."""
        living = self.refs(repo).living(TAGS, beginning=git.tag_of(git_id))
        found = {name: entry.commit for name, entry in islice(living, 2)}
        if len(found) > 1:
            raise InvalidInput(f"{git_id} is the beginning of several Git commits in {repo}")
        for commit in found.values():
            assert commit is not None
            return commit
        self._check_renamed(repo)
        self.require_repo(repo)
        raise NotFound(
            f"{repo} has no import of the Git commit {git_id}: `lodefs import-git URL@{git_id} "
            f"{repo}` makes one"
        )

    def check_new_ref(self, repo: str, kind: str, name: str) -> None:
        """Raises: InvalidInput if a new branch or tag would hide something with the same name from
        ``resolve``, or would seem to be something else; AlreadyExists if the repository is deleted;
        Renamed. Two writers that create a branch and a tag with the same name at once both
        succeed."""
        if self.settings_log(repo).newest().deletion is not None:
            self._check_renamed(repo)
            if not self._is_living(repo):
                raise AlreadyExists(self._deleted_text(repo))
        other = TAGS if kind == BRANCHES else BRANCHES
        latest = self.refs(repo).latest(other, name)
        if latest is not None and latest.commit is not None:
            raise InvalidInput(
                f"{repo} has a {singular(other)} {name}: a {singular(kind)} {name} would be "
                "mistaken for it; choose another name"
            )
        if found := self._commits_of(repo, name):
            raise InvalidInput(
                f"{name} is the beginning of commit {found[0][:12]} of {repo}, which a "
                f"{singular(kind)} {name} would hide; choose another name"
            )
        check_new_ref_name(name)

    def commit(self, repo: str, commit_id: CommitId) -> Commit:
        """Returns a commit of a repository. Raises: NotFound, Expired, Corrupt, UnknownFormat."""
        key = keys.commit(repo, commit_id)
        try:
            data = read_whole(self.objects, key, COMMIT_SIZE_BYTES_MAX).data
        except NotFound:
            if self.has_expired(repo, commit_id):
                raise Expired(self._expired_text(repo, commit_id.hex())) from None
            raise NotFound(
                f"{repo} has no commit {commit_id.hex()[:12]}: it is lost (`lodefs repair`), or "
                "was deleted meanwhile; `lodefs branch --force` moves a branch that leads to it"
            ) from None
        if commit_id_of(data) != commit_id:
            raise Corrupt(f"{key} has the bytes of another commit, or is damaged")
        return decode_commit(data, key)

    def has_expired(self, repo: str, commit_id: CommitId) -> bool:
        """Whether a commit was deleted by a retention policy."""
        return exists(self.objects, keys.expired(repo, commit_id.hex()))

    def put_expired(self, repo: str, commit_id: CommitId, time_s: int) -> None:
        """Marks a commit, right before its deletion, as deleted by a retention policy."""
        data = encode_expired(repo, commit_id, time_s)
        self.objects.put(keys.expired(repo, commit_id.hex()), [data])

    def has_commit(self, repo: str, commit_id: CommitId) -> bool:
        """Whether the object of a commit exists, damaged or not."""
        return self._has(keys.commit(repo, commit_id))

    def put_commit(self, repo: str, commit: Commit) -> CommitId:
        """Writes a commit; what it refers to must exist. A commit that exists already is fine."""
        check_repo(repo)
        data = encode_commit(commit)
        commit_id = commit_id_of(data)
        self.objects.put(keys.commit(repo, commit_id), [data])
        return commit_id

    def close(self) -> None:
        """Frees connections."""
        self.objects.close()

    def _commits_of(self, repo: str, rev: str) -> list[str]:
        """Returns the first commits that begin with ``rev``, in hex."""
        if not is_commit_prefix(rev):
            return []
        prefix = keys.commits(repo)
        found = self.objects.list(prefix + rev, limit=_NAMED_MAX)
        return [info.key[len(prefix) :] for info in found]

    def _check_renamed(self, repo: str) -> None:
        """Raises: Renamed."""
        if (to := self.new_name(repo)) is not None:
            error = Renamed(str(hidden(repo)))
            error.to = to
            error.instead = lambda: f"it was renamed to {to}"
            raise error

    def _unknown(self, repo: str, rev: str) -> NotFound:
        try:
            self._check_renamed(repo)
            self.require_repo(repo)
        except NotFound as error:
            return error
        require_there(self.objects)
        if is_commit_prefix(rev) and (key := self._first(keys.expired(repo, rev))):
            return Expired(self._expired_text(repo, key.rpartition("/")[2]))
        refs = self.refs(repo)
        message = f"{repo} has no branch, tag or commit {rev}"
        if is_hex(rev) and len(rev) < ID_HEX_CHARS_MIN:
            message += f" (a commit needs at least {ID_HEX_CHARS_MIN} digits)"
        for kind, kinds in ((BRANCHES, "branches"), (TAGS, "tags")):
            names = [name for name, _ in islice(refs.living(kind), _NAMED_MAX)]
            message += f"; its {kinds}: {', '.join(names)}" if names else ""
        return NotFound(message)

    def _is_deleted(self, repo: str, first_key: str) -> bool:
        """``first_key`` is the first of the repository's refs; settings come before all others. A
        repository with damaged settings counts as existing, so that `lodefs verify` reports it and
        nothing that leads to its data is overlooked."""
        with contextlib.suppress(Corrupt):
            return keys.settings_sequence(first_key) >= 0 and self.deletion(repo) is not None
        return False

    def _deleted_text(self, repo: str) -> str:
        found = self.deletion(repo)
        when = "" if found is None else f" by {found.by} on {utc_text(found.time_s)}"
        free = f"`lodefs undelete --empty {repo}` frees the name for a new one"
        if found is not None and found.renaming is not None:
            return f"{repo} was renamed to {found.renaming.to}{when}: {free}"
        if not self._has(keys.commits(repo)):
            return f"{repo} was deleted{when}, and `lodefs gc` has deleted its data since: {free}"
        return (
            f"{repo} was deleted{when}: `lodefs undelete {repo}` gets it back, until `lodefs gc` "
            f"has deleted its data; {free}"
        )

    def _expired_text(self, repo: str, commit: str) -> str:
        policy = self.settings_log(repo).newest().retention
        now = f"now {policy}" if policy else "now cleared"
        return (
            f"commit {commit[:12]} of {repo} is gone: expired by the retention policy of {repo} "
            f"({now}; `lodefs retain {repo} --show`)"
        )

    def _has(self, prefix: str) -> bool:
        return self._first(prefix) is not None

    def _first(self, prefix: str) -> str | None:
        """Returns the first key with a prefix."""
        info = next(iter(self.objects.list(prefix, limit=1)), None)
        return None if info is None else info.key


def create_store(objects: ObjectStore, chunking: ChunkingParams | None = None) -> Store:
    """Creates an empty store after probing for what lodefs needs.

    Raises: AlreadyExists; Unsupported if conditional writes do not work; Denied.
    """
    if next(iter(objects.list(keys.STORE, limit=1)), None) is not None:
        raise AlreadyExists(f"{objects.url} is a lodefs store already")
    probe(objects)
    settings = Settings(os.urandom(16).hex(), chunking or ChunkingParams())
    try:
        objects.put(keys.STORE, [encode_settings(settings)], if_absent=True)
    except AlreadyExists:
        raise AlreadyExists(f"{objects.url} is a lodefs store already") from None
    return Store(objects, settings, probed=True)


def open_store(objects: ObjectStore) -> Store:
    """Opens an existing store. Raises: NotFound; Corrupt, UnknownFormat; Denied, Unavailable."""
    try:
        data = read_whole(objects, keys.STORE, SIZE_BYTES_MAX).data
    except NoSuchBucket:
        raise
    except NotFound as error:
        raise NotFound(
            f"{objects.url} is not a lodefs store: create it with `lodefs init {objects.url}` "
            f"({error})"
        ) from error
    return Store(objects, decode_settings(data, f"{keys.STORE} of {objects.url}"))


def require_there(objects: ObjectStore) -> None:
    """Raises: Unavailable if an opened store is gone as a whole (for example, its file system was
    unmounted), or a mirror answers for it: then its objects are not missing."""
    try:
        objects.head(keys.STORE)
    except NotFound as error:
        raise Unavailable(f"the store {objects.url} is gone at present: {error}") from error
    if is_replaced(objects):
        raise Unavailable(
            f"the store {objects.url} does not answer at present, and its mirrors, which may be "
            "out of date, do not have this"
        )


def probe(objects: ObjectStore) -> None:
    """Writes an object twice, the second time only if absent, and removes it.

    Raises: Unsupported if the second write is not refused, since two pushes could then lose
    commits.
    """
    key = keys.probe(os.urandom(16).hex())
    objects.put(key, [b"lodefs probe\n"], if_absent=True)
    try:
        objects.put(key, [b"lodefs probe, again\n"], if_absent=True)
    except AlreadyExists:
        return
    finally:
        _remove_quietly(objects, key)
    raise Unsupported(
        f"{objects.url} ignores If-None-Match: it overwrites an object that must only be written "
        "if absent, so two pushes at once could lose commits. lodefs needs a store with "
        "conditional writes (AWS S3, Ceph RGW, MinIO, a directory)"
    )


def _remove_quietly(objects: ObjectStore, key: str) -> None:
    """Removes the probe. One that stays does no harm: credentials may not allow deletes."""
    try:
        objects.delete(key)
    except LodefsError:
        return
