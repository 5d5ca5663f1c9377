"""``lodefs pull`` of a version of which files are lost."""

from __future__ import annotations

from pathlib import Path

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs


def test_lost_files_are_named(lodefs: Lodefs, objects: MemoryObjects, tmp_path: Path) -> None:
    """Each has a line with its reason, or an entry of --json; the others are copied, and the exit
    code is that of damage."""
    made = Handmade(create_store(objects), pack_chunks=1)
    files = {b"a": b"a", b"b\n": b"b", b"c": b"c"}
    made.commit("r", files)
    for name in (b"a", b"b\n"):
        del objects.objects[keys.pack(made.entry(name, files[name]).segments[0].pack)]
    done = lodefs("pull", "r", str(tmp_path / "one"))
    assert done.code == 8
    *lines, last = done.err.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["lodefs", "not copied", "a"],
        ["lodefs", "not copied", "b\\n"],
    ]
    assert all("is missing" in line for line in lines)
    assert "All else was copied" in last
    assert (tmp_path / "one" / "c").read_bytes() == b"c"
    done = lodefs("pull", "--json", "r", str(tmp_path / "two"))
    assert done.code == 8
    assert done.json["files"] == 1
    assert [one["path"] for one in done.json["lost"]] == ["a", "b%0A"]
