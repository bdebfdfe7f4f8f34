"""Small side of a `broadcast_join`, read whole in the driver when the flow is written."""

import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.files.source.csv import CsvFiles, CsvSource
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles, JsonlSource
from barrier_runtime.connectors.files.source.parquet import ParquetSource
from barrier_runtime.connectors.read_ahead import read_ahead
from barrier_runtime.connectors.source import Fetching, Source, SourceDescription, Split
from barrier_runtime.connectors.source_bases.ranges import PartFetcher
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import RowWriter
from barrier_runtime.state.errors import InvalidJob

_MAX_BYTES = 256 << 20  # sent to every slot
_FILES_AT_ONCE = 16
_BYTES_AT_ONCE = 64 << 20  # stored size of these files; a larger file is read alone
_BYTES_AHEAD = 16 << 20


def small_table(table: Any, where: str) -> pa.Table:
    """Reads `table`: an Arrow table, a frame or other object with `__arrow_c_stream__`, dicts, or a path.

    A path is of a Parquet, CSV or JSONL file, or of a folder of Parquet files.
    """
    if isinstance(table, str | os.PathLike):
        path = str(table)
        if path.endswith(CsvFiles.suffixes):
            description: SourceDescription = CsvSource(path)
        elif path.endswith(JsonlFiles.suffixes):
            description = JsonlSource(path)
        else:
            description = ParquetSource(path)
        table = _read_whole(description.named(where), where)
    elif isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    elif _is_pandas(table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    elif hasattr(table, "__arrow_c_stream__") and not isinstance(table, pa.Table):
        table = _without_views(pa.table(table))
    elif not isinstance(table, pa.Table):
        rows = list(table) if isinstance(table, Iterable) else []
        if not rows or not all(isinstance(row, Mapping) for row in rows):
            raise InvalidJob(
                f"{where}: the small table is not a table: pass an Arrow table, a pandas or Polars frame, a list of "
                "dicts or a path"
            )
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = RowWriter(where, None)
        table = pa.Table.from_batches([writer.batch([{name: row.get(name) for name in names} for row in rows])])
    if table.nbytes > _MAX_BYTES:
        raise _too_large(f"{table.nbytes >> 20} MiB", where)
    return table


def _too_large(size: str, where: str) -> InvalidJob:
    return InvalidJob(
        f"{where}: the small table has {size} and would be sent to every slot: "
        f"keep it below {_MAX_BYTES >> 20} MiB, or join with keyed state"
    )


def _is_pandas(table: object) -> bool:
    """A pandas frame's own stream contains the index as a column."""
    kind = type(table)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def _without_views(table: pa.Table) -> pa.Table:
    """Replaces text views, as of Polars, which Arrow's kernels do not support."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    fields = [field.with_type(plain.get(field.type, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _read_whole(source: Source, where: str) -> pa.Table:
    read = partial(_rows, source)
    batches: list[pa.RecordBatch] = []
    size = 0
    for rows in read_ahead(read, source.splits(1), lambda split: split.size or 0, _FILES_AT_ONCE, _BYTES_AT_ONCE):
        batches += rows
        size += sum(each.nbytes for each in rows)
        if size > _MAX_BYTES:
            raise _too_large(f"more than {_MAX_BYTES >> 20} MiB", where)
    return pa.Table.from_batches(batches, schema=source.schema)


def _rows(source: Source, split: Split) -> list[pa.RecordBatch]:
    came = threading.Event()
    fetcher, reader = PartFetcher(came.set, _BYTES_AHEAD), source.reader(split)
    fetched = reader if isinstance(reader, Fetching) else None
    if fetched is not None:
        fetched.fetch_by(fetcher)
    batches = []
    size = 0
    try:
        while not reader.finished and size <= _MAX_BYTES:
            came.clear()
            fetcher.begin_pass()
            polled = reader.poll(65_536, 0)
            if polled is not None:
                rows = Batch(polled.rows, polled.emit_ns).rows
                batches.append(rows)
                size += rows.nbytes
            elif fetched is not None and fetched.fetching:
                came.wait()
    finally:
        reader.close()
        fetcher.close()
    return batches
