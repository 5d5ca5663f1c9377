"""Mounts where there is no FUSE, on other mounts, twice, and many at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, Unsupported
from lodefs.mount.kernel import device, mount_syscalls, mount_table
from lodefs.mount.process import mounter
from tests.support.chunkstore.directories import as_nobody
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import BIG, SAMPLE, Mounts, in_child

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

MANY = 20  # more than twice as many as are made at a time

# A /dev of its own, without FUSE, in a mount namespace of its own.
NO_FUSE = """
import subprocess, sys, tempfile
from lodefs.mount.process import mounter
from lodefs.mount.kernel import mount_table as mounttable
from lodefs.mount.options import MountOptions
def run(*words):
    subprocess.run(words, check=True, timeout=60)
run("mount", "--make-rprivate", "/")
dev = tempfile.mkdtemp()
run("mount", "-t", "tmpfs", "tmpfs", dev)
for name, minor in (("null", 3), ("zero", 5), ("urandom", 9)):
    run("mknod", "-m", "666", f"{dev}/{name}", "c", "1", str(minor))
if sys.argv[4] == "other":
    run("mknod", "-m", "666", f"{dev}/fuse", "c", "1", "3")
run("mount", "--move", dev, "/dev")
at, proxy, log, _ = sys.argv[1:]
try:
    mounter.mount(MountOptions(repo="demo", mountpoint=at, proxy=proxy, log_path=log))
except Exception as error:
    print(type(error).__name__, error)
print(mounttable.on_top(at))
"""


@pytest.mark.parametrize("there", ["nothing", "other"])
def test_without_dev_fuse(mounts: Mounts, there: str) -> None:
    """No /dev/fuse, or something else in its place: one clear error, and nothing is mounted."""
    words = (str(mounts.place), mounts.options().proxy, str(mounts.log), there)
    logged, mounted = in_child(NO_FUSE, *words, prefix=("unshare", "--mount")).splitlines()
    assert logged.startswith("Unsupported /dev/fuse: ")
    assert "load the module: modprobe fuse" in logged
    assert mounted == "None"


def test_dev_fuse_that_may_not_be_opened(
    mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may not open the device is told so."""
    (tmp_path / "fuse").touch(mode=0o000)
    monkeypatch.setattr(device, "PATH", str(tmp_path / "fuse"))
    with as_nobody(), pytest.raises(Denied, match="fuse cannot be opened: Permission denied"):
        device.open_device()


def test_without_the_helper(mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root and without fusermount3 the error names the package and the other way."""
    monkeypatch.setenv("PATH", "")
    with as_nobody():
        with pytest.raises(Unsupported, match="apt-get install fuse3"):
            mount_syscalls.attach(str(mounts.place), b"demo@1", allow_other=False)
        with pytest.raises(Unsupported, match="fusermount3"):
            mount_syscalls.detach(str(mounts.place), lazy=False)
    assert mount_table.on_top(str(mounts.place)) is None


@pytest.fixture
def tmpfs(mounts: Mounts) -> Iterator[Path]:
    """Another file system at the mount's place."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mounts.place], check=True, timeout=60)
    yield mounts.place
    subprocess.run(["umount", "--lazy", mounts.place], check=True, timeout=60)


def test_over_another_mount(tmpfs: Path, mounts: Mounts) -> None:
    """A mount on top of another file system's works, and unmounting uncovers that one again; what
    is not empty is refused there too."""
    mounts.mount()
    assert (mounts.place / "a").read_bytes() == b"hello"
    mounter.unmount(str(mounts.place))
    assert os.listdir(tmpfs) == []
    with pytest.raises(InvalidInput, match="no lodefs mount"):
        mounter.unmount(str(mounts.place))
    (tmpfs / "file").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        mounts.mount()


def test_under_another_mount(mounts: Mounts) -> None:
    """A mount that somebody covered is not unmounted by mistake; uncovered it works on."""
    mounts.mount()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mounts.place], check=True, timeout=60)
    try:
        with pytest.raises(InvalidInput, match="no lodefs mount"):
            mounter.unmount(str(mounts.place))
    finally:
        subprocess.run(["umount", mounts.place], check=True, timeout=60)
    assert (mounts.place / "a").read_bytes() == b"hello"


def test_inside_a_mount(mounts: Mounts, tmp_path: Path, proxy: FakeProxy) -> None:
    """An empty directory of a mount is a mount point as any other."""
    mounts.mount()
    inner = mounts.place / "none"
    options = mounts.options(mountpoint=str(inner), path=b"deep")
    mounter.mount(options)
    try:
        assert (inner / "er/est/f").read_bytes() == b"bottom"
        assert (inner / "../a").read_bytes() == b"hello"
    finally:
        mounter.unmount(str(inner))
    assert os.listdir(inner) == []


def test_two_mounts_of_one_snapshot(mounts: Mounts, tmp_path: Path) -> None:
    """Two mounts of one commit show the same, inode numbers included, and end one by one."""
    mounts.mount()
    other = tmp_path / "other"
    other.mkdir()
    mounter.mount(mounts.options(mountpoint=str(other)))
    try:
        for name in ("a", "big", "deep/er/est/f", "many/00077"):
            one, two = os.stat(mounts.place / name), os.stat(other / name)
            assert one.st_ino == two.st_ino
            assert one.st_dev != two.st_dev
            assert (mounts.place / name).read_bytes() == (other / name).read_bytes()
        mounter.unmount(str(mounts.place))
        assert (other / "big").read_bytes() == BIG
    finally:
        mounter.unmount(str(other))
    assert mount_table.on_top(str(other)) is None


def test_many_mounts_at_once(mounts: Mounts, tmp_path: Path) -> None:
    """20 mounts that are made at once can be read, are listed, and are gone when unmounted."""
    places = [tmp_path / f"many{n:02}" for n in range(MANY)]
    for place in places:
        place.mkdir()

    def mount(place: Path) -> int | None:
        return mounter.mount(mounts.options(mountpoint=str(place), workers=1, threads=2)).pid

    try:
        with ThreadPoolExecutor(8) as pool:
            pids = list(pool.map(mount, places))
        assert len(set(pids)) == MANY
        for place in places:
            assert (place / "a").read_bytes() == b"hello"
            assert os.getxattr(place, "user.lodefs.commit") == SAMPLE.snapshot.commit.encode()
        listed = {mounted.mountpoint: mounted.pid for mounted in mounter.list_mounts()}
        assert [listed[str(place)] for place in places] == pids
    finally:
        with ThreadPoolExecutor(8) as pool:
            ends = [pool.submit(mounter.unmount, str(place)) for place in places]
    assert [end.exception() for end in ends] == [None] * MANY
    assert not {str(place) for place in places} & {m.mountpoint for m in mount_table.read_table()}
