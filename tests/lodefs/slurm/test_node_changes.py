"""The end of a job's changes on a node, without a mount."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from lodefs.api.writing import writable_for_others
from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.mount.service.interface import User
from lodefs.mount.writable import lower_mount, upper_place, writable_mount
from lodefs.mount.writable.upper_place import UpperPlace
from lodefs.settings.session import Session
from lodefs.slurm import change_records
from lodefs.slurm.change_records import ChangeRecords
from lodefs.slurm.job_liveness import JobEnd
from lodefs.slurm.job_record import JobRecords
from lodefs.slurm.node_changes import NodeChanges, Settled, told
from tests.lodefs.slurm.test_change_records import CHANGE
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.kept_changes import KeptChanges

SESSION = cast("Session", SimpleNamespace(environment={}))


@pytest.fixture
def changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeChanges:
    """Two changes of job 7, which has ended well, in a directory of their own."""
    monkeypatch.setattr(change_records, "MOUNTED", tmp_path / "mounted")
    monkeypatch.setattr("lodefs.slurm.node_changes.boot_id", lambda: CHANGE.boot)
    records = ChangeRecords(tmp_path / "slurm", tmp_path / "locks")
    for number in (0, 1):
        upper = str(tmp_path / "upper")
        records.write(msgspec.structs.replace(CHANGE, number=number, upper=upper))
    return NodeChanges(SESSION, tmp_path, records=records, jobs=JobRecords(tmp_path / "jobs"))


def settled(changes: NodeChanges) -> list[Settled]:
    found = [changes.settle(one, lambda _job, _restarts: JobEnd.SUCCEEDED, told)
             for one in changes.changes()]  # fmt: skip
    return [one for one in found if one is not None]


def test_an_error_of_any_kind_is_that_change_s_alone(
    changes: NodeChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users choose what lies in the directory of their changes. The others are settled."""

    def commit(_session: Session, place: UpperPlace, *_: object, **__: object) -> None:
        if place.directory.name.endswith("-0"):
            raise RecursionError("too deep")

    monkeypatch.setattr(writable_for_others, "commit", commit)
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
    line = told(Settled(msgspec.structs.replace(CHANGE, commit="c" * 64), skipped))
    assert f"{writable_for_others.LEFT_OUT_MAX - 1} is a FIFO; and 995 more" in line
    assert len(line) < 1000


class Killed(BaseException):
    """The process ends here."""


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptChanges:
    """Changes of job 7, which are not mounted any more."""
    monkeypatch.setattr(change_records, "MOUNTED", tmp_path / "mounted")
    monkeypatch.setattr(upper_place, "OF_ROOT", tmp_path / "of-root")
    monkeypatch.setattr("lodefs.slurm.node_changes.boot_id", lambda: CHANGE.boot)
    kept = KeptChanges(tmp_path, FaultyObjects(MemoryObjects()))
    state = upper_place.state_directory(kept.session.environment)
    place = upper_place.default_place(state, CHANGE.mountpoint)
    place.upper(0).mkdir(parents=True)
    options = msgspec.structs.replace(kept.record.options, mountpoint=CHANGE.mountpoint)
    place.write(msgspec.structs.replace(kept.record, options=options))
    (place.upper(0) / "a").write_bytes(b"ours")
    return kept


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (writable_mount, "advance"),  # the branch leads to it, and no record on the node does
        (NodeChanges, "_with_commit"),
        (writable_for_others, "close"),
        (UpperPlace, "remove"),
        (upper_place, "forget"),
        (ChangeRecords, "remove"),
    ],
)
@pytest.mark.parametrize("upper", ["", "disk"])
def test_a_commit_is_told_whatever_was_killed_after_it(
    kept: KeptChanges,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    upper: str,
) -> None:
    """And made once; nothing is left on the node."""
    records = ChangeRecords(tmp_path / "slurm", tmp_path / "locks")
    shown = msgspec.structs.replace(CHANGE.shown, repo="r", commit=kept.base)
    change = msgspec.structs.replace(CHANGE, shown=shown, upper=str(tmp_path / upper) * bool(upper))
    records.write(change)
    if upper:
        (tmp_path / upper).mkdir()
        state = upper_place.state_directory(kept.session.environment)
        place = upper_place.default_place(state, change.mountpoint).directory
        place.rename(tmp_path / upper / change.name)
    changes = NodeChanges(kept.session, tmp_path, records=records, jobs=JobRecords(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killed)
        with pytest.raises(Killed):
            settled(changes)
    made = kept.head()
    assert made != kept.base
    (outcome,) = settled(changes)
    assert told(outcome).endswith(f"are commit {made}")
    assert (kept.head(), kept.files()["a"]) == (made, b"ours")
    assert not [*records.root.iterdir(), *records.locks.iterdir()]
    assert os.listdir(tmp_path / "of-root") == [kept.place.directory.name]
    assert not upper or not os.listdir(tmp_path / upper)


class Service:
    """A mount service that is away when it is asked for the first times."""

    away, released = 0, set[str]()

    def __init__(self, _path: Path) -> None: ...

    def release(self, user: User, _timeout_s: float) -> None:
        Service.away -= 1
        if Service.away >= 0:
            raise Unavailable("connection refused")
        Service.released.add(user.volume.rpartition("-")[2])


@pytest.mark.parametrize("away", [1, 2, 3])
def test_a_service_that_is_started_again_lets_go(
    kept: KeptChanges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    """Of all generations: it would hold the snapshots until the next boot, for nobody. That there
    is a commit is told at once."""
    monkeypatch.setattr(lower_mount, "RemoteMounts", Service)
    Service.away, Service.released = away, set()
    records = ChangeRecords(tmp_path / "slurm", tmp_path / "locks")
    shown = msgspec.structs.replace(CHANGE.shown, repo="r", commit=kept.base)
    records.write(msgspec.structs.replace(CHANGE, shown=shown))
    changes = NodeChanges(kept.session, tmp_path, records=records, jobs=JobRecords(tmp_path))
    state = upper_place.state_directory(kept.session.environment)
    place = upper_place.default_place(state, CHANGE.mountpoint)
    place.write(msgspec.structs.replace(writable_mount.recorded(place), service="/run/service"))
    outcomes = [one for _ in range(3) for one in settled(changes)]
    assert all(f"are commit {kept.head()}" in told(one) for one in outcomes)
    assert outcomes[-1].error is None
    assert Service.released == {"0", "1"}
    assert not place.directory.exists()
