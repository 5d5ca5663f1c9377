"""The kernel protocol's bytes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.fuse_abi import Attributes, InitOut, Statistics

GOLDEN = Path(__file__).parents[2] / "golden" / "fuse_abi.json"
ENTRY = Attributes(
    node=0x1122334455667788,
    ino=0x1122334455667788,
    size_bytes=70000,
    blocks=137,
    time_s=1_700_000_000,
    mode=stat.S_IFREG | 0o444,
    nlink=1,
    uid=1000,
    gid=100,
    block_bytes=65536,
)
ENCODED = {
    "entry_out": fuse_abi.encode_entry(ENTRY),
    "no_entry_out": fuse_abi.NO_ENTRY,
    "attr_out": fuse_abi.encode_attributes(ENTRY),
    "init_out": fuse_abi.encode_init(
        InitOut(
            minor=40,
            max_readahead=131072,
            flags=fuse_abi.MAX_PAGES | fuse_abi.INIT_EXT | fuse_abi.HAS_RESEND,
            max_background=64,
            congestion_threshold=48,
            max_write=4096,
            max_pages=256,
            max_stack_depth=1,
        )
    ),
    "statfs_out": fuse_abi.encode_statfs(Statistics(1000, 17, 4096, 255)),
    "open_out": fuse_abi.encode_open(fuse_abi.FOPEN_KEEP_CACHE | fuse_abi.FOPEN_CACHE_DIR),
    "dirent": fuse_abi.dirent(7, 9, stat.S_IFDIR | 0o555, b"name-of-11b"),
    "direntplus": fuse_abi.direntplus(ENTRY, 9, b"12345678"),
    "direntplus_bare": fuse_abi.direntplus_bare(1, 4, stat.S_IFDIR | 0o555, b".."),
    "notify_store": fuse_abi.store(0x1122334455667788, 1 << 20, 70000),
    "notify_resend": fuse_abi.notification(fuse_abi.NOTIFY_RESEND),
}


@pytest.mark.parametrize("name", sorted(ENCODED))
def test_golden_bytes(name: str) -> None:
    """Every structure is encoded as it always was."""
    golden = json.loads(GOLDEN.read_text())
    assert ENCODED[name].hex() == golden[name]


def test_golden_file_is_complete() -> None:
    """The golden file holds these structures and no others."""
    assert set(json.loads(GOLDEN.read_text())) == set(ENCODED)


@pytest.mark.parametrize(
    ("size", "layout"),
    [
        (40, fuse_abi.IN_HEADER),
        (16, fuse_abi.OUT_HEADER),
        (64, fuse_abi.INIT_OUT),
        (88, fuse_abi.ATTR),
        (128, fuse_abi.ENTRY_OUT),
        (104, fuse_abi.ATTR_OUT),
        (16, fuse_abi.OPEN_OUT),
        (80, fuse_abi.STATFS_OUT),
        (24, fuse_abi.DIRENT),
        (24, fuse_abi.STORE_OUT),
    ],
)
def test_sizes_of_the_header_file(size: int, layout: object) -> None:
    """Layouts have the sizes that linux/fuse.h gives them."""
    assert layout.size == size  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", range(1, 20))
def test_entries_of_a_listing_are_padded(length: int) -> None:
    """Entries of a listing end on 8 bytes, whatever the name's length."""
    assert len(fuse_abi.dirent(1, 2, 0, b"n" * length)) % 8 == 0
    assert len(fuse_abi.direntplus(ENTRY, 2, b"n" * length)) % 8 == 0


def test_init_with_and_without_the_second_flags() -> None:
    """flags2 counts under INIT_EXT only, and short messages of old kernels are read."""
    tail = fuse_abi.INIT_IN_FLAGS2.pack(1 << 7) + bytes(44)
    new = fuse_abi.INIT_IN.pack(7, 40, 131072, fuse_abi.INIT_EXT | fuse_abi.MAX_PAGES) + tail
    assert (
        fuse_abi.decode_init(new).flags
        == fuse_abi.INIT_EXT | fuse_abi.MAX_PAGES | fuse_abi.HAS_RESEND
    )
    old = fuse_abi.INIT_IN.pack(7, 31, 131072, fuse_abi.MAX_PAGES)
    assert fuse_abi.decode_init(old) == (7, 31, 131072, fuse_abi.MAX_PAGES)
    assert fuse_abi.decode_init(old + tail).flags == fuse_abi.MAX_PAGES


def test_name_ends_at_nul() -> None:
    """A name is what stands before the first NUL."""
    assert fuse_abi.decode_name(memoryview(b"n\xff\n\0rest")) == b"n\xff\n"
