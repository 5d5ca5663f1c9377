"""The differences between two texts, by line, as ``diff -u`` shows them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.system.safe_text import has_controls

if TYPE_CHECKING:  # a process that compares two texts needs no store
    from lodefs.chunkstore.repo.history import Change
    from lodefs.chunkstore.repo.pack_reader import PackReader

SIZE_BYTES_MAX = 1024 * 1024  # limit for each of two files
CONTEXT = 3  # lines around a change
PAIRS_MAX = 10_000  # limit for comparing each line with each, if no line is unique


class ContentDiff(NamedTuple):
    """The lines of a patch; or why there are none: "binary" or "large"."""

    lines: list[str]
    not_shown: str = ""


def content_diff(packs: PackReader, change: Change) -> ContentDiff:
    """Returns what a change does to the content of a file or symlink. It reads files of at most
    SIZE_BYTES_MAX, if both sides are files. Raises: Corrupt; what the store raises."""
    sides = change.before, change.after
    if any(side is not None and _size_bytes(side) > SIZE_BYTES_MAX for side in sides):
        return ContentDiff([], "large")
    before, after = (b"" if side is None else _content(packs, side) for side in sides)
    return text_diff(before, after)


def text_diff(before: bytes, after: bytes) -> ContentDiff:
    """Returns the differences between two contents. A missing one is b""."""
    old, new = _text(before), _text(after)
    if old is None or new is None:
        return ContentDiff([], "binary")
    return ContentDiff([*unified(_lines(old), _lines(new))])


def _size_bytes(side: TreeEntry) -> int:
    return side.size_bytes if side.kind is Kind.FILE else 0


def _content(packs: PackReader, side: TreeEntry) -> bytes:
    if side.kind is Kind.DIRECTORY:
        return b""
    return side.target if side.kind is Kind.SYMLINK else b"".join(packs.read_file(side))


def _text(content: bytes) -> str | None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if has_controls(text) else text


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class Edit(NamedTuple):
    """Lines of the old text, and the lines of the new text that replace them."""

    old_first: int
    old_end: int
    new_first: int
    new_end: int


def edits_of(old: Sequence[str], new: Sequence[str]) -> list[Edit]:
    """Returns the edits that make ``new`` of ``old``, in order. Lines that occur once on each side
    are matched first (a patience diff); what lies between is compared line by line if it is
    short."""
    found: list[Edit] = []
    stack = [Edit(0, len(old), 0, len(new))]
    while stack:
        at = _trimmed(old, new, stack.pop())
        old_count, new_count = at.old_end - at.old_first, at.new_end - at.new_first
        if not old_count and not new_count:
            continue
        anchors = _anchors(old, new, at)
        if anchors:
            stack += _between(at, anchors)
        elif old_count and new_count and old_count * new_count <= PAIRS_MAX:
            found += _compared(old, new, at)
        else:
            found.append(at)
    return sorted(found)


def _trimmed(old: Sequence[str], new: Sequence[str], at: Edit) -> Edit:
    """Removes what is equal at both ends."""
    a, b, c, d = at
    while a < b and c < d and old[a] == new[c]:
        a, c = a + 1, c + 1
    while a < b and c < d and old[b - 1] == new[d - 1]:
        b, d = b - 1, d - 1
    return Edit(a, b, c, d)


def _anchors(old: Sequence[str], new: Sequence[str], at: Edit) -> list[tuple[int, int]]:
    """Returns pairs of equal lines that occur once on each side: as many as keep their order."""
    counts = Counter(old[at.old_first : at.old_end]), Counter(new[at.new_first : at.new_end])
    places = {new[n]: n for n in range(at.new_first, at.new_end) if counts[1][new[n]] == 1}
    pairs = [
        (n, places[old[n]])
        for n in range(at.old_first, at.old_end)
        if counts[0][old[n]] == 1 and old[n] in places
    ]
    ends: list[int] = []  # the last place of the best row of each length
    last: list[int] = []  # the pair at that place
    before: list[int] = []  # for each pair, the one before it in its row
    for number, (_, place) in enumerate(pairs):
        size = bisect_left(ends, place)
        before.append(last[size - 1] if size else -1)
        ends[size : size + 1] = [place]
        last[size : size + 1] = [number]
    row: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        row.append(pairs[number])
        number = before[number]
    return row[::-1]


def _between(at: Edit, anchors: Sequence[tuple[int, int]]) -> Iterator[Edit]:
    first, start = at.old_first, at.new_first
    for old_place, new_place in [*anchors, (at.old_end, at.new_end)]:
        yield Edit(first, old_place, start, new_place)
        first, start = old_place + 1, new_place + 1


def _compared(old: Sequence[str], new: Sequence[str], at: Edit) -> Iterator[Edit]:
    a, b, c, d = at
    matcher = SequenceMatcher(None, old[a:b], new[c:d], autojunk=False)
    for what, *(i, j, k, n) in matcher.get_opcodes():
        if what != "equal":
            yield Edit(a + i, a + j, c + k, c + n)


def unified(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yields the hunks of a patch, line by line without line ends. The inputs have line ends."""
    for hunk in _hunks(edits_of(old, new)):
        first, last = hunk[0], hunk[-1]
        lead = min(CONTEXT, first.old_first)
        tail = min(CONTEXT, len(old) - last.old_end)
        old_part = _range(first.old_first - lead, last.old_end + tail)
        new_part = _range(first.new_first - lead, last.new_end + tail)
        yield f"@@ -{old_part} +{new_part} @@"
        place = first.old_first - lead
        for edit in hunk:
            yield from _marked(" ", old[place : edit.old_first])
            yield from _marked("-", old[edit.old_first : edit.old_end])
            yield from _marked("+", new[edit.new_first : edit.new_end])
            place = edit.old_end
        yield from _marked(" ", old[place : place + tail])


def _hunks(edits: Sequence[Edit]) -> Iterator[list[Edit]]:
    hunk: list[Edit] = []
    for edit in edits:
        if hunk and edit.old_first - hunk[-1].old_end > 2 * CONTEXT:
            yield hunk
            hunk = []
        hunk.append(edit)
    if hunk:
        yield hunk


def _range(first: int, end: int) -> str:
    count = end - first
    begin = first + 1 if count else first
    return f"{begin}" if count == 1 else f"{begin},{count}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"
