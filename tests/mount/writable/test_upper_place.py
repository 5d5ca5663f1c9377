"""Upper places and their records, without a mount."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import Conflict, Corrupt, Denied, UnknownFormat
from lodefs.mount.options import MountOptions
from lodefs.mount.writable import upper_place
from lodefs.mount.writable.upper_place import Record, UpperPlace
from tests.support.mount.mounts import in_child

OPTIONS = MountOptions(
    repo="vision/cats", mountpoint="/mnt/cats", proxy="unix:/p", path=b"a\xff", token="secret"
)
RECORD = Record(options=OPTIONS, branch="main", commit="c" * 64, generation=3)


@pytest.fixture
def place(tmp_path: Path) -> UpperPlace:
    made = UpperPlace(tmp_path / "place")
    with made.locked():
        made.write(RECORD)
    return made


def test_a_record_is_read_as_it_was_written_without_its_token(place: UpperPlace) -> None:
    """All of it comes back but the token, which is nowhere on the disk."""
    expected = msgspec.structs.replace(OPTIONS, token=None)
    assert place.read() == msgspec.structs.replace(RECORD, options=expected)
    assert b"secret" not in (place.directory / "record.json").read_bytes()


def test_without_a_record(tmp_path: Path) -> None:
    """A place that is not there has none."""
    assert UpperPlace(tmp_path / "none").read() is None
    assert upper_place.find(tmp_path / "none", "/mnt/cats") is None
    assert upper_place.all_places(tmp_path / "none") == []


def test_a_record_of_another_version(place: UpperPlace) -> None:
    """It is refused with a word about its version, not guessed at."""
    (place.directory / "record.json").write_bytes(b'{"version": 99}')
    with pytest.raises(UnknownFormat, match="version 99"):
        place.read()


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"version": 1, "branch": "main"}'])
def test_a_damaged_record(place: UpperPlace, data: bytes) -> None:
    """The error says where the changes still lie."""
    (place.directory / "record.json").write_bytes(data)
    with pytest.raises(Corrupt, match="upper-"):
        place.read()


def test_one_command_at_a_time(place: UpperPlace) -> None:
    """The second one is refused until the first has ended, in this process and in another."""
    script = (
        "import sys; from pathlib import Path; from lodefs.chunkstore.errors import InUse\n"
        "from lodefs.mount.writable.upper_place import UpperPlace\n"
        "try:\n  with UpperPlace(Path(sys.argv[1])).locked(): print('free')\n"
        "except InUse: print('in use')"
    )
    with place.locked():
        with pytest.raises(Conflict), place.locked():
            pass
        assert in_child(script, str(place.directory)) == "in use"
    assert in_child(script, str(place.directory)) == "free"


def test_a_mountpoint_leads_to_its_place(tmp_path: Path) -> None:
    """By default, or through a symlink where the place lies elsewhere."""
    state = tmp_path / "state"
    default = upper_place.default_place(state, "/mnt/cats")
    elsewhere = UpperPlace(tmp_path / "scratch")
    with elsewhere.locked():
        elsewhere.write(RECORD)
    state.mkdir()
    default.directory.symlink_to(elsewhere.directory)
    found = upper_place.find(state, "/mnt/cats")
    assert found is not None
    assert found.directory == elsewhere.directory
    assert upper_place.find(state, "/mnt/dogs") is None
    assert [one.directory for one in upper_place.all_places(state)] == [elsewhere.directory]


@pytest.mark.skipif(os.geteuid() != 0, reason="of root's places")
def test_what_others_put_at_the_name_of_a_place(tmp_path: Path) -> None:
    """Root follows a mountpoint to no place that is not its own any more."""
    tmp_path.chmod(0o1777)
    place = UpperPlace(tmp_path / "place")
    state = tmp_path / "state"
    state.mkdir()
    upper_place.remember(state, RECORD.mountpoint, place)
    place.directory.mkdir()
    os.chown(place.directory, 1000, 1000)
    place.write(RECORD)
    with pytest.raises(Denied, match="not belong to root alone"):
        upper_place.find(state, RECORD.mountpoint)
    with pytest.raises(Denied, match="not belong to root alone"), place.locked():
        pass
    assert upper_place.all_places(state) == []
    os.chown(place.directory, 0, 0)
    assert upper_place.find(state, RECORD.mountpoint) is not None


def test_generations_come_and_go(place: UpperPlace) -> None:
    """Changes of one are removed without those of others; at last the place itself."""
    for number in (3, 4):
        place.upper(number).mkdir()
        place.work(number).mkdir()
    (place.upper(3) / "a").write_text("a")
    assert place.generations() == [3, 4]
    assert place.has_changes(3)
    assert not place.has_changes(4)
    assert not place.has_changes(5)
    place.drop(3)
    assert place.generations() == [4]
    place.remove()
    assert not place.directory.exists()


def test_changes_of_any_depth_are_removed(place: UpperPlace) -> None:
    """A user may make more directories in each other than Python's stack has room for, under
    names of any length, and a symlink in the innermost one leads nowhere."""
    target = place.directory / "target"
    target.mkdir()
    (target / "kept").touch()
    place.upper(3).mkdir()
    fd = os.open(place.upper(3), os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("d" * 10, dir_fd=fd)
        os.mkdir("empty", 0o000, dir_fd=fd)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.symlink(target, "link", dir_fd=fd)
    os.close(fd)
    place.drop(3)
    assert not place.upper(3).exists()
    assert (target / "kept").exists()


def test_the_format(place: UpperPlace) -> None:
    """A record of this version is read for as long as the version is, with what later ones add."""
    golden = (
        '{"version":1,"options":{"repo":"vision/cats","mountpoint":"/mnt/cats","proxy":"unix:/p",'
        '"rev":"main","path":"Yf8=","token":null,"uid":1000,"gid":1000,"mode":493,'
        '"read_timeout_s":30.0,"passthrough":"auto","without":[],"later":1},'
        f'"branch":"main","commit":"{"c" * 64}","generation":3,"service":"/run/s","later":2}}'
    )
    (place.directory / "record.json").write_text(golden)
    record = place.read()
    assert record is not None
    assert (record.repo, record.path, record.mountpoint) == ("vision/cats", b"a\xff", "/mnt/cats")
    assert (record.branch, record.commit, record.generation) == ("main", "c" * 64, 3)
    assert (record.service, record.options.mode, record.options.uid) == ("/run/s", 0o755, 1000)
