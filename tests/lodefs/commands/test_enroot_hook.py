"""``lodefs enroot-hook``, in a stand-in for enroot by a user without privilege."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.commands.enroot_hook import NAME, inside, script
from tests.support.hpc.job_user import ROOT, Enroot, JobUser
from tests.support.lodefs.command_line import Lodefs
from tests.support.mount.fake_proxy import FakeProxy

HOOK = ROOT / "deploy" / "enroot" / NAME
fuse = pytest.mark.fuse
slow = pytest.mark.slow


@pytest.fixture
def enroot(user: JobUser, group_proxy: FakeProxy) -> Enroot:
    """With a proxy for the user's group, and the hook as the user installs it."""
    user.environment["LODEFS_PROXY"] = group_proxy.address
    code, out, err = user.run(*user.lodefs("enroot-hook", "--install"))
    assert code == 0, err
    assert out == f"installed {user.home}/.config/enroot/hooks.d/{NAME}\n"
    return Enroot(user)


@fuse
@slow
@pytest.mark.parametrize("options", [(), ("--root", "--overlay")])
def test_datasets_of_a_container(enroot: Enroot, options: tuple[str, ...]) -> None:
    """What the environment or --env names is in the container, in directories that are made for
    it and behind symlinks that stay in it; nothing is left afterwards."""
    (enroot.image / "abs").symlink_to("/made")
    datasets = "demo:/data, demo:deep:/abs/../abs/here"
    command = "cat /data/a /made/here/er/est/f; touch /data/x"
    _, out, err = enroot.run(*options, command=command, LODEFS_DATASETS=datasets)
    assert (out, err.count("\n")) == ("hellobottom", 1), err
    assert "Read-only file system" in err
    enroot.user.wait_for_end()


@fuse
@slow
def test_installed_twice_and_by_option(enroot: Enroot) -> None:
    """--env wins over the environment, and the system's hook beside the user's does no harm."""
    own = enroot.user.home / ".config/enroot/hooks.d" / NAME
    enroot.hook(NAME, *own.read_text().splitlines()[1:])
    option = ["--env", "LODEFS_DATASETS=demo@main:/data"]
    code, out, err = enroot.run(*option, command="cat /data/a", LODEFS_DATASETS="nosuch")
    assert (code, out, err) == (0, "hello", "")
    enroot.user.wait_for_end()


@fuse
@slow
def test_mistakes(enroot: Enroot) -> None:
    """A container whose datasets are wrong does not start, and says why in one line."""
    for datasets, text in [
        ("demo:/data,demo:/data", "have the same directory"),
        ("demo", "names no directory"),
        ("demo:./data", "must begin with /"),
        ("demo:/usr", "is not empty"),
    ]:
        code, out, err = enroot.run(command="echo started", LODEFS_DATASETS=datasets)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert text in err
    enroot.user.wait_for_end()


def test_without_datasets(tmp_path: Path) -> None:
    """Where there is nothing to do, no program is started."""
    hook = tmp_path / NAME
    hook.write_text(script("/no/such/program"))
    (tmp_path / "environ").write_text("PATH=/bin\nLODEFS_DATASETS=\nA=LODEFS_DATASETS=x")
    for environment in ({}, {"LODEFS_DATASETS": "", "ENROOT_ENVIRON": str(tmp_path / "environ")}):
        subprocess.run(["sh", hook], env=environment, check=True, timeout=60)
    (tmp_path / "environ").write_text("A=b\nLODEFS_DATASETS=x")  # without an end of line
    environment = {"ENROOT_ENVIRON": str(tmp_path / "environ")}
    assert subprocess.run(["sh", hook], env=environment, check=False, timeout=60).returncode == 127


def test_the_packaged_hook() -> None:
    """The file of the Debian package is the hook, for the package's program."""
    assert HOOK.read_text() == script("/usr/bin/lodefs")
    assert os.access(HOOK, os.X_OK)


def test_outside_of_enroot(lodefs: Lodefs) -> None:
    """A user who calls it is told how to install it."""
    ran = lodefs("enroot-hook")
    assert ran.code == 2
    assert "--install installs the hook" in ran.err


def test_symlinks_of_an_image(tmp_path: Path) -> None:
    """Symlinks and ".." are followed within the container's root."""
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    for name, target in {
        "abs": "/d",
        "up": "../../../d",
        "chain": "abs/new",
        "loop": "loop",
    }.items():
        (root / name).symlink_to(target)
    for directory, place in {
        "/": "",
        "/new/place": "new/place",
        "/abs/x": "d/x",
        "/up": "d",
        "/../../etc": "etc",
        "/chain//./y": "d/new/y",
    }.items():
        assert inside(str(root), directory) == str(root / place)
    with pytest.raises(InvalidInput, match="too many symlinks"):
        inside(str(root), "/loop/x")


def test_a_mount_that_the_node_hands_out_waits_for_no_import_of_those_that_it_does_not_make() -> (
    None
):
    """Imports are most of what a container waits for."""
    heavy = "lodefs.chunkstore.protocol.read_client lodefs.mount.process.handover lodefs.mount.shm"
    script = f"import sys, lodefs.api.job_mounts; print(set({heavy.split()}) & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
