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
from lodefs.mount.kernel import namespaces
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


MENDING = "Check that nothing is damaged, and mend it"
HEADS = "lodefs branch vision/cats; lodefs ls -lR vision/cats"


def test_cookbook(folder: Path) -> None:
    """Every command of the cookbook runs, from top to bottom; its last recipe changes no branch,
    finds whatever is damaged, and mends it."""
    script = commands("docs/cookbook.md").replace("7440", str(free_port()))
    mending = commands("docs/cookbook.md", MENDING)
    out = run_script(folder, script.removesuffix(mending))
    assert "main is" in out
    assert (folder / "copy" / "labels-2.csv").exists()
    store = f"export LODEFS_STORE={folder}/store\n"
    heads = run_script(folder, store + HEADS)
    out = run_script(folder, store + mending)
    assert out.count("all is well\n") == 3 + len(["scrub"])
    assert run_script(folder, store + HEADS) == heads
    packs = sorted((folder / "store" / "packs").rglob("*/*"))
    for lost, damaged in zip(packs[::2], packs[1::2], strict=False):
        lost.unlink()
        damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    looking = re.findall(r"^lodefs (?:verify|scrub)[^#\n]*", mending, re.MULTILINE)
    assert len(looking) == 3
    for line in looking:
        assert run_script(folder, f"{store}{line} || echo failed $?").endswith("failed 1\n"), line
    repair = mending[mending.index("lodefs repair") :]
    out = run_script(folder, store + repair)
    many = len(packs) // 2 * 2
    assert f"{many} problems, {many} repaired" in out
    assert out.endswith("all is well\n")
    assert run_script(folder, store + HEADS) == heads


def test_writable(folder: Path) -> None:
    """Changes are kept, found again and given up, as the page says."""
    if not namespaces.may_mount():
        pytest.skip("an overlay needs CAP_SYS_ADMIN")
    state = folder / "writable"
    script = commands("docs/writable.md").replace("--writable", f"--writable --upper {state}")
    out = run_script(folder, script + "lodefs ls -R vision/cats; ls work")
    assert f"{folder}/work  vision/cats@main from" in out
    assert "the changes that were kept are there" in out
    assert "pictures/1.txt" in out
    assert not state.exists()


def test_five_minutes(folder: Path) -> None:
    """The five minutes of README.md run as they stand, in any directory."""
    out = run_script(folder, commands("README.md", "Five minutes"))
    assert "nothing changed: vision/flickr30k@main stays at" in out
    assert "A  images/2.txt" in out
    assert out.rstrip().endswith("all is well")
