"""What a reader beside the cache asks of the proxy: only what it lacks, in one request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.protocol import read_client
from lodefs.chunkstore.protocol.connection import header
from lodefs.chunkstore.protocol.wire import CacheExtent as CacheExtent
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.read import flat_completion
from tests.support.mount.cached_place import DATA, FILES, Place, place_on

pytestmark = pytest.mark.slow

SAME = FILES[b"same"]  # begins in the flat file of another, and goes on in its own


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Files that lie in several files of the cache stay so."""
    monkeypatch.setattr(flat_completion, "PAUSE_S", 3600)
    with place_on(tmp_path) as made:
        made.turn()
        yield made


def told(place: Place) -> list[CacheExtent]:
    """Has the proxy bring a file of several extents, and asks for all of it."""
    client, ino = place.clients[0], place.look_up(b"same")
    place.look_up(b"big")
    client.read(place.ino(b"big"), 0, 1 << 22)
    client.read(ino, 0, len(SAME))
    found = client.locate(ino, 0, len(SAME))
    assert isinstance(found, list)
    return found


def test_fragments_come_by_one_request(place: Place) -> None:
    """A reader whose index is old hears by one answer of all extents of a range."""
    assert len(told(place)) > 1
    with place.asked(DATA, 1):
        assert bytes(place.reader.read(place.ino(b"same"), 0, len(SAME))) == SAME


def test_a_proxy_that_tells_of_one_place_is_asked_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy of a version that knew no lists answers with a single extent. The reader asks for the
    rest by further requests."""
    extents = told(place)
    monkeypatch.setattr(read_client, "_PLACES_LINE", b"X-Lodefs-Place: 1\r\n")
    ino = place.ino(b"same")
    before = place.proxy.requests(DATA)
    assert bytes(place.reader.read(ino, 0, len(SAME))) == SAME
    # neighbours in one file may have become one extent meanwhile
    assert 1 < place.proxy.requests(DATA) - before <= len(extents)
    client = place.clients[0]
    request = b"%b%d/data" % (client._nodes, ino)
    answer = client._ask(request, b"Range: bytes=0-%d\r\nX-Lodefs-Place: 1\r\n" % (len(SAME) - 1))
    assert not header(answer.head, b"x-lodefs-place")
    assert msgspec.msgpack.decode(answer.body, type=CacheExtent) == extents[0]


def test_a_place_in_another_cache_is_not_looked_for_in_this_one(place: Place) -> None:
    """A proxy that was restarted with another cache directory tells of a file with a number that
    the cache of this view has, too, which is still there: its bytes are asked for."""
    extents, ino = told(place), place.ino(b"same")
    device, number = extents[0].index
    elsewhere = msgspec.structs.replace(extents[0], index=(device, number + 1))
    assert place.view.tell(ino, elsewhere) is None
    assert place.view.tell(ino, extents[0]) is not None


def test_only_what_a_truncated_file_lacks_is_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several extents one of which is gone, the proxy sends this one's bytes."""
    first, *_ = told(place)
    place.warm(b"big", b"same")
    [cut] = [path for path in place.cache.rglob(f"*{first.number:08x}") if path.is_file()]
    cut.chmod(0o644)
    with cut.open("rb+") as file:
        file.truncate(first.offset + 10)
    sent: list[tuple[int, int]] = []
    read = place.clients[0].read

    def noted(ino: int, at: int, size_bytes: int) -> Buffer:
        sent.append((at, size_bytes))
        return read(ino, at, size_bytes)

    monkeypatch.setattr(place.clients[0], "read", noted)
    assert bytes(place.reader.read(place.ino(b"same"), 0, len(SAME))) == SAME
    assert sent == [(0, first.size_bytes)]
    assert "truncated" in place.lines[-1]


def test_only_what_cannot_be_opened_is_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the proxy tells of a file that this process may not open, it sends the bytes from
    there on."""
    _, second, *_ = told(place)
    sent: list[int] = []
    read, tell = place.clients[0].read, place.view.tell

    def noted(ino: int, at: int, size_bytes: int) -> Buffer:
        sent.append(at)
        return read(ino, at, size_bytes)

    monkeypatch.setattr(place.clients[0], "read", noted)
    monkeypatch.setattr(
        place.view, "tell", lambda ino, one: tell(ino, one) if one.first == 0 else None
    )
    assert bytes(place.reader.read(place.ino(b"same"), 0, len(SAME))) == SAME
    assert sent == [second.first]
