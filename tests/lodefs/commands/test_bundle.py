"""``lodefs bundle``, as a user runs it, between two directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.settings.session import Session


def test_create_list_unpack(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A bundle goes from one store to another; files that exist or are damaged are refused, and
    nothing half done is left."""

    def lodefs(*line: str) -> tuple[int, bytes, str]:
        code = run(list(line), Session({"HOME": str(tmp_path), "LODEFS_STORE": here}))
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    here, there, file = (str(tmp_path / name) for name in ("here", "there", "x.bundle"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("a" * 9000)
    assert [lodefs("init", store)[0] for store in (here, there)] == [0, 0]
    lodefs("push", str(source), "x/y")
    code, out, _ = lodefs("bundle", "create", "--json", file, "x/y")
    made = json.loads(out)
    assert (code, made["packs"], made["size_bytes"]) == (0, 2, Path(file).stat().st_size)
    assert lodefs("bundle", "create", file, "x/y")[0] == 4
    listed = json.loads(lodefs("bundle", "list", "--check", "--json", file)[1])
    assert listed == {key: value for key, value in made.items() if key != "size_bytes"}
    damaged = tmp_path / "damaged"
    damaged.write_bytes(Path(file).read_bytes()[:-1])
    code, _, err = lodefs("bundle", "unpack", str(damaged), there)
    assert code == 8
    assert "is cut off" in err
    assert not (tmp_path / "there" / "packs").exists()
    assert lodefs("bundle", "unpack", file, there)[0] == 0
    assert b"unchanged" in lodefs("bundle", "unpack", file, there)[1]
    assert lodefs("verify", "--data", "--store", there)[0] == 0
    assert lodefs("bundle", "create", str(tmp_path / "new"), "x/none")[0] == 3
    assert not (tmp_path / "new").exists()
    assert lodefs("bundle", "list", str(tmp_path / "nothing"))[0] == 3
    code, out, _ = lodefs("bundle", "create", "-", "x/y")
    assert len(out) == Path(file).stat().st_size
