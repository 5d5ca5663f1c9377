"""What a push works with, from one attempt to the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Conflict
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.push import session as session_module
from lodefs.chunkstore.push.pack_check import PacksLost
from lodefs.chunkstore.push.session import CommitResult, PushOptions, PushSession
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.memory_objects import MemoryObjects

NOTHING = CommitResult(
    commit="", unchanged=True, created_branch=False, files=0, directories=0, size_bytes=0,
    changes=None,
)  # fmt: skip


@pytest.fixture
def session(tmp_path: Path) -> PushSession:
    """A push to main of r, in an empty store."""
    options = PushOptions("", "", 0, tmp_path, workers=0)
    return PushSession(create_store(MemoryObjects()), RefName("r", BRANCHES, "main"), options)


def test_heartbeats_are_of_the_write_that_is_under_way(
    session: PushSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After another writer was faster, a push says that its next write is alive, not its last."""
    kept: list[Callable[[], None]] = []

    class Kept(Heartbeat):
        def __init__(self, beat: Callable[[], None]) -> None:
            super().__init__(beat)
            kept.append(beat)

    monkeypatch.setattr(session_module, "Heartbeat", Kept)
    beats: list[str] = []

    def attempt() -> CommitResult:
        session.write.begin()
        session.write_again()
        monkeypatch.setattr(session.write, "beat", lambda: beats.append("next"))
        kept[0]()
        return NOTHING

    session.run(attempt)
    assert beats == ["next"]


def test_an_attempt_is_repeated_for_what_is_new(session: PushSession) -> None:
    """Packs that are found to be lost begin a push anew, once; any other error ends it."""
    lost = b"p" * 32
    tries: list[int] = []

    def attempt() -> CommitResult:
        tries.append(len(tries))
        raise PacksLost("lost", {PackId(lost)})

    with pytest.raises(PacksLost):
        session.run(attempt)
    assert tries == [0, 1]

    def refused() -> CommitResult:
        tries.append(-1)
        raise Conflict("moved")

    with pytest.raises(Conflict):
        session.run(refused)
    assert tries == [0, 1, -1]
