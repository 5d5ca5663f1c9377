"""The contract of KeyValues as a pytest class: every implementation passes it."""

from __future__ import annotations

from lodefs.chunkstore.nodecache.kv import KeyValues


class KeyValuesSuite:
    """Subclass it and give a fixture ``kv``: an empty KeyValues."""

    def test_get_of_a_missing_key_is_none(self, kv: KeyValues) -> None:
        """A key that nobody wrote has no value."""
        assert kv.get(b"missing") is None

    def test_values_come_back(self, kv: KeyValues) -> None:
        """What was written is read, the empty value and awkward bytes included."""
        rows = [(b"\0", b""), (b"a\xff", b"\0\xff"), (b"a", b"x" * 100_000)]
        kv.write(rows)
        assert [kv.get(key) for key, _ in rows] == [value for _, value in rows]

    def test_get_many_keeps_the_order_of_the_keys(self, kv: KeyValues) -> None:
        """One value or None for each key, also for a key that is asked for twice."""
        kv.write([(b"a", b"1"), (b"b", b"2")])
        assert kv.get_many([b"b", b"nothing", b"a", b"b"]) == [b"2", None, b"1", b"2"]
        assert kv.get_many([]) == []

    def test_lacks_is_sure_of_rows_that_are_there(self, kv: KeyValues) -> None:
        """Whoever has one of the keys does not lack them."""
        assert kv.lacks([b"a", b"b"])
        kv.write([(b"a", b"1")])
        assert not kv.lacks([b"b", b"a"])

    def test_later_rows_of_a_write_win(self, kv: KeyValues) -> None:
        """Within one write the last row for a key counts, deletions included."""
        kv.write([(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", None)])
        assert kv.get_many([b"a", b"b"]) == [b"2", None]

    def test_none_deletes(self, kv: KeyValues) -> None:
        """A row without a value removes the key; removing a missing key is fine."""
        kv.write([(b"a", b"1")], durable=True)
        kv.write([(b"a", None), (b"never", None)])
        assert kv.get(b"a") is None

    def test_scan_gives_a_prefix_in_order(self, kv: KeyValues) -> None:
        """A scan gives the rows of its prefix alone, sorted by the bytes of their keys."""
        kv.write([(b"p\xff", b"3"), (b"p\0", b"1"), (b"p\0\0", b"2"), (b"q", b"4"), (b"o", b"0")])
        assert list(kv.scan(b"p")) == [(b"p\0", b"1"), (b"p\0\0", b"2"), (b"p\xff", b"3")]
        assert list(kv.scan(b"z")) == []

    def test_scan_goes_on_after_a_key(self, kv: KeyValues) -> None:
        """``after`` is left out itself; one before the prefix changes nothing."""
        kv.write([(b"p" + bytes([n]), b"") for n in range(5)])
        assert [key for key, _ in kv.scan(b"p", after=b"p\x02")] == [b"p\x03", b"p\x04"]
        assert len(list(kv.scan(b"p", after=b"a"))) == 5
        assert list(kv.scan(b"p", after=b"q")) == []

    def test_scan_of_many_rows(self, kv: KeyValues) -> None:
        """A scan over more rows than one step holds misses none."""
        kv.write([(b"n%06d" % n, b"%d" % n) for n in range(2000)])
        assert [int(value) for _, value in kv.scan(b"n")] == list(range(2000))

    def test_floor_is_the_last_row_up_to_a_key(self, kv: KeyValues) -> None:
        """The greatest key of the prefix that is not greater, or none; others do not count."""
        kv.write([(b"o9", b"0"), (b"p1", b"1"), (b"p3", b"3"), (b"q0", b"4")])
        assert kv.floor(b"p", b"p3") == (b"p3", b"3")
        assert kv.floor(b"p", b"p2\xff") == (b"p1", b"1")
        assert kv.floor(b"p", b"p9") == (b"p3", b"3")
        assert kv.floor(b"p", b"p0") is None
        assert kv.floor(b"n", b"n5") is None
        assert kv.floor(b"r", b"r5") is None

    def test_catch_up_sees_all_writes(self, kv: KeyValues) -> None:
        """After catching up, everything written is there."""
        kv.write([(b"a", b"1")])
        kv.catch_up()
        assert kv.get(b"a") == b"1"
