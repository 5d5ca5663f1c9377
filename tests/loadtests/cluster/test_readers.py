"""Readers in processes: what they count as right, wrong and failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from loadtests.cluster.plans import Job
from loadtests.cluster.reader import Reader, Task
from loadtests.cluster.readers import progress

CONTENT = bytes(range(256)) * 5000


def job(name: str, first: int = 0, size_bytes: int = len(CONTENT), **more: bool) -> Job:
    """A read of CONTENT or of a part of it."""
    digest = blake3(CONTENT[first : first + size_bytes]).hexdigest()
    return Job(name, first, size_bytes, digest, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file as it should be, one with a flipped bit, one too short."""
    (tmp_path / "right").write_bytes(CONTENT)
    (tmp_path / "flipped").write_bytes(b"\x01" + CONTENT[1:])
    (tmp_path / "short").write_bytes(CONTENT[:-1])
    return tmp_path


def task(folder: Path, *jobs: Job, **more: float) -> Task:
    """A task of one stream that reads files of the folder."""
    targets = {each.name: each.name for each in jobs}
    gate, result = str(folder / "gate"), str(folder / "result")
    return Task(str(folder), targets, [list(jobs)], gate, result, **more)  # type: ignore[arg-type]


def test_every_byte_is_checked(folder: Path) -> None:
    """A flipped bit makes a read wrong, with all its bytes, and so does a missing end; the same
    files' right ranges are right."""
    seen = Reader(task(folder, job("right"), job("flipped"), job("short"))).run()
    assert (seen.reads, seen.failed) == (3, 0)
    assert seen.wrong_bytes == len(CONTENT) + len(CONTENT) - 1
    parts = [job(name, 100, 1000, is_range=True) for name in ("right", "flipped", "short")]
    seen = Reader(task(folder, *parts)).run()
    assert (seen.reads, seen.wrong_bytes, seen.size_bytes) == (3, 0, 3000)


def test_a_read_without_an_answer_has_failed(folder: Path) -> None:
    """It is told, has no latency, and the others go on; with patience it is tried again first."""
    seen = Reader(task(folder, job("missing"), job("right"))).run()
    assert (seen.reads, seen.failed, seen.retried, len(seen.latencies_s)) == (1, 1, 0, 1)
    assert "missing" in seen.told[0]
    seen = Reader(task(folder, job("missing"), patience_s=0.1)).run()
    assert (seen.reads, seen.failed) == (0, 1) and seen.retried >= 1


def test_the_process_leaves_its_result(folder: Path) -> None:
    """A reader's process tells its progress and writes what it saw, with its times."""
    file = folder / "task.json"
    file.write_bytes(msgspec.json.encode(task(folder, job("right"), job("flipped"))))
    (folder / "gate").touch()
    command = [sys.executable, "-m", "loadtests.cluster.reader", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert progress(done.stdout) == (2 * len(CONTENT), len(CONTENT))
    answer = msgspec.json.decode((folder / "result").read_bytes())
    assert answer["start_s"] < answer["end_s"]
    assert (answer["seen"]["reads"], answer["seen"]["wrong_bytes"]) == (2, len(CONTENT))


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("", (0, 0)),
        ("ready\n", (0, 0)),
        ("ready\n1 0\n20 5\n", (20, 5)),
        ("ready\n10 0\n2", (10, 0)),
        ("10 0\nTraceback: 3 times\n", (10, 0)),
    ],
)
def test_progress(output: str, told: tuple[int, int]) -> None:
    """The last whole line of two numbers counts."""
    assert progress(output) == told
