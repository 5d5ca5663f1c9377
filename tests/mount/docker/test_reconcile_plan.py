"""What upkeep decides, of any records and mounts whatever."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lodefs.mount.docker.options import Options, Pin
from lodefs.mount.docker.reconcile_plan import (
    UNUSED_S,
    Action,
    Clear,
    DropStale,
    Follow,
    PinVolume,
    Remount,
    StartSupervisor,
    TakeDown,
    Times,
    VolumeState,
    decide,
)
from lodefs.mount.docker.volume import STALE_S, Reference, Volume, forgotten, pinned
from lodefs.mount.node.interface import MountStatus, Source
from tests.support.docker.rig import NEW, OLD

TIMES = Times("now", 10_000.0, 1_700_000_000.0)
NAMES = ["a", "b", "c"]


def references() -> st.SearchStrategy[dict[str, Reference]]:
    one = st.builds(Reference, st.integers(1, 3), st.floats(0, TIMES.uptime_s))
    return st.dictionaries(st.sampled_from(["x", "y", "z"]), one, max_size=3)


@st.composite
def views(draw: st.DrawFn, name: str) -> VolumeState:
    volume = Volume(
        name=name,
        options=Options(
            source=Source(repo="r"),
            follow_s=draw(st.sampled_from([None, 1, 3600])),
            pin=draw(st.sampled_from([None, Pin(), Pin(600)])),
        ),
        commit=OLD,
        files=1,
        size_bytes=1,
        created_at_s=draw(st.floats(0, 2 * TIMES.now_s)),
        looked_at_s=draw(st.floats(0, 2 * TIMES.now_s)),
        boot=draw(st.sampled_from(["now", "before", ""])),
        references=draw(references()),
        pinned_until_s=draw(st.floats(0, 2 * TIMES.now_s)),
        follow_error=draw(st.sampled_from(["", "no"])),
        pin_error=draw(st.sampled_from(["", "no"])),
    )
    unused = draw(st.none() | st.floats(0, TIMES.uptime_s))
    return VolumeState(volume, unused, draw(st.floats(0, TIMES.uptime_s)))


@st.composite
def worlds(
    draw: st.DrawFn,
) -> tuple[list[VolumeState], dict[str, MountStatus], set[str], frozenset[str]]:
    """Volumes, mounts, mount points and damaged volumes, in any combination."""
    found = [draw(views(name)) for name in NAMES if draw(st.booleans())]
    keys = [view.volume.key for view in found] + ["stray", "damaged"]
    statuses = {
        key: MountStatus(
            key, "r", draw(st.sampled_from([OLD, NEW])), b"", draw(st.booleans()),
            draw(st.booleans()),
        )
        for key in keys
        if draw(st.booleans())
    }  # fmt: skip
    places = {key for key in keys if draw(st.booleans())} | set(statuses)
    return found, statuses, places, frozenset({"damaged"})


@given(worlds())
def test_what_may_never_be_decided(
    world: tuple[list[VolumeState], dict[str, MountStatus], set[str], frozenset[str]],
) -> None:
    """No volume with living references is unmounted or moved, no damaged one is touched, and no
    volume is mounted that nobody uses."""
    found, statuses, places, damaged = world
    volumes = {view.volume.key: view.volume for view in found}
    actions = decide(found, statuses, places, damaged, TIMES)
    assert max(Counter(action.key for action in actions).values(), default=1) == 1
    for action in actions:
        assert action.key not in damaged
        standing = statuses.get(action.key)
        match action:
            case TakeDown():
                assert standing is not None
                assert not volumes[action.key].count(TIMES.boot)
            case Follow():
                assert standing is None
                assert not volumes[action.key].count(TIMES.boot)
                assert volumes[action.key].options.follow_s
            case Remount():
                assert volumes[action.key].count(TIMES.boot)
                assert standing is None or not standing.alive
            case StartSupervisor():
                assert volumes[action.key].count(TIMES.boot)
                assert standing is not None
                assert standing.alive
            case DropStale():
                volume = volumes[action.key]
                ages = [TIMES.uptime_s - volume.references[i].uptime_s for i in action.mount_ids]
                assert min(ages) > STALE_S
            case PinVolume():
                assert volumes[action.key].options.pin is not None
                assert action.pin_s > 0
            case Clear():
                assert action.key not in volumes


class World:
    """Volumes and mounts that do as they are told. ``held``: mounts that containers hold, or may;
    ``broken``: nothing can be mounted."""

    def __init__(
        self,
        found: list[VolumeState],
        statuses: dict[str, MountStatus],
        places: set[str],
        *,
        held: bool = False,
        broken: bool = False,
    ) -> None:
        self.views = {view.volume.key: view for view in found}
        self.statuses = dict(statuses)
        self.places = set(places)
        self.held = held
        self.broken = broken

    def change(self, key: str, volume: Volume) -> None:
        self.views[key] = self.views[key]._replace(volume=volume)

    def carry_out(self, action: Action, times: Times) -> None:
        key = action.key
        match action:
            case StartSupervisor() | Remount() if self.broken:
                pass
            case StartSupervisor():
                self.statuses[key] = msgspec.structs.replace(self.statuses[key], supervised=True)
            case Remount():
                commit = self.views[key].volume.commit
                self.statuses[key] = MountStatus(key, "r", commit, b"", alive=True, supervised=True)
            case TakeDown():
                del self.statuses[key]
            case Clear():
                self.statuses.pop(key, None)
                self.places.discard(key)
            case DropStale():
                self.views[key] = self.views[key]._replace(checked_s=times.uptime_s)
                if not self.held:
                    self.change(key, forgotten(self.views[key].volume, list(action.mount_ids)))
            case Follow():
                volume = self.views[key].volume
                after = msgspec.structs.replace(volume, looked_at_s=times.now_s, follow_error="")
                self.change(key, after)
            case PinVolume():
                self.change(key, pinned(self.views[key].volume, action.pin_s, times.now_s))


def rounds(model: World, damaged: frozenset[str], count: int) -> None:
    """Upkeep for a while."""
    for number in range(count):
        later = number * UNUSED_S
        times = Times(TIMES.boot, TIMES.uptime_s + later, TIMES.now_s + later)
        views_now = model.views.values()
        for action in decide(views_now, model.statuses, model.places, damaged, times):
            model.carry_out(action, times)
        for key, view in model.views.items():
            if key in model.statuses and view.unused_since_s is None:
                model.views[key] = view._replace(unused_since_s=times.uptime_s)


@given(worlds(), st.booleans())
def test_rounds_come_to_an_end(
    world: tuple[list[VolumeState], dict[str, MountStatus], set[str], frozenset[str]], held: bool
) -> None:
    """After a few rounds whatever is used is alive and supervised, the rest is not mounted, and no
    mount point is left without a volume."""
    found, statuses, places, damaged = world
    model = World(found, statuses, places, held=held)
    rounds(model, damaged, 16)
    for key, view in model.views.items():
        standing = model.statuses.get(key)
        if view.volume.count(TIMES.boot):
            assert standing is not None
            assert standing.alive
            assert standing.supervised
        else:
            assert standing is None
    assert not (model.places | set(model.statuses)) - set(model.views) - damaged


@given(worlds())
def test_what_cannot_be_mounted_is_forgotten_all_the_same(
    world: tuple[list[VolumeState], dict[str, MountStatus], set[str], frozenset[str]],
) -> None:
    """Mounts that fail, round after round, keep no reference that nobody holds."""
    found, statuses, places, damaged = world
    model = World(found, statuses, places, broken=True)
    rounds(model, damaged, 16)
    assert not any(view.volume.count(TIMES.boot) for view in model.views.values())
