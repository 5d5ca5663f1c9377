"""The contract of interface.py as tests: every object store, and every wrapper, passes them."""

from __future__ import annotations

import hashlib
import threading
from itertools import pairwise
from random import Random

import pytest

from lodefs.chunkstore.errors import AlreadyExists, Changed, InvalidInput, NotFound, TooLarge
from lodefs.chunkstore.objects.interface import Md5Buffers, ObjectStore, read_whole
from lodefs.chunkstore.types import Buffer

THREADS = 8
JOIN_TIMEOUT_S = 120.0
DATA = bytes(range(256)) * 4
BIG_BYTES = 20 << 20
MUCH = 64 << 20  # more than any object of the tests has

# (offset, size) of reads of DATA
RANGES = [
    (0, MUCH),
    (0, 1),
    (0, 1024),
    (0, 5000),
    (1, MUCH),
    (10, 20),
    (1000, 100),
    (1023, 1),
    (1023, 10),
    (1024, MUCH),
    (1024, 1),
    (9999, 1),
    (5, 0),
    (-1, MUCH),
    (-24, MUCH),
    (-1024, MUCH),
    (-5000, MUCH),
    (-24, 10),
    (-24, 100),
    (-5000, 10),
    (-24, 0),
]
BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "..",
    "a/../b",
    "./a",
    ".put/a",
    "a/.b",
    "a b",
    "ä",
    "a\0",
    "a" * 901,
]


