"""The manual page."""

from __future__ import annotations

import subprocess
from shutil import which

import pytest

from lodefs.app import GROUPS, INTERNAL
from tests.support.lodefs.command_line import Lodefs


def test_the_page(lodefs: Lodefs) -> None:
    """It has every command and option that the help shows, and no line that roff would obey."""
    page = lodefs("man").out
    for group, commands in GROUPS.items():
        assert f".SH {group.upper()}\n" in page
        for name in commands:
            assert f".SS lodefs {name} ".replace("-", "\\-") in page
    assert not [name for name in INTERNAL if f".SS lodefs {name}".replace("-", "\\-") in page]
    assert ".SS lodefs token create [OPTIONS]" in page
    assert "\\fB\\-\\-allow\\-removals\\fR" in page
    obeyed = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert obeyed == {".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi", ".B", ".BR"}


@pytest.mark.skipif(which("groff") is None, reason="needs groff")
def test_groff_takes_it(lodefs: Lodefs) -> None:
    """Nothing is wrong with it to groff."""
    page = lodefs("man").out
    command = ["groff", "-man", "-Tutf8", "-ww"]
    ran = subprocess.run(
        command, input=page, capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stderr == ""
    assert "eval" in ran.stdout
