"""A pytest plug-in that writes each failure to a file of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

OPTION = "--failure-log"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file."""
    parser.addoption(OPTION, type=Path, help="append each failure to this file, as a line of JSON")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called where pytest reports, also for tests that ran in other processes."""
    if report.failed and (log := _Log.path) is not None:
        text = "\n".join([report.longreprtext, *(f"-- {k} --\n{v}" for k, v in report.sections)])
        line = json.dumps({"test": report.nodeid, "phase": report.when, "text": text})
        with log.open("a") as file:
            file.write(line + "\n")


class _Log:
    """pytest hands the configuration to few hooks."""

    path: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    """The process that reports keeps the file; workers of xdist do not write."""
    if not hasattr(config, "workerinput"):
        _Log.path = config.getoption(OPTION)


def read(path: Path) -> dict[str, str]:
    """The first failure of each test: node id -> its phase and everything that pytest says."""
    failures: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        failures.setdefault(entry["test"], f"[{entry['phase']}]\n{entry['text']}")
    return failures
