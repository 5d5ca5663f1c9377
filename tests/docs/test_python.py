"""docs/python.md: the examples that need no package beyond those of the tests run as they stand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loadtests.examples import DOCUMENT, Example, examples_of, write_plain_files
from tests.support.chunkstore.child_process import private_directory, run

pytestmark = [pytest.mark.slow, pytest.mark.fuse]

ROOT = Path(__file__).parents[2]
INSTALLED = {"fsspec", "mount"}
EXAMPLES = [one for one in examples_of(DOCUMENT.read_text()) if one.needs <= INSTALLED]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A user's directory with a dataset; the proxy that is started is ended."""
    with private_directory() as folder:
        write_plain_files(folder / "flickr30k")
        run(
            [sys.executable, "-m", "lodefs.main", "init", str(folder / "store")],
            env=environment(folder),
        )
        try:
            yield folder
        finally:
            for path in folder.glob("cache/lodefs/*/pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(path.read_text()), signal.SIGTERM)


def environment(folder: Path) -> dict[str, str]:
    """What a user has set."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "LODEFS_STORE": str(folder / "store"),
        "LODEFS_CONFIG": os.devnull,
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example(folder: Path, example: Example) -> None:
    """The example runs, after those before it."""
    subprocess.run(
        [sys.executable, "-c", example.code],
        cwd=folder,
        env=environment(folder),
        check=True,
        timeout=240,
    )


def test_all_packages_have_one() -> None:
    """There is an example for each package that the page promises."""
    needed = {name for one in examples_of(DOCUMENT.read_text()) for name in one.needs}
    assert needed >= {
        "datasets", "duckdb", "fsspec", "pandas", "polars", "pyarrow", "torch", "universal_pathlib",
        "webdataset", "zarr",
    }  # fmt: skip
