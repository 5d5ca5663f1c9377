"""The contract of source_objects.py as tests: every kind of source passes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lodefs.chunkstore.errors import SourceLost
from lodefs.chunkstore.format.virtual_pack import SourceObject
from lodefs.chunkstore.objects.in_place.source_objects import SourceObjects

DATA = bytes(range(256)) * 4
KEYS = ["a", "b/c d", "ä/+&=%?#.bin", "x/..y/~"]


class SourceObjectsSuite:
    """A subclass (named Test...) gives the fixtures ``source``, ``put``, which writes an object of
    the source and returns its state, and ``delete``."""

    @pytest.mark.parametrize("key", KEYS)
    def test_reads_ranges(
        self, source: SourceObjects, put: Callable[[str, bytes], SourceObject], key: str
    ) -> None:
        """Each range of an object in its state comes back, and the check passes."""
        found = put(key, DATA)
        for offset, size in ((0, 1024), (0, 1), (1000, 24), (1023, 1)):
            assert bytes(source.read(found, offset, size)) == DATA[offset : offset + size]
        source.check(found)

    def test_an_overwritten_object_is_lost(
        self, source: SourceObjects, put: Callable[[str, bytes], SourceObject]
    ) -> None:
        """Bytes of another state are never returned; the old state is readable when it is back, or
        if the bucket keeps versions."""
        found = put("dir/a", DATA)
        assert bytes(source.read(found, 0, 9)) == DATA[:9]
        put("dir/a", DATA[::-1])
        if found.version:
            assert bytes(source.read(found, 0, 9)) == DATA[:9]
            source.check(found)
            return
        for read in (lambda: source.read(found, 0, 9), lambda: source.check(found)):
            with pytest.raises(SourceLost, match=r"dir/a .*changed"):
                read()
        put("dir/a", DATA)
        assert bytes(source.read(found, 0, 9)) == DATA[:9]

    def test_a_deleted_object_is_lost(
        self,
        source: SourceObjects,
        put: Callable[[str, bytes], SourceObject],
        delete: Callable[[str], None],
    ) -> None:
        """The error names the object and the way out."""
        found = replace_version(put("dir/gone", DATA))
        delete("dir/gone")
        for read in (lambda: source.read(found, 0, 9), lambda: source.check(found)):
            with pytest.raises(SourceLost, match=r"dir/gone .*gone.*lodefs adopt"):
                read()

    def test_a_size_that_differs(
        self, source: SourceObjects, put: Callable[[str, bytes], SourceObject]
    ) -> None:
        """An object of another size is another one, whatever its ETag says."""
        found = put("a", DATA)._replace(size_bytes=1025)
        with pytest.raises(SourceLost):
            source.read(found, 0, 9)
        with pytest.raises(SourceLost):
            source.check(found)


def replace_version(found: SourceObject) -> SourceObject:
    """Returns the same object, read without a version."""
    return found._replace(version="")
