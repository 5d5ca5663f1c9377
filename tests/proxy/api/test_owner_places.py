"""Places of owners: who goes on at once, who waits, and in which order."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.api.response_slots import LOOKS_KEPT, FairQueue

OWNERS = "abc"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["come", "go"]), st.sampled_from(OWNERS)),
        st.tuples(st.just("look"), st.just("")),
    ),
    max_size=60,
)


class Model:
    """Users of the places, who do what they should: come, perhaps wait, and go."""

    def __init__(self, places: int) -> None:
        self.places: FairQueue[tuple[str, int]] = FairQueue(places)
        self.has_place: defaultdict[str, list[int]] = defaultdict(list)
        self.waits: defaultdict[str, list[int]] = defaultdict(list)
        self.number = 0

    def come(self, owner: str) -> None:
        """Somebody new of an owner's."""
        self.number += 1
        self.places.see(owner)
        if not self.places.is_shared:
            return
        if self.places.enter(owner):
            self.has_place[owner].append(self.number)
        else:
            self.places.wait(owner, (owner, self.number))
            self.waits[owner].append(self.number)

    def go(self, owner: str) -> None:
        """The first who has a place of the owner's gives it back."""
        if self.has_place[owner]:
            self.has_place[owner].pop(0)
            self.let_in(self.places.leave(owner))

    def look(self, _owner: str) -> None:
        """A second has passed."""
        self.let_in(self.places.look())

    def let_in(self, found: list[tuple[str, int]]) -> None:
        """Those are let in who came first of their owner."""
        for owner, number in found:
            assert self.waits[owner].pop(0) == number
            self.has_place[owner].append(number)


@given(STEPS, st.integers(1, 3))
def test_nobody_has_more_than_its_places_and_nobody_waits_beside_a_free_one(
    steps: list[tuple[str, str]], places: int
) -> None:
    """Whatever comes in whatever order: while several want something an owner is let in only up to
    its places, who waits finds all of its own owner's taken, and at last everybody had a turn."""
    model = Model(places)
    for step, owner in steps:
        before = len(model.has_place[owner])
        getattr(model, step)(owner)
        if step == "come" and len(model.has_place[owner]) > before:
            assert len(model.has_place[owner]) <= places
        for one, waiting in model.waits.items():
            if waiting:
                assert model.places.is_shared
                assert len(model.has_place[one]) >= places
    for owner in OWNERS:
        while model.has_place[owner]:
            model.go(owner)
    assert not any(model.waits.values())


@given(st.integers(1, 40), st.integers(1, 3))
def test_one_who_wants_little_meets_no_queue_of_another(many: int, places: int) -> None:
    """However much one owner has waiting, the first of another goes on at once."""
    model = Model(places)
    model.places.see("b")
    for _ in range(many):
        model.come("a")
    assert len(model.has_place["a"]) == min(many, places)
    model.come("b")
    assert len(model.has_place["b"]) == 1


def test_who_is_left_alone_waits_no_more() -> None:
    """Once the other has wanted nothing for some looks, all that waited goes on, and nothing new
    needs a place."""
    model = Model(1)
    model.places.see("b")
    for _ in range(5):
        model.come("a")
    assert len(model.waits["a"]) == 4
    for _ in range(LOOKS_KEPT - 1):
        model.look("")
        assert len(model.waits["a"]) == 4
    model.look("")
    assert not model.waits["a"]
    assert not model.places.is_shared
