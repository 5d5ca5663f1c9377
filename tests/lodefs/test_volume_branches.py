"""Which branches Docker volumes that take changes may be made for, on a store in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import lodefs
from lodefs.api.writing.writable_volumes import WritableVolumes
from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.repo.store import create_store
from lodefs.mount.helper.interface import Source
from lodefs.mount.volumes.changes import WritableVolume
from lodefs.mount.volumes.options import ON_LAST
from tests.support.chunkstore.directories import write_files
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import MemorySession


def test_a_store_that_takes_no_writes_any_more(tmp_path: Path) -> None:
    """It is asked for each volume: credentials change while the plugin runs. A tag is no branch."""
    objects = FaultyObjects(MemoryObjects())
    session = MemorySession({"HOME": str(tmp_path), "LODEFS_STORE": "s3://memory"}, objects)
    create_store(objects)
    write_files(tmp_path / "source", {"a": b"a"})
    made = lodefs.push(tmp_path / "source", "r", session=session, workers=0)
    lodefs.tag("r", "v1", session=session)
    writer = WritableVolumes(session, tmp_path / "docker", tmp_path / "mounter.sock")

    def branch(name: str) -> str:
        source = Source(repo="r")
        volume = WritableVolume(name="a", source=source, branch=name, commits=ON_LAST)
        return writer.branch(volume)

    assert branch("run-42") == made.commit
    with pytest.raises(InvalidInput, match="v1 is a tag"):
        branch("v1")
    objects.add(fail(Denied("these credentials only read")), "put")
    with pytest.raises(Denied, match="only read"):
        branch("run-42")
