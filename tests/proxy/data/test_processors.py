"""How many processors a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.proxy.data import processors


@pytest.mark.parametrize(
    ("own", "above", "count"),
    [("max 100000", "max 100000", 8), ("150000 100000", "max", 2), ("max", "300000 100000", 3),
     ("50000 100000", "400000 100000", 1), ("rubbish", "0 0", 8), ("9900000 100000", "max 1", 8)],
)  # fmt: skip
def test_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, above: str, count: int
) -> None:
    """The least of the processors that are allowed and of the quotas of all groups above."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    group = tmp_path / "system.slice" / "lodefs.service"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(own + "\n")
    (group.parent / "cpu.max").write_text(above + "\n")
    (tmp_path / "cgroup").write_text("0::/system.slice/lodefs.service\n")
    assert processors.count(tmp_path, tmp_path / "cgroup") == count


def test_without_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are none, the allowed processors count; one at least."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert processors.count(tmp_path, tmp_path / "missing") == 1
    (tmp_path / "old").write_text("4:cpu:/x\n")
    assert processors.count(tmp_path, tmp_path / "old") == 1
