"""Tokens that options refer to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.helper.interface import Source
from lodefs.mount.helper.tokens import TOKEN_BYTES_MAX, read_token

SECRET = "s3cr3t"


def token_of(path: Path, logged: list[str]) -> str | None:
    return read_token(Source(repo="r", token_file=str(path)), {}, logged.append)


def test_a_file(tmp_path: Path, logged: list[str]) -> None:
    """The one line of a file, without its end; who may read it matters."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(f"{SECRET}\r\n")
    assert token_of(path, logged) == SECRET
    assert logged == []
    path.chmod(0o644)
    assert token_of(path, logged) == SECRET
    assert len(logged) == 1
    assert str(path) in logged[0]
    assert SECRET not in logged[0]


def test_a_variable(logged: list[str]) -> None:
    """The value of a variable, which must be there."""
    source = Source(repo="r", token_env="TOKEN")
    assert read_token(source, {"TOKEN": SECRET}, logged.append) == SECRET
    with pytest.raises(InvalidInput, match="TOKEN"):
        read_token(source, {}, logged.append)
    assert read_token(Source(repo="r"), {"TOKEN": SECRET}, logged.append) is None


def test_no_token(tmp_path: Path, logged: list[str]) -> None:
    """What cannot be a token is refused by the file's name, and not repeated."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    secret = SECRET.encode()
    for content in (
        b"",
        b"\n",
        secret + b" " + secret,
        secret + b"\n" + secret + b"\n",
        secret + b"\0",
        secret + b"\xff",
        secret * TOKEN_BYTES_MAX,
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="token_file") as error:
            token_of(path, logged)
        assert SECRET not in str(error.value)


def test_no_file(tmp_path: Path, logged: list[str]) -> None:
    """What is no file is refused, and nobody waits for a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, tmp_path / "none", Path("relative"), Path(f"{tmp_path}/\0")):
        with pytest.raises(InvalidInput, match="token_file"):
            token_of(path, logged)
