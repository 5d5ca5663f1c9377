"""A gc run that only says what it would do says what one does right afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from random import Random
from unittest import mock

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.maintenance.collect import CollectOptions, CollectResult, collect
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.memory_objects import MemoryObjects

Locate = Callable[[MemoryObjects], PackLocations]

HOURS = (0, 30, 1, 30)  # after which each is tried: writers and garbage come of age meanwhile
HOUR_S = 3600
GRACE_S = 24 * HOUR_S


def check_dry_runs(objects: Mapping[str, bytes], now_s: float, min_used: float | None) -> int:
    """Gc runs of a copy of those objects, hours after each other; how many writers they gave
    up. Raises: AssertionError if a dry run changes anything, or says what does not come."""
    memory = MemoryObjects()
    memory.objects = dict(objects)
    dead = 0
    for hours in HOURS:
        now_s += hours * HOUR_S
        options = CollectOptions(GRACE_S, clock=lambda: now_s, min_used=min_used)  # noqa: B023
        done = check_dry_run(memory, options)
        dead += done.dead_writers if isinstance(done, CollectResult) else 0
    return dead


def check_dry_run(
    memory: MemoryObjects,
    options: CollectOptions,
    *,
    is_foreseen: bool = True,
    locate: Locate = PackLocations,
) -> CollectResult | type[LodefsError]:
    """What a gc run does, or how it fails. Raises: AssertionError if a dry run right before it
    changes anything, or (where it ``is_foreseen``: no pack is damaged) says what does not come."""
    before = dict(memory.objects)
    said = _outcome(memory, replace(options, dry_run=True), locate)
    assert memory.objects == before, "a dry run has changed something"
    done = _outcome(memory, options, locate)
    assert said == done or not is_foreseen, f"a dry run foresees {_differing(said, done)}"
    return done


def _differing(said: object, done: object) -> str:
    if not isinstance(said, CollectResult) or not isinstance(done, CollectResult):
        return f"{said}, and then comes {done}"
    names = [one.name for one in fields(said) if getattr(said, one.name) != getattr(done, one.name)]
    return ", ".join(f"{getattr(said, one)}, not {getattr(done, one)}, {one}" for one in names)


def _outcome(
    memory: MemoryObjects, options: CollectOptions, locate: Locate
) -> CollectResult | type[LodefsError]:
    with mock.patch("os.urandom", Random(0).randbytes):
        try:
            return collect(open_store(locate(memory)), options)
        except LodefsError as error:
            return type(error)
