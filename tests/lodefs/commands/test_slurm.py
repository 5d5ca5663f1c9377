"""``lodefs slurm epilog``: the mounts go, whatever becomes of the figures."""

from __future__ import annotations

import pytest

from lodefs.commands import slurm
from lodefs.slurm import job_report
from tests.support.lodefs.command_line import Lodefs


class Mounts:
    """Notes which jobs' were taken away."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def end(self, job: int) -> None:
        """As of JobMounts."""
        self._done.append(f"end {job}")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an epilog did, in order."""
    found: list[str] = []
    monkeypatch.setattr(slurm, "_mounts", lambda *_: Mounts(found))
    monkeypatch.setattr(job_report, "log", found.append)
    return found


def test_the_mounts_go_though_nobody_can_tell_the_figures(
    lodefs: Lodefs, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that is a fault of lodefs; it is said."""

    def fails(*_: object) -> str:
        raise RuntimeError("a fault")

    monkeypatch.setattr(slurm, "_report", fails)
    result = lodefs("slurm", "epilog", SLURM_JOB_ID="7")
    assert result.code == 0
    assert done == ["end 7"]
    assert "what job 7 read is not known: a fault" in result.err


def test_the_log_is_written_last(
    lodefs: Lodefs, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take its time."""
    monkeypatch.setattr(slurm, "_report", lambda *_: "job 7 read: uid=5")
    result = lodefs("slurm", "epilog", SLURM_JOB_ID="7")
    assert result.out == "job 7 read: uid=5\n"
    assert done == ["end 7", "job 7 read: uid=5"]
