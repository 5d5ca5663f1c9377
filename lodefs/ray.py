"""Ray Data writes into a repository: the tables of one write become files of one commit.

https://docs.ray.io/en/latest/data/api/doc/ray.data.Datasink.html says which methods run where:
``write`` in a task for some tables, on any machine and perhaps twice; the others in the driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from pyarrow.parquet import write_table
from ray.data import Datasink
from ray.data.block import BlockAccessor

from lodefs.api.transactions import Part, transaction
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.session import spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult


class Sink(Datasink):  # type: ignore[misc]  # Ray has no types here
    """Adds Parquet files to a directory of a branch, ``REPO[@BRANCH][:DIR]``, by
    ``Dataset.write_datasink``. A write that fails commits nothing.

    The options are those of ``lodefs.transaction``. Workers need credentials for the store, as for
    a push.
    """

    def __init__(
        self,
        target: str | Spec,
        *,
        message: str = "",
        author: str | None = None,
        metadata: Mapping[str, str] | Iterable[str] = (),
        store: str | None = None,
    ) -> None:
        super().__init__()
        spec = spec_of(target)
        self._transaction = transaction(
            Spec(spec.repo, spec.rev),
            message=message,
            author=author,
            metadata=metadata,
            store=store,
        )
        self._directory = os.fsdecode(spec.path)
        self._files = ""
        self._part: Part | None = None

    @property
    def result(self) -> ChangesResult | None:
        """The commit of the last write; None before the first one has ended."""
        return self._transaction.result

    def on_write_start(self, schema: Any = None) -> None:  # noqa: ARG002
        """Opens a transaction, from whose part that of each task is copied."""
        self._transaction.__enter__()
        self._part = self._transaction.fork()
        self._files = os.path.join(self._directory, token_hex(8))

    def write(self, blocks: Iterable[Any], ctx: Any) -> Part:
        """Writes each table that has rows into a file, and returns the part of this task."""
        assert self._part is not None
        with self._part as part:
            for number, block in enumerate(blocks):
                table = BlockAccessor.for_block(block).to_arrow()
                if table.num_rows:
                    path = f"{self._files}-{ctx.task_idx:06}-{number:06}.parquet"
                    with part.open(path) as file:
                        write_table(table, file)
        return part

    def on_write_complete(self, write_result: Any) -> None:
        """Commits what the tasks have written. Raises: as the block of a transaction."""
        self._transaction.merge(write_result.write_returns)
        self._transaction.__exit__(None, None, None)

    def on_write_failed(self, error: Exception) -> None:
        """Discards what the tasks have written."""
        self._transaction.__exit__(type(error), error, None)

    def __getstate__(self) -> dict[str, Any]:
        """Its state for a task: the transaction stays in the driver."""
        return {name: value for name, value in vars(self).items() if name != "_transaction"}
