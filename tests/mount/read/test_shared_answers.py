"""Threads of a worker that ask for bytes on their way share one answer of the proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import cast

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.protocol.read_client import AwaitedAnswer, Client
from lodefs.chunkstore.protocol.wire import CacheExtent
from lodefs.chunkstore.types import Buffer
from lodefs.mount.read.cached_reader import CachedReader
from lodefs.mount.read.shared_answers import REACH_SIZE_BYTES, SharedAnswers
from tests.support.mount.cached_place import BIG, DATA, Place, place_on
from tests.support.proxy.rig import MIB

INO = 7


class Asker:
    """A client that notes what it waits for."""

    def __init__(self, origin: bytes = b"") -> None:
        self.origin = origin
        self.waited_for: list[AwaitedAnswer] = []

    def wait_for(self, answer: AwaitedAnswer) -> None:
        self.waited_for.append(answer)
        self.origin = answer.origin


def client(origin: bytes = b"") -> Client:
    return cast("Client", Asker(origin))


def test_a_thread_waits_for_the_nearest_range_before_its_own() -> None:
    """The range may be as far away as an answer reaches, and must be of the same file."""
    shared = SharedAnswers()
    with (
        shared.after_others(client(), INO, MIB) as first,
        shared.after_others(client(), INO, 3 * MIB) as second,
        shared.after_others(client(), INO, 0) as earlier,
        shared.after_others(client(), INO + 1, 3 * MIB) as other,
        shared.after_others(client(), INO, 3 * MIB + REACH_SIZE_BYTES) as far,
    ):
        assert (first, second, earlier, other, far) == (False, True, False, False, False)
    with shared.after_others(client(), INO, 4 * MIB) as has_waited:
        assert not has_waited  # all answers have come


def test_a_waiting_thread_learns_the_end_and_the_origin() -> None:
    """In a chain, the second thread waits for the first, and the third for the second."""
    shared, second, third = SharedAnswers(), Asker(), Asker()
    with shared.after_others(client(b"store"), INO, 0):
        with shared.after_others(cast("Client", second), INO, MIB):
            with shared.after_others(cast("Client", third), INO, 2 * MIB):
                [of_second], [of_first] = third.waited_for, second.waited_for
                assert not of_second.came.is_set()
            second.origin = b"peers"  # it has asked after all
        assert of_second.came.is_set()
        assert of_second.origin == b"peers"
        assert not of_first.came.is_set()
    assert of_first.came.is_set()
    assert of_first.origin == b"store"


def test_a_failure_ends_the_wait_of_others() -> None:
    """Threads that wait ask by themselves when the answer that they wait for fails."""
    shared, other = SharedAnswers(), Asker()

    def fail() -> None:
        with (
            shared.after_others(client(), INO, 0),
            shared.after_others(cast("Client", other), INO, MIB),
        ):
            raise Unavailable("gone")

    with pytest.raises(Unavailable):
        fail()
    assert other.waited_for[0].came.is_set()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_on(tmp_path) as made:
        made.turn()
        yield made


def test_a_worker_asks_once_for_what_is_coming(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one thread waits for the proxy, the thread with the next range waits for its answer,
    and reads what that tells."""
    ino = place.look_up(b"big")
    place.clients[0].locate(ino, 0, len(BIG))  # now all of it is here
    place.monitor._coming.put(ino, len(BIG))
    reader = CachedReader(place._client().mounted(place.snapshot), place.monitor)
    found: list[bytes] = []
    second = Thread(target=lambda: found.append(bytes(reader.read(ino, MIB, MIB))))
    waits, wait_for = Event(), reader._client.wait_for
    locate = place.clients[0].locate

    def waiting(answer: AwaitedAnswer) -> None:
        waits.set()
        answer.came.wait(60)
        wait_for(answer)

    def locating(ino: int, first: int, size_bytes: int) -> list[CacheExtent] | Buffer:
        second.start()
        assert waits.wait(60)
        return locate(ino, first, size_bytes)

    monkeypatch.setattr(reader._client, "wait_for", waiting)
    monkeypatch.setattr(place.clients[0], "locate", locating)
    with place.asked(DATA, 1):
        assert bytes(place.reader.read(ino, 0, MIB)) == BIG[:MIB]
        second.join(60)
    assert found == [BIG[MIB : 2 * MIB]]
    reader._client.close()


def test_the_proxy_says_what_is_coming(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy names the end of what it fetches ahead of a sequential reader. If it sends bytes
    instead, as without space in the cache, no thread waits for another one."""
    ino, client = place.look_up(b"big"), place.clients[0]
    step = MIB // 2
    assert bytes(place.reader.read(ino, 0, step)) == BIG[:step]
    assert not place.monitor.is_coming(ino, step)  # a first read
    found = client.locate(ino, step, step)
    assert isinstance(found, list)
    assert found[-1].coming_end > MIB
    place.monitor.fetch(client, ino, step, step)
    assert place.monitor.is_coming(ino, found[-1].coming_end)
    monkeypatch.setattr(client, "locate", lambda *_: BIG[:step])
    place.monitor.fetch(client, ino, 0, step)
    assert not place.monitor.is_coming(ino, step)
