"""docs/semantics.md says what the code does."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.mount import options
from lodefs.mount.fs import dispatch, filesystem
from lodefs.mount.fs.filesystem import FileSystem, MountView
from lodefs.mount.kernel import session
from lodefs.mount.kernel.features import VARIABLE, Feature
from tests.support.mount.dict_tree import DictTree
from tests.support.mount.kernels import OLD

TEXT = (Path(__file__).parents[3] / "docs" / "semantics.md").read_text()
FLAT = " ".join(TEXT.split())


def test_every_errno_is_explained() -> None:
    """The list of errors holds every errno that errors become, but one that nothing raises."""
    explained = set(re.findall(r"^- (E[A-Z]+)\b", TEXT, re.MULTILINE))
    used = {errno.errorcode[code] for _, code in dispatch.ERRNO} - {"ENOTSUP", "EOPNOTSUPP"}
    assert used | {"EIO", "EROFS", "ESTALE", "ENODATA", "ENAMETOOLONG"} <= explained


def test_attributes_are_named() -> None:
    """Every extended attribute that is listed stands in the document."""
    tree = DictTree({b"f": b""})
    fs = FileSystem(tree, MountView(tree.snapshot, tree.nodes[ROOT_INO], 0, 0))
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


def test_kernels() -> None:
    """Every kernel that mounts are tested as of, and all that may be left out, are explained."""
    _, _, section = TEXT.partition("## On older kernels")
    section, _, _ = section.partition("\n## ")
    assert all(f"`{feature}`" in section for feature in Feature)
    assert all(name.rpartition("-")[2] in section for name in OLD)
    assert VARIABLE in section
