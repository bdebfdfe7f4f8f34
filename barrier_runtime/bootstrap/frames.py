"""DataFrames of any library as Arrow batches: PyArrow, pandas, Polars, Spark, and whatever has `__arrow_c_stream__`."""

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from barrier_runtime.data.plain_rows import PlainRows
from barrier_runtime.data.schemas import no_rows
from barrier_runtime.state.errors import InvalidJob

BATCH_ROWS = 65_536


def batches_of(frame: Any, where: str) -> Iterator[pa.RecordBatch]:
    """Its rows, with plain column types. Raises `InvalidJob` for what is not a table."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return map(_plain, frame.to_batches(max_chunksize=BATCH_ROWS) or [no_rows(frame.schema)])
    if isinstance(frame, pa.RecordBatchReader):
        batches = itertools.chain([no_rows(frame.schema)], frame)  # whose types are known without rows, too
        return (part for batch in batches for part in batches_of(pa.Table.from_batches([batch]), where))
    module = type(frame).__module__.partition(".")[0]
    if module == "pandas":
        return batches_of(pa.Table.from_pandas(frame, preserve_index=False), where)
    if module == "pyspark" and hasattr(frame, "toArrow"):
        return batches_of(frame.toArrow(), where)
    if hasattr(frame, "__arrow_c_stream__"):
        return batches_of(pa.RecordBatchReader.from_stream(frame), where)
    if hasattr(frame, "to_arrow"):
        return batches_of(frame.to_arrow(), where)
    raise InvalidJob(
        f"{where}: {type(frame).__name__} is no DataFrame: give one of pandas, Polars, PyArrow or Spark, or a "
        "RecordBatchReader for what does not fit in memory"
    )


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without dictionaries, large and view types."""
    batch = PlainRows()(batch)
    fields = [field.with_type(_narrow(field.type)) for field in batch.schema]
    schema = pa.schema(fields)
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_narrow(kind.value_type))
    return kind
