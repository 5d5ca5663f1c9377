"""TOML files of settings: read, their values checked, and their mistakes told with file and line.

What a value must be is said once for each setting, by a Reader; here it is decided what becomes of
one that is something else. TOML has types: "7" is no number, and "yes" no truth value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound


def read_text(path: Path) -> str:
    """The text of a file. NotFound, Denied, InvalidInput name it."""
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{path}: no such file") from None
    except PermissionError:
        raise Denied(f"{path}: this user may not read it") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: not UTF-8") from None
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None


def document(text: str, path: str) -> dict[str, object]:
    """The tables and values of a text. InvalidInput."""
    import tomllib  # here, because most machines that run a command have no file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path}: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{path}: it is nested too deeply") from None


Reader = Callable[[object], object]  # a value, from what stands in a file; InvalidInput
SHOWN_CHARS_MAX = 60


def values(
    table: Mapping[str, object], readers: Mapping[str, Reader], prefix: str = ""
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The settings of a table, and (key, what is wrong) of those that are none. Keys with
    ``prefix``."""
    found: dict[str, Any] = {}
    mistakes: list[tuple[str, str]] = []
    for name, value in table.items():
        key = f"{prefix}{name}"
        reader = readers.get(name)
        if reader is None:
            mistakes.append((key, f"there is no such setting{_meant(name, readers)}"))
            continue
        try:
            found[key] = reader(value)
        except InvalidInput as error:
            told = str(error)
            given = f", not {shown(value)}" if told.startswith("must ") else ""
            mistakes.append((key, told + given))
    return found, mistakes


def shown(value: object) -> str:
    """A value as it stands in a file, not too long."""
    import json

    told = json.dumps(value, ensure_ascii=False, default=str)
    return told if len(told) <= SHOWN_CHARS_MAX else f"{told[:SHOWN_CHARS_MAX]}…"


def _meant(name: str, readers: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, readers, n=1)
    return f"; is {near[0]} meant?" if near else ""


def text(value: object) -> str:
    """A Reader of texts that are not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidInput("must be a text that is not empty")
    return value


def flag(value: object) -> bool:
    """A Reader of truth values."""
    if not isinstance(value, bool):
        raise InvalidInput("must be true or false")
    return value


def seconds(least: float, most: float) -> Callable[[object], float]:
    """A Reader of numbers of seconds."""

    def read(value: object) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # type: ignore[operator]
            raise InvalidInput(f"must be a number of seconds from {least:g} to {most:g}")
        return float(value)  # type: ignore[arg-type]

    return read


def complaint(text: str, path: str, mistakes: Iterable[tuple[str, str]]) -> InvalidInput:
    """All mistakes, each a key and what is wrong with it, as one error."""
    places = [f"{path}:{line_of(text, key)}: {key}: {what}" for key, what in mistakes]
    return InvalidInput("; ".join(places))


def line_of(text: str, key: str) -> int:
    """The line, from 1, on which a key or table of a TOML text stands; 1 where it is not found."""
    table, dot, name = key.rpartition(".")
    inside = not dot
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\]]+?)\s*\]", line)
        if header:
            inside = header[1] == table
            if header[1] == key:
                return number
        elif re.match(rf"\s*[\"']?{re.escape(name if inside else key)}[\"']?\s*[=.]", line):
            return number
    return 1
