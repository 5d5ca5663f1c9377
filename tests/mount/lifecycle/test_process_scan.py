"""Who holds a mount, as a /proc tells that a test made."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.mount.lifecycle import process_scan

DEVICE = "0:77"
PLACE = "/var/lib/lodefs/docker/mounts/cats-0123"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process_scan, "sees_all", lambda _proc: True)
    add(tmp_path, "self", PLACE)
    return tmp_path


def add(proc: Path, name: str, *places: str) -> None:
    """A process with a mount namespace of its own, which has the mount at some places."""
    (proc / name / "ns").mkdir(parents=True)
    (proc / name / "ns" / "mnt").touch()
    lines = [f"36 35 {DEVICE} / {one} ro - fuse.lodefs demo@c1 ro\n" for one in places]
    (proc / name / "mountinfo").write_text("".join(lines))


def test_who_was_given_a_mount_holds_it(proc: Path) -> None:
    """Containers have it at a place of their own, some besides the host's."""
    add(proc, "10", "/data")
    add(proc, "11", PLACE, "/data")
    add(proc, "12", f"/rootfs{PLACE}", "/data")
    add(proc, "13")
    assert process_scan.users(DEVICE, PLACE, proc) == 3


def test_who_sees_the_host_holds_nothing(proc: Path) -> None:
    """Services have it at its own place, and what watches a machine below the host's root."""
    add(proc, "10", PLACE)
    add(proc, "11", f"/rootfs{PLACE}")
    add(proc, "12", PLACE, f"/host{PLACE}")
    assert process_scan.users(DEVICE, PLACE, proc) == 0


def test_a_process_namespace_of_our_own(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There nothing is known."""
    monkeypatch.setattr(process_scan, "sees_all", lambda _proc: False)
    assert process_scan.users(DEVICE, PLACE, proc) is None


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
