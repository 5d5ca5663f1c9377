"""TOML files of settings: read, and their mistakes told with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from chunkstore.errors import Denied, InvalidInput, NotFound


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
