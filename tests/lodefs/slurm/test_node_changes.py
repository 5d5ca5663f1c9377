"""The end of a job's changes on a node, without a mount."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from lodefs.api import writable_for_others
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.mount.writable.upper_place import UpperPlace
from lodefs.settings.session import Session
from lodefs.slurm import change_records
from lodefs.slurm.change_records import ChangeRecords
from lodefs.slurm.job_liveness import JobEnd
from lodefs.slurm.job_record import JobRecords
from lodefs.slurm.node_changes import LEFT_OUT_MAX, NodeChanges, Settled, told
from tests.lodefs.slurm.test_change_records import CHANGE

SESSION = cast("Session", SimpleNamespace(environment={}))


@pytest.fixture
def changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeChanges:
    """Two changes of job 7, which has ended well, in a directory of their own."""
    monkeypatch.setattr(change_records, "MOUNTED", tmp_path / "mounted")
    monkeypatch.setattr("lodefs.slurm.node_changes.boot_id", lambda: CHANGE.boot)
    records = ChangeRecords(tmp_path / "slurm")
    for number in (0, 1):
        upper = str(tmp_path / "upper")
        records.write(msgspec.structs.replace(CHANGE, number=number, upper=upper))
    return NodeChanges(SESSION, tmp_path, records=records, jobs=JobRecords(tmp_path / "jobs"))


def settled(changes: NodeChanges) -> list[Settled]:
    found = [changes.settle(one, lambda _job, _restarts: JobEnd.SUCCEEDED)
             for one in changes.changes()]  # fmt: skip
    return [one for one in found if one is not None]


def test_an_error_of_any_kind_is_that_change_s_alone(
    changes: NodeChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users choose what lies in the directory of their changes. The others are settled."""

    def close(_session: Session, place: UpperPlace, *_: object, **__: object) -> Any:
        if place.directory.name.endswith("-0"):
            raise RecursionError("too deep")
        return writable_for_others.Closed(None, kept=False)

    monkeypatch.setattr(writable_for_others, "close", close)
    first, second = settled(changes)
    assert first.is_tried_again
    assert "RecursionError: too deep" in told(first)
    assert second.error is None
    assert [one.number for one in changes.changes()] == [0]


def test_a_removal_that_was_interrupted_is_continued(changes: NodeChanges, tmp_path: Path) -> None:
    """The record of a place goes first, so one without a record has nothing to be committed."""
    (first, _) = changes.changes()
    left = tmp_path / "upper" / first.name
    (left / "upper-1/many").mkdir(parents=True)
    (left / "upper-1/many/files").touch()
    assert [one.error for one in settled(changes)] == [None, None]
    assert not left.exists()
    assert not [*changes.changes()]


def test_a_message_names_a_few_of_what_is_left_out() -> None:
    """A user may make any number of FIFOs."""
    skipped = [Skipped(b"%d" % number, f"{number} is a FIFO") for number in range(1000)]
    result = SimpleNamespace(commit="c" * 64, unchanged=False, skipped=skipped)
    line = told(Settled(CHANGE, cast("Any", result)))
    assert f"{LEFT_OUT_MAX - 1} is a FIFO; and 995 more" in line
    assert len(line) < 1000
