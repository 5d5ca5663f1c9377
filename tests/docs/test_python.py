"""The pages for Python: the examples that need no package beyond those of the tests print what the
pages say."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loadtests.examples import Example, examples_of, pages, write_plain_files
from loadtests.examples import run as run_example
from tests.support.chunkstore.child_process import private_directory, run

pytestmark = [pytest.mark.slow, pytest.mark.fuse]

ROOT = Path(__file__).parents[2]
INSTALLED = {"fsspec", "mount", "universal_pathlib"}
EXAMPLES = [one for one in examples_of(pages()) if one.needs <= INSTALLED]


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
    """The example runs, after those before it, and prints what the page says."""
    printed = run_example([sys.executable], example.code, folder, environment(folder))
    assert printed is not None
    assert example.difference(printed) == ""


def test_all_packages_have_one() -> None:
    """There is an example for each package that the page promises."""
    needed = {name for one in examples_of(pages()) for name in one.needs}
    assert needed >= {
        "datasets", "duckdb", "fsspec", "pandas", "polars", "pyarrow", "torch", "universal_pathlib",
        "webdataset", "zarr",
    }  # fmt: skip


def test_what_differs_is_seen() -> None:
    """An example without a block of output prints nothing; with one, all of it and in its order;
    what stands for anything stands for a part of one line."""
    document = "# A\n\n```python\nx\n```\n\n```python\ny\n```\n\n```text\na … c\nd\n```\n"
    silent, spoken = examples_of(document)
    assert silent.difference("") == spoken.difference("a b c\nd\n") == ""
    assert "+a b c" in silent.difference("a b c\n")
    for printed in ("", "a b c\n", "a b c\nd\ne\n", "a b\nc c\nd\n", "a b\nd\n"):
        assert spoken.difference(printed)
