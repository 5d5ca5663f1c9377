"""The layout of a cache: rows and paths stay as they are, since other processes read them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import ChunkId, CommitId, Digest, PackId
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState, PinRow
from lodefs.chunkstore.protocol.wire import Snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "cache-rows"
ID = bytes(range(32))
OTHER = bytes(range(100, 132))
COMMIT = CommitId(bytes(range(200, 232)))
KEY = name_rows.snapshot_key(COMMIT)
FLAT = FileRow(FileKind.FLAT, FileState.COMPLETE, layout.DURABLE, ID, 2**33, 2**33, 1_700_000_000)
SLAB = FileRow(FileKind.SLAB, FileState.OPEN, OTHER[:16], bytes(32), 700, 650, 1_700_000_001)
FILE = TreeEntry(
    b"\xff name",
    Kind.FILE,
    executable=True,
    size_bytes=2**33,
    digest=Digest(ID),
    segments=(Segment(PackId(OTHER), 7, 1000, 2**33 - 5), Segment(PackId(ID), 0, 1, 5)),
)
LINK = TreeEntry(b"link", Kind.SYMLINK, size_bytes=4, digest=Digest(OTHER), target=b"../x")
PIN_ID = ID[:8]
PIN = PinRow("a/b", COMMIT.hex(), b"d\xff", b"d\xff/*.jpg", 1_800_000_000, 2**40, is_complete=True)
SNAPSHOT = Snapshot("a/b", COMMIT.hex(), name_rows.node_of(1, 1, LINK), 17, 3, 1, 99)
SNAPSHOT_2 = Snapshot("a/c", COMMIT.hex(), name_rows.node_of(1, 1, LINK), 17, 3, 1, 99, 50)


# the row of a commit of version 1, which did not say how many bytes its large files have
SHORT_ROW = msgspec.msgpack.encode(msgspec.structs.astuple(SNAPSHOT)[:-1])


def rows() -> list[tuple[bytes, bytes]]:
    """One row of every kind."""
    return [
        (layout.chunk_key(ID), layout.encode_chunk_row(3, 2**33, 65_536)),
        (layout.file_key(3), layout.encode_file_row(FLAT)),
        (layout.file_key(4), layout.encode_file_row(SLAB)),
        (layout.run_key(3, 2**33), layout.encode_run_row([(ID, 100), (OTHER, 262_144)])),
        (layout.flat_key(ID), (3).to_bytes(4, "little")),
        (layout.pack_key(PackId(ID)), layout.encode_pack_row('"etag"', b"index and trailer")),
        (name_rows.snapshot_row_key(COMMIT, "a/b"), SHORT_ROW),
        (name_rows.entry_key(KEY, 77), name_rows.encode_entry_row(1, FILE)),
        (
            name_rows.children_prefix(KEY, 1) + LINK.name,
            name_rows.encode_page([name_rows.node_of(77, 1, FILE), name_rows.node_of(78, 1, LINK)]),
        ),
        (name_rows.loaded_key(KEY, 1), b""),
        (layout.figure_key("next_number"), (5).to_bytes(8, "little")),
        (layout.pin_key(PIN_ID), layout.encode_pin_row(PIN)),
        (layout.held_key(PIN_ID, 3), b""),
        (name_rows.snapshot_row_key(COMMIT, "a/c"), name_rows.encode_snapshot(SNAPSHOT_2)),
    ]


def test_rows_are_those_of_version_2() -> None:
    """Keys and values of every kind of row, byte for byte."""
    lines = [f"{key.hex()} {value.hex()}\n" for key, value in rows()]
    assert "".join(lines) == GOLDEN.read_text(encoding="ascii")
    assert layout.VERSION_TEXT == "lodefs-cache 2\n"


def test_a_pin_of_owners_is_a_pin_with_more_to_it() -> None:
    """Who knows no owners reads the row all the same; without a name there are none in it."""
    owned = msgspec.structs.replace(PIN, owners={"": 1, "docker": 2})
    plain, more = layout.encode_pin_row(PIN), layout.encode_pin_row(owned)
    assert more.hex() == "98" + plain.hex()[2:] + "82" + "a0" + "01" + "a6" + b"docker".hex() + "02"
    assert plain.hex()[:2] == "97"


def test_rows_decode_to_what_was_encoded() -> None:
    """The read side gives back what the write side meant."""
    values = [value for _, value in rows()]
    assert layout.decode_chunk_row(values[0]) == (3, 2**33, 65_536)
    assert layout.decode_file_row(values[1]) == FLAT
    assert layout.decode_file_row(values[2]) == SLAB
    assert layout.decode_run_row(values[3]) == (262_244, [(ID, 100), (OTHER, 262_144)])
    assert layout.run_size(values[3]) == 262_244
    etag, index = layout.decode_pack_row(values[5])
    assert (etag, bytes(index)) == ('"etag"', b"index and trailer")
    assert name_rows.decode_snapshot(values[6]) == SNAPSHOT
    assert name_rows.decode_snapshot(values[13]) == SNAPSHOT_2
    row = name_rows.decode_entry_row(values[7])
    assert name_rows.entry_of(row) == FILE
    assert name_rows.segments_of(row) == FILE.segments
    assert name_rows.node_of(77, row.parent, row) == name_rows.node_of(77, 1, FILE)
    assert [node.name for node in name_rows.decode_page(values[8])] == [FILE.name, LINK.name]
    assert layout.decode_pin_row(values[11]) == PIN
    owned = msgspec.structs.replace(PIN, owners={"": 1_700_000_000, "docker": PIN.until_s})
    assert layout.decode_pin_row(layout.encode_pin_row(owned)) == owned
    assert layout.held_of_key(rows()[12][0]) == (PIN_ID, 3)
    assert rows()[12][0].startswith(layout.held_prefix(PIN_ID))


def test_keys_give_back_their_numbers() -> None:
    """Number and offset can be read from a key."""
    key = layout.run_key(70_000, 2**40 + 5)
    assert key.startswith(layout.run_prefix(70_000))
    assert layout.number_of_key(key) == layout.number_of_key(layout.file_key(70_000)) == 70_000
    assert layout.run_offset(key) == 2**40 + 5


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_runs_sort_by_their_offset(offsets: list[int]) -> None:
    """A scan gives the runs of a file in the order of their bytes."""
    keys = sorted(layout.run_key(9, offset) for offset in offsets)
    assert [layout.run_offset(key) for key in keys] == sorted(offsets)


def test_chunk_keys_are_slices_of_the_joined_ids() -> None:
    """Many keys at once are the same as one by one."""
    ids = [bytes([n]) * 32 for n in range(10)]
    expected = [layout.chunk_key(ChunkId(one)) for one in ids[3:7]]
    assert layout.chunk_keys(b"".join(ids), 3, 4) == expected


def test_paths_hold_the_number_and_the_digest() -> None:
    """Where files lie, and that their number can be read from their name."""
    base = Path("/cache")
    slab, flat = layout.file_path(base, 0x1234, SLAB), layout.file_path(base, 0x1234, FLAT)
    assert slab == Path("/cache/slabs/34/00001234")
    assert flat == Path(f"/cache/flat/00/{ID.hex()}-00001234")
    assert layout.number_of(slab) == layout.number_of(flat) == 0x1234
    assert layout.number_of(Path("/cache/slabs/34/note.txt")) is None
    assert layout.number_of(Path("/cache/slabs/34/zzzzzzzz")) is None


def test_trust_depends_on_the_boot() -> None:
    """Durable bytes are trusted in every boot, others in their own."""
    boot = layout.boot_id()
    assert len(boot) == 16
    assert boot == layout.boot_id()
    assert layout.is_trusted(FLAT, boot)
    assert layout.is_trusted(SLAB, SLAB.boot)
    assert not layout.is_trusted(SLAB, boot)


@pytest.mark.parametrize(
    "decode",
    [
        layout.decode_chunk_row,
        layout.decode_file_row,
        layout.decode_run_row,
        layout.decode_pin_row,
    ],
)
@pytest.mark.parametrize("value", [b"", b"\xc1", b"x" * 69, b"\xff" * 70])
def test_damaged_rows_are_corrupt(decode: object, value: bytes) -> None:
    """A value that is no row is Corrupt, never something else."""
    with pytest.raises(Corrupt, match="damaged"):
        decode(value)  # type: ignore[operator]
