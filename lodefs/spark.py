"""Spark writes into a repository: the rows of one write become Parquet files of one commit.

https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html says which
methods run where: a process of its own makes the writer, which is pickled; tasks call ``write``,
some of them twice; and another process calls ``commit`` or ``abort``. So no process can hold the
transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetWriter
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from lodefs.api.transactions import Part, Transaction, transaction
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.session import spec_of

ROW_GROUP_BYTES = 64 << 20  # in memory; Spark's batches are far smaller
_OPTIONS = {"path", "message", "author", "store"}


class LodefsSource(DataSource):  # type: ignore[misc]  # Spark's classes are Any here
    """Adds Parquet files to a directory of a branch, ``REPO[@BRANCH][:DIR]``:
    ``df.write.format("lodefs").mode("append").save("vision/labels@main:tables")``, after
    ``spark.dataSource.register(LodefsSource)``. The mode ``overwrite`` also removes what the
    directory had. A write that fails commits nothing.

    Options: ``message``, ``author`` and ``store``, as for ``lodefs.transaction``. Workers need
    credentials for the store, as for a push.
    """

    @classmethod
    def name(cls) -> str:
        return "lodefs"

    def writer(self, schema: Any, overwrite: bool) -> _Writer:  # noqa: ARG002
        """Begins a transaction. Raises: InvalidInput for options; what the store raises."""
        return _Writer(self.options, is_overwriting=overwrite)


@dataclass(frozen=True, slots=True)
class _Message(WriterCommitMessage):  # type: ignore[misc]
    """What a task has written."""

    part: Part


class _Writer(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a file for each partition that has rows."""

    def __init__(self, options: Mapping[str, str], *, is_overwriting: bool) -> None:
        if unknown := {name.lower() for name in options} - _OPTIONS:
            raise InvalidInput(f"lodefs has no option {min(unknown)}: only message, author, store")
        if "path" not in options:
            raise InvalidInput("name the directory: .save('REPO@BRANCH:DIR')")
        spec = spec_of(options["path"])
        self._transaction = transaction(
            Spec(spec.repo, spec.rev),
            message=options.get("message", ""),
            author=options.get("author"),
            store=options.get("store"),
        ).detached()
        self._directory = os.fsdecode(spec.path)
        self._is_overwriting = is_overwriting

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Writes the rows of one partition, and returns the part of this task."""
        number = TaskContext.get().partitionId()
        path = os.path.join(self._directory, f"{self._transaction.id}-{number:06}.parquet")
        with self._transaction.fork() as part:
            _write_rows(part, path, iterator)
        return _Message(part)

    def commit(self, messages: Iterable[_Message | None]) -> None:
        """Commits what the tasks have written. Raises: as the block of a transaction."""
        with self._transaction.resumed() as one:
            one.merge(message.part for message in messages if message is not None)
            if self._is_overwriting:
                _remove_others(one, self._directory, f"{self._transaction.id}-")

    def abort(self, messages: Iterable[_Message | None]) -> None:  # noqa: ARG002
        """Discards what the tasks have written."""
        self._transaction.abort()


def _write_rows(part: Part, path: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Writes a Parquet file, if there is any row."""
    with_rows = (batch for batch in batches if batch.num_rows)
    first = next(with_rows, None)
    if first is None:
        return
    with part.open(path) as file, ParquetWriter(file, first.schema) as table:
        group, size_bytes = [first], first.nbytes
        for batch in with_rows:
            if size_bytes >= ROW_GROUP_BYTES:
                table.write_table(pa.Table.from_batches(group))
                group, size_bytes = [], 0
            group.append(batch)
            size_bytes += batch.nbytes
        table.write_table(pa.Table.from_batches(group))


def _remove_others(one: Transaction, directory: str, kept_prefix: str) -> None:
    """Removes what a directory had before."""
    if not one.exists(directory):
        return
    for name in one.names(directory):
        if not name.startswith(kept_prefix):
            one.remove(os.path.join(directory, name))
