"""Texts on terminals and in lines of logs: which characters are not safe there, and which escapes
replace them. Names of files may have any of them."""

from __future__ import annotations

import re

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Categories of characters that show nothing of their own
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# C0, DEL, C1, line and paragraph separators, and marks that reverse a line
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """Returns a text on one line, in which control and formatting characters, which could move the
    cursor, reverse the text or forge a line, are ``\\n``, ``\\x1b``, ``\\u202e``. Surrogates that
    stand for bytes (os.fsdecode) are ``\\xNN``. A backslash stays one: a text may quote names that
    are escaped already."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped_character(character) for character in text)


def _escaped_character(character: str) -> str:
    import unicodedata  # here, since few processes meet such a text, and all load this module

    if character in _SHORT:
        return _SHORT[character]
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a surrogate that stands for a byte
        return f"\\x{number - 0xDC00:02x}"
    if unicodedata.category(character) not in _HIDDEN:
        return character
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def has_controls(text: str) -> bool:
    """Whether a text of several lines has characters, besides tabs and line ends, that move a
    terminal's cursor or reverse a line. Joiners in emoji and other formatting characters do not."""
    plain = text.replace("\r\n", "").replace("\n", "").replace("\t", "")
    return _CONTROL.search(plain) is not None
