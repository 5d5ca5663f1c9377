"""Rows that the disk refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from lodefs.chunkstore.errors import NoSpace
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.proxy.read.directories.write_buffer import WriteBuffer
from tests.support.chunkstore.memory_key_values import MemoryKeyValues


class Disk(MemoryKeyValues):
    """One that may be full; ``meanwhile`` happens after each look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        self.meanwhile: Callable[[], None] = lambda: None

    def write(self, rows: Sequence[Row], *, durable: bool = False) -> None:
        if self.is_full:
            raise NoSpace("full")
        super().write(rows, durable=durable)

    def get(self, key: bytes) -> bytes | None:
        value = super().get(key)
        self.meanwhile()
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = super().get_many(keys)
        self.meanwhile()
        return values

    def scan(self, prefix: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        rows = list(super().scan(prefix, after=after))
        self.meanwhile()
        return iter(rows)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.mark.parametrize(
    "sees",
    [
        lambda rows: rows.get(b"k1") == b"one",
        lambda rows: rows.get_many([b"k0", b"k1"]) == [None, b"one"],
        lambda rows: list(rows.scan(b"k")) == [(b"k1", b"one")],
    ],
)
def test_a_row_is_in_sight_while_it_goes_to_the_disk(
    disk: Disk, sees: Callable[[WriteBuffer], bool]
) -> None:
    """Whoever looks while another thread has the disk take what it refused finds the row."""
    rows = WriteBuffer(disk)
    rows.write([(b"k1", b"one")])

    def has_room() -> None:
        disk.is_full = False
        rows.write([])

    disk.meanwhile = has_room
    assert sees(rows)
    has_room()
    assert disk.rows == {b"k1": b"one"}
    assert sees(rows)


def test_rows_of_memory_and_disk_are_one_sequence(disk: Disk) -> None:
    """A scan gives each key once, in order, wherever its row is."""
    disk.is_full = False
    rows = WriteBuffer(disk)
    rows.write([(b"k1", b"one"), (b"k3", b"three"), (b"x", b"other")])
    disk.is_full = True
    rows.write([(b"k2", b"two"), (b"k3", b"three")])
    assert list(rows.scan(b"k")) == [(b"k1", b"one"), (b"k2", b"two"), (b"k3", b"three")]
    assert list(rows.scan(b"k", after=b"k1")) == [(b"k2", b"two"), (b"k3", b"three")]


def test_memory_has_a_limit(disk: Disk) -> None:
    """Beyond it a write fails as the disk does."""
    rows = WriteBuffer(disk, size_bytes_max=10)
    rows.write([(b"k1", b"12345678")])
    with pytest.raises(NoSpace):
        rows.write([(b"k2", b"")])
    assert rows.get(b"k2") is None
