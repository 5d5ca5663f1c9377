"""Changes are settled one after the other, and what became of them is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from lodefs.chunkstore.errors import Diverged, LodefsError, NoSpace, NotFound, Unavailable
from lodefs.slurm import settling
from lodefs.slurm.change_records import Change
from lodefs.slurm.node_changes import EndOf, NodeChanges, Settled, Tell
from lodefs.slurm.settling import settle
from tests.lodefs.slurm.test_change_records import CHANGE

KEPT = Path("/var/lib/lodefs/writable/0")
OTHER = msgspec.structs.replace(CHANGE, number=1)


class Changes:
    """Of job 7. ``fails``: what each try of a change fails with, the first one first."""

    def __init__(self, *fails: LodefsError | None) -> None:
        self.left = [CHANGE, OTHER]
        self.fails = list(fails)
        self.tries = 0

    def changes(self, job: int | None = None) -> Iterator[Change]:
        yield from list(self.left)

    def settle(self, change: Change, _end_of: EndOf, tell: Tell) -> Settled | None:
        self.tries += 1
        error = self.fails.pop(0) if self.fails else None
        if isinstance(error, Unavailable) and str(error) == "no controller":
            raise error
        settled = Settled(change, kept=KEPT if error else None, error=error)
        said = tell(settled)
        at = self.left.index(change)
        self.left[at : at + 1] = (
            [msgspec.structs.replace(change, told=said)] if settled.is_tried_again else []
        )
        return settled


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(settling, "POLL_S", 0.001)
    return []


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(settling, "log", lines.append)
    return lines


def run(changes: Changes, told: list[str], wait_s: float) -> bool:
    def scontrol(words: Sequence[str]) -> str:
        assert words == ["show", "job", "7"]
        raise NotFound("it has forgotten the job")

    return settle(cast("NodeChanges", changes), scontrol, 7, wait_s, told.append)


def test_all_changes_of_a_job_are_told(told: list[str]) -> None:
    """Also of a job that Slurm has forgotten."""
    assert run(Changes(), told, 0)
    assert told == ["job 7: nothing was changed on /tmp/cats (cats@main)"] * 2


@pytest.mark.parametrize("error", [Unavailable("the store is away"), Unavailable("no controller")])
def test_what_goes_by_itself_is_tried_again(told: list[str], error: LodefsError) -> None:
    """Within the time, and told once."""
    changes = Changes(error, error)
    assert run(changes, told, 60)
    assert (changes.tries, changes.left) == (4, [])
    assert not any("error" in line for line in told)


def test_what_stays_so_is_told(told: list[str]) -> None:
    """It is kept for root; what is not done in time is left for another call."""
    changes = Changes(Diverged("both changed x"), Unavailable("the store is away"))
    assert not run(changes, told, 0)
    assert [one.number for one in changes.left] == [OTHER.number]
    conflict, later = told
    assert "both changed x" in conflict
    assert f"`lodefs commit {CHANGE.mountpoint}`" in conflict
    assert "tried again" not in conflict
    assert "tried again" in later


def test_what_was_told_is_not_told_again(told: list[str], logged: list[str]) -> None:
    """At each health check, where it has not changed: neither in the log nor in the job's output,
    but to who calls."""
    away, full = Unavailable("the store is away"), NoSpace("the quota")
    changes = Changes(None, away, away, full, None)
    for _ in range(4):
        run(changes, told, 0)
    assert len(told) == 5
    assert [line.partition(": ")[2][:7] for line in logged] == ["nothing", "error: ", "error: ",
                                                               "nothing"]  # fmt: skip
    assert "the quota" in logged[2]


def test_names_cannot_move_a_cursor(told: list[str], logged: list[str]) -> None:
    """A job chooses the names of its files, and root and others look at the log."""
    assert not run(Changes(Diverged("both changed \x1b[2Jx\ny")), told, 0)
    assert "both changed \\x1b[2Jx\\ny" in told[0]
    assert told[0] == logged[0]


def test_pauses_grow_while_it_fails(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails may have read all changes before; a minute at most is waited."""
    pauses: list[float] = []
    monkeypatch.setattr(settling, "POLL_S", 1.0)
    monkeypatch.setattr("lodefs.slurm.settling.time.sleep", pauses.append)
    away = [Unavailable("the store is away")] * 20
    assert run(Changes(*away), told, 3000)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
