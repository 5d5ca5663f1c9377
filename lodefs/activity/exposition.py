"""Reads the text that /metrics answers with.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n"}


class Sample(NamedTuple):
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """The samples of a text; lines that are none are left out."""
    for line in text.split("\n"):  # not splitlines: a label may hold U+2028
        if line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield Sample(match[1], _labels(match[2] or ""), value)


def _labels(text: str) -> dict[str, str]:
    return {
        name: _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), value)
        for name, value in _LABEL.findall(text)
    }
