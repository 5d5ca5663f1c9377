"""Brackets in a pattern: which characters one matches, as git's wildmatch.c reads it (2.39)."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, hexdigits, punctuation

_CLASSES = {
    name: frozenset(chars.encode())
    for name, chars in {
        "alnum": ascii_letters + digits, "alpha": ascii_letters, "blank": " \t",
        "cntrl": "".join(map(chr, range(32))) + "\x7f", "digit": digits,
        "graph": ascii_letters + digits + punctuation, "lower": ascii_lowercase,
        "print": ascii_letters + digits + punctuation + " ", "punct": punctuation,
        "space": " \t\n\r", "upper": ascii_uppercase, "xdigit": hexdigits,
    }.items()
}  # fmt: skip
_ALL = frozenset(range(256))
_NO_CHARACTER = "(?!)"


class NeverMatches(Exception):
    """A pattern cannot match, such as one whose bracket is not closed, or names no class."""


def read_bracket(line: str, start: int) -> tuple[frozenset[int], int]:
    """The bytes that the bracket at ``start`` of a latin-1 line matches, and where it ends. A slash
    is never among them. Raises: NeverMatches."""
    at = start + 1
    is_negated = line[at : at + 1] in ("!", "^")
    at += is_negated
    found: set[int] = set()
    first, previous = at, None  # previous: what a range may begin with
    while (char := _char(line, at)) != "]" or at == first:
        if char == "-" and previous is not None and _char(line, at + 1) != "]":
            end, at = _literal(line, at + 1)
            found.update(range(previous, end + 1))
            previous = None
        elif char == "[" and (name := _class_name(line, at)) is not None:
            if name not in _CLASSES:
                raise NeverMatches
            found |= _CLASSES[name]
            at += len(name) + 4
            previous = None
        else:
            previous, at = _literal(line, at)
            found.add(previous)
    matched = _ALL - found if is_negated else frozenset(found)
    return matched - {ord("/")}, at + 1


@lru_cache(maxsize=64)  # many lines have the same
def bracket_regex(matched: frozenset[int]) -> str:
    """An expression for one of these bytes, decoded as latin-1."""
    runs = groupby(enumerate(sorted(matched)), lambda pair: pair[1] - pair[0])
    ranges = [[char for _, char in run] for _, run in runs]
    inner = "".join(f"\\x{one[0]:02x}-\\x{one[-1]:02x}" for one in ranges)
    return f"[{inner}]" if inner else _NO_CHARACTER


def _char(line: str, at: int) -> str:
    if at >= len(line):
        raise NeverMatches
    return line[at]


def _literal(line: str, at: int) -> tuple[int, int]:
    """A character, which a backslash may stand before, and where it ends."""
    at += _char(line, at) == "\\"
    return ord(_char(line, at)), at + 1


def _class_name(line: str, at: int) -> str | None:
    """Of ``[:NAME:]``; None if it is none, but a bracket among the characters."""
    if line[at + 1 : at + 2] != ":":
        return None
    end = line.find("]", at + 2)
    if end < 0:
        raise NeverMatches
    inner = line[at + 2 : end]
    return inner[:-1] if inner.endswith(":") else None
