"""What lies below writable mounts: one mount of the mount service for all, or one of their own, as
root and in a user namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

import lodefs
from lodefs.mount.helper.kernel_mounts import KernelMounts
from lodefs.mount.kernel import mount_table
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.writable import writable_mount
from lodefs.mount.writable.upper_place import UpperPlace
from tests.mount.writable.conftest import Writable, skip_where_unfit
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import WAIT_S, Mounts, in_child, until
from tests.support.service.service_rig import ServiceRig, served


@pytest.fixture
def service(tmp_path: Path, node: KernelMounts) -> Iterator[ServiceRig]:
    (folder := tmp_path / "service").mkdir()
    rig = ServiceRig(folder, node)
    with served(rig.mounts, folder / "sock"):
        yield rig
    rig.clear()


def _no_mount(_options: object) -> None:
    raise AssertionError("the service has the snapshot mounted")


def test_all_share_the_mount_of_the_service(
    service: ServiceRig, mounts: Mounts, tmp_path: Path
) -> None:
    """Five writable mounts of a commit have one mount below them, and no process; each has changes
    of its own. The mount goes with the last of them, and not before."""
    skip_where_unfit(tmp_path)
    made, several = [], 5
    with ExitStack() as stack:
        for number in range(several):
            one = Writable(mounts, UpperPlace(tmp_path / f"changes-{number}"))
            one.root = tmp_path / f"mnt-{number}"
            one.root.mkdir()
            stack.callback(one.close)
            wanted = one.wanted(
                options=mounts.options(mountpoint=str(one.root), mode=0o755),
                service=str(service.folder / "sock"),
            )
            with one.place.locked():
                writable_mount.mount(one.place, wanted, None, _no_mount)
            (one.root / "new").write_text(str(number))
            made.append(one)
        assert [(one.root / "new").read_text() for one in made] == ["0", "1", "2", "3", "4"]
        assert (
            in_child("import sys; print(open(sys.argv[1]).read())", str(made[3].root / "a"))
            == "hello"
        )
        assert len(service.places()) == 1
        for one in made:
            service.idle()
            assert len(service.places()) == 1
            one.unmount(discard=True)
        service.idle()
        assert service.places() == []


def test_without_the_service_it_is_mounted_here(writable: Writable, tmp_path: Path) -> None:
    """A socket at which nobody answers is no reason not to mount."""
    writable.mount(service=str(tmp_path / "none"))
    assert mount_table.on_top(str(writable.place.lower(0))) is not None


def test_what_the_service_has_elsewhere(
    writable: Writable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount of the service that this mount namespace does not show is no lower directory."""
    (hidden := tmp_path / "hidden").mkdir()
    held = SimpleNamespace(place=str(hidden))
    monkeypatch.setattr(RemoteMounts, "acquire", lambda *_args: held)
    writable.mount(service=str(tmp_path / "none"))
    assert (writable.root / "a").read_text() == "hello"


SCRIPT = """
import os, sys
from functools import partial
from pathlib import Path
from lodefs.mount.options import MountOptions
from lodefs.mount.process import mounter
from lodefs.mount.writable import writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
root, changes, proxy, commit = sys.argv[1:]
options = MountOptions(repo="demo", mountpoint=root, proxy=proxy, mode=0o755, uid=0, gid=0)
place = UpperPlace(Path(changes))
mount = partial(mounter.mount, fork=True)
for number in range(2):
    with place.locked():
        record = Record(options=options, branch="main", commit=commit)
        writable_mount.mount(place, record, None, mount)
    os.chdir(root)
    print(open("a").read(), sorted(os.listdir("."))[:3])
    open("a", "a").write(" more")
    os.remove("empty") if not number else None
    try:
        os.rename("deep", "deeper")
    except OSError as error:
        print(error.strerror)
    os.chdir("/")
    with place.locked():
        writable_mount.advance(place, commit, None, mount) if number else None
        print(sorted(os.listdir(root))[:4])
        if not writable_mount.unmount(place, discard=bool(number)).kept:
            place.remove()
print(os.path.exists(changes))
"""


def test_in_a_user_namespace(proxy: FakeProxy, tmp_path: Path) -> None:
    """Without root of the machine it works in a user namespace, but for directories of the commit,
    which cannot be renamed and are copied by mv(1) instead."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    (tmp_path / "mnt").mkdir()
    commit = proxy.tree.snapshot.commit
    words = [str(tmp_path / "mnt"), str(tmp_path / "changes"), proxy.address, commit]
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", SCRIPT, *words],
        env=os.environ | {"PYTHONPATH": str(Path(lodefs.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "hello ['a', 'awkward', 'big']",
        "Invalid cross-device link",
        "['a', 'awkward', 'big', 'deep']",
        "hello more ['a', 'awkward', 'big']",
        "Invalid cross-device link",
        "['a', 'awkward', 'big', 'deep']",
        "False",
    ], done.stderr
    until(
        lambda: (
            not any(
                "mnt" in m.mountpoint
                for m in mount_table.read_table()
                if m.mountpoint.startswith(str(tmp_path))
            )
        )
    )
