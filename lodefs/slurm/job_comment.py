"""A job's comment, which contains its datasets: ``[TEXT ]lodefs=LIST``, of
``REPO@COMMIT[:PATH]:DIR[:rw=BRANCH]`` and ``commit=WHEN``. Pure.

Slurm keeps the comment with the job: all its nodes, tasks of its array and requeues have the same,
and ``scontrol show job`` shows it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.datasets import DATASETS_MAX, Dataset, check_places, parse_list, written

COMMENT_BYTES_MAX = 16384
DIRECTORY_BYTES_MAX, DIRECTORY_NAMES_MAX = 1024, 32  # a node creates all of them, in /run
_TOO_LONG = (
    f"too many datasets, or names too long, for a job's comment: a job has {DATASETS_MAX} datasets "
    f"at most, and their list {COMMENT_BYTES_MAX:,} bytes"
)
_MARK = re.compile(r"(?:\A|(?<=\s))lodefs=")
_COMMIT = re.compile(r"[0-9a-f]{64}")
# Programs of root read these; a job that could cover them would choose what root reads.
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "run")
SYSTEM_DIRECTORIES = tuple(f"/{name}" for name in (*_SYSTEM, "sbin", "sys", "usr", "var"))
_EXCEPT = ("/var/tmp", "/var/scratch")


def datasets_in(comment: str) -> list[Dataset]:
    """Returns the datasets in a comment, with plain directories; none if it does not name lodefs.
    Raises: InvalidInput, also for directories that no job may use."""
    found = _MARK.search(comment)
    return parsed(comment[found.end() :]) if found else []


def parsed(words: str) -> list[Dataset]:
    """Returns a list ``REPO[@REV][:PATH]:DIR[,...]`` with plain directories. Raises:
    InvalidInput."""
    if len(os.fsencode(words)) > COMMENT_BYTES_MAX:
        raise InvalidInput(_TOO_LONG)
    datasets = [_plain(dataset) for dataset in parse_list(words)]
    if not datasets:
        raise InvalidInput("no dataset is named: write REPO@REV:DIR")
    check_places([(dataset.directory, dataset) for dataset in datasets])
    return datasets


def with_datasets(comment: str, datasets: Sequence[Dataset]) -> str:
    """Returns the comment with exactly these datasets. Raises: InvalidInput (too long)."""
    found = _MARK.search(comment)
    text = (comment[: found.start()] if found else comment).strip()
    whole = f"{text} lodefs={written(datasets)}".strip()
    if len(os.fsencode(whole)) > COMMENT_BYTES_MAX:
        raise InvalidInput(_TOO_LONG)
    return whole


def is_fixed(spec: Spec) -> bool:
    """Whether it names a full commit id, so that it means the same on all nodes at any time."""
    return bool(_COMMIT.fullmatch(spec.rev))


def check_directory(directory: str) -> None:
    """Raises InvalidInput for the root or a system directory, on which jobs must not mount."""
    top = directory == "/" or any(
        directory == one or directory.startswith(f"{one}/") for one in SYSTEM_DIRECTORIES
    )
    if top and not any(directory.startswith(f"{one}/") for one in _EXCEPT):
        raise InvalidInput(
            f"{directory}: a job may not mount over the system; choose a directory below your "
            "home, /tmp, or one that your site has made for datasets"
        )


def _plain(dataset: Dataset) -> Dataset:
    directory = posixpath.normpath("/" + dataset.directory.lstrip("/"))
    if ".." in dataset.directory.split("/"):
        raise InvalidInput(f"{dataset}: a directory with '..'; write where it leads")
    if len(os.fsencode(directory)) > DIRECTORY_BYTES_MAX or (
        directory.count("/") > DIRECTORY_NAMES_MAX
    ):
        raise InvalidInput(
            f"{directory[:80]}...: a directory of more than {DIRECTORY_BYTES_MAX} bytes or "
            f"{DIRECTORY_NAMES_MAX} names; choose a shorter one"
        )
    check_directory(directory)
    return msgspec.structs.replace(dataset, directory=directory)
