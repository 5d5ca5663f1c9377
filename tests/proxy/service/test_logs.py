"""Where a service's log goes: the journal, or lines on standard error."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lodefs.proxy.service.logs import ConsoleFormatter, JsonFormatter
from tests.support.chunkstore.child_process import Child

ROOT = Path(__file__).parents[3]
SCRIPT = """
import logging, os, sys
from pathlib import Path
from lodefs.chunkstore.system.systemd import journald as journal
from lodefs.chunkstore.errors import Unavailable
from lodefs.proxy.service.logs import configure_logs
journal.SOCKET = Path(sys.argv[2])
if len(sys.argv) > 3:
    found = os.fstat(2)
    os.environ["JOURNAL_STREAM"] = f"{found.st_dev}:{found.st_ino}"
try:
    configure_logs("info", sys.argv[1], identifier="lodefs-try")
except Unavailable as error:
    sys.exit(str(error))
error = ValueError("no") if os.environ.get("FAILS") else None
logging.getLogger("lodefs.try").warning("hello %s", "you", extra={"pack": b"ab"}, exc_info=error)
"""


def said(form: str, path: Path, *more: str, fails: bool = False) -> str:
    argv = [sys.executable, "-c", SCRIPT, form, str(path), *more]
    with Child(argv, cwd=ROOT, env={"FAILS": "1"} if fails else None) as child:
        child.wait()
        return child.output


@pytest.mark.parametrize(("form", "more"), [("journald", []), ("auto", ["stream"])])
def test_to_the_journal(tmp_path: Path, form: str, more: list[str]) -> None:
    """Asked for, or where standard error is the journal, lines go there, and only there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(tmp_path / "journal"))
        journald.settimeout(60)
        assert said(form, tmp_path / "journal", *more) == ""
        line = journald.recv(65536).decode().splitlines()
    assert {"MESSAGE=hello you", "PRIORITY=4", "SYSLOG_IDENTIFIER=lodefs-try",
            "LODEFS_PACK=ab"} <= set(line)  # fmt: skip


@pytest.mark.parametrize(("form", "more"), [("json", ["stream"]), ("auto", []), ("auto", ["s"])])
def test_as_json(tmp_path: Path, form: str, more: list[str]) -> None:
    """One object a line otherwise, also where the journal's socket is not there."""
    line = json.loads(said(form, tmp_path / "none", *more))
    assert (line["event"], line["level"], line["pack"]) == ("hello you", "warning", "b'ab'")
    assert datetime.fromisoformat(line["timestamp"]).tzinfo is UTC
    assert "exception" not in line


def test_an_exception_as_json(tmp_path: Path) -> None:
    """Its traceback is in the object, on the one line."""
    line = json.loads(said("json", tmp_path / "none", fails=True))
    assert line["exception"].endswith("ValueError: no")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        ({"x": {(1, b"k"): 2}}, {"x": "{(1, b'k'): 2}"}),
        ({"x": float("nan"), "y": 1}, {"x": "nan", "y": 1}),
        ({"x": CYCLE}, {"x": "[[...]]"}),
        ({"x": Unshowable(), "y": {"deep": b"b"}}, {"x": "<Unshowable>", "y": {"deep": "b'b'"}}),
        ({"x": {(1,): Unshowable()}}, {"x": "<dict>"}),
        ({"event": "other", "level": 3}, {"event_": "other", "level_": 3}),
        ({"x": "\udcff"}, {"x": "\udcff"}),
    ],
)
def test_no_line_of_json_is_lost(extra: dict[str, object], shown: dict[str, object]) -> None:
    """Values that JSON cannot hold are shown as text, and names of the line's own stay its own."""
    record = logging.makeLogRecord({"msg": "hello %s", "args": ("you",), "levelname": "INFO"})
    vars(record).update(extra)
    line = json.loads(JsonFormatter().format(record), parse_constant=lambda name: 1 / 0)
    assert (line["event"], line["level"]) == ("hello you", "info")
    assert shown.items() <= line.items()


def test_a_message_without_its_arguments_is_not_lost() -> None:
    """A message and arguments that do not fit it are both shown."""
    record = logging.makeLogRecord({"msg": "%d files", "args": ("many",), "levelname": "INFO"})
    assert json.loads(JsonFormatter().format(record))["event"] == "'%d files' ('many',)"


def test_for_people(tmp_path: Path) -> None:
    """Lines for a console have time, level, event, logger and extras; a traceback follows."""
    first, *traceback = said("console", tmp_path / "none", fails=True).splitlines()
    assert re.fullmatch(r"2\S+ \[warning \] hello you \[lodefs\.try\] pack=b'ab'", first)
    assert traceback == ["ValueError: no"]


def test_a_name_forges_no_line_for_people() -> None:
    """Control characters in messages and extras are escaped; a traceback has its lines."""
    fields = {"msg": "%s is damaged", "args": ("a\n2026 [error] b\x1b[2J\u2028é",), "n": "x\ry"}
    line = ConsoleFormatter().format(logging.makeLogRecord(fields))
    assert r"a\n2026 [error] b\x1b[2J\u2028é is damaged" in line
    assert line.endswith(r" n=x\ry")


def test_a_journal_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    """Without one, the setting is named."""
    assert "log_format journald: no journal here" in said("journald", tmp_path / "none")
    assert os.listdir(tmp_path) == []
