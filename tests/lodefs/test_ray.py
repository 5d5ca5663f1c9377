"""Writes of Ray Data, with a stand-in for Ray: tasks that run twice, or fail."""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lodefs
from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import create_store

TABLE = pa.table({"id": [1, 2, 3]})


class _Datasink:
    """The base class of sinks."""


class _BlockAccessor:
    """Ray's access to a block, here always a table."""

    @staticmethod
    def for_block(table: pa.Table) -> Any:
        return SimpleNamespace(to_arrow=lambda: table)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store, and a stand-in for Ray."""
    for name in ("ray", "ray.data", "ray.data.block"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["ray.data"], "Datasink", _Datasink, raising=False)
    block = sys.modules["ray.data.block"]
    monkeypatch.setattr(block, "BlockAccessor", _BlockAccessor, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    create_store(DirectoryObjects(tmp_path / "store"))
    return str(tmp_path / "store")


def _sink(store: str) -> Any:
    return import_module("lodefs.ray").Sink("r@main:tables/new", message="by Ray", store=store)


def _task(sink: Any, number: int, *tables: pa.Table) -> Any:
    """Runs a task as in another process, and returns what comes back."""
    there = pickle.loads(pickle.dumps(sink))
    return pickle.loads(pickle.dumps(there.write(tables, SimpleNamespace(task_idx=number))))


def test_all_tasks_of_a_write_are_one_commit(store: str, tmp_path: Path) -> None:
    """One that ran twice counts once; a table without rows makes no file."""
    sink = _sink(store)
    for write in (1, 2):
        sink.on_write_start(TABLE.schema)
        _task(sink, 0, TABLE)  # its result is lost
        parts = [_task(sink, 0, TABLE, TABLE), _task(sink, 1, TABLE.slice(3), TABLE)]
        sink.on_write_complete(SimpleNamespace(write_returns=parts))
        assert (sink.result.changes.added_files, sink.result.changes.changed_files) == (3, 0)
        lodefs.pull("r", tmp_path / f"{write}", store=store)
        files = [*(tmp_path / f"{write}" / "tables" / "new").iterdir()]
        assert len(files) == 3 * write
    assert all(pq.read_table(file) == TABLE for file in files)


def test_a_write_that_fails_commits_nothing(store: str, tmp_path: Path) -> None:
    """Another one of the same sink may follow."""
    sink = _sink(store)
    sink.on_write_start(TABLE.schema)
    _task(sink, 0, TABLE)
    sink.on_write_failed(ValueError("a row"))
    with pytest.raises(NotFound):
        lodefs.pull("r", tmp_path / "pulled", store=store)
    sink.on_write_start(TABLE.schema)
    sink.on_write_complete(SimpleNamespace(write_returns=[_task(sink, 0, TABLE)]))
    assert sink.result.files == 1
