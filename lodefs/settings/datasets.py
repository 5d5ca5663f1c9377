"""Datasets and their directories in the form that jobs use,
``REPO[@REV][:PATH]:DIR[:rw[=BRANCH]]``, and lists of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, check_new_ref_name, parse_spec

DATASETS_MAX = 64  # for one job, since each has processes of its own
VARIABLE = "LODEFS_DATASETS"
FORM = "REPO[@REV][:PATH]:DIR[:rw[=BRANCH]], with a DIR that begins with /, ./ or ../"
CommitWhen = Literal["on-success", "always", "never"]
ON_SUCCESS: CommitWhen = "on-success"
_COMMIT = "commit="
_WRITABLE = re.compile(r":rw(?:=([^:]+))?\Z")
# DIR follows the first such colon
_DIR = re.compile(r":(?=/|\.\.?/|\.\.?(?::rw(?:=[^:]+)?)?\Z)")
_PARTS = re.compile(r"(?:[^\\,\n]|\\.)+")


class Dataset(msgspec.Struct, frozen=True):
    """A dataset to mount, its directory as it was written, and whether it accepts changes.
    ``branch``: where a commit of the changes goes; "" if only the revision says so. ``when``: when
    to commit them; None if the list does not say."""

    spec: Spec
    directory: str
    is_writable: bool = False
    branch: str = ""
    when: CommitWhen | None = None

    def __str__(self) -> str:
        return f"{self.spec}:{self.directory}{self.suffix}"

    @property
    def suffix(self) -> str:
        """The suffix of a dataset that takes changes."""
        branch = f"={self.branch}" if self.branch else ""
        return f":rw{branch}" if self.is_writable else ""


def is_dataset(words: str) -> bool:
    """Whether a word has the form of a dataset, which a command rarely has."""
    return bool(_DIR.search(words)) and not words.startswith(("/", "."))


def parse(words: str) -> Dataset:
    """Parses one dataset. Raises: InvalidInput."""
    found = _DIR.search(words)
    if found is None:
        raise InvalidInput(f"{words!r} names no directory: write {FORM}")
    rest = words[found.end() :]
    changes = _WRITABLE.search(rest)
    directory = rest[: changes.start()] if changes else rest
    if "\0" in directory or "\n" in directory:
        raise InvalidInput(f"{words!r}: the name of the directory contains a line break or NUL")
    spec = parse_spec(os.fsencode(words[: found.start()]))
    branch = (changes[1] or "") if changes else ""
    if branch:
        check_new_ref_name(branch)
    return Dataset(spec, directory, changes is not None, branch)


def parse_list(words: str) -> list[Dataset]:
    """Parses a list separated by commas or line breaks. In a name, ``\\,`` is a comma and ``\\\\``
    a backslash. Blanks around each dataset are ignored. ``commit=WHEN`` in the list is for all
    datasets that accept changes. Raises: InvalidInput, also for a relative DIR."""
    parts = [re.sub(r"\\(.)", r"\1", part.strip()) for part in _PARTS.findall(words)]
    found = [parse(part) for part in parts if part and not part.startswith(_COMMIT)]
    for dataset in found:
        if not dataset.directory.startswith("/"):
            raise InvalidInput(f"{VARIABLE}: {dataset}: the directory must begin with /")
    said = [part.removeprefix(_COMMIT) for part in parts if part.startswith(_COMMIT)]
    if not said:
        return found
    when = _when(said)
    if not any(dataset.is_writable for dataset in found):
        raise InvalidInput(
            f"{_COMMIT}{when} is for a dataset that takes changes: REPO@BRANCH:DIR:rw"
        )
    return [
        msgspec.structs.replace(dataset, when=when) if dataset.is_writable else dataset
        for dataset in found
    ]


def written(datasets: Sequence[Dataset]) -> str:
    """Returns a list that ``parse_list`` reads again."""
    words = [f"{_named(one.spec)}:{one.directory}{one.suffix}" for one in datasets]
    words += sorted({f"{_COMMIT}{one.when}" for one in datasets if one.when is not None})
    return ",".join(word.replace("\\", "\\\\").replace(",", "\\,") for word in words)


def _named(spec: Spec) -> str:
    return f"{spec.repo}@{spec.rev}" + (f":{os.fsdecode(spec.path)}" if spec.path else "")


def _when(said: Sequence[str]) -> CommitWhen:
    found: dict[str, CommitWhen] = {one: one for one in get_args(CommitWhen)}
    if len(said) > 1 or said[0] not in found:
        raise InvalidInput(
            f"{_COMMIT}{f',{_COMMIT}'.join(said)}: write one of {', '.join(found)}, once"
        )
    return found[said[0]]


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
