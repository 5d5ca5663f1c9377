"""The faulty store, and child processes: what other tests trust."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, Unavailable
from tests.support.chunkstore.child_process import Child, ChildError, run
from tests.support.chunkstore.faulty_store import (
    FaultyObjects,
    Rule,
    block_until,
    fail,
    fail_after,
    flip_byte,
    half_body,
)
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import MUCH, ObjectStoreSuite

TIMEOUT_S = 60.0


class TestWithoutRules(ObjectStoreSuite):
    """Without rules it is a store like any other."""

    @pytest.fixture
    def objects(self) -> FaultyObjects:
        return FaultyObjects(MemoryObjects())


@pytest.fixture
def faulty() -> FaultyObjects:
    store = FaultyObjects(MemoryObjects())
    store.put("packs/a", [b"0123"])
    store.put("refs/a", [b"4567"])
    store.forget()
    return store


def test_nth_call(faulty: FaultyObjects) -> None:
    """A rule with first and times has its effect on just those of the calls it is for."""
    faulty.rules.append(Rule(fail(Denied("no")), "get", "packs/", first=2, times=1))
    assert faulty.get("packs/a", size=MUCH).data == b"0123"
    faulty.get("refs/a", size=MUCH)
    faulty.head("packs/a")
    with pytest.raises(Denied, match="no"):
        faulty.get("packs/a", size=MUCH)
    assert faulty.get("packs/a", size=MUCH).data == b"0123"


def test_spoiled_answers(faulty: FaultyObjects) -> None:
    """Bytes can be flipped or cut, and the object itself stays as it is."""
    faulty.add(flip_byte(1), "get", times=1)
    assert faulty.get("packs/a", size=MUCH).data == b"0\xce23"
    faulty.add(half_body(), "get")
    assert faulty.get("packs/a", size=MUCH).data == b"01"
    faulty.forget()
    assert faulty.get("packs/a", size=MUCH).data == b"0123"


def test_lost_answer(faulty: FaultyObjects) -> None:
    """fail_after does the work first, fail does not."""
    faulty.add(fail_after(Unavailable("lost")), "put", times=1)
    faulty.add(fail(Unavailable("refused")), "delete")
    with pytest.raises(Unavailable, match="lost"):
        faulty.put("new", [b"x"])
    with pytest.raises(Unavailable, match="refused"):
        faulty.delete("new")
    assert faulty.inner.get("new", size=MUCH).data == b"x"


def test_counts(faulty: FaultyObjects) -> None:
    """Calls and bytes are counted by operation and beginning of key; failures move none."""
    faulty.get("packs/a", size=3)
    faulty.get("refs/a", size=MUCH)
    faulty.put("packs/b", [b"12", memoryview(b"345")])
    faulty.add(fail(Unavailable("busy")))
    with pytest.raises(Unavailable):
        faulty.get("packs/a", size=MUCH)
    assert (faulty.count(), faulty.count("get"), faulty.count("get", "packs/")) == (4, 3, 2)
    assert faulty.size_bytes("get") == 7
    assert faulty.size_bytes("get", "packs/") == 3
    assert faulty.size_bytes("put") == 5


def test_blocking(faulty: FaultyObjects) -> None:
    """A blocked call tells that it is there, and goes on when it is let."""
    entered, leave = threading.Event(), threading.Event()
    faulty.add(block_until(leave, entered=entered), "get")
    got: list[bytes] = []
    thread = threading.Thread(
        target=lambda: got.append(bytes(faulty.get("packs/a", size=MUCH).data))
    )
    thread.start()
    assert entered.wait(TIMEOUT_S)
    assert not got
    leave.set()
    thread.join(TIMEOUT_S)
    assert got == [b"0123"]


def python(program: str) -> list[str | Path]:
    return [sys.executable, "-c", program]


def test_child_is_watched_and_ends() -> None:
    """Its lines are waited for, and SIGTERM ends it."""
    program = "import signal; print('ready at 7', flush=True); signal.pause()"
    with Child(python(program)) as child:
        assert child.wait_for(r"^ready at (\d)$").group(1) == "7"
        assert child.terminate() == -signal.SIGTERM
    assert child.output == "ready at 7\n"


def test_child_takes_its_children_with_it() -> None:
    """Killing it kills what it started, too."""
    program = (
        "import subprocess, sys, signal;"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        "print('started', p.pid, flush=True); signal.pause()"
    )
    with Child(python(program)) as child:
        grandchild = int(child.wait_for(r"started (\d+)").group(1))
        pidfd = os.pidfd_open(grandchild)
    ended, _, _ = select.select([pidfd], [], [], TIMEOUT_S)
    os.close(pidfd)
    assert ended == [pidfd]


def test_child_that_ends_early_shows_its_output() -> None:
    """One that ends instead of becoming ready is an error with its code and last words."""
    with (
        Child(python("raise SystemExit('cannot start')")) as child,
        pytest.raises(ChildError, match=r"ended with 1. Its output:\ncannot start"),
    ):
        child.wait_for("ready")


def test_run() -> None:
    """A command's output with its environment comes back; its failure is an error."""
    assert run(python("import os; print(os.environ['X'])"), env={"X": "5"}) == "5\n"
    with pytest.raises(ChildError, match="ended with 3"):
        run(python("raise SystemExit(3)"))