class ObjectStoreSuite:
    """A subclass (named Test...) gives the fixture ``objects``: an empty store, for each test."""

    @pytest.mark.parametrize(("offset", "size"), RANGES)
    def test_get_gives_the_range(self, objects: ObjectStore, offset: int, size: int) -> None:
        """A range comes back as Python's slice of the object, with the whole's size and ETag."""
        etag = objects.put("a/b", [DATA])
        part = objects.get("a/b", offset=offset, size=size)
        first = max(0, len(DATA) + offset) if offset < 0 else offset
        assert bytes(part.data) == DATA[first : first + size]
        assert (part.object_size_bytes, part.etag) == (len(DATA), etag)

    def test_get_of_an_empty_object(self, objects: ObjectStore) -> None:
        """An empty object reads as nothing, from wherever."""
        etag = objects.put("empty", [])
        for offset, size in ((0, MUCH), (0, 10), (-10, MUCH), (10, MUCH), (0, 0)):
            part = objects.get("empty", offset=offset, size=size)
            assert (bytes(part.data), part.object_size_bytes, part.etag) == (b"", 0, etag)

    def test_missing_objects(self, objects: ObjectStore) -> None:
        """What is not there is NotFound, with its key; deleting it is nothing."""
        objects.put("folder/there", [b"x"])
        for key in ("missing", "folder", "folder/missing", "folder/there/below"):
            with pytest.raises(NotFound, match=key):
                objects.get(key, size=MUCH)
            with pytest.raises(NotFound, match=key):
                objects.get(key, offset=-10, size=MUCH)
            with pytest.raises(NotFound, match=key):
                objects.get(key, if_match='"0"', size=MUCH)
            with pytest.raises(NotFound, match=key):
                objects.head(key)
        objects.delete("missing")
        objects.delete("folder/missing")

    def test_head(self, objects: ObjectStore) -> None:
        """Head tells the size, and the ETag that put and get give."""
        etag = objects.put("a", [b"12", b"345"])
        info = objects.head("a")
        assert (info.key, info.size_bytes, info.etag) == ("a", 5, etag)
        assert etag

    def test_put_joins_any_buffers(self, objects: ObjectStore) -> None:
        """Bytes, bytearrays, memoryviews, slices and empty ones of them are joined in order."""
        source = bytearray(b"0123456789")
        buffers: list[Buffer] = [
            b"",
            b"ab",
            source,
            memoryview(source)[2:5],
            memoryview(b""),
            bytearray(b"z"),
        ]
        etag = objects.put("joined", buffers)
        source[:] = b"----------"
        assert bytes(objects.get("joined", size=MUCH).data) == b"ab0123456789234z"
        assert objects.head("joined").etag == etag

    def test_big_object(self, objects: ObjectStore) -> None:
        """20 MiB and a bit, in buffers of odd sizes, come back whole and in ranges."""
        whole = Random(20).randbytes(BIG_BYTES + 5)
        view = memoryview(whole)
        cuts = [0, 1, 4095, 4096, 70_001, 5 << 20, (5 << 20) + 1, len(whole)]
        buffers: list[Buffer] = [view[first:last] for first, last in pairwise(cuts)]
        buffers[2], buffers[3] = bytes(buffers[2]), bytearray(buffers[3])
        objects.put("big", buffers)
        part = objects.get("big", size=MUCH)
        assert part.object_size_bytes == len(whole)
        assert part.data == whole
        assert (
            objects.get("big", offset=(8 << 20) - 3, size=9 << 20).data
            == whole[(8 << 20) - 3 : (17 << 20) - 3]
        )
        assert bytes(objects.get("big", offset=-7, size=MUCH).data) == whole[-7:]

    def test_a_read_has_a_bound(self, objects: ObjectStore) -> None:
        """An object that is read as a whole and is larger than its bound is refused, with key,
        size and bound, after no more than the bound was read; one that just fits is not."""
        etag = objects.put("just", [DATA])
        assert read_whole(objects, "just", len(DATA)).data == DATA
        objects.put("over", [DATA, b"x"])
        with pytest.raises(TooLarge, match=rf"over .*{len(DATA) + 1} .*{len(DATA)}"):
            read_whole(objects, "over", len(DATA))
        part = objects.get("just", size=len(DATA) - 1, if_match=etag)
        assert (bytes(part.data), part.object_size_bytes) == (DATA[:-1], len(DATA))

    def test_put_with_an_md5(self, objects: ObjectStore) -> None:
        """Buffers whose MD5 is said are put, also if it is another one; a condition holds too."""
        for key, of in (("right", b"abcd"), ("wrong", b"other"), ("later", b"abcd")):
            md5 = hashlib.md5(of, usedforsecurity=False).digest()
            objects.put(key, Md5Buffers([b"ab", b"cd"], md5), if_absent=True)
            assert bytes(objects.get(key, size=MUCH).data) == b"abcd"
            with pytest.raises(AlreadyExists):
                objects.put(key, Md5Buffers([b"new"], md5), if_absent=True)
            assert bytes(objects.get(key, size=MUCH).data) == b"abcd"

    def test_put_replaces(self, objects: ObjectStore) -> None:
        """A put without condition replaces the object, and its ETag is another one."""
        etags = [objects.put("a", [text]) for text in (b"one", b"two", b"longer")]
        assert bytes(objects.get("a", size=MUCH).data) == b"longer"
        assert len(set(etags)) == 3
        assert objects.head("a").etag == etags[-1]

    def test_if_absent(self, objects: ObjectStore) -> None:
        """A conditional put writes where nothing is, and changes nothing where something is."""
        first = objects.put("a/b", [b"first"], if_absent=True)
        with pytest.raises(AlreadyExists, match="a/b"):
            objects.put("a/b", [b"second"], if_absent=True)
        part = objects.get("a/b", size=MUCH)
        assert (bytes(part.data), part.etag) == (b"first", first)
        objects.delete("a/b")
        objects.put("a/b", [b"third"], if_absent=True)
        assert bytes(objects.get("a/b", size=MUCH).data) == b"third"

    def test_of_many_conditional_puts_one_wins(self, objects: ObjectStore) -> None:
        """Eight threads write one key if absent: one is told that it did, and its bytes stay."""
        for number in range(5):
            key = f"race/{number}"
            barrier = threading.Barrier(THREADS)
            won: list[bytes] = []
            lost: list[bytes] = []

            def write(
                mine: bytes,
                key: str = key,
                barrier: threading.Barrier = barrier,
                won: list[bytes] = won,
                lost: list[bytes] = lost,
            ) -> None:
                barrier.wait(JOIN_TIMEOUT_S)
                try:
                    objects.put(key, [mine], if_absent=True)
                    won.append(mine)
                except AlreadyExists:
                    lost.append(mine)

            threads = [
                threading.Thread(target=write, args=(b"writer %d" % each,))
                for each in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(JOIN_TIMEOUT_S)
            assert (len(won), len(lost)) == (1, THREADS - 1)
            assert bytes(objects.get(key, size=MUCH).data) == won[0]

    def test_if_match(self, objects: ObjectStore) -> None:
        """A read of a version that is gone is refused, a read of the one there is answered."""
        old = objects.put("a", [b"old bytes"])
        assert bytes(objects.get("a", offset=4, size=5, if_match=old).data) == b"bytes"
        assert bytes(objects.get("a", if_match=old, size=MUCH).data) == b"old bytes"
        new = objects.put("a", [b"new bytes"])
        for offset, size in ((0, MUCH), (4, 5), (-3, MUCH), (0, 0), (100, MUCH)):
            with pytest.raises(Changed, match="a"):
                objects.get("a", offset=offset, size=size, if_match=old)
        assert bytes(objects.get("a", offset=-5, if_match=new, size=MUCH).data) == b"bytes"

    def test_list_in_the_order_of_bytes(self, objects: ObjectStore) -> None:
        """Keys are listed by their bytes, whatever folders they seem to lie in."""
        keys = ["a", "a-b", "a.b", "aa", "B", "_", "b/c/d", "b/c-d", "b/c.d", "b-c/d", "b0", "-x"]
        for number, key in enumerate(keys):
            objects.put(key, [b"x" * number])
        found = list(objects.list(""))
        assert [info.key for info in found] == sorted(keys)
        assert {info.key: info.size_bytes for info in found} == {
            key: number for number, key in enumerate(keys)
        }
        assert all(info.etag == objects.head(info.key).etag for info in found)

    def test_list_of_a_part(self, objects: ObjectStore) -> None:
        """Prefix, after and limit choose as they would from the sorted list of all keys."""
        keys = sorted(
            f"{top}/{middle}{last}"
            for top in ("x", "x-y", "xy")
            for middle in ("m/", "m-", "n")
            for last in ("1", "1/2", "2/1")
            if not (middle == "m/" and last == "1/2")
            if not (middle != "m/" and last == "1")
        )
        for key in keys:
            objects.put(key, [b"x"])
        prefixes = ["", "x", "x/m", "x/m/", "x/m/1", "x-y/", "nothing/", "x/m-1/2"]
        afters = ["", "x", "x/m", "x/m/1", "x/m0", "x/n1/2", "xy/m/2/1", "zzz"]
        for prefix in prefixes:
            for after in afters:
                expected = [key for key in keys if key.startswith(prefix) and key > after]
                for limit in (None, 0, 2):
                    found = [info.key for info in objects.list(prefix, after=after, limit=limit)]
                    assert found == expected[:limit], (prefix, after, limit)

    def test_delete(self, objects: ObjectStore) -> None:
        """A deleted object is gone from reads and lists, and can be written again."""
        objects.put("a/b", [b"1"])
        objects.put("a/c", [b"2"])
        objects.delete("a/b")
        assert [info.key for info in objects.list("a/")] == ["a/c"]
        with pytest.raises(NotFound):
            objects.get("a/b", size=MUCH)
        objects.delete("a/b")
        objects.put("a/b", [b"3"])
        assert bytes(objects.get("a/b", size=MUCH).data) == b"3"

    @pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
    def test_bad_keys(self, objects: ObjectStore, key: str) -> None:
        """Keys that could leave the store, or be seen differently by stores, are refused."""
        with pytest.raises(InvalidInput):
            objects.put(key, [b"x"])
        with pytest.raises(InvalidInput):
            objects.get(key, size=MUCH)
        with pytest.raises(InvalidInput):
            objects.head(key)
        with pytest.raises(InvalidInput):
            objects.delete(key)
        assert list(objects.list("")) == []

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//", ".put"])
    def test_bad_prefixes(self, objects: ObjectStore, prefix: str) -> None:
        """A prefix that no key can begin with is refused."""
        with pytest.raises(InvalidInput):
            list(objects.list(prefix))

    def test_url_is_for_people(self, objects: ObjectStore) -> None:
        """The URL is there, and holds no credentials."""
        assert objects.url
        assert "@" not in objects.url
