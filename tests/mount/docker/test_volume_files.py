"""The state directory: what is written is whole, and damage stays where it is."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import (
    Corrupt,
    Denied,
    InvalidInput,
    LodefsError,
    NoSpace,
    UnknownFormat,
)
from lodefs.mount.docker.options import Options, Pin
from lodefs.mount.docker.volume import (
    Reference,
    Volume,
    check_name,
    look_failed,
)
from lodefs.mount.docker.volume_files import Damaged, Records, decode_record
from lodefs.mount.helper.interface import Source
from lodefs.mount.volumes.changes import KEY_NAME_CHARS_MAX, key_of
from lodefs.mount.volumes.volume_files import encode_volume

GOLDEN = Path(__file__).parents[2] / "golden" / "docker-volume.json"
VOLUME = Volume(
    name="flickr30k",
    options=Options(
        source=Source(
            repo="vision/flickr30k",
            store="s3://bucket/prefix",
            path=b"train/\xff",
            token_file="/etc/lodefs/token",
            uid=1000,
            gid=100,
            mode=0o550,
        ),
        rev="main",
        follow_s=3600,
        pin=Pin(),
    ),
    commit="ab" * 32,
    files=31_783,
    size_bytes=4_440_000_000,
    created_at_s=1_700_000_000.5,
    looked_at_s=1_700_003_600.25,
    boot="0c1d2e3f-0000-4000-8000-000102030405",
    references={"5f" * 32: Reference(2, 4321.75)},
    follow_error="the store did not answer",
    pinned_until_s=1_700_086_400.0,
    pin_tried_at_s=1_700_000_001.0,
    pin_error="",
)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "state")


def file_of(tmp_path: Path, volume: Volume = VOLUME) -> Path:
    return tmp_path / "state" / "volumes" / f"{volume.key}.json"


def test_golden() -> None:
    """The bytes of version 1 are what they were, and are understood."""
    assert encode_volume(VOLUME) == GOLDEN.read_bytes()
    assert decode_record(GOLDEN.read_bytes()) == VOLUME


def test_written_volumes_are_found_again(tmp_path: Path, records: Records) -> None:
    """Another process reads what was written; what was removed is gone."""
    other = look_failed(VOLUME, "no", 1.0)
    records.write(VOLUME)
    records.write(other)
    records.close()
    again = Records(tmp_path / "state")
    assert again.load() == [other]
    again.remove(VOLUME.key)
    again.remove(VOLUME.key)
    assert again.load() == []


def test_all_is_for_its_owner_alone(tmp_path: Path, records: Records) -> None:
    """Others can neither read nor enter; a directory that was there keeps its own rights."""
    records.write(VOLUME)
    state = tmp_path / "state"
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [state, state / "volumes", state / "lock"]
    }
    assert modes == {"state": 0o700, "volumes": 0o700, "lock": 0o600}
    assert stat.S_IMODE(file_of(tmp_path).stat().st_mode) == 0o600
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    Records(shared).close()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


def test_one_process_has_a_directory(tmp_path: Path, records: Records) -> None:
    """A second plugin on the same state is refused, until the first has ended."""
    script = (
        "import sys; from pathlib import Path; "
        "from lodefs.mount.docker.volume_files import Records\n"
        "Records(Path(sys.argv[1])); print('has it')"
    )

    def attempt() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "state")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=Path(__file__).parents[3],
        )

    assert "another `lodefs docker-plugin`" in attempt().stderr
    records.close()
    assert attempt().stdout == "has it\n"


def test_what_a_crash_left_is_swept(tmp_path: Path, records: Records) -> None:
    """A file that was not finished is removed at the next start, and its volume is as before."""
    records.write(VOLUME)
    path = file_of(tmp_path)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_bytes(b'{"version"')
    records.close()
    assert Records(tmp_path / "state").load() == [VOLUME]
    assert not unfinished.exists()


@pytest.mark.parametrize(
    ("data", "name", "why"),
    [
        (b"", "", "not a record"),
        (b"\0" * 4096, "", "not a record"),
        (encode_volume(VOLUME)[:-20], "", "not a record"),
        (encode_volume(VOLUME).replace(b"abab", b"abac"), "flickr30k", "digest"),
        (encode_volume(VOLUME).replace(b'"version":1', b'"version":2'), "flickr30k", "version 2"),
        (encode_volume(VOLUME).replace(b'"name":"flickr30k","dig', b'"name":"x","dig'), "", "two"),
        (b'{"version":"1","name":"flickr30k"}', "flickr30k", "not a record"),
        (b"\xff\xfe", "", "not a record"),
        (b"[]", "", "not a record"),
        (b'{"x":' + b"[" * 10_000, "", "not a record"),
    ],
)
def test_damage_touches_one_volume(
    tmp_path: Path, records: Records, data: bytes, name: str, why: str
) -> None:
    """A bad file is told with its reason and its name, if that can be known; others are read."""
    other = Volume(
        name="other",
        options=Options(source=Source(repo="a")),
        commit="cd" * 32,
        files=1,
        size_bytes=1,
        created_at_s=0.0,
        looked_at_s=0.0,
    )
    records.write(VOLUME)
    records.write(other)
    file_of(tmp_path).write_bytes(data)
    damaged, fine = records.load()
    assert fine == other
    assert isinstance(damaged, Damaged)
    assert (damaged.key, damaged.name) == (VOLUME.key, name)
    assert why in damaged.why
    records.set_aside(VOLUME.key)
    assert records.load() == [other]
    assert (file_of(tmp_path).parent / f"{VOLUME.key}.damaged").read_bytes() == data


def test_a_newer_version_says_so(tmp_path: Path) -> None:
    """The error of a newer version is one of its own."""
    with pytest.raises(UnknownFormat, match="version 7"):
        decode_record(b'{"version":7,"name":"a"}')


@given(st.integers(0, 8 * len(encode_volume(VOLUME)) - 1))
def test_every_flipped_bit_is_seen(bit: int) -> None:
    """One bit that is not as it was written makes no other volume."""
    data = bytearray(encode_volume(VOLUME))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Corrupt, UnknownFormat)):
        decode_record(bytes(data))


def test_odd_things_in_the_directory(tmp_path: Path, records: Records) -> None:
    """A directory, a symlink, a pipe and a wrong name instead of a file are damage, no more."""
    folder = tmp_path / "state" / "volumes"
    (folder / "a.json").mkdir()
    (folder / "b.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / "c.json")
    (folder / "d.json").write_bytes(encode_volume(VOLUME))
    (folder / "readme").touch()
    found = records.load()
    assert [one.key for one in found] == ["a", "b", "c", "d"]
    assert all(isinstance(one, Damaged) and not one.name for one in found)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, NoSpace), (errno.EROFS, Denied), (errno.EACCES, Denied)],
)
def test_a_disk_that_takes_nothing(
    tmp_path: Path,
    records: Records,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
) -> None:
    """The error names the file, the old state stays, and nothing unfinished is left."""
    records.write(VOLUME)

    def refuse(_fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(kind, match=VOLUME.key):
        records.write(look_failed(VOLUME, "no", 1.0))
    monkeypatch.undo()
    assert records.load() == [VOLUME]
    assert os.listdir(file_of(tmp_path).parent) == [file_of(tmp_path).name]


def test_a_state_that_is_no_directory(tmp_path: Path) -> None:
    """A file where the state should be, and a symlink in it, are errors that name it."""
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file"):
        Records(tmp_path / "file")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "volumes").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match="volumes"):
        Records(tmp_path / "s")


@given(st.text(min_size=1, max_size=300))
def test_keys(name: str) -> None:
    """A key is one safe name of a file, and another one for another name."""
    try:
        check_name(name)
    except InvalidInput:
        return
    key = key_of(name)
    assert len(key) <= KEY_NAME_CHARS_MAX + 17
    assert key.isascii()
    assert "/" not in key
    assert not key.startswith(".")
    assert key != key_of(name + "x")


@pytest.mark.parametrize("name", ["a", ".", "..", "a/b", "../../etc", "ä", "n" * 255, "ä" * 127])
def test_names(name: str) -> None:
    """Dots, slashes and 255 bytes are fine: no name is ever a path."""
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "n" * 256, "ä" * 128, "a\nb", "a\0b", "\ud800", "\u202ea"])
def test_bad_names(name: str) -> None:
    """Nothing, more than 255 bytes, and what cannot be printed are refused."""
    with pytest.raises(InvalidInput, match="name"):
        check_name(name)


def test_a_directory_in_the_place_of_a_new_file(tmp_path: Path) -> None:
    """A directory where a volume's new state would be written keeps that volume from being
    written, and nobody from anything else."""
    Records(tmp_path / "state").close()
    (path := file_of(tmp_path)).with_name(f"{path.name}.new").mkdir()
    records = Records(tmp_path / "state")
    assert records.load() == []
    with pytest.raises(LodefsError, match="Is a directory"):
        records.write(VOLUME)
    records.close()


@pytest.mark.parametrize("first_is_directory", [False, True])
@pytest.mark.parametrize("second_is_directory", [False, True])
def test_damage_after_damage(
    tmp_path: Path, first_is_directory: bool, second_is_directory: bool
) -> None:
    """What is damaged goes out of the way also where an earlier file or directory already lies
    there."""
    records = Records(tmp_path / "state")
    for is_directory in (first_is_directory, second_is_directory):
        path = file_of(tmp_path)
        if is_directory:
            (path / "x").mkdir(parents=True)
        else:
            path.write_bytes(b"")
        records.set_aside(VOLUME.key)
        assert not path.exists()
    assert records.load() == []
    records.close()
