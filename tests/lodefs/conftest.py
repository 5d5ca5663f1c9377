"""The command line, run in this process on a store in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.app import run
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import CommandResult, Lodefs, MemorySession


@pytest.fixture
def objects() -> MemoryObjects:
    """The objects of the store that commands see."""
    return MemoryObjects()


@pytest.fixture
def lodefs(
    objects: MemoryObjects, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> Lodefs:
    """Runs ``lodefs ARGUMENTS...``; ``environment`` is added to an empty one."""

    def go(*arguments: str, **environment: str) -> CommandResult:
        known = {"HOME": str(tmp_path / "home"), "LODEFS_STORE": "s3://memory", **environment}
        code = run(list(arguments), MemorySession(known, objects))
        out, err = capfdbinary.readouterr()
        return CommandResult(code, out.decode(), err.decode())

    return go
