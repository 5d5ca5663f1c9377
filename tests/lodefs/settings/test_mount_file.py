"""Mounts as files say them: every setting, and every mistake with its place."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.mount_file import MountFile, parse, read
from tests.support.lodefs.command_line import Lodefs

FULL = """
repo = "vision/cats"
rev = "v1"
path = "/train//x/"
dir = "/data/cats"
proxy = "unix:/run/other.sock"
token_file = "/etc/lodefs/token"
read_timeout_s = 12
passthrough = false
uid = 1000
gid = "root"
mode = "0550"
create_dir = true
"""


def test_all_settings() -> None:
    """Every key arrives."""
    assert parse(FULL, "f.toml") == MountFile(
        spec=Spec("vision/cats", "v1", b"train/x"),
        directory="/data/cats",
        proxy="unix:/run/other.sock",
        token_file=Path("/etc/lodefs/token"),
        read_timeout_s=12.0,
        passthrough="off",
        uid=1000,
        gid=0,
        mode=0o550,
        create_dir=True,
    )


def test_the_least() -> None:
    """What and where is enough; the rest is as on the command line."""
    found = parse('spec = "cats@v1:train"\ndir = "/d"\n', "f.toml")
    assert found == MountFile(spec=Spec("cats", "v1", b"train"), directory="/d")
    assert parse('repo = "cats"\ndir = "/d"\n', "f.toml").spec == Spec("cats")
    assert parse('repo = "cats"\ndir = "/d"\nmode = 0o500\n', "f.toml").mode == 0o500
    assert parse('repo = "cats"\ndir = "/d"\npassthrough = "auto"\n', "").passthrough == "auto"


def test_mistakes_are_told_together_with_their_lines() -> None:
    """Each key that is wrong, unknown or missing is named with file and line."""
    text = (
        'spec = "a b"\ndri = "/d"\nrepo = ""\nrev = "-x"\npath = "../x"\nproxy = ""\n'
        'token_file = "t"\nread_timeout_s = 0\npassthrough = "yes"\nuid = -1\n'
        'gid = "no such group"\nmode = "0999"\ncreate_dir = 1\n'
    )
    with pytest.raises(InvalidInput) as caught:
        parse(text, "f.toml")
    told = str(caught.value)
    keys = re.findall(r"f\.toml:(\d+): (\w+): ", told)
    assert keys == [
        *((str(number), line.split(" ")[0]) for number, line in enumerate(text.splitlines(), 1)),
        ("3", "repo"),
        ("1", "dir"),
    ]
    for what in ("there is no such setting", "absolute path", "is missing: it names where to mount",
                 "spec already sets it", "must be true or false"):  # fmt: skip
        assert what in told


@pytest.mark.parametrize("text", ["spec = ", "dir = 1", "", "[spec]\na = 1\n", "spec = true"])
def test_files_that_are_no_mount(text: str) -> None:
    """Broken TOML, other types and emptiness are refused with the file's name."""
    with pytest.raises(InvalidInput, match=r"f\.toml"):
        parse(text, "f.toml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that is not there, or is no text, is named."""
    with pytest.raises(NotFound, match=r"x\.toml"):
        read(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match="UTF-8"):
        read(tmp_path / "x.toml")


def test_the_token_comes_from_its_file(tmp_path: Path) -> None:
    """Only from a file that others may not read; no message shows what it holds."""
    file = tmp_path / "token"
    mount = parse(f'spec = "c"\ndir = "/d"\ntoken_file = "{file}"\n', "f")
    with pytest.raises(InvalidInput, match="token_file"):
        mount.token()
    file.write_text("secret-token\n")
    file.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod") as caught:
        mount.token()
    assert "secret" not in str(caught.value)
    file.chmod(0o600)
    assert mount.token() == "secret-token"
    file.write_text("two\nsecrets\n")
    with pytest.raises(InvalidInput, match="the file is empty") as caught:
        mount.token()
    assert "secrets" not in str(caught.value)
    assert MountFile(spec=Spec("c"), directory="/d").token() is None


def test_the_command_reads_the_file(lodefs: Lodefs, tmp_path: Path) -> None:
    """--from stands alone, its mistakes are one line with exit code 2, its directory is made, and
    no proxy is started for it."""
    file, place = tmp_path / "m.toml", tmp_path / "new" / "place"
    file.write_text(f'spec = "cats"\ndir = "{place}"\ncreate_dir = true\n'
                    f'proxy = "unix:{tmp_path}/none"\nread_timeout_s = 0.1\n')  # fmt: skip
    ran = lodefs("mount", "cats", str(tmp_path), "--from", str(file))
    assert ran.code == 2
    assert "--from FILE names what to mount" in ran.err
    ran = lodefs("mount", "--from", str(file))
    assert ran.code == 7
    assert f"{tmp_path}/none" in ran.err
    assert os.listdir(place) == []
    file.write_text('spec = "cats"\ndir = "x"\n')
    ran = lodefs("mount", "--from", str(file))
    assert (ran.code, ran.err) == (
        2,
        f'lodefs: error: {file}:2: dir: must be an absolute path, not "x"\n',
    )
