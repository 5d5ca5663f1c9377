"""Files with secrets: what replaces one belongs to whom it belonged to."""

from __future__ import annotations

import errno
import grp
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from lodefs.chunkstore.system.private_file import replace_private
from lodefs.slurm.job_tree import readable_by

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
ACL = "system.posix_acl_access"


def rights(path: Path) -> tuple[int, int, int]:
    """Owner, group and mode."""
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@as_root
def test_owner_group_and_mode_stay(tmp_path: Path) -> None:
    """A file that root replaces belongs to the same user and group, with the same mode."""
    path = tmp_path / "tokens"
    path.write_bytes(b"old")
    os.chown(path, 4242, 4343)
    path.chmod(0o640)
    replace_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert rights(path) == (4242, 4343, 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_an_acl_stays(tmp_path: Path) -> None:
    """So does an access control list, which lets another user read it."""
    path = tmp_path / "tokens"
    path.write_bytes(b"old")
    path.chmod(0o600)
    try:
        os.setxattr(path, ACL, readable_by(4242))
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip("no access control lists here")
        raise
    before = rights(path)
    replace_private(path, b"new")
    assert os.getxattr(path, ACL) == readable_by(4242)
    assert rights(path) == before


@as_root
def test_a_new_file_is_for_the_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What root makes anew belongs to root and the group of the services, mode 0640, as the page
    on services says; and to root alone where there is no such group."""

    def no_group(name: str) -> grp.struct_group:
        raise KeyError(name)

    monkeypatch.setattr(grp, "getgrnam", no_group)
    replace_private(tmp_path / "alone", b"x")
    known = {"lodefs": SimpleNamespace(gr_gid=4343)}
    monkeypatch.setattr(grp, "getgrnam", known.__getitem__)
    replace_private(tmp_path / "tokens", b"x")
    assert rights(tmp_path / "alone") == (0, 0, 0o600)
    assert rights(tmp_path / "tokens") == (0, 4343, 0o640)


@as_root
def test_a_file_beside_another(tmp_path: Path) -> None:
    """A new file gets the rights of the one that it belongs to."""
    tokens, key = tmp_path / "tokens", tmp_path / "tokens.s3-key"
    tokens.touch()
    os.chown(tokens, 4242, 4343)
    tokens.chmod(0o640)
    replace_private(key, b"x", like=tokens)
    assert rights(key) == (4242, 4343, 0o640)


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """Whatever lies beside the file under any name, nothing is written through it, and nothing is
    left if writing fails."""
    path = tmp_path / "gone" / "tokens"
    with pytest.raises(FileNotFoundError):
        replace_private(path, b"x")
    other = tmp_path / "other"
    (tmp_path / "tokens.new").symlink_to(other)
    replace_private(tmp_path / "tokens", b"x")
    assert not other.exists()
