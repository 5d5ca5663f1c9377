"""Any commands in any order, over several stores and machines, with kills, faults and damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.repo.store import Store
from tests.fuzz import commands as say
from tests.fuzz.__main__ import COMMANDS, run_seeds
from tests.fuzz.commands import (
    Both,
    Change,
    Collect,
    Command,
    Copy,
    Damage,
    Kill,
    Purge,
    Push,
    Repair,
    Retain,
    Wait,
    shown,
)
from tests.fuzz.histories import history
from tests.fuzz.model import Wrong
from tests.fuzz.play import play, shorten
from tests.fuzz.world import make_material
from tests.support.maintenance.schedules import one_at_a_time

PARTS = 5
SEEDS = 12  # of each part
_COMMON = ("Push done", "Copy done", "Collect done", "Repair done", "Purge done", "Change done")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_history(part: int) -> None:
    """What was acknowledged reads back, nothing is told of what is sound and all of what is not,
    and no repair makes anything worse."""
    report = run_seeds(part * SEEDS, (part + 1) * SEEDS, COMMANDS, is_shortened=False)
    assert not report.failed, report.failed[0]
    for what in _COMMON:
        assert report.done[what] > SEEDS / 6, (what, report.done)
    assert sum(count for what, count in report.done.items() if what.endswith("killed")) > SEEDS / 6


def test_a_history_comes_from_its_seed() -> None:
    """And can be written into a test."""
    commands = history(5, 40)
    assert commands == history(5, 40)
    assert commands != history(6, 40)
    assert [eval(shown(one), vars(say)) for one in commands] == commands


def test_a_purge_that_dies_beside_a_push(tmp_path: Path) -> None:
    """Removes what the push has brought, and other files that have the same bytes: that is known
    from its document."""
    purge = Purge(0, 0, 0.509, fault=Kill(9, after=True))
    commands: list[Command] = [
        Change(0, 1, (("c/e/f", 6), ("g", 4), ("a", 11)), repo="s"),
        Both(purge, Push(0, 2, 3, branch="dev"), 15949),
    ]
    with one_at_a_time():
        play(301398, commands, tmp_path / "world", make_material(tmp_path / "material"))


def test_what_a_refused_change_has_sent_is_lost(tmp_path: Path) -> None:
    """The machine's next push lists it in no shard: a sound store names nothing that is gone."""
    commands: list[Command] = [
        Push(0, 0, 3),
        Retain(0, 0, policy=0, quota=2),
        Change(0, 0, (("c/e/f", 6),), branch="dev"),
        Damage(0, "lose", "packs/"),
        Repair(0, 0),
        Push(0, 0, 2, repo="s"),
        Repair(0, 1),
    ]
    with one_at_a_time():
        play(1, commands, tmp_path / "world", make_material(tmp_path / "material"))


def test_a_copy_beside_what_is_lost(tmp_path: Path) -> None:
    """It brings what is new since the version before, of which the destination has lost a file."""
    commands: list[Command] = [
        Push(1, 2, 7),
        Push(1, 0, 0),
        Copy(2, 2, 1),
        Damage(1, "lose", "packs/", 0.687),
        Change(2, 1, (("a", 9), ("c/d", 5))),
        Copy(1, 2, 2),
    ]
    with one_at_a_time():
        play(301360, commands, tmp_path / "world", make_material(tmp_path / "material"))


def test_what_is_lost_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that destroys a pack is found, and the history shortened to what it takes."""

    def destroy(store: Store, _options: object) -> None:
        for info in list(store.objects.list(keys.PACKS, limit=1)):
            store.objects.delete(info.key)

    monkeypatch.setattr("tests.fuzz.world.collect", destroy)
    material = make_material(tmp_path / "material")

    def fails(some: Sequence[Command]) -> bool:
        try:
            play(1, some, tmp_path / "world", material)
        except Wrong:
            return True
        return False

    commands: list[Command] = [Push(0, 0, 1), Push(1, 0, 2), Copy(2, 0, 0), Wait(26), Collect(0, 1)]
    with one_at_a_time():
        assert shorten(commands, fails) == [Push(0, 0, 1), Collect(0, 1)]
