"""The table of mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.mount.kernel import mount_table
from lodefs.mount.kernel.mount_table import (
    Mount,
    mount_of,
    parse,
    pid_of,
    read_table,
    source_of,
)

COMMIT = "ab" * 32
TABLE = (
    b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
    b"90 22 0:61 / /mnt/with\\040blank\\012line rw,nosuid - fuse.lodefs vision/set@%b:a\\040b ro\n"
    b"91 22 0:62 / /mnt/two rw,nosuid shared:9 master:3 - fuse.lodefs lodefs ro,user_id=0\n"
    b"92 22 0:63 / /mnt/other rw - fuse.rclone x@y rw\n"
    b"a broken line\n"
) % COMMIT.encode()


def test_lines() -> None:
    """Fields are found behind any number of optional ones, and octal escapes are undone."""
    root, one, two, other = parse(TABLE)
    assert root == Mount("/", "ext4", b"/dev/root", "254:0", mount_id=22)
    assert one.mountpoint == "/mnt/with blank\nline"
    assert (one.repo, one.commit, one.path) == ("vision/set", COMMIT, b"a b")
    assert one.is_lodefs
    assert one.device == "0:61"
    assert (two.repo, two.commit, two.path, two.is_lodefs) == ("", "", b"", True)
    assert not other.is_lodefs
    assert (one.owner, two.owner) == (None, 0)


def test_mount_points_that_are_not_utf8() -> None:
    """A mount point's bytes come back from the text that stands for them."""
    (mount,) = parse(b"1 2 0:3 / /mnt/\xff\xfe rw - tmpfs tmpfs rw\n")
    assert os.fsencode(mount.mountpoint) == b"/mnt/\xff\xfe"


@pytest.mark.parametrize("name", [b"a\rb", b"a\x0bb", b"a\x0cb", b"a\x1cb", b"a\x85b"])
def test_line_breaks_that_the_kernel_does_not_escape_are_parts_of_names(name: bytes) -> None:
    """Only a line feed ends a line, and only it is escaped."""
    (mount,) = parse(b"1 2 0:3 / /mnt/" + name + b" rw - fuse.lodefs a@b ro,user_id=0\n")
    assert os.fsencode(mount.mountpoint) == b"/mnt/" + name
    assert mount.is_lodefs


def test_what_a_user_writes_into_a_mount_is_neither_its_owner_nor_an_error() -> None:
    """The owner is what the kernel says at the end; a type in no encoding hides no other mount."""
    forged = b"1 2 0:3 / /mnt/a rw - fuse.lodefs x,user_id=0 rw,user_id=1001,group_id=1\n"
    odd = b"4 2 0:5 / /mnt/b rw - fuse.\xff y rw,user_id=1001\n"
    assert [mount.owner for mount in parse(forged + odd)] == [1001, 1001]


def test_source_names_what_is_mounted() -> None:
    """A source is read back as it was written; a path that is too long is left out."""
    for path in (b"", b"a/b:c@d", b"x" * 4000):
        source = source_of("vision/set", COMMIT, path)
        mount = Mount("/mnt", "fuse.lodefs", source, "0:1")
        assert (mount.repo, mount.commit) == ("vision/set", COMMIT)
        assert mount.path == (path if len(path) < 3000 else b"")
        assert len(source) < 4096


def test_the_real_table() -> None:
    """The running system's table holds its root, which is no lodefs mount."""
    assert any(mount.mountpoint == "/" for mount in read_table())
    assert pid_of("/") is None


@pytest.mark.parametrize(
    ("answer", "pid"),
    [
        (b"17", 17),
        (b"", None),
        (b"0", None),
        (b"9" * 20, None),
        (b"9" * 5000, None),
        (b"-1", None),
        (b" 7", None),
        (b"x", None),
        ("٣".encode(), None),
    ],
)
def test_a_mount_says_which_process_answers(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, pid: int | None
) -> None:
    """Any user may have a mount of this type that says anything."""
    monkeypatch.setattr(mount_table, "_answer", lambda *_: answer)
    assert pid_of("/mnt") == pid


def test_the_mount_of_an_open_file() -> None:
    """Found by the kernel's id, whatever its path is by now."""
    fd = os.open("/proc/self", os.O_PATH)
    try:
        found = mount_of(fd)
    finally:
        os.close(fd)
    assert found is not None
    assert (found.mountpoint, found.fs_type) == ("/proc", "proc")


def test_one_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topmost mount of a directory is found whatever is in its name; an overlay of ours leads
    to the mount below it, by its device."""
    above = b"lodefs:vision/set@%b:p#0:61/3" % COMMIT.encode()
    more = [
        b"93 22 0:64 / /mnt/two rw - tmpfs x rw",
        b"94 22 0:65 / /mnt/a\\134b\\011 rw - overlay %b rw" % above.replace(b"#", b"\\043"),
    ]
    (table := tmp_path / "mountinfo").write_bytes(TABLE + b"\n".join(more) + b"\n")
    monkeypatch.setattr(mount_table, "_TABLE", table)
    named = {m.mountpoint: m for m in read_table()}
    assert mount_table.on_top("/mnt/with blank\nline") == named["/mnt/with blank\nline"]
    assert mount_table.on_top("/mnt/two") == parse(TABLE + more[0])[-1]
    assert mount_table.on_top("/mnt/tw") is None
    writable = mount_table.on_top("/mnt/a\\b\t")
    assert writable is not None
    assert (writable.is_writable, writable.is_lodefs) == (True, False)
    assert (writable.repo, writable.commit, writable.path) == ("vision/set", COMMIT, b"p")
    assert (writable.lower_device, writable.generation) == ("0:61", "3")
    assert mount_table.served("/mnt/a\\b\t") == named["/mnt/with blank\nline"]
