"""``lodefs scrub``, ``lodefs verify`` and ``lodefs gc`` by many machines, as a user runs them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from lodefs.api.parts.executors import opened_executor
from lodefs.api.parts.store_tasks import check_data_with, examine_with, read_trees_with
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repair.scrub import ScrubOptions, scrub
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import create_store, open_store
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


def test_parts(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """Each machine reads its part, and tells what is damaged there."""
    made = Handmade(create_store(objects), pack_chunks=1)
    made.commit("r", {b"%d" % n: bytes([n]) * 999 for n in range(9)})
    pack = next(key for key in objects.objects if key.startswith(keys.PACKS))
    objects.objects[pack] = b"\xff" + objects.objects[pack][1:]
    for command, args in (("scrub", ()), ("verify", ("--data",))):
        parts = [lodefs(command, *args, "--part", f"{n}/3", "--json") for n in (1, 2, 3)]
        assert sorted(part.code for part in parts) == [0, 0, 1]
        (problem,) = [one for part in parts for one in part.json["problems"]]
        assert pack.rpartition("/")[2] in f"{problem}"
    assert parts[0].json["files"] + parts[1].json["files"] + parts[2].json["files"] == 9
    one = lodefs("scrub", "--part", "1/3")
    assert "this round" not in one.out and keys.SCRUB not in objects.objects
    assert lodefs("scrub", "--part", "1/3", "--json").json["rounds"] is None


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("scrub", "--part", "4/3"), "3/32 is the third of 32"),
        (("scrub", "--part", "1/3", "--share", "1/30"), "leave out --share"),
        (("scrub", "--part", "1/3", "--executor", "mpi"), "use one of them"),
        (("verify", "--data", "--part", "1/3", "--executor", "mpi"), "use one of them"),
        (("verify", "--executor", "mpi"), "it needs --data"),
        (("verify", "--cache", "--part", "1/3"), "--part and --executor"),
        (("scrub", "--executor", "spark://x"), "use processes:N"),
        (("gc", "--executor", "spark://x"), "use processes:N"),
    ],
)
def test_options_that_do_not_go_together(
    lodefs: Lodefs, objects: MemoryObjects, words: tuple[str, ...], hint: str
) -> None:
    """They are refused, with what to do."""
    create_store(objects)
    ran = lodefs(*words)
    assert (ran.code, hint in ran.err) == (2, True), ran.err


@pytest.mark.slow
def test_with_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes open the store by its URL; the reports are those of this process."""
    monkeypatch.setattr("lodefs.api.parts.store_tasks.TASK_ITEMS_MAX", 3)
    objects, url = DirectoryObjects(tmp_path / "store"), str(tmp_path / "store")
    made = Handmade(create_store(objects), pack_chunks=1)
    made.commit("r", {b"%d" % n: bytes([n]) * 999 for n in range(9)})
    pack = next(info.key for info in objects.list(keys.PACKS))
    options, store = ScrubOptions(Fraction(1)), open_store(objects)
    gc_options = CollectOptions(dry_run=True)
    with opened_executor("processes:1") as executor:
        by_tasks = replace(gc_options, read_groups=read_trees_with(executor, url, 2))
        assert collect(store, by_tasks) == collect(store, gc_options)
        (tmp_path / "store" / pack).write_bytes(b"rubbish")
        scrubbed = scrub(objects, options, examine_packs=examine_with(executor, url, 2))
        verified = verify(store, data=True, check_data=check_data_with(executor, url, 2))
    again = scrub(objects, options)
    assert (scrubbed.damaged, scrubbed.packs) == (again.damaged, again.packs)
    assert len(scrubbed.damaged) == 1
    assert verified == verify(open_store(objects), data=True)
    assert verified.problems
