"""Root mounts and unmounts where it was asked to, whatever a user makes of the path meanwhile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.csi import targets
from lodefs.mount.kernel import mount_syscalls, mount_table, mountpoints
from tests.support.chunkstore import leftovers

USER = 61234
SOURCE = mount_table.source_of("cats", "0123456789abcdef" * 4, b"")


class Place:
    """``user/d`` is a user's, and ``roots`` is nobody's business."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots, self.users = folder / "roots", folder / "user/d"
        for path in (self.roots / "m", self.users):
            path.mkdir(parents=True)
        for path in (self.users.parent, self.users):
            os.chown(path, USER, USER)
        self.target = str(self.users / "m")

    def swap(self) -> None:
        """The user puts a symlink in the place of the directory that the target is in."""
        self.users.rename(self.users.with_name("aside"))
        self.users.symlink_to(self.roots)

    def tmpfs(self, at: Path) -> None:
        """Something is mounted there that nobody is to touch."""
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", at], check=True, timeout=60)

    def mounted(self) -> list[str]:
        """What is mounted, and where, below the folder."""
        below = f"{self.folder}/"
        return [m.mountpoint.removeprefix(below) for m in mount_table.read_table()
                if m.mountpoint.startswith(below)]  # fmt: skip


@pytest.fixture
def place() -> Iterator[Place]:
    """Below a directory of root's, beside others'."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount and to make another user's directory")
    with leftovers.claimed("mountpoints-") as folder:
        made = Place(Path(os.path.realpath(folder)))
        yield made
        for path in made.mounted():
            subprocess.run(["umount", "-l", made.folder / path], check=True, timeout=60)


def test_a_path_that_a_user_leads_elsewhere_is_refused(place: Place) -> None:
    """Before anything is done there."""
    place.swap()
    for call in (mountpoints.real, mountpoints.plain):
        with pytest.raises(InvalidInput, match=r"user/d: others than root can change the symlink"):
            call(place.target)


def test_the_last_name_of_a_plain_path_is_not_touched(place: Place) -> None:
    """What is mounted there may be stuck."""
    (place.roots / "link").symlink_to("m")
    assert mountpoints.plain(f"{place.roots}/./link") == f"{place.roots}/link"
    assert mountpoints.real(f"{place.roots}/./link") == f"{place.roots}/m"


@pytest.mark.fuse
@pytest.mark.parametrize(
    "act",
    [
        lambda target: mount_syscalls.attach(target, SOURCE, allow_other=True),
        lambda target: mountpoints.make(f"{target}/new"),
    ],
    ids=["mounted", "made"],
)
def test_nothing_is_made_or_mounted_where_a_swapped_directory_leads(
    place: Place, act: Callable[[str], object]
) -> None:
    """A path was looked at, and then a part of it became a symlink."""
    place.swap()
    with pytest.raises((InvalidInput, OSError)):
        act(place.target)
    assert not place.mounted()
    assert os.listdir(place.roots / "m") == []


@pytest.mark.fuse
def test_nothing_is_unmounted_where_a_swapped_directory_leads(place: Place) -> None:
    """What is mounted at the same name elsewhere stays."""
    place.tmpfs(place.roots / "m")
    place.swap()
    with pytest.raises(InvalidInput):
        mount_syscalls.detach(place.target, lazy=True)
    assert place.mounted() == ["roots/m"]


@pytest.mark.fuse
def test_a_mount_goes_where_it_was_put(place: Place) -> None:
    """On a path whose parts are all as they were."""
    os.mkdir(place.target)
    os.close(mount_syscalls.attach(place.target, SOURCE, allow_other=True))
    assert place.mounted() == ["user/d/m"]
    mount_syscalls.detach(place.target, lazy=True)
    assert not place.mounted()


@pytest.mark.fuse
@pytest.mark.parametrize(
    "act",
    [
        targets.make,
        targets.unbind,
        targets.remove,
        lambda target: targets.bind(target, target, noexec=True),
        lambda target: targets.restrict(target, noexec=True),
    ],
)
def test_targets_of_csi_lead_nowhere_else(place: Place, act: Callable[[str], None]) -> None:
    """A swapped parent has nothing made, mounted, changed, unmounted or removed."""
    os.close(mount_syscalls.attach(str(place.roots / "m"), SOURCE, allow_other=True))
    (place.roots / "empty").mkdir()
    before = mount_table.read_table()
    place.swap()
    for name in ("m", "empty", "new"):
        try:
            act(str(place.users / name))
        except InvalidInput:
            continue
        assert act is targets.remove  # which leaves alone what it cannot reach
    assert mount_table.read_table() == before
    assert sorted(os.listdir(place.roots)) == ["empty", "m"]
