"""Ctrl-C in the middle of work."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

import pytest

from lodefs.app import run
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.pull.target import STATE_DIR
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import MemorySession

PRESSES_MAX = 1200  # a minute


class Interrupting(MemoryObjects):
    """At the nth read of a pack presses Ctrl-C, and goes on when the main thread knows."""

    def __init__(self, known: threading.Event) -> None:
        super().__init__()
        self.nth = 0
        self._known = known

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        if key.startswith(keys.PACKS):
            self.nth -= 1
            if self.nth == 0:
                # Again and again: a signal that comes just before a wait does not end the wait
                for _ in range(PRESSES_MAX):
                    os.kill(os.getpid(), signal.SIGINT)
                    if self._known.wait(0.05):
                        break
        return super().get(key, offset=offset, size=size, if_match=if_match)


@pytest.mark.parametrize("nth", [3, 5, 7])
def test_interrupted_pull_can_be_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], nth: int
) -> None:
    """Ctrl-C ends a pull with 130 and one line; the same command again completes it."""
    known = threading.Event()
    objects = Interrupting(known)
    files = {b"d/%d" % n: os.urandom(3000) for n in range(20)}
    Handmade(create_store(objects)).commit("r", files)

    def pressed(_number: int, _frame: FrameType | None) -> None:
        if not known.is_set():
            known.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, pressed)
    try:
        objects.nth = nth
        command = ["pull", "--workers", "1", "r", str(tmp_path / "t")]
        session = MemorySession({"LODEFS_STORE": "s3://memory"}, objects)
        assert run(command, session) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err.strip() == "lodefs: interrupted; repeat the command to go on"
    assert STATE_DIR in os.listdir(tmp_path / "t")
    assert run(command, MemorySession({"LODEFS_STORE": "s3://memory"}, objects)) == 0
    assert os.listdir(tmp_path / "t") == ["d"]
    for path, content in files.items():
        assert (tmp_path / "t" / path.decode()).read_bytes() == content
    capfd.readouterr()
