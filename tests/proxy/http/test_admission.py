"""admission.py: who goes when a door is full, and how descriptors are shared out."""

from __future__ import annotations

import pytest

from lodefs.proxy.http.admission import Admission, connections_by_endpoint


class Visitor:
    """A connection that notes whether it was ended."""

    def __init__(self) -> None:
        self.may_go = True
        self.has_gone = False

    def give_way(self) -> None:
        self.has_gone = True


def test_the_longest_idle_goes_and_strangers_first() -> None:
    """In this order: those without an allowed request, by their last use; then the others; never
    one that is busy."""
    known, older, newer, busy = (Visitor() for _ in range(4))
    busy.may_go = False
    door: Admission[Visitor] = Admission(4)
    for visitor in (busy, known, older, newer):
        door.add(visitor)
    door.authorize(known)
    door.used(older)
    for expected in (newer, older, known):
        assert door.make_room()
        assert expected.has_gone and expected not in door
        other = Visitor()
        other.may_go = False
        door.add(other)
    assert not door.make_room()
    assert not busy.has_gone and len(door) == 4
    door.forget(busy)
    assert door.make_room()


def test_spares() -> None:
    """Where all are busy, so many more come in; of these the longest idle goes, and they keep no
    place of the others."""
    door: Admission[Visitor] = Admission(1, 2)
    busy, first, second, third = (Visitor() for _ in range(4))
    busy.may_go = False
    assert [door.add(visitor) for visitor in (busy, first, second)] == [False, True, True]
    door.used(first)
    door.authorize(first)
    assert not door.is_authorized(first)
    assert door.make_room() and second.has_gone and not first.has_gone
    assert door.add(third)
    assert set(door) == {busy, first, third} and len(door) == 3
    first.may_go = third.may_go = False
    assert not door.make_room()
    door.forget(busy)
    assert door.make_room() and not door.add(Visitor())


@pytest.mark.parametrize("sockets_max", [96, 256, 512, 1024, 6000, 20_000, None])
@pytest.mark.parametrize("are_local", [[True], [True, False], [True, False, False], [False]])
def test_doors_leave_descriptors(sockets_max: int | None, are_local: list[bool]) -> None:
    """However few descriptors there are: doors take no more together, a local door has no less than
    another, and none has more than was set."""
    shares = connections_by_endpoint(4096, are_local, sockets_max)
    if sockets_max is None:
        assert shares == [4096] * len(are_local)
        return
    assert sum(shares) <= sockets_max
    assert all(24 <= share <= 4096 for share in shares)
    assert are_local[0] is False or shares[0] == max(shares)


def test_settings_that_fit_are_kept() -> None:
    """Where there are descriptors enough, each door has what was set."""
    assert connections_by_endpoint(4096, [True, False, False], 20_000) == [4096] * 3
    assert connections_by_endpoint(100, [True, False], 1024) == [100, 100]
