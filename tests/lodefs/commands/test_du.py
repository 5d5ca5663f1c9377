"""``lodefs du``: what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lodefs as api
from lodefs.chunkstore.maintenance.accounts import StoreAccount
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs, MemorySession


@pytest.fixture(autouse=True)
def repositories(objects: MemoryObjects) -> None:
    """Two of them; the second is smaller, and comes first by name."""
    made = Handmade(create_store(objects))
    made.commit("large", {b"a": bytes(range(256)) * 40})
    made.commit("fine", {b"b": b"b" * 1000})


def test_all_repositories(lodefs: Lodefs) -> None:
    """A line for each, that whose deletion frees most first, and what nobody needs."""
    lines = lodefs("du").out.splitlines()
    assert lines[0].split() == ["FREES", "SHARED", "STORED", "APPARENT", "COMMITS", "REPOSITORY"]
    assert [line.split()[-1] for line in lines[1:3]] == ["large", "fine"]
    assert "10.0 KiB" in lines[1]
    assert lines[4] == "unused  0 packs, 0 B: for `lodefs gc`"
    repos = lodefs("du", "--json").json_lines
    assert [one.get("repo") for one in repos] == ["large", "fine", None]
    assert repos[2]["size_bytes"] == repos[0]["freed_bytes"] + repos[1]["freed_bytes"]


def test_one(lodefs: Lodefs) -> None:
    """A repository has its line alone; a revision tells more."""
    assert len(lodefs("du", "fine").out.splitlines()) == 2
    found = lodefs("du", "fine@main", "--json").json
    assert found["freed_bytes"] == found["unique_bytes"] == found["stored_bytes"] > 0
    out = lodefs("du", f"fine@{found['commit'][:8]}").out
    assert "frees     there is no branch or tag of that name" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["fine:b"], 2, "without a path"),
        (["fin"], 3, "no repository fin that you may read; memory: has fine, large"),
        (["fine@v9"], 3, "no branch, tag or commit v9"),
        (["@x"], 2, "not a repository"),
    ],
)
def test_rubbish(lodefs: Lodefs, words: list[str], code: int, message: str) -> None:
    """What there is not, and what has no account, is told."""
    result = lodefs("du", *words)
    assert result.code == code
    assert message in result.err


def test_python(objects: MemoryObjects) -> None:
    """lodefs.du gives the same figures."""
    session = MemorySession({"LODEFS_STORE": "memory:"}, objects)
    found = api.du("large", session=session)
    assert isinstance(found, StoreAccount)
    assert [one.repo for one in found.repos] == ["large"]


def test_metrics_are_written_nowhere_else(lodefs: Lodefs, tmp_path: Path) -> None:
    """The directory may be of the user whom node_exporter runs as: no symlink there is followed."""
    victim = tmp_path / "victim"
    victim.write_text("root's")
    for name in (".m.prom", f".m.prom.{os.getpid()}", "m.prom"):
        (tmp_path / name).symlink_to(victim)
    assert lodefs("du", "--textfile", str(tmp_path / "m.prom")).code == 0
    assert victim.read_text() == "root's"
    assert not (tmp_path / "m.prom").is_symlink()
