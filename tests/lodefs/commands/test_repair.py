"""``lodefs repair``, as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.settings.session import Session


def test_name_and_heal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Lost packs are named with their files; the directory that was pushed heals data and trees,
    another store also what has changed there; bad sources are refused."""

    def lodefs(*line: str) -> tuple[int, str, str]:
        code = run(list(line), Session({"HOME": str(tmp_path), "LODEFS_STORE": store}))
        return code, *capfd.readouterr()

    store, source, copy = str(tmp_path / "store"), tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    (source / "a").write_bytes(bytes(range(256)) * 99)
    lodefs("init", store)
    lodefs("push", str(source), "x/y")
    shutil.copytree(store, copy)
    assert lodefs("repair", "--data")[:2] == (0, "1 commit, 2 packs: all is well\n")
    packs = sorted(Path(store, "packs").glob("*/*"), key=lambda path: path.stat().st_size)
    trees, data = packs
    data.write_bytes(bytes(data.stat().st_size))
    code, out, _ = lodefs("repair", "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["healed_from"]) == (1, None)
    assert ":a" in problem["concerns"][0]
    assert lodefs("repair", "--from", str(source), "--dry-run")[0] == 1
    code, out, _ = lodefs("repair", "--from", str(source))
    assert code == 0
    assert f"healed from {source}" in out
    trees.unlink()
    assert lodefs("repair", "--from", str(source))[0] == 0
    trees.unlink()
    (source / "a").write_bytes(b"changed")
    assert lodefs("repair", "--from", str(source))[0] == 1
    assert lodefs("repair", "--from", str(copy))[0] == 0
    assert lodefs("verify", "--data")[0] == 0
    for shard in Path(store, "index").iterdir():
        shard.unlink()
    assert "listed: 2 packs" in lodefs("repair", "index")[1]
    assert lodefs("repair", "--from", "unix:/run/x")[0] == 2
    assert lodefs("repair", "--from", str(tmp_path / "none"))[0] == 3
