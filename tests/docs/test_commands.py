"""README.md, and tour.md, cookbook.md and writable.md of docs/: their commands work as they stand,
and print what the pages show."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from loadtests import terminal
from loadtests.examples import difference, examples_of
from loadtests.examples import run as run_example
from loadtests.services import free_port
from lodefs.mount.kernel import namespaces
from tests.docs.pages import Step, steps_of
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


def differences(folder: Path, steps: list[Step]) -> list[str]:
    """Runs steps in one shell; how what they print differs from what their page shows."""
    script = "".join(f"printf '\\036'\n{step.commands}" for step in steps)
    printed = run_script(folder, f"exec 2>&1\n{script}").split("\x1e")[1:]
    pairs = zip(steps, printed, strict=True)
    found = [difference(step.output, text) for step, text in pairs if step.output is not None]
    return [one for one in found if one]


MENDING = "Check that nothing is damaged, and repair it"
HEADS = "lodefs branch vision/cats; lodefs ls -lR vision/cats"


def test_cookbook(folder: Path) -> None:
    """Every command of the cookbook runs, from top to bottom, and prints what is shown; its last
    recipe changes no branch, finds whatever is damaged, and repairs it."""
    page, port = ROOT / "docs" / "cookbook.md", str(free_port())
    steps = [Step(one.commands.replace("7440", port), one.output) for one in steps_of(page)]
    mending = commands("docs/cookbook.md", MENDING)
    assert differences(folder, steps[: -len(steps_of(page, MENDING))]) == []
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
    assert "it shows the changes that were kept" in out
    assert "pictures/1.txt" in out
    assert not state.exists()


def shape(lines: Sequence[str]) -> list[str]:
    """Lines of a terminal without ids and numbers, and with the plural of files."""
    text = re.sub(r"\b(?=\w*\d)[0-9a-f]{12,}\b", "ID", "\n".join(lines))
    text = re.sub(r"\d[\d,.]*(?: (?:[KMG]i)?B\b)?", "N", text)
    return text.replace(" file,", " files,").splitlines()


def test_readme(folder: Path) -> None:
    """The commands and the Python of README.md run as they stand; the picture shows what the
    commands print, and the page what Python prints."""
    page = (ROOT / "README.md").read_text()
    terminal.write_images(folder / "cats", 20)
    lines = terminal.recorded(terminal.commands_of(page), folder)
    drawn = ET.fromstring((ROOT / "docs" / "first-minute.svg").read_text())
    pictured = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    printed = [f"$ {one.text}" if one.is_typed else one.text for one in terminal.shown(lines)]
    assert shape(pictured) == shape(printed)
    (example,) = examples_of(page)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "LODEFS_STORE": str(folder / "store"),
        "LODEFS_CONFIG": os.devnull,
    }
    out = run_example([sys.executable], example.code, folder, environment)
    assert out is not None
    assert example.difference(out) == ""


def test_tour(folder: Path) -> None:
    """The tour runs from top to bottom, and each command prints what is shown."""
    assert differences(folder, steps_of(ROOT / "docs" / "tour.md")) == []
