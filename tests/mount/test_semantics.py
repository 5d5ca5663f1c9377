"""docs/semantics.md says what the code does."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from chunkstore.inodes import ROOT_INO, child_ino
from mount import dispatch, filesystem, options, session
from mount.filesystem import FileSystem, View
from mount.testing.dicttree import DictTree

TEXT = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
FLAT = " ".join(TEXT.split())


def test_every_errno_is_explained() -> None:
    """The table of errors holds every errno that errors become, but one that nothing raises."""
    explained = set(re.findall(r"^\| (E[A-Z]+) \|", TEXT, re.MULTILINE))
    used = {errno.errorcode[code] for _, code in dispatch.ERRNO} - {"ENOTSUP", "EOPNOTSUPP"}
    assert used | {"EIO", "EROFS", "ESTALE", "ENODATA", "ENAMETOOLONG"} <= explained


def test_attributes_are_named() -> None:
    """Every extended attribute that is listed stands in the document."""
    tree = DictTree({b"f": b""})
    fs = FileSystem(tree, View(tree.snapshot, tree.nodes[ROOT_INO], 0, 0))
    names = fs.listxattr(child_ino(ROOT_INO, b"f"))
    assert names
    assert all(f"`{name.decode()}`" in TEXT for name in names)


def test_figures() -> None:
    """The document's limits are those of the code."""
    assert f"`read_timeout_s` ({options.READ_TIMEOUT_S:.0f} s)" in FLAT
    assert f"up to {options.THREADS} answers at once (`threads`)" in FLAT
    assert f"{filesystem.NODES_MAX:,} entries and {filesystem.PAGES_MAX} pages" in FLAT
    assert f"`st_blksize` {filesystem.BLOCK_BYTES >> 10} KiB" in FLAT
    assert f"up to {session.READ_BYTES_MAX >> 20} MiB" in FLAT
    assert f"to {options.READ_AHEAD_KIB >> 10} MiB" in FLAT
