"""Decides what a push leaves out of a source directory, by patterns as in gitignore(5).

The only importer of pathspec, which translates the patterns. Its expressions also match everything
below a directory that matches. Here, as in git, each name is checked by itself: the contents of an
excluded directory are never checked, so they cannot be included again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, hexdigits, punctuation

from lodefs.chunkstore.errors import InvalidInput

FILE_NAME = b".lodefsignore"  # in any directory of a source, for all below it
SIZE_BYTES_MAX = 1 << 20  # limit for such a file
_BOM = b"\xef\xbb\xbf"
_PLACEHOLDERS_FROM = 0xE000  # no line, decoded as latin-1, has these characters
_PLACEHOLDER = re.compile("[^\x00-\xff]")
_DEEP = re.compile(r"(?:^!?|/)\*{2,}$")  # with an escaped slash, one directory or more
_MANY_STARS = re.compile(r"((?:^!?|/))\*{3,}(?=/[^/]|/?$)")  # a name that consists of stars
# The expressions that pathspec makes of *, of **/ at the beginning, and of /** before another name
_STAR, _BEGIN, _BETWEEN = "[^/]*", "(?:.+/)?", "(?:/.+)?"
_LAZY = {_BEGIN: "(?:.+?/)??", _BETWEEN: "(?:/.+?)??"}
_TOKEN = re.compile(
    "|".join((*map(re.escape, (_STAR, _BEGIN, _BETWEEN, "[^/]")), r"\\.", ".")), re.DOTALL
)
_ITSELF_OR_BELOW, _DIRECTORY_OR_BELOW = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    excludes: bool


class IgnorePatterns:
    """The patterns of one file or of the command line. Paths are relative to that directory."""

    def __init__(self, data: bytes) -> None:
        lines = data.removeprefix(_BOM).split(b"\n")
        found = [_compiled(line.removesuffix(b"\r").decode("latin-1")) for line in lines]
        self._patterns = [one for one in reversed(found) if one is not None]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._patterns)

    def verdict(self, path: bytes, *, is_directory: bool) -> bool | None:
        """Whether a path is excluded. The last pattern that matches decides; None if none does."""
        text = (path + b"/" if is_directory else path).decode("latin-1")  # patterns match bytes
        for pattern in self._patterns:
            if pattern.regex.search(text):
                return pattern.excludes
        return None


class IgnoreRules:
    """All patterns that apply to one scan. Directories are entered parents first."""

    def __init__(self, patterns: Sequence[bytes] = ()) -> None:
        self._first = IgnorePatterns(b"\n".join(patterns))
        self._files: list[tuple[bytes, IgnorePatterns]] = []  # for the directories above, by depth
        self.excluded = 0  # files and directories

    def enter(self, path: bytes, data: bytes | None) -> None:
        """Enters a directory. ``data`` is the content of its file of patterns, or None."""
        while self._files and not _is_below(path, self._files[-1][0]):
            self._files.pop()
        if data is not None and (patterns := IgnorePatterns(data)):
            self._files.append((path, patterns))

    def __bool__(self) -> bool:
        """Whether any patterns apply at the current directory."""
        return bool(self._first or self._files)

    def excludes(self, path: bytes, *, is_directory: bool) -> bool:
        """Whether a name in the directory that was entered last is left out. The command line takes
        precedence over files, and a deeper file over those above."""
        verdict = self._first.verdict(path, is_directory=is_directory)
        for above, patterns in reversed(self._files):
            if verdict is not None:
                break
            below = path[len(above) + 1 :] if above else path
            verdict = patterns.verdict(below, is_directory=is_directory)
        self.excluded += bool(verdict)
        return bool(verdict)


def check_patterns(lines: Iterable[bytes]) -> None:
    """Raises: InvalidInput for a pattern of the command line that can never match."""
    for line in lines:
        if b"\n" in line or _compiled(line.decode("latin-1")) is None:
            shown = line.decode("utf-8", "backslashreplace")
            raise InvalidInput(f"{shown!r} is a pattern that matches nothing: see gitignore(5)")


def _compiled(line: str) -> _Pattern | None:
    """Compiles a line. Returns None for a comment, and for what can never match (git ignores
    it)."""
    line = _without_last_spaces(line)
    if not line or line.startswith("#"):
        return None
    from pathspec.patterns.gitignore.base import GitIgnorePatternError  # few sources have patterns
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    if line.endswith("/**/"):
        line += "*/"  # matches what is below the directory, not the directory
    try:
        line, regexes = _with_placeholders(line)
        regex, excludes = GitIgnoreSpecPattern.pattern_to_regex(line)
    except (GitIgnorePatternError, NeverMatches):
        return None
    if regex is None or excludes is None:
        return None
    regex = regex.replace(_ITSELF_OR_BELOW, "/?$").replace(_DIRECTORY_OR_BELOW, "/$")
    if regex.endswith("/"):  # "foo/**" matches what is below
        regex += "."
    regex = _without_backtracking(regex)
    regex = _PLACEHOLDER.sub(lambda found: regexes[ord(found[0]) - _PLACEHOLDERS_FROM], regex)
    return _Pattern(re.compile(regex, re.DOTALL), excludes)


def _without_last_spaces(line: str) -> str:
    """Removes trailing spaces up to one that a backslash escapes. Other blanks stay."""
    left = line.rstrip(" ")
    is_escaped = (len(left) - len(left.rstrip("\\"))) % 2 == 1
    return line[: len(left) + 1] if is_escaped else left


def _with_placeholders(line: str) -> tuple[str, list[str]]:
    """Replaces what pathspec would read differently from git (brackets, and a blank at the end,
    which may be half of a character) with one placeholder character each. Returns the line and the
    expressions for the placeholders. A name of three or more stars becomes ``**``, and an escaped
    slash loses its backslash. Raises: NeverMatches."""
    parts, regexes, at, is_anchored = [""], list[str](), 0, False

    def placeholder(regex: str) -> str:
        regexes.append(regex)
        return chr(_PLACEHOLDERS_FROM + len(regexes) - 1)

    while at < len(line):
        end = at + (2 if line[at] == "\\" else 1)
        if line[at] == "[":
            matched, end = read_bracket(line, at)
            is_anchored = is_anchored or "/" in line[at:end]  # as any other slash does
            parts.append(placeholder(bracket_regex(matched)))
        elif line[at:end] == "\\/":
            if at == line.startswith("!") or end == len(line):
                raise NeverMatches
            is_deep = _DEEP.search("".join(parts)) is not None
            parts.append("/*/" if is_deep else "/")
        else:
            parts.append(line[at:end])
        at = end
    if parts[-1][-1:].isspace():
        parts[-1] = parts[-1][:-1] + placeholder(re.escape(parts[-1][-1]))
    text = _MANY_STARS.sub(r"\1**", "".join(parts))
    if is_anchored:
        mark = "!" if text.startswith("!") else ""
        text = f"{mark}/{text.removeprefix(mark).removeprefix('/')}"
    return text, regexes


def _without_backtracking(regex: str) -> str:
    """Returns an equivalent expression whose time grows with a path's length and not with a power
    of it.

    The text between one star and the next has a fixed length; so has the text after a ``**``, in
    names. Its first match is as good as any later one as long as another star follows, so it is put
    into an atomic group.
    """
    runs: list[tuple[str, list[str]]] = [("", [])]  # what a ** became, and the text after it
    for token in _TOKEN.findall(regex):
        if token in _LAZY:
            runs.append((token, []))
        else:
            runs[-1][1].append(token)
    *inner, (begin, last) = runs
    found = [
        f"(?>{_LAZY[begin]}{_names(tokens)}(?=/))" if begin else _names(tokens)
        for begin, tokens in inner
    ]
    return "".join((*found, begin, _names(last)))


def _names(tokens: Sequence[str]) -> str:
    text, parts = "", [""]  # of a name: the text between its stars
    for token in (*tokens, "/"):
        if token == _STAR:
            parts.append("")
        elif token != "/":
            parts[-1] += token
        else:
            first, *others = parts
            text += first
            if others:
                text += "".join(f"(?>[^/]*?{part})" for part in others[:-1]) + _STAR + others[-1]
            text, parts = text + "/", [""]
    return text[:-1]


def _is_below(path: bytes, above: bytes) -> bool:
    return not above or path.startswith(above + b"/")


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
    """A pattern cannot match, such as one with an unclosed bracket or an unknown class."""


def read_bracket(line: str, start: int) -> tuple[frozenset[int], int]:
    """Returns the bytes that the bracket at ``start`` of a latin-1 line matches, and where it ends.
    A slash is never among them. Raises: NeverMatches."""
    at = start + 1
    is_negated = line[at : at + 1] in ("!", "^")
    at += is_negated
    found: set[int] = set()
    first, previous = at, None  # previous: the possible beginning of a range
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


@lru_cache(maxsize=64)  # many lines have the same bracket
def bracket_regex(matched: frozenset[int]) -> str:
    """Returns an expression for one of these bytes, decoded as latin-1."""
    runs = groupby(enumerate(sorted(matched)), lambda pair: pair[1] - pair[0])
    ranges = [[char for _, char in run] for _, run in runs]
    inner = "".join(f"\\x{one[0]:02x}-\\x{one[-1]:02x}" for one in ranges)
    return f"[{inner}]" if inner else _NO_CHARACTER


def _char(line: str, at: int) -> str:
    if at >= len(line):
        raise NeverMatches
    return line[at]


def _literal(line: str, at: int) -> tuple[int, int]:
    """Returns a character, which a backslash may precede, and where it ends."""
    at += _char(line, at) == "\\"
    return ord(_char(line, at)), at + 1


def _class_name(line: str, at: int) -> str | None:
    """Returns the name in ``[:NAME:]``; None if the bracket is just one of the characters."""
    if line[at + 1 : at + 2] != ":":
        return None
    end = line.find("]", at + 2)
    if end < 0:
        raise NeverMatches
    inner = line[at + 2 : end]
    return inner[:-1] if inner.endswith(":") else None
