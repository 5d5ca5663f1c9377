"""Which directory a walk comes to next."""

from __future__ import annotations

from lodefs.proxy.read.walk_prefetch import WALKS_MAX, Walks

DIRECTORIES = [10, 11, 12, 13]


def steps(inos: list[int], walks: Walks | None = None, parent: object = "p") -> list[int | None]:
    walks = walks or Walks()
    walks.begin(parent, DIRECTORIES)
    return [walks.listed(parent, ino) for ino in inos]


def test_walks_go_on_in_their_direction() -> None:
    """From the second neighbour on the next one is told, forwards and backwards, to the end."""
    assert steps([10, 11, 12, 13]) == [None, 12, 13, None]
    assert steps([13, 12, 11, 10]) == [None, 11, 10, None]


def test_other_orders_are_no_walks() -> None:
    """Leaps, repetitions and strangers foretell nothing; after them a walk may begin anew."""
    assert steps([10, 12, 12, 10, 13]) == [None] * 5
    assert steps([10, 99, 11, 12]) == [None, None, None, 13]


def test_parents_are_apart() -> None:
    """Each directory has a walk of its own; only so many are remembered."""
    walks = Walks()
    for parent in range(3):
        walks.begin(parent, DIRECTORIES)
    for ino in (10, 11):
        for parent in range(3):
            assert walks.listed(parent, ino) == (None if ino == 10 else 12)
    for parent in range(10, 10 + WALKS_MAX):
        walks.begin(parent, DIRECTORIES)
    assert not walks.knows(0)
    assert walks.knows(10)
