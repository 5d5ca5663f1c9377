"""``lodefs quota`` and ``lodefs du --textfile``: what they say, and what a push does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NoSpace
from lodefs.chunkstore.push.limits import EARLY_SIZE_BYTES, Quota
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs


@pytest.fixture(autouse=True)
def store(objects: MemoryObjects) -> None:
    """One with a repository that has a byte."""
    Handmade(create_store(objects)).commit("r", {b"file": b"x"})


def _push(lodefs: Lodefs, source: Path, size_bytes: int) -> tuple[int, str]:
    source.mkdir(exist_ok=True)
    (source / "file").write_bytes(b"x" * size_bytes)
    result = lodefs("push", str(source), "r", "--workers", "0")
    return result.code, result.err


def test_a_push_keeps_it(lodefs: Lodefs, tmp_path: Path) -> None:
    """More is refused with all three figures, and nothing is committed; what does not grow is
    allowed, also over a quota that was lowered."""
    source = tmp_path / "source"
    assert lodefs("quota", "r").out == "no quota\n"
    assert "(5,000 bytes)" in lodefs("quota", "r", "--size-bytes-max", "5000").out
    assert _push(lodefs, source, 4000)[0] == 0
    code, message = _push(lodefs, source, 6000)
    assert code == 10
    assert "quota of r is 5,000 bytes" in message
    assert "the branch has 4,000, and this push needs at least 6,000" in message
    assert lodefs("log", "r", "--json").json_lines[0]["size_bytes"] == 4000
    assert lodefs("quota", "r", "--size-bytes-max", "1KiB", "--json").json == {
        "repo": "r", "quota_size_bytes": 1024
    }  # fmt: skip
    assert _push(lodefs, source, 3000)[0] == 0
    assert _push(lodefs, source, 3001)[0] == 10
    dry = lodefs("push", str(source), "r", "--workers", "0", "--dry-run")
    assert (dry.code, "the quota of r is" in dry.err) == (10, True)
    assert lodefs("quota", "r", "--clear").out == "no quota\n"
    assert _push(lodefs, source, 6000)[0] == 0


def test_a_large_push_stops_early() -> None:
    """While files are counted, a store is asked once, and only for more than little."""
    store = memory_store()
    store.settings_log("r").change(lambda now: type(now)(quota_size_bytes=EARLY_SIZE_BYTES + 10))
    quota = Quota(store, "r", 0)
    quota.check_early(EARLY_SIZE_BYTES + 10)
    with pytest.raises(NoSpace, match="nothing is committed"):
        quota.check_early(EARLY_SIZE_BYTES + 11)
    Quota(store, "r", EARLY_SIZE_BYTES * 2).check_early(EARLY_SIZE_BYTES * 2)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["r", "--size-bytes-max", "much"], 2),
        (["r", "--size-bytes-max", "0"], 2),
        (["nobody"], 3),
        (["r@main"], 2),
        (["r", "--clear", "--size-bytes-max", "1KiB"], 2),
        (["..", "--clear"], 2),
        (["r", "--size-bytes-max", "9" * 400 + ".5GB"], 2),
        (["r", "--size-bytes-max", "9" * 5000], 2),
    ],
)
def test_rubbish(lodefs: Lodefs, words: list[str], code: int) -> None:
    """Nonsense is refused, and nothing is set."""
    assert lodefs("quota", *words).code == code
    assert lodefs("quota", "r", "--json").json["quota_size_bytes"] is None


def test_metrics(lodefs: Lodefs, tmp_path: Path) -> None:
    """node_exporter's collector finds the figures of du in one whole file."""
    _push(lodefs, tmp_path / "source", 4000)
    file = tmp_path / "out" / "lodefs.prom"
    file.parent.mkdir()
    assert lodefs("du", "--textfile", str(file)).code == 0
    lines = file.read_text().splitlines()
    assert 'lodefs_repository_apparent_bytes{repo="r"} 4001' in lines
    assert 'lodefs_repository_commits{repo="r"} 2' in lines
    assert [path.name for path in file.parent.iterdir()] == ["lodefs.prom"]
    assert lodefs("du", "r", "--textfile", str(file)).code == 2
    for place, code in ((tmp_path / "none" / "x", 3), (tmp_path, 2), (Path("/proc/x.prom"), 7)):
        ran = lodefs("du", "--textfile", str(place))
        assert (ran.code, f"--textfile {place}" in ran.err, "Errno" in ran.err) == (
            code,
            True,
            False,
        )
