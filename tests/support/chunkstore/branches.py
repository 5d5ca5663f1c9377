"""A branch that is changed, and a dictionary of paths as its model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.push.changes.branch_commits import EMPTY, ChangesResult
from lodefs.chunkstore.push.changes.change import (
    Change,
    CopyFrom,
    MakeDirectory,
    Put,
    Remove,
    Rename,
    names_of,
)
from lodefs.chunkstore.push.changes.commit_changes import base_of, commit_changes
from lodefs.chunkstore.push.changes.staging import Staging
from lodefs.chunkstore.push.committer import Committer, head_of
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import in_commit, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects

SMALL_CHUNKS = ChunkingParams(64, 256, 1024)
Model = dict[str, bytes | None]  # contents by path; None: a directory


class Branches:
    """A store of small chunks, and a machine that changes its repository r."""

    def __init__(self, base: Path, params: ChunkingParams = SMALL_CHUNKS) -> None:
        self.objects = FaultyObjects(MemoryObjects())
        self.store = create_store(self.objects, params)
        self.base = base

    def options(self, **more: Any) -> PushOptions:
        known: dict[str, Any] = {
            "message": "m",
            "author": "a",
            "time_s": 7,
            "index_dir": self.base / "index",
            "workers": 0,
            "clock_ns": lambda: time.time_ns() + 3600 * 10**9,
        }
        return PushOptions(**(known | more))

    def change(self, *changes: Change, on: str = "main", **more: Any) -> ChangesResult:
        base = more.pop("base", None)
        return commit_changes(self.store, "r", on, changes, self.options(**more), base=base)

    @contextmanager
    def staged(self, on: str = "main", **more: Any) -> Iterator[Staging]:
        """A staging area on a branch, as a program has it in a transaction."""
        session = PushSession(self.store, RefName("r", BRANCHES, on), self.options(**more))
        with session.once():
            area = Staging(session, base_of(session, None, head_of(session)))
            try:
                yield area
            finally:
                area.end()

    @contextmanager
    def forked(self, before: TreeEntry | None, **more: Any) -> Iterator[Staging]:
        """What another process writes with, on its own machine."""
        options = self.options(index_dir=self.base / "fork", **more)
        session = PushSession(self.store, RefName("r", BRANCHES, "main"), options)
        with session.once():
            yield Staging(session, EMPTY, root=before)
            Committer(session).publish()

    def head(self, branch: str = "main") -> Commit:
        return self.store.commit("r", self.store.resolve("r", branch))

    def files(self, commit: str) -> dict[bytes, bytes]:
        seen = in_commit(self.store, "r", commit)
        return {path: one.content for path, one in seen.items() if one.kind is Kind.FILE}

    def assert_sound(self) -> None:
        assert verify(self.store, None, data=True, progress=Progress()).problems == []


def stage(area: Staging, change: Change) -> None:
    """A change, by the method of a staging area."""
    match change:
        case Put(path, content, executable):
            area.put(names_of(path), content, executable=executable)
        case MakeDirectory(path):
            area.make_directory(names_of(path))
        case Remove(path):
            area.remove(names_of(path))
        case Rename(path, to):
            area.rename(names_of(path), names_of(to))
        case CopyFrom(Spec() as source, to):
            area.copy_from(source, names_of(to))
        case _:
            raise AssertionError(change)


def set_quota(branches: Branches, size_bytes: int) -> None:
    log = branches.store.settings_log("r")
    log.change(lambda now: dataclasses.replace(now, quota_size_bytes=size_bytes))


def is_directory(model: Model, path: str) -> bool:
    return not path or (path in model and model[path] is None)


def make_parents(model: Model, path: str) -> bool:
    """Makes the directories above a path; False if a file is in the way."""
    parts = path.split("/")[:-1]
    above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    if any(model.get(one) is not None for one in above):
        return False
    model.update(dict.fromkeys(above))
    return True


def below(model: Model, path: str) -> list[str]:
    return [one for one in model if one == path or one.startswith(path + "/")]


def applied(model: Model, change: Change, older: Model) -> Model | None:
    """The model after one change; None if it must be refused."""
    model = dict(model)
    match change:
        case Put(str() as path, bytes() as content):
            if is_directory(model, path) or not make_parents(model, path):
                return None
            return model | {path: content}
        case MakeDirectory(str() as path):
            if model.get(path) is not None or not make_parents(model, path):
                return None
            return model | {path: None}
        case Remove(str() as path):
            return _without(model, path) if path in model else None
        case Rename(str() as path, str() as to):
            if path not in model or not make_parents(dict(model), to):
                return None
            if path == to:
                return model
            is_tree = is_directory(model, path)
            if to.startswith(path + "/") or (to in model and (is_tree or model[to] is None)):
                return None
            moved = {to + one[len(path) :]: model[one] for one in below(model, path)}
            left = _without(model, path)
            make_parents(left, to)
            return left | moved
        case CopyFrom(Spec(_, _, source), str() as to):
            path = source.decode()
            if path not in older or not make_parents(model, to):
                return None
            copied = {to + one[len(path) :]: older[one] for one in below(older, path)}
            return _without(model, to) | copied
    raise AssertionError(change)


def _without(model: Model, path: str) -> Model:
    gone = set(below(model, path))
    return {one: content for one, content in model.items() if one not in gone}


PATHS = st.sampled_from(["a", "b", "a/x", "a/y", "b/x", "b/c/x", "b/c/d/y", "a/x/z", "c/x"])
CONTENTS = st.sampled_from([b"", b"one", b"two", bytes(range(256)) * 9])
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Put, PATHS, CONTENTS),
    st.builds(MakeDirectory, PATHS),
    st.builds(Remove, PATHS),
    st.builds(Rename, PATHS, PATHS),
    st.builds(
        CopyFrom, PATHS.map(lambda path: Spec("r", "older", path.encode())), PATHS
    ),
)  # fmt: skip


def contents_of(branches: Branches, commit: str) -> Model:
    """A commit as a model."""
    seen = in_commit(branches.store, "r", commit)
    return {
        path.decode(): None if one.kind is Kind.DIRECTORY else one.content
        for path, one in seen.items() if path
    }  # fmt: skip


def assert_as_pushed(branches: Branches, model: Model) -> None:
    """The head is what a push of the same directory makes, but for where the bytes lie."""
    with TemporaryDirectory() as place:
        source = Path(place)
        for path, content in sorted(model.items()):
            if content is None:
                (source / path).mkdir(parents=True, exist_ok=True)
            else:
                write_files(source, {path: content})
        push(branches.store, source, "r", "pushed", branches.options())
    head, pushed = branches.head(), branches.head("pushed")
    assert head.root.digest == pushed.root.digest
    totals = (head.files, head.directories, head.size_bytes, head.large)
    assert totals == (pushed.files, pushed.directories, pushed.size_bytes, pushed.large)
