"""What of a source directory is not pushed: patterns in the grammar of gitignore(5).

The only importer of pathspec, which translates the patterns. Its expressions also match what lies
below a directory that matches; here each name is looked at by itself, as git does it: what is in an
excluded directory is never looked at, so it cannot be included again.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pathspec.patterns.gitignore.base import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from lodefs.chunkstore.errors import InvalidInput

FILE_NAME = b".lodefsignore"  # in any directory of a source; for all below
SIZE_BYTES_MAX = 1 << 20  # of such a file
_BOM = b"\xef\xbb\xbf"
# Without slashes, which no bracket matches, and without brackets and backslashes
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \t", "cntrl": "\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-.0-~", "lower": "a-z", "print": " -.0-~", "punct": "!-.:-@^-`{-~",
    "space": " \t-\r", "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip
_CLASS = re.compile(r"\[:([a-z]+):\]")
# What pathspec makes of *, of **/ at the beginning, and of /** before another name
_STAR, _BEGIN, _BETWEEN = "[^/]*", "(?:.+/)?", "(?:/.+)?"
_LAZY = {_BEGIN: "(?:.+?/)??", _BETWEEN: "(?:/.+?)??"}
_BRACKET = r"\[\^?\]?[^]]*\]"
_TOKEN = re.compile(
    "|".join(
        (*map(re.escape, (_STAR, _BEGIN, _BETWEEN)), rf"(?:\(\?!/\))?{_BRACKET}", r"\\.", ".")
    ),
    re.DOTALL,
)
_ITSELF_OR_BELOW, _DIRECTORY_OR_BELOW = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    excludes: bool


class IgnorePatterns:
    """The patterns of one file, or of the command line. Paths are relative to where that lies."""

    def __init__(self, data: bytes) -> None:
        lines = data.removeprefix(_BOM).split(b"\n")
        found = [_compiled(line.removesuffix(b"\r").decode("latin-1")) for line in lines]
        self._patterns = [one for one in reversed(found) if one is not None]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._patterns)

    def verdict(self, path: bytes, *, is_directory: bool) -> bool | None:
        """Whether a path is excluded; None if no pattern matches. The last one that does counts."""
        text = (path + b"/" if is_directory else path).decode("latin-1")  # patterns match bytes
        for pattern in self._patterns:
            if pattern.regex.search(text):
                return pattern.excludes
        return None


class IgnoreRules:
    """All patterns that hold for one scan. Directories are entered parents first."""

    def __init__(self, patterns: Sequence[bytes] = ()) -> None:
        self._first = IgnorePatterns(b"\n".join(patterns))
        self._files: list[tuple[bytes, IgnorePatterns]] = []  # of the directories above, by depth
        self.excluded = 0  # files and directories

    def enter(self, path: bytes, data: bytes | None) -> None:
        """The scan came to a directory, which has a file of patterns with ``data``, or none."""
        while self._files and not _is_below(path, self._files[-1][0]):
            self._files.pop()
        if data is not None and (patterns := IgnorePatterns(data)):
            self._files.append((path, patterns))

    def __bool__(self) -> bool:
        """Whether any patterns hold where the scan is."""
        return bool(self._first or self._files)

    def excludes(self, path: bytes, *, is_directory: bool) -> bool:
        """Whether something in the directory that was entered last is left out. The command line
        counts before files, and a deeper file before those above."""
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
        is_comment = not line.strip() or line.startswith(b"#")
        if b"\n" in line or is_comment or _compiled(line.decode("latin-1")) is None:
            shown = line.decode("utf-8", "backslashreplace")
            raise InvalidInput(f"{shown!r} is no pattern that matches anything: see gitignore(5)")


def _compiled(line: str) -> _Pattern | None:
    """A line; None of a comment, and of what can never match, which git ignores too."""
    if line.endswith("/**/"):
        line += "*/"  # below the directory, not itself
    line = _CLASS.sub(_without_class, line)
    try:
        regex, excludes = GitIgnoreSpecPattern.pattern_to_regex(line)
        if regex is None or excludes is None:
            return None
        regex = regex.replace(_ITSELF_OR_BELOW, "/?$").replace(_DIRECTORY_OR_BELOW, "/$")
        if regex.endswith("/"):  # of "foo/**": what is below
            regex += "."
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[" may mean something else some day
            regex = _without_backtracking(_without_slashes(regex))
            return _Pattern(re.compile(regex, re.DOTALL), excludes)
    except (GitIgnorePatternError, re.error):
        return None


def _without_slashes(regex: str) -> str:
    """No bracket matches a slash, for git."""
    tokens = _TOKEN.findall(regex)
    return "".join(f"(?!/){t}" if t[0] == "[" and t not in (_STAR, "[^/]") else t for t in tokens)


def _without_backtracking(regex: str) -> str:
    """The same, in a time that grows with a path's length and not with a power of it.

    What follows a star, up to the next, has a fixed length; so has what follows a ``**``, in names.
    Its first place is as good as any later one, as long as another star comes: an atomic group.
    """
    runs: list[tuple[str, list[str]]] = [("", [])]  # what a ** became, and what follows it
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
    text, parts = "", [""]  # of a name: what is between its stars
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


def _without_class(match: re.Match[str]) -> str:
    """``[:alpha:]`` inside brackets as the ranges that it is, of ASCII."""
    before = _CLASS.sub("", match.string[: match.start()])
    is_inside = before.rfind("[") > before.rfind("]")
    return _CLASSES.get(match[1], match[0]) if is_inside else match[0]


def _is_below(path: bytes, above: bytes) -> bool:
    return not above or path.startswith(above + b"/")
