"""Retries, limits and counts; the contract suite runs through all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Changed,
    Corrupt,
    DeadlineExceeded,
    Denied,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.limiting import Limited
from lodefs.chunkstore.objects.observing import Observation, Observed
from lodefs.chunkstore.objects.retrying import Retrying
from lodefs.chunkstore.system.retry_policy import RetryPolicy
from tests.support.chunkstore.faulty_store import FaultyObjects, block_until, fail, fail_after
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import MUCH, ObjectStoreSuite

TIMEOUT_S = 60.0
POLICY = RetryPolicy(attempts_max=4, time_s_max=100, pause_s_first=1, pause_s_max=8)


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def faulty() -> FaultyObjects:
    inner = MemoryObjects()
    inner.objects.update({"a": b"12345", "b": b"2", "c": b"3", "d": b"4"})
    return FaultyObjects(inner)


def retrying(inner: ObjectStore, time: Time, random: Callable[[], float] = lambda: 1.0) -> Retrying:
    return Retrying(inner, POLICY, random=random, sleep=time.sleep, clock=time.clock)


class TestSuite(ObjectStoreSuite):
    """All wrappers around each other, and a store below that fails every third call."""

    @pytest.fixture
    def objects(self, time: Time) -> ObjectStore:
        faulty = FaultyObjects(MemoryObjects())
        for first in range(3, 3000, 3):
            faulty.add(fail(Unavailable("busy")), first=first, times=1)
        policy = RetryPolicy(attempts_max=1000, time_s_max=1e9)  # threads share the failures
        limited = Limited(faulty, calls_max=8)
        patient = Retrying(limited, policy, sleep=time.sleep, clock=time.clock)
        return Observed(patient, lambda _: None)


def test_pauses_double_up_to_a_limit(faulty: FaultyObjects, time: Time) -> None:
    """Pauses double from the first one up to the longest, and stop with the attempts."""
    faulty.add(fail(Unavailable("busy")))
    with pytest.raises(Unavailable, match="busy"):
        retrying(faulty, time).get("a", size=MUCH)
    assert time.pauses_s == [1, 2, 4]
    assert faulty.count("get") == POLICY.attempts_max


@pytest.mark.parametrize(
    ("failed", "random", "retry_after_s", "expected"),
    [
        (1, 1.0, None, 1),
        (1, 0.0, None, 0),
        (3, 0.5, None, 2),
        (4, 1.0, None, 8),
        (100, 1.0, None, 8),
        (1, 1.0, 30.0, 30),
        (4, 1.0, 2.0, 8),
    ],
)
def test_pauses_of_a_policy(
    failed: int, random: float, retry_after_s: float | None, expected: float
) -> None:
    """A pause is a random part of its longest, and never shorter than what the server asks."""
    assert POLICY.pause_s(failed, random, retry_after_s) == expected


def test_retry_after_beyond_the_budget_gives_up_at_once(faulty: FaultyObjects, time: Time) -> None:
    """A server that asks for more time than there is left is not asked again."""
    faulty.add(fail(Unavailable("later", retry_after_s=101)))
    with pytest.raises(Unavailable, match="later"):
        retrying(faulty, time).head("a")
    assert (faulty.count(), time.pauses_s) == (1, [])


@pytest.mark.parametrize(("is_unreached", "attempts"), [(True, 1), (False, POLICY.attempts_max)])
def test_an_address_where_nothing_answers_has_a_budget_of_its_own(
    faulty: FaultyObjects, time: Time, *, is_unreached: bool, attempts: int
) -> None:
    """A store that never answered is given up soon; one that has answered is waited for as
    always."""

    def slow(_perform: Callable[[], object]) -> object:
        time.now_s += 20
        error = DeadlineExceeded("slow")
        error.is_unreached = is_unreached
        raise error

    policy = replace(POLICY, first_time_s_max=10, time_s_max=1000)
    patient = Retrying(faulty, policy, random=lambda: 0.0, sleep=time.sleep, clock=time.clock)
    faulty.add(slow)
    for call in (lambda: patient.get("a", size=MUCH), lambda: list(patient.list(""))):
        faulty.calls.clear()
        with pytest.raises(DeadlineExceeded):
            call()
        assert faulty.count() == attempts


def test_time_budget(faulty: FaultyObjects, time: Time) -> None:
    """No attempt begins after the time is over, however many are left."""

    def slow(_perform: Callable[[], object]) -> object:
        time.now_s += 60
        raise DeadlineExceeded("slow")

    faulty.add(slow)
    with pytest.raises(DeadlineExceeded):
        retrying(faulty, time).get("a", size=MUCH)
    assert faulty.count() == 2


@pytest.mark.parametrize(
    "error", [NotFound("x"), Denied("x"), Changed("x"), Corrupt("x"), AlreadyExists("x")]
)
def test_other_errors_are_not_repeated(
    faulty: FaultyObjects, time: Time, error: LodefsError
) -> None:
    """Only what may pass by itself is tried again."""
    faulty.add(fail(error))
    for call in (
        lambda store: store.get("a", size=MUCH),
        lambda store: store.head("a"),
        lambda store: store.put("a", [b"x"], if_absent=True),
        lambda store: list(store.list("")),
        lambda store: store.delete("a"),
    ):
        faulty.calls.clear()
        with pytest.raises(type(error)):
            call(retrying(faulty, time))
        assert faulty.count() == 1


def test_every_operation_is_repeated(faulty: FaultyObjects, time: Time) -> None:
    """A failure of each operation is overcome, with its arguments kept."""
    for operation in ("get", "head", "put", "list", "delete"):
        faulty.add(fail(Unavailable("busy")), operation, times=2)
    store = retrying(faulty, time)
    assert store.get("a", offset=1, size=2).data == b"23"
    assert store.head("a").size_bytes == 5
    assert [info.key for info in store.list("", after="a", limit=2)] == ["b", "c"]
    store.put("e", [b"5"], if_absent=True)
    store.delete("a")
    assert [info.key for info in faulty.inner.list("")] == ["b", "c", "d", "e"]


def test_list_goes_on_where_it_failed(faulty: FaultyObjects, time: Time) -> None:
    """A list that fails in its middle is continued behind its last key; none comes twice."""

    class Breaking(MemoryObjects):
        def list(self, prefix, *, after="", limit=None):  # type: ignore[no-untyped-def]
            for number, info in enumerate(super().list(prefix, after=after, limit=limit)):
                if number == 2:
                    raise Unavailable("a page was lost")
                yield info

    inner = Breaking()
    inner.objects.update({f"{number:02}": b"" for number in range(21)})
    found = [info.key for info in retrying(inner, time).list("", limit=20)]
    assert found == [f"{number:02}" for number in range(20)]


def test_conditional_put_whose_answer_was_lost(faulty: FaultyObjects, time: Time) -> None:
    """A put that was done but not answered counts as done when its own bytes are found."""
    faulty.add(fail_after(Unavailable("connection lost")), "put", times=1)
    etag = retrying(faulty, time).put("new", [b"mi", b"ne"], if_absent=True)
    assert faulty.inner.head("new").etag == etag
    assert faulty.inner.get("new", size=MUCH).data == b"mine"


def test_conditional_put_lost_to_another(faulty: FaultyObjects, time: Time) -> None:
    """A put that failed while somebody else wrote the key is told that it lost."""

    def overtaken(_perform: Callable[[], object]) -> object:
        faulty.inner.put("new", [b"other"])
        raise Unavailable("connection lost")

    faulty.add(overtaken, "put", times=1)
    with pytest.raises(AlreadyExists):
        retrying(faulty, time).put("new", [b"mine"], if_absent=True)
    assert faulty.inner.get("new", size=MUCH).data == b"other"


def test_first_conflict_is_final(faulty: FaultyObjects, time: Time) -> None:
    """A key that is taken before the first attempt is AlreadyExists, even with the same bytes."""
    with pytest.raises(AlreadyExists):
        retrying(faulty, time).put("a", [b"12345"], if_absent=True)
    assert faulty.count("get") == 0


def test_limit_of_calls_at_once(faulty: FaultyObjects) -> None:
    """A call beyond the limit waits for its time and then is refused; a freed place is used."""
    entered, leave = threading.Event(), threading.Event()
    faulty.add(block_until(leave, entered=entered), "get")
    store = Limited(faulty, calls_max=1, wait_s_max=0.01)
    thread = threading.Thread(target=store.get, args=("a",), kwargs={"size": MUCH})
    thread.start()
    assert entered.wait(TIMEOUT_S)
    for call in (
        lambda: store.head("a"),
        lambda: store.put("x", [b""]),
        lambda: list(store.list("")),
        lambda: store.delete("a"),
    ):
        with pytest.raises(Unavailable, match="1 calls were under way"):
            call()
    leave.set()
    thread.join(TIMEOUT_S)
    assert store.head("a").size_bytes == 5


def test_limit_does_not_count_lists_that_are_read(faulty: FaultyObjects) -> None:
    """Other calls go on while a list is read, and a list left unread keeps no place."""
    store = Limited(faulty, calls_max=1, wait_s_max=0.01)
    for info in store.list(""):
        assert store.head(info.key) == info
    next(store.list(""))
    assert store.head("a").size_bytes == 5


def test_a_call_that_pauses_before_it_is_repeated_keeps_no_place(
    faulty: FaultyObjects, time: Time
) -> None:
    """While one call waits for its next attempt, another one is made, though one at once may be."""
    faulty.add(fail(Unavailable("busy")), "get", times=1)
    limited = Limited(faulty, calls_max=1, wait_s_max=0.01)
    others: list[int] = []

    def sleep(seconds: float) -> None:
        time.now_s += seconds
        others.append(limited.head("b").size_bytes)

    patient = Retrying(limited, POLICY, sleep=sleep, clock=time.clock)
    assert patient.get("a", size=MUCH).data == b"12345"
    assert others == [1]


def test_a_call_that_had_no_turn_is_not_repeated(faulty: FaultyObjects, time: Time) -> None:
    """It has waited for as long as a call may for others: it fails, and does not wait again."""
    limited = Limited(faulty, calls_max=1, wait_s_max=0.01)
    with limited.turn(), pytest.raises(Unavailable, match="1 calls were under way"):
        retrying(limited, time).get("a", size=MUCH)
    assert (faulty.count(), time.pauses_s) == (0, [])
    with limited.turn(), pytest.raises(Unavailable, match="1 calls were under way"):
        list(retrying(limited, time).list(""))


def test_limit_is_freed_by_failures(faulty: FaultyObjects) -> None:
    """A call that fails gives its place back."""
    store = Limited(faulty, calls_max=1, wait_s_max=0.01)
    for _ in range(3):
        with pytest.raises(NotFound):
            store.get("missing", size=MUCH)
    assert store.get("a", size=MUCH).data == b"12345"


def test_observations(faulty: FaultyObjects, time: Time) -> None:
    """Each call is told once: its name, bytes moved, seconds, and the class of its error."""

    def takes_2_s(perform: Callable[[], object]) -> object:
        time.now_s += 2
        return perform()

    faulty.add(takes_2_s)
    seen: list[Observation] = []
    store = Observed(faulty, seen.append, time.clock)
    store.get("a", offset=1, size=MUCH)
    store.put("x", [b"123", memoryview(b"45")])
    store.head("a")
    store.delete("x")
    with pytest.raises(NotFound):
        store.get("missing", size=MUCH)
    assert seen == [
        Observation("get", 4, 2, None),
        Observation("put", 5, 2, None),
        Observation("head", 0, 2, None),
        Observation("delete", 0, 2, None),
        Observation("get", 0, 2, NotFound),
    ]


def test_observed_list_counts_the_store_s_time_only(faulty: FaultyObjects, time: Time) -> None:
    """What the caller does between two keys of a list is not the store's time."""
    seen: list[Observation] = []
    for _ in Observed(faulty, seen.append, time.clock).list("", limit=2):
        time.now_s += 50
    assert seen == [Observation("list", 0, 0, None)]


def test_wrappers_show_the_url_and_close(faulty: FaultyObjects, time: Time) -> None:
    """The URL goes through, and so does close."""
    closed: list[bool] = []
    faulty.inner.close = lambda: closed.append(True)  # type: ignore[method-assign]
    store = Observed(retrying(Limited(faulty, 1), time), lambda _: None)
    assert store.url == "memory:"
    store.close()
    assert closed == [True]
