"""Writes of Spark, with a stand-in for it: tasks that run twice, fail, or have no rows."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lodefs
from lodefs.chunkstore.errors import Conflict, InvalidInput, NotFound
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import create_store

BATCH = pa.record_batch({"id": [1, 2, 3]})
NONE = BATCH.slice(3)


class _DataSource:
    """The base class of sources: it has the options."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options


class _Writer:
    """The base class of writers, and of messages."""


class _Task:
    """The task that runs."""

    number = 0

    @classmethod
    def get(cls) -> Any:
        return SimpleNamespace(partitionId=lambda: cls.number)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store, and a stand-in for Spark."""
    for name in ("pyspark", "pyspark.sql", "pyspark.sql.datasource"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["pyspark"], "TaskContext", _Task, raising=False)
    datasource = sys.modules["pyspark.sql.datasource"]
    monkeypatch.setattr(datasource, "DataSource", _DataSource, raising=False)
    for name in ("DataSourceArrowWriter", "WriterCommitMessage"):
        monkeypatch.setattr(datasource, name, type(name, (_Writer,), {}), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    create_store(DirectoryObjects(tmp_path / "store"))
    return str(tmp_path / "store")


def _writer(
    store: str, path: str = "r@main:tables", *, overwrite: bool = False, **more: str
) -> Any:
    """A writer, as the process that makes it sends it to others."""
    options = {"path": "r@main:tables", "store": store, "message": "by Spark", **more}
    source = import_module("lodefs.spark").LodefsSource(options)
    assert source.name() == "lodefs"
    return pickle.loads(pickle.dumps(source.writer(None, overwrite)))


def _task(writer: Any, number: int, *batches: Any) -> Any:
    """Runs a task as in another process, and returns what comes back."""
    _Task.number = number
    there = pickle.loads(pickle.dumps(writer))
    return pickle.loads(pickle.dumps(there.write(iter(batches))))


def _committed(writer: Any, messages: Iterable[Any]) -> None:
    pickle.loads(pickle.dumps(writer)).commit(list(messages))


def _tables(store: str, to: Path) -> dict[str, Any]:
    """What is in the directory of tables."""
    lodefs.pull("r", to, store=store)
    return {file.name: pq.read_table(file) for file in sorted((to / "tables").iterdir())}


def test_all_tasks_of_a_write_are_one_commit(store: str, tmp_path: Path) -> None:
    """An attempt whose result is lost, or that runs beside another one, counts once; a partition
    without rows makes no file; a second write adds its files, and one that overwrites removes all
    others."""
    for write, overwrite in enumerate((False, False, True), 1):
        writer = _writer(store, overwrite=overwrite)
        _task(writer, 0, BATCH)  # its result is lost
        parts = [_task(writer, 0, BATCH, NONE, BATCH), _task(writer, 1, NONE), _task(writer, 2)]
        _committed(writer, [*parts, None, _task(writer, 3, BATCH)])
        found = _tables(store, tmp_path / f"{write}")
        assert len(found) == (2 if overwrite else 2 * write)
        assert max(table.num_rows for table in found.values()) == 6
    assert [entry.commit.message for entry in lodefs.log("r", store=store)] == ["by Spark"] * 3


def test_rows_go_into_large_groups(store: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Of many of Spark's batches, not one for each."""
    writer = _writer(store)
    monkeypatch.setattr("lodefs.spark.ROW_GROUP_BYTES", 10 * BATCH.nbytes)
    _committed(writer, [_task(writer, 0, *[BATCH] * 25)])
    lodefs.pull("r", tmp_path / "pulled", store=store)
    (file,) = (tmp_path / "pulled" / "tables").iterdir()
    read = pq.ParquetFile(file)
    assert (read.num_row_groups, read.metadata.num_rows) == (3, 75)


def test_a_write_that_fails_commits_nothing(store: str, tmp_path: Path) -> None:
    """Neither does an attempt that goes on after it, nor one that raises in the middle."""
    writer = _writer(store)
    part = _task(writer, 0, BATCH)

    def rows() -> Any:
        yield BATCH
        raise ValueError("a row")

    with pytest.raises(ValueError, match="a row"):
        writer.write(rows())
    pickle.loads(pickle.dumps(writer)).abort([part, None])
    with pytest.raises(Conflict, match="is over"):
        _task(writer, 1, BATCH)
    with pytest.raises(NotFound):
        lodefs.pull("r", tmp_path / "pulled", store=store)


def test_two_results_of_one_partition(store: str) -> None:
    """They are refused: a write has each row once."""
    writer = _writer(store)
    with pytest.raises(Conflict, match="paths of its own"):
        _committed(writer, [_task(writer, 0, BATCH), _task(writer, 0, BATCH, BATCH)])


def test_options_are_checked(store: str) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidInput, match="no option compression"):
        _writer(store, compression="gzip")
    with pytest.raises(InvalidInput, match=r"\.save\('REPO@BRANCH:DIR'\)"):
        import_module("lodefs.spark").LodefsSource({}).writer(None, False)
