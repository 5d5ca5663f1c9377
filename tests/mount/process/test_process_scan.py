"""Who holds a mount, as a /proc tells that a test made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.kernel.mount_table import Mount
from lodefs.mount.process import process_scan

DEVICE = "0:77"
PLACE = "/var/lib/lodefs/docker/mounts/cats-0123"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process_scan, "sees_all", lambda _proc: True)
    monkeypatch.setattr(process_scan, "_maker", lambda one: int((one / "maker").read_text()))
    add(tmp_path, "self", PLACE)
    return tmp_path


def add(
    proc: Path, name: str, *places: str, uid: int = 0, maker: int | None = None, before: str = ""
) -> None:
    """A process with a mount namespace of its own, which has the mount at some places; ``maker``:
    who made that, if not its user; ``before``: the first lines of its table."""
    (proc / name / "ns").mkdir(parents=True)
    (proc / name / "ns" / "mnt").touch()
    (proc / name / "maker").write_text(str(uid if maker is None else maker))
    lines = [f"36 35 {DEVICE} / {one} ro - fuse.lodefs demo@c1 ro\n" for one in places]
    (proc / name / "mountinfo").write_text(before + "".join(lines))
    (proc / name / "status").write_text(f"Name:\tsh\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")


def test_who_was_given_a_mount_holds_it(proc: Path) -> None:
    """Containers have it at a place of their own, some besides the host's."""
    add(proc, "10", "/data", uid=10)
    add(proc, "11", PLACE, "/data", uid=11)
    add(proc, "12", f"/rootfs{PLACE}", "/data", uid=12)
    add(proc, "13", uid=13)
    assert process_scan.showing({DEVICE: PLACE}, proc) == {DEVICE: {10, 11, 12}}


def test_who_sees_the_host_holds_nothing(proc: Path) -> None:
    """Services have it at its own place, and what watches a machine below the host's root."""
    add(proc, "10", PLACE)
    add(proc, "11", f"/rootfs{PLACE}")
    add(proc, "12", PLACE, f"/host{PLACE}")
    assert process_scan.showing({DEVICE: PLACE}, proc) == {}


def test_a_place_besides_its_own_in_this_namespace_is_roots(proc: Path) -> None:
    """`docker cp` of a container that does not run binds the mount in dockerd's namespace."""
    table = proc / "self" / "mountinfo"
    table.write_text(table.read_text() + f"37 35 {DEVICE} / /merged/data ro - fuse.lodefs d@c ro\n")
    assert process_scan.showing({DEVICE: PLACE}, proc) == {DEVICE: {0}}


def test_who_made_a_mount_namespace() -> None:
    """One of this process's user namespace is root's; one in a user's namespaces is that user's."""
    assert process_scan._maker(Path("/proc/self")) == 0
    is_root = os.geteuid() == 0
    as_user = ["setpriv", "--reuid=1234", "--clear-groups"] if is_root else []
    enter = ["unshare", "--user", "--map-root-user"]  # each becomes the next
    words = [*as_user, *enter, *enter, "--mount", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        if child.stdout.readline():  # b"": user namespaces are forbidden here
            made = process_scan._maker(Path(f"/proc/{child.pid}"))
            assert made == (1234 if is_root else os.geteuid())
        child.communicate()


def test_a_process_namespace_of_our_own(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There nothing is known, and that is said."""
    monkeypatch.setattr(process_scan, "sees_all", lambda _proc: False)
    with pytest.raises(Unavailable):
        process_scan.showing({DEVICE: PLACE}, proc)


def test_whose_processes_have_a_mount(proc: Path) -> None:
    """All users of a namespace that shows it; a mount that has the device as its source is none."""
    add(proc, "10", "/data", uid=1001)
    add(proc, "11", PLACE, uid=1002)
    add(proc, "12", uid=1003, before=f"37 35 0:78 / /data rw - tmpfs {DEVICE} rw\n")
    assert process_scan.showing({DEVICE: PLACE}, proc) == {DEVICE: {1001}}


def test_no_users_mounts_take_much_memory_or_time(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one table, and of all that one user made, only so much is read; what root and others made
    is seen all the same, also if the user's processes are in it (a container of Docker)."""
    monkeypatch.setattr(process_scan, "TABLE_BYTES_MAX", 100_000)
    monkeypatch.setattr(process_scan, "USER_BYTES_MAX", 300_000)
    long = "37 35 0:78 / /" + "x" * 3000 + " rw - tmpfs none rw\n"
    for number in range(10, 20):
        add(proc, str(number), "/data", uid=1001, before=long * 1000)
    add(proc, "20", "/data", uid=1002, before=long * 20)
    add(proc, "21", "/data", uid=1003, before=long.replace("x", "y" * 1000))
    for number in range(30, 40):
        add(proc, str(number), "/data", uid=0, before=long * 20)
    add(proc, "40", "/data", uid=1001, maker=0, before=long * 20)
    read, read_of = [], process_scan._mounts_of

    def counted(table: Path, devices: Collection[str]) -> tuple[list[Mount], int]:
        found, size_bytes = read_of(table, devices)
        read.append(size_bytes)
        return found, size_bytes

    monkeypatch.setattr(process_scan, "_mounts_of", counted)
    assert process_scan.showing({DEVICE: PLACE}, proc) == {DEVICE: {0, 1001, 1002}}
    assert max(read) < 100_000 + process_scan.LINE_BYTES_MAX
    assert len([one for one in read if one >= 100_000]) <= 3


def test_processes_that_use_a_mount(proc: Path) -> None:
    """They have a file open, mapped, or as their directory, at or below the mount's place."""
    links = {
        "10": ("fd/3", f"{PLACE}/a"),
        "11": ("cwd", PLACE),
        "12": ("map_files/1-2", f"{PLACE}/d/b"),
        "13": ("fd/3", f"{PLACE}-other/a"),
        "14": ("cwd", "/"),
    }
    for pid, (link, target) in links.items():
        (proc / pid / link).parent.mkdir(parents=True)
        (proc / pid / link).symlink_to(target)
        (proc / pid / "comm").write_text(f"p{pid}\n")
    found = process_scan.processes_using(PLACE, proc)
    assert found == [(10, "p10"), (11, "p11"), (12, "p12")]
