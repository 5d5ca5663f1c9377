"""Writable mounts of the sample, through the kernel, and what is left of them taken away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.kernel import mount_syscalls, mount_table, namespaces
from lodefs.mount.options import MountOptions
from lodefs.mount.process import mounter
from lodefs.mount.process.mounter import Mounted
from lodefs.mount.writable import upper_checks, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.mount.writable.writable_mount import writable_mode
from tests.support.mount.mounts import SAMPLE, Mounts


class Writable:
    """A writable mount on ``mounts.place``, whose changes lie in ``place``."""

    def __init__(self, mounts: Mounts, place: UpperPlace) -> None:
        self.mounts = mounts
        self.place = place
        self.root = mounts.place

    def wanted(self, **more: object) -> Record:
        """What is mounted, unless something else is given."""
        options = self.mounts.options(mode=writable_mode(None))
        given = {"options": options, "branch": "main", "commit": SAMPLE.snapshot.commit, **more}
        return Record(**given)  # type: ignore[arg-type]

    def mount(self, **more: object) -> Record:
        """Mount it, or go on with what is in the place."""
        with self.place.locked():
            return writable_mount.mount(self.place, self.wanted(**more), None, self.mounter)

    def advance(self, commit: str) -> Record:
        """Go on from another commit."""
        with self.place.locked():
            return writable_mount.advance(self.place, commit, None, self.mounter)

    def unmount(self, *, discard: bool = False) -> writable_mount.WritableUnmounted:
        """Take it away."""
        with self.place.locked():
            done = writable_mount.unmount(self.place, discard=discard)
            if not done.kept:
                self.place.remove()
            return done

    def mounter(self, options: MountOptions) -> Mounted:
        """Mounts as the product does; the processes must have ended when the test has."""
        made = mounter.mount(options)
        assert made.pid is not None
        self.mounts.watch(made.pid)
        return made

    def close(self) -> None:
        """Leave nothing mounted."""
        below = (str(self.root), f"{self.place.directory}/")
        for found in reversed(mount_table.read_table()):
            if found.mountpoint.startswith(below):
                with suppress(InvalidInput):  # it has gone by itself meanwhile
                    mount_syscalls.detach(found.mountpoint, lazy=True)


def skip_where_unfit(folder: Path) -> None:
    """Ends the test where this user, or this file system, can have no overlay."""
    if not namespaces.may_mount():
        pytest.skip("an overlay needs CAP_SYS_ADMIN")
    try:
        upper_checks.check_file_system(folder)
    except InvalidInput as error:
        pytest.skip(str(error))


@pytest.fixture
def writable(mounts: Mounts, tmp_path: Path) -> Iterator[Writable]:
    skip_where_unfit(tmp_path)
    made = Writable(mounts, UpperPlace(tmp_path / "changes"))
    yield made
    made.close()
