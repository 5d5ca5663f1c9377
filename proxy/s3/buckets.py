"""Buckets: maps buckets and keys to the contents of a store.

One bucket is the whole store, with keys REPO@REV/PATH. Others, which the settings name, are each a
revision, or a directory of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, check_repo, check_revision, split_path
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.forwarding import OtherS3

STORE_BUCKET = "lodefs"


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Settings of the S3 interface. ``domain``: hosts below it name buckets. ``other``: the S3 of
    buckets that are not named here; None: none. ``withheld``: the bucket in which the store lies.
    It is never passed on, since its objects belong to all repositories."""

    bucket: str = STORE_BUCKET
    aliases: Mapping[str, Spec] = field(default_factory=dict)
    domain: str = ""
    other: OtherS3 | None = None
    withheld: str = ""

    def is_other(self, bucket: str) -> bool:
        """Whether a bucket may belong to the other S3."""
        own = bucket in (self.bucket, self.withheld) or bucket in self.aliases
        return self.other is not None and not own


class ObjectPlace(NamedTuple):
    """A path in a revision of a repository."""

    repo: str
    rev: str
    path: bytes


class Root(NamedTuple):
    """A revision, or a directory of it, as a part of a bucket: its keys begin with ``key``."""

    repo: str
    rev: str
    directory: bytes = b""
    key: bytes = b""


def split_key(key: bytes) -> tuple[str, str, bytes] | None:
    """Splits a key REPO@REV/REST into repository, revision and rest; returns None for other
    keys."""
    raw_repo, at, tail = key.partition(b"@")
    raw_rev, slash, rest = tail.partition(b"/")
    if not at or not slash:
        return None
    try:
        return check_repo(raw_repo.decode()), check_revision(raw_rev.decode()), rest
    except (InvalidInput, UnicodeDecodeError):
        return None


def root_of(settings: S3Settings, bucket: str, key: bytes) -> Root | None:
    """Returns the part of a bucket that contains a key or a prefix of keys; None if none does, or
    several may. Raises: S3Error if there is no such bucket."""
    alias = settings.aliases.get(bucket)
    if alias is not None:
        return Root(alias.repo, alias.rev, alias.path)
    if bucket != settings.bucket:
        raise no_such_bucket(bucket)
    found = split_key(key)
    if found is None:
        return None
    repo, rev, rest = found
    return Root(repo, rev, b"", key[: len(key) - len(rest)])


def place_of(settings: S3Settings, bucket: str, key: bytes) -> ObjectPlace:
    """Returns the path that a key names. Raises: S3Error for an impossible key."""
    root = root_of(settings, bucket, key)
    if root is None:
        raise no_such_key(key, "keys of this bucket are REPO@REV/PATH")
    path = key[len(root.key) :]
    try:
        path.decode()
        exact = path and b"/".join(split_path(path)) == path
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "couldn't parse the specified URI: keys are UTF-8") from None
    except InvalidInput:
        exact = False
    if not exact:
        raise no_such_key(key)
    return ObjectPlace(
        root.repo, root.rev, root.directory + b"/" + path if root.directory else path
    )


def no_such_key(key: bytes, why: str = "the specified key does not exist") -> S3Error:
    return S3Error("NoSuchKey", why, more=(("Key", key.decode("utf-8", "replace")),))


def no_such_bucket(bucket: str) -> S3Error:
    what = "the specified bucket does not exist"
    return S3Error("NoSuchBucket", what, more=(("BucketName", bucket),))
