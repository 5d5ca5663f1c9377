"""The files on which mounts are compared: the same for every side, made from a seed.

::

    one/0.bin               what one reader reads
    four/0.bin .. 3.bin     what four readers read, each its own
    small/0.bin .. 3.bin    mountpoint-s3's small files
    files/part-NN/NNNNN.bin many files of 10 KB
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from loadtests.corpora import DATA

MIB = 1 << 20
FILE_BYTES = 10_000
FILES_IN_FOLDER = 1000
PIECE_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Shape:
    """The amount of each kind of file."""

    name: str
    one_bytes: int
    four_bytes: int
    files: int
    small_bytes: int = 5 * MIB


FULL = Shape("mount", 1024 * MIB, 256 * MIB, 20_000)
QUICK = Shape("mount-quick", 128 * MIB, 32 * MIB, 2_000)


def kept(shape: Shape) -> Path:
    """The corpus in ``.data/``, written if it is missing."""
    target = DATA / shape.name
    if not target.exists():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        write(partial, shape)
        partial.rename(target)
    return target


def write(target: Path, shape: Shape) -> None:
    """Writes the corpus into a directory, so that a peer's mount can be filled with it."""
    source = random.Random(3)
    for folder, count, size_bytes in (
        ("one", 1, shape.one_bytes),
        ("four", 4, shape.four_bytes),
        ("small", 4, shape.small_bytes),
    ):
        (target / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            _write_random(target / folder / f"{number}.bin", size_bytes, source)
    for number in range(shape.files):
        folder_path = target / "files" / f"part-{number // FILES_IN_FOLDER:02d}"
        folder_path.mkdir(parents=True, exist_ok=True)
        (folder_path / f"{number:05d}.bin").write_bytes(source.randbytes(FILE_BYTES))


def missing(root: Path, shape: Shape) -> list[str]:
    """What a peer's mount lacks of the corpus, judged by names and sizes of some files."""
    last = shape.files - 1
    wanted = {
        "one/0.bin": shape.one_bytes,
        "four/3.bin": shape.four_bytes,
        "small/3.bin": shape.small_bytes,
        f"files/part-{last // FILES_IN_FOLDER:02d}/{last:05d}.bin": FILE_BYTES,
    }
    return [name for name, size in wanted.items() if _size_bytes(root / name) != size]


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _write_random(path: Path, size_bytes: int, source: random.Random) -> None:
    with path.open("wb") as file:
        for offset in range(0, size_bytes, PIECE_BYTES):
            file.write(source.randbytes(min(PIECE_BYTES, size_bytes - offset)))
