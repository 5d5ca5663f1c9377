"""The first rows of a Parquet file, by pyarrow, where it is installed (lodefs[preview])."""

from __future__ import annotations

import io
from importlib.util import find_spec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.page.preview_view import COLUMNS_MAX, ROWS_MAX, PreviewView, cell


def can_show_rows() -> bool:
    """Whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def rows_view(data: bytes) -> PreviewView:
    """The first rows of a whole file. Raises: InvalidInput."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        schema = file.schema_arrow
        names = [str(name) for name in schema.names]
        batches = file.iter_batches(ROWS_MAX, columns=names[:COLUMNS_MAX], use_threads=False)
        batch = next(iter(batches), None)
        rows = [] if batch is None else [list(row.values()) for row in batch.to_pylist()]
        total = file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"this Parquet file cannot be read: {str(error)[:300]}") from error
    return PreviewView(
        "table",
        f"the first {len(rows)} of {total:,} rows, {len(names)} columns",
        columns=[cell(name) for name in names[:COLUMNS_MAX]],
        types=[cell(one) for one in schema.types[:COLUMNS_MAX]],
        rows=[[cell(value) for value in row] for row in rows],
        is_cut=total > len(rows) or len(names) > COLUMNS_MAX,
    )
