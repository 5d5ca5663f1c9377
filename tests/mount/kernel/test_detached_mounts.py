"""Mounts are put and taken off where a descriptor is, whatever its path leads to by then."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain
from lodefs.mount.kernel import detached_mounts, mount_table

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Path]:
    """A mount with a file in it, and beside it the directories ``target`` and ``victim``."""
    folder = Path(os.path.realpath(tmp_path))
    for name in ("shown", "target", "victim"):
        (folder / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "x@y", folder / "shown"], check=True)
    (folder / "shown/file").write_text("it")
    yield folder / "shown"
    for mount in reversed(mount_table.read_table()):
        if mount.mountpoint.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount.mountpoint], check=True)


def test_a_copy_is_put_where_the_descriptor_is(shown: Path) -> None:
    """Not where its path leads, which somebody has changed."""
    target, victim = shown.with_name("target"), shown.with_name("victim")
    with (
        closing(open_plain(str(target), PLACE)) as target_fd,
        closing(detached_mounts.copied(str(shown))) as fd,
    ):
        target.rename(shown.with_name("moved"))
        target.symlink_to(victim)
        detached_mounts.put(fd, target_fd, str(target))
    assert (shown.with_name("moved") / "file").read_text() == "it"
    assert not [*victim.iterdir()]
    with pytest.raises(OSError, match="Read-only"):
        (shown.with_name("moved") / "new").touch()


def test_a_copy_is_of_a_mount_and_of_no_other_directory(shown: Path) -> None:
    """Neither of a directory that nothing is mounted on, nor of what a symlink leads to."""
    link = shown.with_name("link")
    link.symlink_to(shown)
    for place in (shown.with_name("victim"), shown.with_name("nowhere"), link):
        with pytest.raises(Unavailable, match=place.name):
            detached_mounts.copied(str(place))


def test_a_mount_is_taken_off_by_its_descriptor(shown: Path) -> None:
    """Another directory has its path by now."""
    with closing(open_plain(str(shown), PLACE)) as root_fd:
        found = mount_table.mount_of(root_fd)
        assert found is not None
        assert (found.mountpoint, found.source) == (str(shown), b"x@y")
        subprocess.run(["mount", "--move", shown, shown.with_name("target")], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "other", shown], check=True)
        detached_mounts.take_off(root_fd)
    assert mount_table.on_top(str(shown)) is not None
    assert mount_table.on_top(str(shown.with_name("target"))) is None
