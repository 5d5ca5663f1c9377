"""``lodefs bundle``, as a user runs it, between two directories."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.chunkstore.transfer.bundle_file import BundleWriter
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
    assert "is truncated" in err
    assert not (tmp_path / "there" / "packs").exists()
    assert lodefs("bundle", "unpack", file, there)[0] == 0
    assert b"unchanged" in lodefs("bundle", "unpack", file, there)[1]
    assert lodefs("verify", "--data", "--store", there)[0] == 0
    assert lodefs("bundle", "create", str(tmp_path / "new"), "x/none")[0] == 3
    assert not (tmp_path / "new").exists()
    assert lodefs("bundle", "list", str(tmp_path / "nothing"))[0] == 3
    code, out, _ = lodefs("bundle", "create", "-", "x/y")
    assert len(out) == Path(file).stat().st_size
    for line, words in (
        (("list", str(tmp_path)), "is a directory"),
        (("unpack", str(tmp_path), there), "is a directory"),
        (("create", str(tmp_path / "none" / "x"), "x/y"), "there is no directory"),
    ):
        code, _, err = lodefs("bundle", *line)
        assert words in err
        assert code in (2, 3)


def test_a_bundle_asks_before_a_branch_moves(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file says which branch of which repository it moves, so one that is there does not move
    unasked: not without a terminal, from a pipe neither, and not after a no."""
    store, evil, file = (str(tmp_path / name) for name in ("store", "evil", "free-cats.bundle"))
    for number in range(2):
        source = tmp_path / str(number)
        source.mkdir()
        (source / "f").write_text(str(number))

    def lodefs(*line: str) -> tuple[int, str]:
        code = run(list(line), Session({"HOME": str(tmp_path), "LODEFS_STORE": store}))
        return code, capfdbinary.readouterr()[1].decode()

    lodefs("init", store)
    lodefs("push", str(tmp_path / "0"), "vision/prod")
    shutil.copytree(store, evil)
    lodefs("push", "--store", evil, str(tmp_path / "1"), "vision/prod", "--allow-removals")
    lodefs("bundle", "create", "--store", evil, file, "vision/prod")
    before = capture(store)
    code, err = lodefs("bundle", "unpack", file)
    assert code == 2
    assert "this moves branch main of vision/prod" in err
    assert "--yes" in err
    with Path(file).open() as piped, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", piped)
        assert lodefs("bundle", "unpack", "-")[0] == 2
    with monkeypatch.context() as patch:
        patch.setattr("lodefs.cli.consent.has_terminal", lambda: True)
        patch.setattr("sys.stdin", StringIO("n\n"))
        assert lodefs("bundle", "unpack", file)[0] != 0
    assert capture(store) == before
    assert lodefs("bundle", "unpack", "--yes", file)[0] == 0
    assert lodefs("bundle", "unpack", file)[0] == 0  # it is there: nothing moves


@pytest.mark.parametrize("by", ["argument", "option", "variable"])
def test_the_store_that_a_bundle_goes_to(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], by: str
) -> None:
    """It is the argument, else that of --store, else that of LODEFS_STORE; no other changes."""
    stores = {name: str(tmp_path / name) for name in ("argument", "option", "variable")}
    source, file = tmp_path / "source", str(tmp_path / "cats.bundle")
    source.mkdir()
    (source / "f").write_text("f")

    def lodefs(*line: str) -> int:
        session = Session({"HOME": str(tmp_path), "LODEFS_STORE": stores["variable"]})
        return run(list(line), session)

    for store in (*stores.values(), str(tmp_path / "first")):
        assert lodefs("init", store) == 0
    assert lodefs("push", "--store", str(tmp_path / "first"), str(source), "vision/cats") == 0
    assert lodefs("bundle", "create", "--store", str(tmp_path / "first"), file, "vision/cats") == 0
    words = {
        "argument": [file, stores["argument"], "--store", stores["option"]],
        "option": [file, "--store", stores["option"]],
        "variable": [file],
    }
    assert lodefs("bundle", "unpack", *words[by]) == 0
    capfdbinary.readouterr()
    for name, store in stores.items():
        assert lodefs("ls", "--store", store) == 0
        assert (capfdbinary.readouterr()[0] == b"vision/cats\n") == (name == by)


def capture(store: str) -> set[Path]:
    return {path for path in Path(store).rglob("*") if path.is_file()}


def test_a_bundle_comes_to_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a bundle is whole there is no file of its name: one whose writer was killed is no
    obstacle; nor does it take the place of what came meanwhile."""
    here, file = str(tmp_path / "here"), tmp_path / "x.bundle"
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("a")

    def lodefs(*line: str) -> int:
        return run(list(line), Session({"HOME": str(tmp_path), "LODEFS_STORE": here}))

    assert lodefs("init", here) == 0
    assert lodefs("push", str(source), "r") == 0
    found: list[list[str]] = []

    def end(writer: BundleWriter) -> None:
        found.append(sorted(path.name for path in tmp_path.glob("x.bundle*")))
        file.write_text("somebody else's")

    with monkeypatch.context() as patch:
        patch.setattr(BundleWriter, "end", end)
        assert lodefs("bundle", "create", str(file), "r") == 4
    assert [name.endswith(".part") for (name,) in found] == [True]
    assert file.read_text() == "somebody else's"
    file.unlink()
    assert lodefs("bundle", "create", str(file), "r") == 0
    assert lodefs("bundle", "list", "--check", str(file)) == 0
    assert sorted(tmp_path.glob("x.bundle*")) == [file]
