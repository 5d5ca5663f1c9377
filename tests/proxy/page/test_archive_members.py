"""Members of archives: hostile names, archives that are cut off, and bombs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable

import pytest
import zstandard

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.page import archive_members
from lodefs.proxy.page.archive_members import MEMBERS_MAX, tar_view, zip_view

NAMES = [
    "../../etc/passwd",
    "/abs",
    "<img src=x onerror=a()>",
    "\u202ertl",
    "two\nlines",
    "caf\udce9",
]


def tar(names: list[str], size_bytes: int = 5) -> bytes:
    """A tar archive of files of some size, with a symlink at its end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = size_bytes, 1_700_000_000
            archive.addfile(member, io.BytesIO(bytes(size_bytes)))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../up"
        archive.addfile(link)
    return out.getvalue()


def zipped(names: list[str], content: str = "x") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress],
)
def test_members_of_a_tar(pack: Callable[[bytes], bytes]) -> None:
    """Names as they are, sizes, times, links; compressed or not; nothing is unpacked."""
    found = tar_view(pack(tar(NAMES)), is_whole=True)
    names = [name.replace("\udce9", "\ufffd") for name in NAMES]
    assert [row[0] for row in found.rows] == [*names, "link → ../../up"]
    assert found.rows[0][1:] == ["5", "2023-11-14 22:13"]
    assert not found.is_cut


def test_the_beginning_of_a_tar() -> None:
    """Members as far as they are there, and that there may be more."""
    whole = tar([f"{n:04}" for n in range(1000)])
    found = tar_view(whole, is_whole=True)
    assert (len(found.rows), found.is_cut) == (MEMBERS_MAX, True)
    assert "the first 200 of 1,001 members" in found.note
    cut = tar_view(whole[: 10 * 1024 + 100], is_whole=False)
    assert (len(cut.rows), cut.is_cut) == (10, True)
    assert "there may be more" in cut.note
    assert len(tar_view(gzip.compress(whole)[:-20], is_whole=False).rows) > 10


def test_a_tar_that_unpacks_to_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is unpacked than the limit; what was found by then is shown."""
    monkeypatch.setattr(archive_members, "UNPACKED_BYTES_MAX", 100_000)
    bomb = gzip.compress(tar(["a", "b", "c"], 60_000))
    found = tar_view(bomb, is_whole=True)
    assert ([row[0] for row in found.rows], found.is_cut) == (["a", "b"], True)


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 600, gzip.compress(b"no tar"), tar(["a"])[:300]],
    ids=["nothing", "text", "compressed text", "half a header"],  # gzip's bytes tell the time
)
def test_what_is_no_tar(data: bytes) -> None:
    """It is said that it cannot be read."""
    with pytest.raises(InvalidInput, match="tar archive cannot be read"):
        tar_view(data, is_whole=True)


def test_members_of_a_zip() -> None:
    """Names, sizes as they unpack; of a large one its end is enough."""
    found = zip_view(zipped(NAMES[:-1], "y" * 1000), is_whole=True)
    assert [row[0] for row in found.rows] == NAMES[:-1]
    assert found.rows[0][1] == "1,000"
    assert "5,000 bytes unpacked" in found.note
    many = zipped([f"{n}" for n in range(500)])
    cut = zip_view(many[-40_000:], is_whole=False)
    assert (len(cut.rows), cut.is_cut) == (MEMBERS_MAX, True)
    assert "the first 200 of 500 members" in cut.note


@pytest.mark.parametrize("cut", [slice(0, -30), slice(-500, None), slice(-10, None)])
def test_a_zip_whose_list_is_not_there(cut: slice) -> None:
    """What is cut off or too long is named."""
    with pytest.raises(InvalidInput, match="zip archive cannot be read"):
        zip_view(zipped([f"{n}" for n in range(100)])[cut], is_whole=False)
