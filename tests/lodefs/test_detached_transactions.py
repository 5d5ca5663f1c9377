"""Transactions that no process holds: parts and commit find them by what travels in a pickle."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import lodefs
from lodefs.api.transactions import DetachedTransaction, Part
from lodefs.chunkstore.errors import Conflict, InvalidInput, NoSpace, NotFound
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import Store, create_store
from tests.support.chunkstore.directories import in_commit

HOUR_S = 3600


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store, which the environment names, with a repository r."""
    place = str(tmp_path / "store")
    made = create_store(DirectoryObjects(place))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LODEFS_STORE", place)
    monkeypatch.setenv("LODEFS_CONFIG", os.devnull)
    with lodefs.transaction("r", message="first") as tx:
        tx.put("a", b"1")
    return made


def files(store: Store, branch: str = "main") -> dict[bytes, bytes]:
    """What is in a branch."""
    seen = in_commit(store, "r", store.resolve("r", branch).hex())
    return {path: one.content for path, one in seen.items() if one.content}


def sent(value: Any) -> Any:
    """A value as another process has it."""
    return pickle.loads(pickle.dumps(value))


def begun(branch: str = "main", **options: Any) -> DetachedTransaction:
    """A transaction, as another process has it."""
    found = sent(lodefs.transaction(f"r@{branch}", message="apart", **options).detached())
    assert isinstance(found, DetachedTransaction)
    return found


def written(apart: DetachedTransaction, path: str, content: bytes) -> Part:
    """What a task returns that writes one file."""
    with sent(apart).fork() as part:
        part.put(path, content)
    returned = sent(part)
    assert isinstance(returned, Part)
    return returned


def is_over(store: Store, apart: DetachedTransaction) -> bool:
    """Whether gc runs wait for it no more."""
    return StoreJournal(store.objects).end(apart.writer.number) is not None


def test_parts_become_one_commit(store: Store) -> None:
    """A task that ran twice counts once, and what others have committed meanwhile is kept."""
    apart = begun(author="me", metadata={"run": "7"})
    written(apart, "b", b"lost" * 999)
    parts = [written(apart, "b", b"2" * 5000), written(apart, "c/d", b"3")]
    with lodefs.transaction("r", message="meanwhile") as tx:
        tx.put("e", b"4")
    with apart.resumed() as tx:
        tx.merge(parts)
        tx.remove("a")
    assert tx.result is not None and tx.result.changes.added_files == 2
    assert files(store) == {b"b": b"2" * 5000, b"c/d": b"3", b"e": b"4"}
    newest = next(iter(lodefs.log("r"))).commit
    assert (newest.message, newest.author, dict(newest.metadata)) == ("apart", "me", {"run": "7"})
    assert is_over(store, apart)
    with apart.resumed() as again:
        again.merge(parts)
        again.remove("a")
    assert again.result is not None and again.result.unchanged


def test_a_branch_that_is_new(store: Store) -> None:
    """It begins with the commit, also if another writer has begun it first."""
    first, second = begun("new"), begun("new")
    for apart, path in ((first, "x"), (second, "y")):
        part = written(apart, path, b"1")
        with apart.resumed() as tx:
            tx.merge([part])
    assert files(store, "new") == {b"x": b"1", b"y": b"1"}


def test_an_end_without_a_commit(store: Store) -> None:
    """Nothing is committed. A task that is late is refused, or what it writes is garbage."""
    apart = begun()
    late = apart.fork()
    part = written(apart, "b", b"2")
    apart.abort()
    with late:
        late.put("c", b"3")
    with pytest.raises(Conflict, match="is over"):
        apart.fork()
    with pytest.raises(Conflict, match="is over"), apart.resumed() as tx:
        tx.merge([part, late])
    assert is_over(store, apart)
    assert files(store) == {b"a": b"1"}


def test_what_is_refused(store: Store) -> None:
    """Parts of others, two that write one path, and a transaction that has begun; a block after
    that commits."""
    apart, other = begun(), begun()
    parts = [written(apart, "b", b"2"), written(apart, "b", b"3")]
    with pytest.raises(InvalidInput, match="of another transaction"), apart.resumed() as tx:
        tx.merge([written(other, "b", b"2")])
    with pytest.raises(Conflict, match="changed b"), apart.resumed() as tx:
        tx.merge(parts)
    assert not is_over(store, apart)
    with apart.resumed() as tx:
        tx.merge(parts[:1])
    assert files(store)[b"b"] == b"2"
    with lodefs.transaction("r") as tx, pytest.raises(InvalidInput, match="has begun"):
        tx.detached()
    with pytest.raises(NotFound):
        begun(base="v9")


def gc(store: Store, hours: float) -> int:
    """One gc run, so many hours from now; returns how many packs it deleted."""
    options = CollectOptions(24 * HOUR_S, clock=lambda: time.time() + hours * HOUR_S, workers=1)
    return collect(store, options).deleted.packs


def test_gc_runs_wait_for_it(store: Store) -> None:
    """Within the grace time after its last part they delete nothing of it."""
    apart = begun()
    part = written(apart, "b", b"2" * 5000)
    assert [gc(store, hours) for hours in (1, 12, 23)] == [0, 0, 0]
    with apart.resumed() as tx:
        tx.merge([part])
    assert verify(store, data=True).problems == []


def test_one_that_was_abandoned(store: Store) -> None:
    """After that its data is deleted, and a commit that comes later all the same is refused."""
    apart = begun()
    part = written(apart, "b", b"2" * 5000)
    assert sum(gc(store, hours) for hours in (25, 51, 77)) > 0
    with pytest.raises(Conflict, match="a gc run took it for dead"):
        commit(apart, [part])
    assert files(store) == {b"a": b"1"}
    assert verify(store, data=True).problems == []


def commit(apart: DetachedTransaction, parts: list[Part]) -> None:
    """What the last process does."""
    with apart.resumed() as tx:
        tx.merge(parts)


class Deaths:
    """Puts of a store, of which one fails as if the process died."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        put = DirectoryObjects.put

        def failing(objects: DirectoryObjects, *args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise NoSpace("it died")
            return put(objects, *args, **more)

        monkeypatch.setattr(DirectoryObjects, "put", failing)

    def repeated(self, at: int, step: Callable[..., Any], *args: Any) -> tuple[Any, bool]:
        """The result of a step, which is done again if its put of that number fails; and whether
        it did."""
        self.left = at
        try:
            return step(*args), False
        except NoSpace:
            return step(*args), True
        finally:
            self.left = 0


def test_a_death_at_any_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever put fails, of a task or of the commit: that step is done again, and all is there."""
    deaths = Deaths(monkeypatch)
    for at in count(1):
        apart, content = begun(), b"%d " % at * 4000
        one, task_died = deaths.repeated(at, written, apart, "b", content)
        two = written(apart, "c", content[1:])
        _, commit_died = deaths.repeated(at, commit, apart, [one, two])
        assert files(store)[b"b"] == content
        if not task_died and not commit_died:
            break
    assert at > 4
    assert verify(store, data=True).problems == []
