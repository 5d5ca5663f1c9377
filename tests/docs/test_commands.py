"""docs/cookbook.md and the first minutes of README.md: the commands of both work as they stand."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loadtests.services import free_port
from tests.support.chunkstore.child_process import private_directory, run

pytestmark = [pytest.mark.slow, pytest.mark.fuse]

ROOT = Path(__file__).parents[2]


def commands(document: str, heading: str = "") -> str:
    """All shell commands of a document, or of its part under a heading, as one script."""
    text = (ROOT / document).read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A user's directory; the proxy that commands start is ended with the test."""
    with private_directory() as folder:
        try:
            yield folder
        finally:
            for path in folder.glob("cache/lodefs/*/pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(path.read_text()), signal.SIGTERM)


def run_script(folder: Path, script: str) -> str:
    """What the script writes; it ends at the first command that fails."""
    (folder / "lodefs").write_text(f'#!/bin/sh\nexec {sys.executable} -m lodefs.main "$@"\n')
    (folder / "lodefs").chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "LODEFS_CONFIG": os.devnull,
    }
    return run(
        ["bash", "-c", f"set -eo pipefail\ncd {folder}\n{script}"], env=environment, timeout_s=300
    )


def test_cookbook(folder: Path) -> None:
    """Every command of the cookbook runs, from top to bottom."""
    script = commands("docs/cookbook.md").replace("7440", str(free_port()))
    script = script.replace("getfattr --only-values -n user.lodefs.commit ./mnt", _GETFATTR)
    out = run_script(folder, script)
    assert "main is" in out
    assert (folder / "copy" / "labels-2.csv").exists()
    assert "all is well" in out


_GETFATTR = 'python3 -c \'import os; print(os.getxattr("./mnt", "user.lodefs.commit").decode())\''


def test_five_minutes(folder: Path) -> None:
    """The five minutes of README.md run as they stand, in any directory."""
    out = run_script(folder, commands("README.md", "Five minutes"))
    assert "nothing changed: vision/flickr30k@main stays at" in out
    assert "A  images/2.txt" in out
    assert out.rstrip().endswith("all is well")
