"""Paths of which somebody else may change a part lead nowhere else."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.system.safe_open import (
    PLACE,
    closing,
    make_own,
    make_within,
    open_below,
    open_in_mount,
    open_plain,
    open_within,
    remove_tree,
    remove_within,
    rooted,
)

TRIES = 10_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away, and mount")


@pytest.fixture
def folder_fd(tmp_path: Path) -> Iterator[int]:
    """A directory whose names others change, as a descriptor; beside it lies ``secret``."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret").mkdir()
    with closing(os.open(tmp_path / "folder", PLACE)) as fd:
        yield fd


@pytest.fixture
def folder(tmp_path: Path, folder_fd: int) -> Path:
    """The same as a path."""
    return tmp_path / "folder"


@pytest.mark.parametrize("target", ["../secret", "/proc", "real", "/proc/self/cwd"])
@pytest.mark.parametrize("rest", ["", "/below"])
def test_no_symlink_is_followed_anywhere(
    folder: Path, folder_fd: int, target: str, rest: str
) -> None:
    """Neither at the end nor before, neither outside nor inside, by no call."""
    (folder / "real/below").mkdir(parents=True)
    (folder / "link").symlink_to(target)
    calls: list[Callable[[], int]] = [
        lambda: open_within(folder_fd, f"link{rest}", PLACE),
        lambda: open_below(folder_fd, f"link{rest}".encode(), os.O_RDONLY),
        lambda: open_plain(f"{os.path.realpath(folder)}/link{rest}", PLACE),
        lambda: make_within(folder_fd, f"link{rest}"),
    ]
    for call in calls:
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.ELOOP
    with pytest.raises(OSError):
        remove_within(folder_fd, f"link{rest}")
    assert (folder / "real/below").is_dir()


@pytest.mark.parametrize("path", ["..", "../secret", "/", "a/../../secret"])
def test_no_path_leaves_the_directory(folder: Path, folder_fd: int, path: str) -> None:
    """By its own names."""
    (folder / "a").mkdir()
    with pytest.raises(OSError) as raised:
        open_within(folder_fd, path, PLACE)
    assert raised.value.errno == errno.EXDEV


def test_a_relative_path_is_refused() -> None:
    """It would depend on where the process is."""
    with pytest.raises(OSError, match="relative"):
        open_plain("tmp", PLACE)


def test_a_path_with_nul_is_refused(folder_fd: int) -> None:
    """C would read another one."""
    with pytest.raises(OSError, match="NUL"):
        open_within(folder_fd, "a\0b", PLACE)


def test_directories_are_made_with_their_parents_and_removed_with_what_is_in_them(
    folder: Path, folder_fd: int
) -> None:
    """Both may be repeated."""
    for _ in range(2):
        with closing(make_within(folder_fd, "a/b/c")) as fd:
            assert os.path.samestat(os.stat(folder / "a/b/c"), os.stat(f"/proc/self/fd/{fd}"))
    (folder / "a/d").mkdir()
    for _ in range(2):
        remove_within(folder_fd, "a")
        assert not (folder / "a").exists()


def test_a_tree_is_removed_however_deep_it_is(folder: Path, folder_fd: int) -> None:
    """Deeper than Python recurses."""
    make = "/".join("d" for _ in range(1500))
    os.close(make_within(folder_fd, f"a/{make}"))
    remove_within(folder_fd, "a")
    assert not (folder / "a").exists()


def test_only_directories_are_removed(folder: Path, folder_fd: int) -> None:
    """A file stays, and so does what lies above it."""
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/file").touch()
    with pytest.raises(NotADirectoryError):
        remove_within(folder_fd, "a")
    assert (folder / "a/b/file").exists()


