"""``lodefs scrub``, as a user runs it."""

from __future__ import annotations

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs


def test_scrub(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """It says how much it read; what is damaged is listed, and makes the exit code 1."""
    Handmade(create_store(objects)).commit("r", {b"a": bytes(range(256)) * 9})
    ran = lodefs("scrub", "--share", "1/1", "--json")
    assert (ran.code, ran.json["packs"], ran.json["rounds"]) == (0, ran.json["store_packs"], 1)
    pack = next(key for key in objects.objects if key.startswith(keys.PACKS))
    objects.objects[pack] = b"\xff" + objects.objects[pack][1:]
    ran = lodefs("scrub", "--share", "1/1", "--rate", "1GB")
    assert ran.code == 1
    assert pack.rpartition("/")[2] in ran.out
    assert lodefs("scrub", "--share", "2/1").code == 2
    assert lodefs("scrub", "--rate", "fast").code == 2
    assert "must exceed 0" in lodefs("scrub", "--rate", "0").err
