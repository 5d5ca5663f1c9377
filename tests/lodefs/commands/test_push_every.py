"""push --every: what rests is committed, what moves is named, and the end comes in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from lodefs.api import push_rounds
from lodefs.api.push_rounds import PushRound, push_every
from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.push.changes import commit_changes as committing
from lodefs.chunkstore.push.changes.resting import FileState, fitting, round_of
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs, MemorySession


class _Steps(Event):
    """Does one step at each wait, and ends when there are no more."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = list(steps)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._steps:
            return True
        self._steps.pop(0)()
        return False


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two looks follow each other."""
    monkeypatch.setattr(push_rounds, "_LAST_LOOKS_S", 0)


@pytest.fixture
def results(lodefs: Lodefs, tmp_path: Path) -> Path:
    """A directory of results, and a branch with a file of somebody else."""
    lodefs("init", "s3://memory")
    (tmp_path / "other").write_text("other")
    lodefs("push", str(tmp_path / "other"), "r:other")
    found = tmp_path / "results"
    found.mkdir()
    return found


def _run(objects: MemoryObjects, results: Path, *steps: Callable[[], object]) -> list[PushRound]:
    environment = {"HOME": str(results.parent / "home"), "LODEFS_STORE": "s3://memory"}
    session = MemorySession(environment, objects)
    rounds: list[PushRound] = []
    stop = _Steps(*steps)
    last = push_every(results, "r:job", every_s=600, stop=stop, tell=rounds.append, session=session)
    return [*rounds, last]


def _nothing() -> None:
    """The job does nothing."""


def test_what_rests_is_committed(lodefs: Lodefs, objects: MemoryObjects, results: Path) -> None:
    """A file of which two looks say the same; without a change there is no commit; what goes, goes;
    what others have put there stays."""
    (results / "a").write_text("a")
    (results / "link").symlink_to("a")

    def write(text: str) -> Callable[[], object]:
        return lambda: (results / "log").write_text(text)

    def replace() -> None:
        (results / "a").unlink()
        (results / "d").mkdir()
        (results / "d" / "b").write_text("b")

    rounds = _run(
        objects, results, write("1"), write("1, 2"), _nothing, _nothing, replace, _nothing
    )
    moving = [[path.decode() for path in one.moving] for one in rounds]
    assert moving == [["log"], ["log"], [], [], ["d/b"], [], []]
    assert [one.result is not None for one in rounds] == [
        True, False, True, False, False, True, False
    ]  # fmt: skip
    assert lodefs("ls", "-R", "r").out.split() == [
        "job/", "job/d/", "job/d/b", "job/link", "job/log", "other"
    ]  # fmt: skip
    assert lodefs("cat", "r:job/log").out == "1, 2"
    assert len(lodefs("log", "--json", "r").json_lines) == 4


def test_a_store_that_is_away_for_a_round(
    lodefs: Lodefs, objects: MemoryObjects, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is told, and the next round commits the same."""
    (results / "a").write_text("a")
    commit, asked = committing.commit_changes, []

    def away_once(*given: object, **more: object) -> object:
        asked.append(given)
        if len(asked) == 1:
            raise Unavailable("the store is away")
        return commit(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(committing, "commit_changes", away_once)
    first, second, last = _run(objects, results, _nothing, _nothing)
    assert (str(first.error), first.result) == ("the store is away", None)
    assert second.result is not None and last == PushRound()
    assert lodefs("cat", "r:job/a").out == "a"


@pytest.mark.parametrize("later", [[], [_nothing]])
def test_a_branch_that_is_deleted(
    lodefs: Lodefs, objects: MemoryObjects, results: Path, later: list[Callable[[], object]]
) -> None:
    """It is made anew with all files, those of earlier rounds too, also in the last round."""
    (results / "a").write_text("a")

    def go_on() -> None:
        assert lodefs("rm", "--yes", "r@main").code == 0
        (results / "b").write_text("b")

    _run(objects, results, _nothing, go_on, *later)
    assert lodefs("ls", "-R", "r").out.split() == ["job/", "job/a", "job/b"]


def test_at_the_end_what_fits(
    lodefs: Lodefs, objects: MemoryObjects, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest files come first, and those for which there is no time are named."""
    for n in (3, 1, 2):
        (results / f"{n}").write_bytes(bytes([n]) * n * 1000)
    with (results / "large").open("wb") as file:
        file.truncate(10**9)
    monkeypatch.setattr(push_rounds, "_FIRST_RATE_BYTES_S", 1e4)
    (last,) = _run(objects, results)
    assert last.unfit == [b"large"]
    assert lodefs("ls", "r:job").out.split() == ["1", "2", "3"]


def test_a_job_that_works_on_at_the_end(
    lodefs: Lodefs, objects: MemoryObjects, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that it removes while the last commit reads holds up no other one."""
    for name in ("a", "passing", "z"):
        (results / name).write_text(name)
    commit = committing.commit_changes

    def later(*given: object, **more: object) -> object:
        (results / "passing").unlink(missing_ok=True)
        return commit(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(committing, "commit_changes", later)
    (last,) = _run(objects, results)
    assert last.result is not None and last.error is None
    assert lodefs("ls", "r:job").out.split() == ["a", "z"]


def test_rounds_of_looks() -> None:
    """What was gone at one look alone is not removed; sizes decide what fits."""
    one, two = FileState(0, 5, 1, 1), FileState(0, 5, 2, 1)
    found = round_of({b"a": one, b"b": one}, {b"a": one, b"c": two}, {b"a": two, b"b": one})
    assert (found.puts, found.removed, found.moving) == ([b"a"], [], [b"c"])
    found = round_of({}, {}, {b"b": one})
    assert found.removed == [b"b"]
    looks = {b"x": one, b"y": one, b"z": one}
    assert [len(fitting(looks, looks, size)) for size in (0, 9, 10, 99)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--every 10m --dry-run", "--dry-run does not go with --every"),
        ("--grace 10s", "does nothing without --every"),
    ],
)
def test_what_does_not_go_together(lodefs: Lodefs, results: Path, words: str, hint: str) -> None:
    """Is refused."""
    ran = lodefs("push", *words.split(), str(results), "r:job")
    assert (ran.code, hint in ran.err) == (2, True)


@pytest.mark.slow
def test_sigterm_commits_the_last_state(tmp_path: Path) -> None:
    """As Slurm and Kubernetes end a job."""
    environment = os.environ | {"HOME": str(tmp_path), "LODEFS_STORE": str(tmp_path / "store")}
    environment["LODEFS_CONFIG"] = os.devnull
    lodefs = [sys.executable, "-m", "lodefs.main"]
    subprocess.run([*lodefs, "init", str(tmp_path / "store")], env=environment, check=True)
    results = tmp_path / "results"
    results.mkdir()
    (results / "a").write_text("a")
    pushing = subprocess.Popen(
        [*lodefs, "push", "--every", "1s", "--json", str(results), "r:job"],
        env=environment, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert pushing.stdout is not None
    first = json.loads(pushing.stdout.readline())
    while not first["commit"]:
        first = json.loads(pushing.stdout.readline())
    (results / "last").write_text("last")
    pushing.send_signal(signal.SIGTERM)
    rest = [json.loads(line) for line in pushing.stdout.read().splitlines()]
    assert (pushing.wait(), any(one["commit"] for one in rest)) == (0, True)
    shown = subprocess.run(
        [*lodefs, "cat", "r:job/last"], env=environment, check=True, capture_output=True
    )
    assert shown.stdout == b"last"
