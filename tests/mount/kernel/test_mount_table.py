"""The table of mounts."""

from __future__ import annotations

import os

from lodefs.mount.kernel.mount_table import Mount, parse, pid_of, read_table, source_of

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
    assert root == Mount("/", "ext4", b"/dev/root", "254:0")
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
