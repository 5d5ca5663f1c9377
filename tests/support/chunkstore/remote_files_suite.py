"""The contract of remote_files.py as tests: every source of a push that a URL names passes them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.push.remote.remote_files import Listing, RemoteFiles

Put = Callable[[bytes, bytes], None]
NAMES = {
    b"a-b": b"1",
    b"a.txt": b"22",
    b"a/x": b"333",
    b"a/sub/y": b"4444",
    "é +%@/ü~&=#?'".encode(): b"55555",
    b"empty": b"",
}


def walked(source: RemoteFiles, path: bytes = b"") -> dict[bytes, int]:
    """The sizes of all files, by their paths."""
    listing = source.list(path)
    files, subdirectories = listing.files, listing.subdirectories
    assert listing.unreadable == []
    above = path + b"/" if path else b""
    found = {above + file.name: file.size_bytes for file in files}
    for name in sorted(subdirectories):
        found |= walked(source, above + name)
    return found


class RemoteFilesSuite:
    """A subclass has the fixtures ``source`` and ``put``, which puts a file into it, and says
    whether the source can tell states."""

    HAS_STATES = True

    def test_names(self, source: RemoteFiles, put: Put) -> None:
        """All files are found, and each can be read by its path."""
        for path, data in NAMES.items():
            put(path, data)
        assert walked(source) == {path: len(data) for path, data in NAMES.items()}
        for path, data in NAMES.items():
            assert bytes(source.read(path, 0, 100).data) == data

    def test_nothing(self, source: RemoteFiles) -> None:
        """A directory that does not exist holds nothing."""
        assert source.list(b"") == source.list(b"nowhere") == Listing([], [])

    @pytest.mark.parametrize(("offset", "size"), [(0, 10), (3, 4), (8, 100), (10, 5), (0, 1)])
    def test_ranges(self, source: RemoteFiles, put: Put, offset: int, size: int) -> None:
        """A piece has what was asked for, up to the end, and the size of the whole file."""
        put(b"a", b"0123456789")
        piece = source.read(b"a", offset, size)
        assert bytes(piece.data) == b"0123456789"[offset : offset + size]
        assert piece.file_size_bytes == 10

    def test_states(self, source: RemoteFiles, put: Put) -> None:
        """A listing and a piece have the same state; other bytes have another one."""
        put(b"a", b"one")
        (before,) = source.list(b"").files
        assert source.read(b"a", 0, 3).state == before.state
        assert bool(before.state) is self.HAS_STATES
        put(b"a", b"two")
        (after,) = source.list(b"").files
        assert source.read(b"a", 0, 3).state == after.state
        assert (after.state != before.state) is self.HAS_STATES

    def test_many_threads(self, source: RemoteFiles, put: Put) -> None:
        """Each of several threads gets what it has asked for."""
        files = {b"%d" % n: b"%d" % n * 100 for n in range(8)}
        for path, data in files.items():
            put(path, data)
        wanted = list(files) * 8
        with ThreadPoolExecutor(8) as threads:
            pieces = list(threads.map(lambda path: bytes(source.read(path, 0, 999).data), wanted))
        assert pieces == [files[path] for path in wanted]

    def test_find(self, source: RemoteFiles, put: Put) -> None:
        """A file is found by its path; a directory, and a path that begins like one, are none."""
        put(b"a/b c", b"one")
        assert source.find(b"a/b c") == source.list(b"a").files[0]
        assert [source.find(path) for path in (b"a", b"a/b", b"a/b c d", b"")] == [None] * 4

    def test_missing_file(self, source: RemoteFiles, put: Put) -> None:
        """Reading what is not there raises NotFound."""
        put(b"a", b"one")
        with pytest.raises(NotFound):
            source.read(b"b", 0, 1)
