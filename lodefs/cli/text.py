"""Shows names, sizes and times to people, and names to scripts."""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes

from lodefs.chunkstore.errors import Corrupt, LodefsError
from lodefs.chunkstore.system import safe_text
from lodefs.chunkstore.system.durations import utc_text

_ID = r"([0-9a-f]{12})[0-9a-f]{52}"
_KEYS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (rf"\bpacks/[0-9a-f]{{2}}/{_ID}", r"pack \1"),
        (rf"\brepos/(\S+)/(?:commits|refs/expired)/{_ID}", r"commit \2 of \1"),
        (r"\brepos/(\S+)/refs/branches/([^/\s]+)/\d{10}\b", r"branch \2 of \1"),
        (r"\brepos/(\S+)/refs/tags/([^/\s]+)/\d{10}\b", r"tag \2 of \1"),
        (r"\brepos/(\S+)/refs/_settings/\d{10}\b", r"the settings of \1"),
        (r"\bjournal/(?:\w+/\d{10}|ledger)\b", "the store's journal"),
        (r"\bindex/[0-9a-f]+-[0-9a-f]+(?:-g\d+)?\b", "an index shard"),
        (r"\bcomposites/(?:data|tables)/[0-9a-f-]+\b", "a composite"),
        (rf"\b(pack|chunk|commit) {_ID}", r"\1 \2"),
    )
)
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def escaped(name: bytes | str) -> str:
    """Returns a name (bytes) or a text in a form that is safe on a terminal, on one line: see
    safe_text. In names, a backslash becomes two, so that no two names look alike."""
    if isinstance(name, bytes):
        name = name.decode("utf-8", "surrogateescape").replace("\\", "\\\\")
    return safe_text.escaped(name)


def without_keys(message: str) -> str:
    """Returns an error's message in the words of the glossary. Keys of objects and whole ids of
    packs and chunks are left out: they help only those who look into the store (LODEFS_DEBUG)."""
    for pattern, words in _KEYS:
        message = pattern.sub(words, message)
    return message


def way_out(error: LodefsError) -> list[str]:
    """Returns the remedy for a damaged object of the store, unless the error says it."""
    told = str(error)
    if isinstance(error, Corrupt) and without_keys(told) != told and "`lodefs " not in told:
        return ["`lodefs repair` says what else is damaged, and puts it back"]
    return []


def escaped_lines(text: str) -> list[str]:
    """Returns the lines of a longer text, such as a commit's message, each safe on a terminal."""
    return [escaped(line) for line in text.splitlines()]


def percent_encoded(path: bytes) -> str:
    """Returns a path for JSON, percent-encoded as in the proxy's URLs, so that any bytes
    survive."""
    return quote_from_bytes(path)


def size(size_bytes: int) -> str:
    """``17 B``, ``3.2 MiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _UNITS:
        value /= 1024
        if value < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def count(number: int, what: str) -> str:
    """Returns ``1 file``, ``17,614 files``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def time(time_s: int) -> str:
    """Returns a Unix time as ``2024-05-01 12:00:00 UTC``, or the number if no calendar has it."""
    return utc_text(time_s)