def test_who_fills_a_directory_again_and_again_does_not_keep_its_removal_going(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each directory is looked into once."""
    (folder / "a/0").mkdir(parents=True)
    real, made = os.rmdir, iter(range(1, 10_000))

    def refilled(name: str, *, dir_fd: int) -> None:
        real(name, dir_fd=dir_fd)
        (folder / f"a/{next(made)}").mkdir()

    monkeypatch.setattr("lodefs.chunkstore.system.safe_open.os.rmdir", refilled)
    with pytest.raises(OSError) as raised:
        remove_within(folder_fd, "a")
    assert raised.value.errno == errno.ENOTEMPTY


_SWAP = """
import os
while True:
    for one, two in (("name", "aside"), ("other", "name"), ("name", "other"), ("aside", "name")):
        os.rename(one, two)
    print(flush=True)
"""


def test_a_name_that_is_swapped_all_the_time_is_never_followed(
    tmp_path: Path, folder: Path, folder_fd: int
) -> None:
    """Ten thousand tries while a directory and a symlink take turns at a name."""
    (folder / "name").mkdir()
    (folder / "other").symlink_to(tmp_path / "secret")
    words = [sys.executable, "-c", _SWAP]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline()
            for _ in range(TRIES):
                with suppress(OSError):
                    os.close(make_within(folder_fd, "name/planted"))
        finally:
            swapper.kill()
    assert not [*(tmp_path / "secret").iterdir()]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory that root alone changes, with ``real/below``, and ``users`` of another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's directory")
    place = Path(os.path.realpath(tmp_path)) / "tree"
    (place / "real/below").mkdir(parents=True)
    (place / "users").mkdir()
    os.chown(place / "users", 61234, 61234)
    return place


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("real/below", "real/below"),
        ("link/below", "real/below"),
        ("absolute", "real"),
        ("up/../users", "users"),
        ("real/none/../x", "real/x"),
        ("users/none", "users/none"),
        ("file/x", "file/x"),
    ],
)
def test_symlinks_that_root_alone_can_have_made_are_followed(
    tree: Path, path: str, leads_to: str
) -> None:
    """As realpath(3) does; what is missing is kept."""
    (tree / "link").symlink_to("./real")
    (tree / "absolute").symlink_to(tree / "real")
    (tree / "up").symlink_to("real/..//real")
    (tree / "file").touch()
    assert rooted(f"{tree}/{path}") == f"{tree}/{leads_to}"


def test_symlinks_of_others_are_not_followed(tree: Path) -> None:
    """Neither in another's directory, nor in one in which others may make names, as in /tmp."""
    (tree / "shared").mkdir(mode=0o1777)
    (tree / "shared").chmod(0o1777)
    for folder in ("users", "shared"):
        (tree / folder / "link").symlink_to(tree / "real")
        for path in (f"{tree}/{folder}/link", f"{tree}/{folder}/link/below"):
            with pytest.raises(OSError) as raised:
                rooted(path)
            assert raised.value.errno == errno.ELOOP


def test_symlinks_that_lead_to_each_other_are_refused(tree: Path) -> None:
    """They would be followed for ever."""
    (tree / "a").symlink_to("b")
    (tree / "b").symlink_to("a")
    with pytest.raises(OSError) as raised:
        rooted(f"{tree}/a")
    assert raised.value.errno == errno.ELOOP


def test_kernels_without_openat2_follow_no_symlink_either(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux before 5.6: names are opened one by one, and none of them leads out."""

    def without(*_: object) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr("lodefs.chunkstore.system.safe_open.libc.call", without)
    real = os.path.realpath(folder)
    (folder / "link").symlink_to("../secret")
    with closing(make_within(folder_fd, "a/b")) as fd, closing(open_plain(f"{real}/a", PLACE)):
        assert os.path.samestat(os.stat(folder / "a/b"), os.stat(f"/proc/self/fd/{fd}"))
    for path in ("link", "link/below"):
        with pytest.raises(OSError):
            open_plain(f"{real}/{path}", PLACE)
        with pytest.raises(OSError):
            make_within(folder_fd, path)
    with pytest.raises(OSError) as raised:
        open_within(folder_fd, "a/../../secret", PLACE)
    assert raised.value.errno == errno.EXDEV


@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_a_private_directory_with_any_umask(tmp_path: Path, mask: int) -> None:
    """It and those above it that were missing are for the user alone; so is one that was open."""
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o777)
    former = os.umask(mask)
    try:
        make_own(tmp_path / "cache" / "lodefs")
        make_own(there)
    finally:
        os.umask(former)
    made = [tmp_path / "cache", tmp_path / "cache" / "lodefs", there]
    assert [stat.S_IMODE(one.stat().st_mode) for one in made] == [0o700] * 3


def test_a_private_directory_through_the_users_own_symlink(tmp_path: Path) -> None:
    """Users keep large things on other disks."""
    (tmp_path / "big").mkdir()
    (tmp_path / "link").symlink_to("big")
    make_own(tmp_path / "link")
    assert stat.S_IMODE((tmp_path / "big").stat().st_mode) == 0o700
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        make_own(tmp_path / "dangling")


@as_root
def test_another_users_directory_is_not_private(tmp_path: Path) -> None:
    """Neither is one of this user's that another user's symlink leads to. Nothing is changed."""
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, -1)
    (tmp_path / "mine").mkdir(0o755)
    (tmp_path / "link").symlink_to("mine")
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    for name in ("theirs", "link"):
        with pytest.raises(Denied, match=f"{name} belongs to user 12345"):
            make_own(tmp_path / name)
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755


@as_root
def test_no_other_file_system_is_asked(folder: Path, folder_fd: int) -> None:
    """What is mounted over a name is not opened, and symlinks are opened as such alone."""
    (folder / "over").touch()
    (folder / "plain").touch()
    (folder / "link").symlink_to("plain")
    subprocess.run(["mount", "--bind", folder / "plain", folder / "over"], check=True, timeout=60)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EXDEV)):
            open_in_mount(folder_fd, "over", os.O_PATH)
    finally:
        subprocess.run(["umount", folder / "over"], check=True, timeout=60)
    with closing(open_in_mount(folder_fd, "plain", os.O_RDONLY)):
        pass
    with closing(open_in_mount(folder_fd, "link", os.O_PATH | os.O_NOFOLLOW)) as fd:
        assert stat.S_ISLNK(os.fstat(fd).st_mode)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        open_in_mount(folder_fd, "link", os.O_RDONLY)


def test_a_tree_whose_directories_cannot_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those below an overlay in a user namespace: it is removed from where it lies, by a name in
    a directory; what is beside it stays."""
    (tmp_path / "tree" / "/".join("d" * 150) / "file").mkdir(parents=True)
    (tmp_path / "beside").touch()

    def refused(*_: object, **_more: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", refused)
    with closing(os.open(tmp_path, PLACE)) as fd:
        remove_tree("tree", fd)
    assert os.listdir(tmp_path) == ["beside"]
