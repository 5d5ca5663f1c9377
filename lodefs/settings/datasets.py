"""Datasets and their directories in the form that jobs use, ``REPO[@REV][:PATH]:DIR[:rw]``, and
lists of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, parse_spec

DATASETS_MAX = 64  # for one job, since each has processes of its own
VARIABLE = "LODEFS_DATASETS"
FORM = "REPO[@REV][:PATH]:DIR[:rw], with a DIR that begins with /, ./ or ../"
_WRITABLE = ":rw"
_DIR = re.compile(r":(?=/|\.\.?/|\.\.?(?::rw)?\Z)")  # DIR follows the first such colon
_PARTS = re.compile(r"(?:[^\\,\n]|\\.)+")


class Dataset(msgspec.Struct, frozen=True):
    """What to mount, the directory as it was written, and whether it accepts changes."""

    spec: Spec
    directory: str
    is_writable: bool = False

    def __str__(self) -> str:
        return f"{self.spec}:{self.directory}{_WRITABLE if self.is_writable else ''}"


def is_dataset(words: str) -> bool:
    """Whether a word has the form of a dataset, which a command rarely has."""
    return bool(_DIR.search(words)) and not words.startswith(("/", "."))


def parse(words: str) -> Dataset:
    """Parses one dataset. Raises: InvalidInput."""
    found = _DIR.search(words)
    if found is None:
        raise InvalidInput(f"{words!r} names no directory: write {FORM}")
    directory = words[found.end() :].removesuffix(_WRITABLE)
    if "\0" in directory or "\n" in directory:
        raise InvalidInput(f"{words!r}: the name of the directory contains a line break or NUL")
    spec = parse_spec(os.fsencode(words[: found.start()]))
    return Dataset(spec, directory, words.endswith(_WRITABLE))


def parse_list(words: str) -> list[Dataset]:
    """Parses a list separated by commas or line breaks. In a name, ``\\,`` is a comma and ``\\\\``
    a backslash. Blanks around each dataset are ignored. Raises: InvalidInput, also for a relative
    DIR and for a dataset that accepts changes."""
    parts = (re.sub(r"\\(.)", r"\1", part.strip()) for part in _PARTS.findall(words))
    found = [parse(part) for part in parts if part]
    for dataset in found:
        if not dataset.directory.startswith("/"):
            raise InvalidInput(f"{VARIABLE}: {dataset}: the directory must begin with /")
        if dataset.is_writable:
            raise InvalidInput(
                f"{dataset}: only `lodefs run` accepts changes to datasets ({_WRITABLE})"
            )
    return found


def check_places(places: Sequence[tuple[str, Dataset]]) -> None:
    """Raises InvalidInput if there are too many datasets, or if the directory of one is that of
    another or lies in it. Directories are absolute paths without symlinks."""
    if len(places) > DATASETS_MAX:
        raise InvalidInput(
            f"{len(places)} datasets for one job: the limit is {DATASETS_MAX}; mount a directory "
            "that holds several, or push them as one repository"
        )
    for number, (one, dataset) in enumerate(places):
        for other, former in places[:number]:
            if one == other:
                raise InvalidInput(f"{dataset} and {former} have the same directory: {one}")
            if one.startswith(f"{other}/") or other.startswith(f"{one}/"):
                raise InvalidInput(
                    f"{dataset} and {former}: one directory lies in the other, and a mount hides "
                    "what is below it"
                )
