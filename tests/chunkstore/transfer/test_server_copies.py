"""Packs that the server copies: which ones, and what happens where it does so badly, or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lodefs.chunkstore.errors import Changed, Denied, LodefsError, Unavailable, Unsupported
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import CompositeName, CompositePlace
from lodefs.chunkstore.format.names import ChunkId
from lodefs.chunkstore.format.pack import DROPPED
from lodefs.chunkstore.objects.pack_locations import join_etag
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_index
from lodefs.chunkstore.repo.store import create_store, open_store
from lodefs.chunkstore.transfer.copy import CopyOptions, CopyResult, copy
from lodefs.chunkstore.transfer.server_copies import can_be_copied
from tests.support.chunkstore import memory_objects
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.memory_server_copy import MemoryServerCopy


class Stores:
    """Two stores on one server: in the first a repository, the second is empty."""

    def __init__(self) -> None:
        self.source = MemoryObjects("memory:source")
        self.made = Handmade(create_store(self.source))
        self.made.commit("r", {b"a": b"a" * 9000, b"d/b": bytes(range(256)) * 40})
        self.memory = MemoryObjects("memory:destination")
        self.there = FaultyObjects(self.memory)
        create_store(self.there)
        self.there.forget()
        self.server = MemoryServerCopy(self.source, self.memory)

    @property
    def packs(self) -> set[str]:
        return {key for key in self.source.objects if key.startswith(keys.PACKS)}

    def copy(self) -> CopyResult:
        source, there = open_store(self.source), open_store(self.there)
        return copy(source, there, ["r"], "main", CopyOptions(workers=2), server=self.server)

    def put(self) -> int:
        """Packs that came through here."""
        return self.there.count("put", keys.PACKS)

    def check(self) -> None:
        assert verify(open_store(self.there), data=True).problems == []


@pytest.fixture
def stores() -> Stores:
    return Stores()


def test_packs_do_not_pass_here(stores: Stores) -> None:
    """The server copies all packs, an index shard lists them, and a second copy asks for none."""
    result = stores.copy()
    assert (result.packs, result.packs_by_server) == (len(stores.packs), len(stores.packs))
    assert (set(stores.server.copied), stores.put()) == (stores.packs, 0)
    assert sum(key.startswith(keys.INDEX) for key in stores.memory.objects) == 1
    stores.check()
    again = stores.copy()
    assert (again.packs, again.packs_by_server) == (0, 0)


@pytest.mark.parametrize("error", [Unsupported("no"), Denied("no")])
def test_a_server_that_refuses(stores: Stores, error: LodefsError) -> None:
    """It is asked no more, and packs come through here."""

    def refuse(_key: str, _etag: str) -> str:
        raise error

    stores.server.instead = refuse
    result = stores.copy()
    assert (result.packs_by_server, stores.put()) == (0, len(stores.packs))
    assert len(stores.server.asked) <= 2  # one for each worker
    stores.check()


def test_a_server_that_is_busy(stores: Stores) -> None:
    """It ends the copy, and the error says what else can be done."""

    def fail(_key: str, _etag: str) -> str:
        raise Unavailable("busy")

    stores.server.instead = fail
    with pytest.raises(Unavailable) as caught:
        stores.copy()
    assert "--check" in caught.value.__notes__[0]


def test_a_pack_that_changes(stores: Stores) -> None:
    """A pack that was written again meanwhile comes through here, the others do not."""
    first = min(stores.packs)

    def copied(key: str, etag: str) -> str:
        if key == first:
            raise Changed("it was compacted")
        return stores.memory.put(key, [stores.source.objects[key]])

    stores.server.instead = copied
    result = stores.copy()
    assert (result.packs - result.packs_by_server, stores.put()) == (1, 1)
    stores.check()


def test_which_packs_can_be_copied(stores: Stores) -> None:
    """Those that lie alone, have all of their chunks, and none that was purged there."""
    pack_id = keys.pack_of(min(stores.packs))
    assert pack_id is not None
    whole = read_index(stores.source, pack_id)
    chunk = whole.index.chunk_id(0)
    assert can_be_copied(whole, ())
    assert can_be_copied(whole, {ChunkId(bytes(32))})
    assert not can_be_copied(whole, {chunk})
    in_composite = join_etag(CompositePlace(CompositeName(1, "0" * 16), 0, 100), whole.etag)
    assert not can_be_copied(PackIndexVersion(whole.index, in_composite), ())
    assert not can_be_copied(PackIndexVersion(whole.index.without(1, DROPPED), whole.etag), ())


def test_a_pack_that_lost_chunks_meanwhile(stores: Stores) -> None:
    """A server that copies what lies there later, without some chunks, has not copied the pack."""
    key = max(stores.packs, key=lambda key: len(stores.source.objects[key]))
    pack_id = keys.pack_of(key)
    assert pack_id is not None
    index = read_index(stores.source, pack_id).index
    less = index.without(1, DROPPED)
    compacted = stores.source.objects[key][index.offsets[1] : index.offsets[-1]] + less.encode()

    def copied(key: str, etag: str) -> str:
        stores.memory.put(
            key, [compacted if key == keys.pack(pack_id) else stores.source.objects[key]]
        )
        return etag

    stores.server.instead = copied
    assert stores.copy().packs_by_server == len(stores.packs) - 1
    stores.check()


def _nothing(_: bytes) -> bytes:
    return b""


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _damaged(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("spoil", [_nothing, _cut, _damaged])
def test_a_server_that_copies_badly(stores: Stores, spoil: Callable[[bytes], bytes]) -> None:
    """What did not arrive as it was is put over from here."""

    def copied(key: str, _etag: str) -> str:
        return stores.memory.put(key, [spoil(stores.source.objects[key])])

    stores.server.instead = copied
    assert stores.copy().packs_by_server == 0
    stores.check()


def test_another_etag(stores: Stores) -> None:
    """Copies with ETags of their own are read back, and are as good if each chunk is right."""

    def encrypted(key: str, _etag: str) -> str:
        stores.memory.put(key, [stores.source.objects[key]])
        return '"another"'

    stores.server.instead = encrypted
    assert stores.copy().packs_by_server == len(stores.packs)
    assert stores.put() == 0
    stores.check()


def test_an_etag_that_is_no_md5(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """It vouches for nothing, also where it is the same: a server may copy it without the bytes."""
    etag_of = memory_objects.etag_of
    monkeypatch.setattr(memory_objects, "etag_of", lambda data: f'{etag_of(data)[:-1]}-2"')

    def copied(key: str, etag: str) -> str:
        stores.memory.put(key, [_damaged(stores.source.objects[key])])
        return etag

    stores.server.instead = copied
    assert stores.copy().packs_by_server == 0
    stores.check()
