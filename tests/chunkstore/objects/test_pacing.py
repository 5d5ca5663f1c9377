"""How many requests a store gets that puts them off, counted on a clock that the tests hold."""

from __future__ import annotations

from contextlib import AbstractContextManager
from heapq import heappop, heappush

import pytest

from lodefs.chunkstore.errors import Held, NotFound, Unavailable
from lodefs.chunkstore.objects.limiting import Limited
from lodefs.chunkstore.objects.pacing import PAUSE_S_MAX, RETRY_AFTER_S_MAX, Pace
from lodefs.chunkstore.objects.retrying import Retrying
from lodefs.chunkstore.system.retry_policy import RetryPolicy
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.memory_objects import MemoryObjects

CALLS_MAX = 32  # at once, as a proxy has them
LATENCY_S = 0.05
LOSES_PATIENCE_S = 0.2  # after which a mount asks once more
RETURNS_S = 60.0


def slow_down(retry_after_s: float | None = None) -> Unavailable:
    error = Unavailable("SlowDown", retry_after_s=retry_after_s)
    error.is_throttled = True
    return error


def put_off(request: AbstractContextManager[None]) -> None:
    """Ends a request that the store put off; who made it would see the error."""
    assert not request.__exit__(Unavailable, slow_down(), None)


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


class Readers:
    """Readers that want one thing each, and ask as soon as they may, again and again."""

    def __init__(self, time: Time, count: int) -> None:
        self.time = time
        self.pace = Pace(clock=time.clock, random=lambda: 0.0)  # the shortest pauses
        self.asked_s: list[float] = []
        self.served_s: list[float] = []
        self._under_way = 0
        self._events: list[tuple[float, int, AbstractContextManager[None] | None]] = []
        for number in range(count):
            heappush(self._events, (0.0, number, None))

    def play(self) -> None:
        """Until every reader is served."""
        while self._events:
            self.time.now_s, number, request = heappop(self._events)
            again_s = self._begin(number) if request is None else self._end(request)
            if again_s is not None:
                heappush(self._events, (self.time.now_s + again_s, number, None))

    def _begin(self, number: int) -> float | None:
        if self._under_way == CALLS_MAX:
            return 0.01
        request = self.pace.request("s3://bucket")
        try:
            request.__enter__()
        except Held as held:
            return held.retry_after_s
        self.asked_s.append(self.time.now_s)
        self._under_way += 1
        heappush(self._events, (self.time.now_s + LATENCY_S, number, request))
        return None

    def _end(self, request: AbstractContextManager[None]) -> float | None:
        self._under_way -= 1
        if self.time.now_s - LATENCY_S >= RETURNS_S:
            request.__exit__(None, None, None)
            self.served_s.append(self.time.now_s)
            return None
        put_off(request)
        return LOSES_PATIENCE_S


@pytest.mark.parametrize(("count", "requests_max"), [(1, 40), (100, 60)])
def test_a_store_that_puts_off_gets_fewer_and_fewer_requests(
    time: Time, count: int, requests_max: int
) -> None:
    """In a minute of SlowDown a node makes few requests, however many read, and they grow apart;
    soon after the first answer all readers are served."""
    readers = Readers(time, count)
    readers.play()
    during = [asked_s for asked_s in readers.asked_s if asked_s < RETURNS_S]
    assert len(during) <= requests_max
    assert len([one for one in during if one > RETURNS_S / 2]) <= RETURNS_S / PAUSE_S_MAX
    assert len(readers.served_s) == count
    assert max(readers.served_s) < RETURNS_S + PAUSE_S_MAX + 2


def test_one_refusal_among_answers_halves_what_is_under_way(time: Time) -> None:
    """A store that puts off some requests gets half as many at once, and one more after each
    answer; there is no pause."""
    pace = Pace(clock=time.clock)
    under_way = [pace.request("s3://bucket") for _ in range(8)]
    for one in under_way:
        one.__enter__()
    put_off(under_way.pop())
    assert not pace.is_free  # seven are under way
    for left, one in enumerate(reversed(under_way)):
        one.__exit__(None, None, None)
        assert pace.is_free == (6 - left < 4 + left + 1)
    assert pace.is_free


@pytest.mark.parametrize(("wanted_s", "waited_s"), [(20.0, 20.0), (86400.0, RETRY_AFTER_S_MAX)])
def test_retry_after_holds_all_requests(time: Time, wanted_s: float, waited_s: float) -> None:
    """What a server asks for in Retry-After counts for every request, up to a bound."""
    pace = Pace(clock=time.clock)
    with pytest.raises(Unavailable), pace.request("s3://bucket"):
        raise slow_down(wanted_s)
    with pytest.raises(Held) as held, pace.request("s3://bucket"):
        pytest.fail("it was asked")
    assert held.value.retry_after_s == waited_s
    time.now_s = waited_s
    assert pace.is_free


def test_an_error_that_is_an_answer_ends_the_pauses(time: Time) -> None:
    """Also a store that lacks an object answers."""
    pace = Pace(clock=time.clock)
    for _ in range(2):
        with pytest.raises(Unavailable), pace.request("s3://bucket"):
            raise slow_down()
    assert not pace.is_free
    time.now_s += PAUSE_S_MAX
    with pytest.raises(NotFound), pace.request("s3://bucket"):
        raise NotFound("nothing there")
    assert pace.is_free


def test_errors_tell_how_long_a_store_has_failed(time: Time) -> None:
    """Every error after the first says for how long nothing else has come; an answer, or a long
    silence, ends that."""
    pace = Pace(clock=time.clock)
    seen_s = []
    for pause_s in (0.0, 10.0, 25.0, 100.0):
        time.now_s += pause_s
        with pytest.raises(Unavailable) as failed, pace.request("s3://bucket"):
            raise Unavailable("connection refused")
        seen_s.append(failed.value.lasting_s)
    assert seen_s == [0.0, 10.0, 35.0, 0.0]


@pytest.mark.parametrize(("throttled_s_max", "requests_max"), [(5.0, 6), (180.0, 40)])
def test_a_call_waits_for_its_time_however_often_it_is_put_off(
    time: Time, throttled_s_max: float, requests_max: int
) -> None:
    """A call to a store that puts off ends after its time, not after some attempts; the metric
    counts each answer that put it off."""
    faulty = FaultyObjects(MemoryObjects())
    faulty.add(fail(slow_down()))
    counted: list[Unavailable] = []
    policy = RetryPolicy(attempts_max=2, throttled_s_max=throttled_s_max)
    limited = Limited(faulty, calls_max=1, pace=Pace(clock=time.clock))
    patient = Retrying(limited, policy, sleep=time.sleep, clock=time.clock, on_retry=counted.append)
    with pytest.raises(Unavailable):
        patient.head("a")
    assert throttled_s_max - PAUSE_S_MAX <= time.now_s <= throttled_s_max
    assert 3 <= faulty.count() <= requests_max
    assert len(counted) == faulty.count()
