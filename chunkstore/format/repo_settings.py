"""The settings of a repository: whether it is deleted or renamed, its retention policy, its quota.

Each change is an object of a log, like the moves of a ref (docs/format.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import CommitId, check_ref_name, check_repo
from lodefs.chunkstore.system.durations import duration_text
from lodefs.chunkstore.types import Buffer

VERSION = 1
VERSION_NAMES = 2  # of settings with another name of the repository
# Enough for a deleted repository with some 200,000 refs with long names
SIZE_BYTES_MAX = 32 * 1024 * 1024
_KIND = "repo-settings"


@dataclass(frozen=True, slots=True)
class Renaming:
    """A repository has another name, and the old one leads to it for a time."""

    to: str
    until_s: int  # Unix time


@dataclass(frozen=True, slots=True)
class Deletion:
    """A repository was deleted. ``refs`` are kind and name of its branches and tags at that time;
    ``renaming``: they went to another name."""

    time_s: int  # Unix time
    by: str
    refs: tuple[tuple[str, str], ...]
    renaming: Renaming | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """A retention policy: it keeps each commit that one of these keeps."""

    keep_last: int | None = None  # of each branch, this many commits along first parents
    keep_tagged: bool = False  # commits that tags name, besides the heads
    keep_within_s: int | None = None  # commits younger than that

    def __str__(self) -> str:
        words = [] if self.keep_last is None else [f"--keep-last {self.keep_last}"]
        words += ["--keep-tagged"] if self.keep_tagged else []
        if self.keep_within_s is not None:
            words.append(f"--keep-within {duration_text(self.keep_within_s)}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class RepoSettings:
    """The settings in one entry of the log, of which the newest counts; without any, nothing is
    set."""

    sequence: int = -1  # counts from 0; -1: no entry
    time_s: int = 0  # Unix time
    deletion: Deletion | None = None
    retention: Retention | None = None
    may_lack_history: bool = False  # there was a retention policy, so ancestors may be gone
    quota_size_bytes: int | None = None
    former_names: tuple[str, ...] = ()  # names under which the same commits may exist


class _Deletion(msgspec.Struct, forbid_unknown_fields=True):
    time_s: int
    by: str
    refs: list[tuple[str, str]]


class _Renaming(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    until_s: int


class _DeletionNames(_Deletion, forbid_unknown_fields=True):
    renaming: _Renaming | None


class _Retention(msgspec.Struct, forbid_unknown_fields=True):
    keep_last: int | None
    keep_tagged: bool
    keep_within_s: int | None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    repo: str
    sequence: int
    time_s: int
    deletion: _Deletion | None
    retention: _Retention | None
    may_lack_history: bool
    quota_size_bytes: int | None


class _BodyNames(msgspec.Struct, forbid_unknown_fields=True):
    repo: str
    sequence: int
    time_s: int
    deletion: _DeletionNames | None
    retention: _Retention | None
    may_lack_history: bool
    quota_size_bytes: int | None
    former_names: list[str]


class _Expired(msgspec.Struct, forbid_unknown_fields=True):
    repo: str
    commit: str
    time_s: int


def encode_expired(repo: str, commit: CommitId, time_s: int) -> bytes:
    """Returns the document which says that a retention policy deleted a commit, at a Unix time."""
    return seal("expired", VERSION, _Expired(repo, commit.hex(), time_s))


def check_retention(retention: Retention) -> Retention:
    """Raises: InvalidInput for numbers that keep nothing, and for an empty policy."""
    if retention == Retention():
        raise InvalidInput("a retention policy needs --keep-last, --keep-tagged or --keep-within")
    for number, name in ((retention.keep_last, "last"), (retention.keep_within_s, "within")):
        if number is not None and number < 1:
            raise InvalidInput(f"--keep-{name} takes 1 or more, not {number}")
    return retention


def encode_settings(repo: str, settings: RepoSettings) -> bytes:
    """Returns the document."""
    one, kept = settings.deletion, settings.retention
    retention = None
    if kept is not None:
        retention = _Retention(kept.keep_last, kept.keep_tagged, kept.keep_within_s)
    deletion = None if one is None else _Deletion(one.time_s, one.by, list(one.refs))
    body = _Body(
        repo=repo,
        sequence=settings.sequence,
        time_s=settings.time_s,
        deletion=deletion,
        retention=retention,
        may_lack_history=settings.may_lack_history,
        quota_size_bytes=settings.quota_size_bytes,
    )
    if not settings.former_names and (one is None or one.renaming is None):
        return seal(_KIND, VERSION, body)
    fields = msgspec.structs.asdict(body)
    if one is not None and deletion is not None:
        to = one.renaming
        renaming = None if to is None else _Renaming(to.to, to.until_s)
        fields["deletion"] = _DeletionNames(**msgspec.structs.asdict(deletion), renaming=renaming)
    names = _BodyNames(**fields, former_names=list(settings.former_names))
    return seal(_KIND, VERSION_NAMES, names)


def decode_settings(data: Buffer, repo: str, sequence: int, what: str) -> RepoSettings:
    """Returns the settings of a repository with that number. Raises: Corrupt, UnknownFormat;
    ``what`` names the document in these."""
    versions: dict[int, type[_Body | _BodyNames]] = {VERSION: _Body, VERSION_NAMES: _BodyNames}
    body = unseal(_KIND, versions, data, what)
    if (body.repo, body.sequence) != (repo, sequence):
        raise Corrupt(f"{what} belongs to {body.repo}, number {body.sequence}")
    try:
        return RepoSettings(
            sequence=sequence,
            time_s=body.time_s,
            deletion=_deletion(body.deletion),
            retention=_retention(body.retention),
            may_lack_history=body.may_lack_history,
            quota_size_bytes=body.quota_size_bytes,
            former_names=tuple(map(check_repo, getattr(body, "former_names", ()))),
        )
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error


def _deletion(body: _Deletion | None) -> Deletion | None:
    if body is None:
        return None
    renaming = body.renaming if isinstance(body, _DeletionNames) else None
    names = None if renaming is None else Renaming(check_repo(renaming.to), renaming.until_s)
    return Deletion(body.time_s, body.by, tuple(map(_ref, body.refs)), names)


def _retention(body: _Retention | None) -> Retention | None:
    if body is None:
        return None
    return check_retention(Retention(body.keep_last, body.keep_tagged, body.keep_within_s))


def _ref(ref: tuple[str, str]) -> tuple[str, str]:
    kind, name = ref
    if kind not in ("branches", "tags"):
        raise InvalidInput(f"{kind!r} is not a kind of ref")
    return kind, check_ref_name(name)
