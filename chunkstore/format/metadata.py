"""Metadata of a commit: keys and values, such as where its data comes from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

from lodefs.chunkstore.errors import InvalidInput

CHARS_MAX = 32 * 1024  # for all keys and values of a commit together
KEY_CHARS_MAX = 100
Metadata = tuple[tuple[str, str], ...]  # by key

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")
# Control characters, surrogates, line separators
_FOR_ONE_LINE = frozenset(("Cc", "Cs", "Zl", "Zp"))
_RESERVED = frozenset(
    [
        "commit",
        "root",
        "parents",
        "author",
        "time_s",
        "message",
        "files",
        "directories",
        "size_bytes",
        "large",
        "metadata",
        "branches",
        "tags",
    ]
)
_RESERVED_BEGINNING = "lodefs"


def new_metadata(given: Mapping[str, str] | Iterable[str]) -> Metadata:
    """Returns the metadata of a new commit, from a mapping or from texts ``KEY=VALUE``. Raises:
    InvalidInput, which names the key, also for keys that lodefs reserves."""
    pairs = [*given.items()] if isinstance(given, Mapping) else [_pair(one) for one in given]
    found: dict[str, str] = {}
    for key, value in pairs:
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"metadata {key!s}: keys and values are texts")
        if key.lower() in _RESERVED or key.lower().startswith(_RESERVED_BEGINNING):
            raise InvalidInput(f"metadata {key}: lodefs reserves this key: choose another one")
        if key in found:
            raise InvalidInput(f"metadata {key} is given twice")
        found[key] = value
    return check_metadata(found)


def check_metadata(metadata: Mapping[str, str]) -> Metadata:
    """Returns the metadata ordered by key. Raises: InvalidInput for what no commit can have."""
    for key, value in metadata.items():
        if len(key) > KEY_CHARS_MAX or not _KEY.match(key):
            raise InvalidInput(
                f"metadata {key[:KEY_CHARS_MAX]!r}: a key has letters, digits, '.', '_', '/' and "
                f"'-', at most {KEY_CHARS_MAX}"
            )
        if any(unicodedata.category(character) in _FOR_ONE_LINE for character in value):
            raise InvalidInput(
                f"metadata {key}: a value is one line of Unicode text without control characters; "
                "put longer texts into a file of the dataset"
            )
    if sum(map(len, metadata)) + sum(map(len, metadata.values())) > CHARS_MAX:
        raise InvalidInput(
            f"metadata {', '.join(metadata)[:KEY_CHARS_MAX]}: keys and values have more than "
            f"{CHARS_MAX:,} characters together; put longer texts into a file of the dataset"
        )
    return tuple(sorted(metadata.items()))


def fits(metadata: Metadata, wanted: Iterable[str]) -> bool:
    """Whether metadata has everything in ``wanted``: ``KEY=VALUE``, or ``KEY`` with any value."""
    known = dict(metadata)
    for one in wanted:
        key, equals, value = one.partition("=")
        if key not in known or (equals and known[key] != value):
            return False
    return True


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"metadata {text[:KEY_CHARS_MAX]!r} has no value: write KEY=VALUE")
    return key, value
