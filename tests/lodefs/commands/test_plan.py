"""``lodefs plan`` and ``lodefs push --executor``, as a user runs them."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

import lodefs as lodefs_api
from lodefs.api.parts.executors import opened_executor
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.push.parts.part_scan import PartLimits
from lodefs.chunkstore.repo.store import create_store, open_store
from tests.support.chunkstore.directories import write_files
from tests.support.lodefs.command_line import Lodefs


@pytest.fixture(autouse=True)
def created(lodefs: Lodefs) -> None:
    """The store exists."""
    assert lodefs("init", "s3://memory").code == 0


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to push, of which each part takes two files."""
    few = PartLimits(files=2)
    monkeypatch.setattr("lodefs.chunkstore.push.parts.plan.PartLimits", lambda: few)
    source = tmp_path / "source"
    random = Random(5)
    write_files(source, {f"d{n % 3}/{n}": random.randbytes(400 * n) for n in range(9)})
    return source


def test_a_plan_its_parts_and_one_commit(lodefs: Lodefs, source: Path) -> None:
    """Tasks of different numbers do all parts; the commit is that of a plain push."""
    made = lodefs("plan", "create", "p", str(source), "r", "-m", "first", "--json").json
    assert (made["plan"], made["parts"], made["files"]) == ("p", 5, 9)
    missing = lodefs("plan", "status", "p", "--json")
    assert (missing.code, missing.json["missing"]) == (1, [1, 2, 3, 4, 5])
    early = lodefs("plan", "finish", "p")
    assert early.code == 2 and "lodefs plan part p K/N" in early.err
    assert lodefs("plan", "part", "p", "2/2").code == 0
    assert "missing    1,3,5" in lodefs("plan", "status", "p").out
    done = lodefs("plan", "part", "p", "1/1", "--json")
    assert sorted(line["part"] for line in done.json_lines) == [1, 2, 3, 4, 5]
    result = lodefs("plan", "finish", "p", "--json")
    assert (result.code, result.json["files"]) == (0, 9)
    assert lodefs("log", "--json", "r").json["message"] == "first"
    assert f"commit     {result.json['commit']}" in lodefs("plan", "status", "p").out
    assert lodefs("push", str(source), "r", "--json").json["unchanged"]
    assert lodefs("plan", "finish", "p", "--json").json["commit"] == result.json["commit"]
    assert lodefs("plan", "discard", "p").code == 0
    assert lodefs("plan", "status", "p").code == 3
    assert lodefs("ls", "r:d2").code == 0


def test_a_part_that_fails_is_told(lodefs: Lodefs, source: Path) -> None:
    """The others go on, the exit code is 1, and the status has machine and reason."""
    assert lodefs("plan", "create", "p", str(source), "r").code == 0
    (source / "d1" / "4").write_bytes(b"later")
    ran = lodefs("plan", "part", "p", "1/1")
    assert ran.code == 1
    assert "part 3 failed: d1/4 has changed since the plan was made" in ran.err
    assert "part 5: 1 file" in ran.out
    status = lodefs("plan", "status", "p", "--json").json
    assert [(one["part"], one["host"]) for one in status["failed"]] == [(3, os.uname().nodename)]
    assert lodefs("plan", "part", "p", "3/5", "--skip-unreadable").code == 0
    assert lodefs("plan", "finish", "p", "--json").json["files"] == 8


def test_a_task_refuses_a_plan_of_another_source(lodefs: Lodefs, source: Path) -> None:
    """It names both, and reads nothing; that of the right source does its parts."""
    assert lodefs("plan", "create", "p", str(source), "r").code == 0
    ran = lodefs("plan", "part", "p", "1/1", "--source", str(source.parent))
    assert (ran.code, f"of {source}, and this task may read {source.parent}" in ran.err) == (
        2,
        True,
    )
    assert lodefs("plan", "status", "p", "--json").json["missing"] == [1, 2, 3, 4, 5]
    assert lodefs("plan", "part", "p", "1/1", "--source", f"{source}/").code == 0
    assert lodefs("plan", "finish", "p").code == 0


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        (["s3://lake/x", "r", "--in-place"], "[sources.lake-x]"),
        (["./cats", "r", "--in-place"], "only s3://BUCKET/PREFIX is imported in place"),
        (["s3://lake/x", "r", "--in-place", "--copy-below", "9KiB"], "at least 65536 bytes"),
    ],
)
def test_plans_that_cannot_leave_objects_in_place(
    lodefs: Lodefs, more: list[str], hint: str
) -> None:
    """The message says what is missing, and there is no plan."""
    ran = lodefs("plan", "create", "p", *more)
    assert (ran.code, hint in ran.err) == (2, True), ran.err
    assert lodefs("plan", "status", "p").code == 3


@pytest.mark.parametrize("share", ["0/0", "4/3", "3", "a/b", "1/0"])
def test_shares_are_checked(lodefs: Lodefs, source: Path, share: str) -> None:
    """Tasks count from 1 to N."""
    assert lodefs("plan", "create", "p", str(source), "r").code == 0
    assert lodefs("plan", "part", "p", share).code == 2


@pytest.mark.parametrize(
    ("executor", "hint"),
    [
        ("spark://x", "use processes:N, dask://HOST:PORT, mpi or ray://HOST:PORT"),
        ("processes:", "as in processes:8"),
        ("processes:0", "as in processes:8"),
        ("ray://x:1", 'pip install "ray[client]"'),
        ("dask://x:1", "pip install distributed"),
        ("mpi", "pip install mpi4py"),
    ],
)
def test_executors_that_cannot_be_had(
    lodefs: Lodefs, source: Path, executor: str, hint: str
) -> None:
    """The message says what there is, or how to install it."""
    ran = lodefs("push", str(source), "r", "--executor", executor)
    assert (ran.code, hint in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("more", [["--dry-run"], ["--check"], ["--rate", "9MB"]])
def test_options_that_an_executor_does_not_take(
    lodefs: Lodefs, source: Path, more: list[str]
) -> None:
    """They are refused before anything is read."""
    ran = lodefs("push", str(source), "r", "--executor", "processes:2", *more)
    assert (ran.code, "takes no --check, --dry-run and --rate" in ran.err) == (2, True)


@pytest.mark.slow
def test_processes_push(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own do the parts; the commit has the tree of a plain push."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store = str(tmp_path / "store")
    create_store(DirectoryObjects(store))
    with opened_executor("processes:2") as executor:
        result = lodefs_api.push(source, "r", store=store, executor=executor)
    assert (result.files, result.files_read) == (9, 9)
    lodefs_api.push(source, "plain", store=store)
    opened = open_store(DirectoryObjects(store))
    ours, theirs = (opened.commit(repo, opened.resolve(repo, "main")) for repo in ("r", "plain"))
    assert ours.root.digest == theirs.root.digest
