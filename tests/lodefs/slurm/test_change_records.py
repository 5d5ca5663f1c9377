"""Changes of jobs, as a node knows them, and what is to become of them."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import UnknownFormat
from lodefs.settings.datasets import CommitWhen
from lodefs.slurm.change_records import Change, ChangeRecords, Fate, fate_of
from lodefs.slurm.job_liveness import JobEnd
from lodefs.slurm.job_record import JobRecord, Shown
from tests.support.chunkstore.child_process import run

BOOT = "this boot"
SHOWN = Shown("cats", "0123456789abcdef" * 4, b"", "/tmp/cats", "main")
CHANGE = Change(job=7, uid=5, gid=6, restarts=0, begun_s=100.5, boot=BOOT, shown=SHOWN, number=0)
TAKE = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("taken")
"""


def change_of(when: CommitWhen = "on-success", boot: str = BOOT) -> Change:
    return msgspec.structs.replace(
        CHANGE, shown=msgspec.structs.replace(SHOWN, when=when), boot=boot
    )


@pytest.mark.parametrize(
    ("when", "end", "fate"),
    [
        ("on-success", None, Fate.ASK),
        ("on-success", JobEnd.AT_WORK, Fate.WAIT),
        ("on-success", JobEnd.SUCCEEDED, Fate.COMMIT),
        ("on-success", JobEnd.FAILED, Fate.KEEP),
        ("on-success", JobEnd.FORGOTTEN, Fate.KEEP),
        ("always", None, Fate.COMMIT),
        ("never", None, Fate.KEEP),
    ],
)
def test_when_a_job_has_ended_here(when: CommitWhen, end: JobEnd | None, fate: Fate) -> None:
    """Slurm says how; nobody needs to be asked where that does not matter."""
    assert fate_of(change_of(when), None, BOOT, end) is fate


@pytest.mark.parametrize("when", ["on-success", "always", "never"])
def test_nothing_happens_while_the_job_is_here(when: CommitWhen) -> None:
    """Another run of the job, or another job of its number, is no reason to wait."""
    here = JobRecord(job=7, uid=5, begun_s=CHANGE.begun_s)
    assert fate_of(change_of(when), here, BOOT, None) is Fate.WAIT
    later = msgspec.structs.replace(here, begun_s=200.0)
    assert fate_of(change_of(when), later, BOOT, JobEnd.SUCCEEDED) is not Fate.WAIT


@pytest.mark.parametrize("when", ["on-success", "always", "never"])
def test_after_a_reboot_changes_are_kept(when: CommitWhen) -> None:
    """What was not synced may be lacking."""
    assert fate_of(change_of(when, "another"), None, BOOT, JobEnd.SUCCEEDED) is Fate.KEEP


def test_records_of_a_node(tmp_path: Path) -> None:
    """Of all jobs or one, until they are removed; root's alone."""
    records = ChangeRecords(tmp_path / "slurm")
    assert not [*records.changes()]
    other = msgspec.structs.replace(CHANGE, job=77)
    for one in (CHANGE, other):
        records.write(one)
    assert [*records.changes()] == [CHANGE, other]
    assert [*records.changes(7)] == [CHANGE]
    assert records.root.stat().st_mode & 0o777 == 0o700
    records.remove(CHANGE)
    records.remove(CHANGE)
    assert [*records.changes()] == [other]


def test_one_process_at_a_time_has_a_change(tmp_path: Path) -> None:
    """Another one is told; who comes after it is done gets nothing, and leaves nothing."""
    records = ChangeRecords(tmp_path / "slurm", tmp_path / "locks")
    records.write(CHANGE)
    with records.taken(CHANGE) as present:
        assert present == CHANGE
        (path,) = records.locks.iterdir()
        told = msgspec.structs.replace(CHANGE, told="later")
        records.write(told)
        assert run([sys.executable, "-c", TAKE, path]) == "taken\n"
    with records.taken(CHANGE) as present:
        assert present == told
        records.remove(CHANGE)
    with records.taken(CHANGE) as present:
        assert present is None
    assert not [*records.root.iterdir(), *records.locks.iterdir()]


def test_a_record_of_another_version(tmp_path: Path) -> None:
    """Is not taken for one of this."""
    records = ChangeRecords(tmp_path)
    records.write(msgspec.structs.replace(CHANGE, version=2))
    with pytest.raises(UnknownFormat, match="version 2"):
        next(records.changes())
