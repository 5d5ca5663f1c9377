"""Reads TOML files of settings, checks their values, and reports mistakes with file and line.

Each setting has one Reader, which checks its value. Values keep their TOML types: "7" is not a
number, and "yes" is not a truth value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound


def read_text(path: Path) -> str:
    """Returns the text of a file. Raises: NotFound, Denied, InvalidInput, with the file's name."""
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


def parse_document(text: str, path: str) -> dict[str, object]:
    """Returns the tables and values in a text. Raises: InvalidInput."""
    import tomllib  # here: most machines that run a command have no file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path}: {error}{_quoting_hint(text, str(error))}") from None
    except RecursionError:
        raise InvalidInput(f"{path}: the file is nested too deeply") from None


def _quoting_hint(text: str, error: str) -> str:
    """Returns the correct form of a line that tomllib rejects because its quotes are missing."""
    place = re.search(r"at line (\d+)", error)
    if place is None:
        return ""
    line = text.splitlines()[int(place[1]) - 1]
    found = _UNQUOTED.match(line)
    if found is None:
        return ""
    key, value = found.groups()
    return f"; texts need quotes: {key} = {formatted(value)}"


Reader = Callable[[object], object]  # checks a value of a file; raises InvalidInput
FORMATTED_CHARS_MAX = 60
_UNQUOTED = re.compile(r"\s*([\w.-]+)\s*=\s*([^\s\"'\[{#][^\"'#]*?)\s*(?:#.*)?$")


def read_values(
    table: Mapping[str, object], readers: Mapping[str, Reader], prefix: str = ""
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Returns the valid settings of a table, and (key, what is wrong) for each other setting. Keys
    get ``prefix``."""
    found: dict[str, Any] = {}
    mistakes: list[tuple[str, str]] = []
    for name, value in table.items():
        key = f"{prefix}{name}"
        reader = readers.get(name)
        if reader is None:
            mistakes.append((key, f"there is no such setting{_did_you_mean(name, readers)}"))
            continue
        try:
            found[key] = reader(value)
        except InvalidInput as error:
            message = str(error)
            given = f", not {formatted(value)}" if message.startswith("must ") else ""
            mistakes.append((key, message + given))
    return found, mistakes


def formatted(value: object) -> str:
    """Returns a value as it stands in a file, shortened."""
    import json

    message = json.dumps(value, ensure_ascii=False, default=str)
    return message if len(message) <= FORMATTED_CHARS_MAX else f"{message[:FORMATTED_CHARS_MAX]}…"


def _did_you_mean(name: str, readers: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, readers, n=1)
    return f"; is {near[0]} meant?" if near else ""


def text(value: object) -> str:
    """Implements Reader for texts that must not be empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidInput("must be a text that is not empty")
    return value


def flag(value: object) -> bool:
    """Implements Reader for truth values."""
    if not isinstance(value, bool):
        raise InvalidInput("must be true or false")
    return value


def seconds(least: float, most: float) -> Callable[[object], float]:
    """Returns a Reader of numbers of seconds."""

    def read(value: object) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # type: ignore[operator]
            raise InvalidInput(f"must be a number of seconds from {least:g} to {most:g}")
        return float(value)  # type: ignore[arg-type]

    return read


def error_for(text: str, path: str, mistakes: Iterable[tuple[str, str]]) -> InvalidInput:
    """Returns one error for all mistakes; each is a key and what is wrong with it."""
    places = [f"{path}:{line_of(text, key)}: {key}: {what}" for key, what in mistakes]
    return InvalidInput("; ".join(places))


def line_of(text: str, key: str) -> int:
    """Returns the line, from 1, of a key or table in a TOML text; 1 if it is not found."""
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
