"""Opens Parquet files of other programs and keeps INT96 timestamps beyond the years 1677 to 2262.

Arrow reads INT96, Spark's default, in one unit per file: nanoseconds cover only these years, so INT96 columns are also
read in microseconds.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.data.schemas import one_array
from barrier_runtime.state.errors import InvalidJob

INT96_UNIT = "us"


def open_parquet(source: Any, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(source, coerce_int96_timestamp_unit=INT96_UNIT, **options)


def read_parquet(source: Any, schema: pa.Schema) -> pa.Table:
    """All rows as the columns of `schema`; a missing column is null."""
    return pq.read_table(source, schema=schema, coerce_int96_timestamp_unit=INT96_UNIT)


def read_schema(source: Any) -> pa.Schema:
    return open_parquet(source, pre_buffer=False).schema_arrow


def read_options() -> Any:
    import pyarrow.dataset as ds

    return ds.ParquetReadOptions(coerce_int96_timestamp_unit=INT96_UNIT)


def int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    leaves = (file.schema.column(number) for number in range(len(file.schema.names)))
    return frozenset(_top(leaf.path, file) for leaf in leaves if leaf.physical_type == "INT96")


def _top(path: str, file: pq.ParquetFile) -> str:
    """Column of a leaf; column names may contain dots."""
    names = file.schema_arrow.names
    return path if path in names else next(name for name in names if path.startswith(f"{name}."))


class Int96Columns:
    """INT96 columns of an open file as nanoseconds, beside the rows in microseconds."""

    def __init__(self, source: Any, columns: Collection[str], wanted: pa.Schema, where: str) -> None:
        self._file = pq.ParquetFile(source, pre_buffer=False)
        self._wanted = wanted
        self._columns = [name for name in wanted.names if name in columns]
        self._where = where

    def checked(
        self, batches: Iterator[pa.RecordBatch], rows_per_chunk: int, groups: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        """Yields `batches` with nanoseconds where the wanted type has them.

        Raises `InvalidJob` for lost digits.
        """
        twins = self._file.iter_batches(rows_per_chunk, row_groups=groups, columns=self._columns, use_threads=False)
        ahead = pa.Table.from_batches([], self._file.schema_arrow).select(self._columns)
        for batch in batches:
            while ahead.num_rows < batch.num_rows:  # without wide columns the reader cuts batches elsewhere
                more = next(twins, None)
                if more is None:  # the file was cut: the reader counts rows
                    return
                ahead = pa.concat_tables([ahead, pa.Table.from_batches([more])])
            twin, ahead = ahead.slice(0, batch.num_rows), ahead.slice(batch.num_rows)
            for name in self._columns:
                at = batch.schema.get_field_index(name)
                batch = batch.set_column(at, name, self._exact(name, batch.column(at), one_array(twin[name])))
            yield batch

    def _exact(self, name: str, micros: pa.Array, nanos: pa.Array) -> pa.Array:
        if micros.cast(nanos.type, safe=False).equals(nanos):
            return micros
        if self._wanted.field(name).type != nanos.type:
            raise InvalidJob(
                f"{self._where}: column {name!r} has times with nanoseconds, which {micros.type} would lose: declare "
                f"it as {nanos.type} in schema=, or write the file with microseconds"
            )
        try:
            micros.cast(nanos.type)
        except pa.ArrowInvalid as error:
            raise InvalidJob(
                f"{self._where}: column {name!r} has times with nanoseconds and others beyond the years 1677 to 2262 "
                f"({error}), which no unit holds together: write the file with microseconds"
            ) from error
        return nanos


def refuse_far_int96(source: Any, columns: Collection[str], where: str) -> None:
    """Raises `InvalidJob` for an INT96 timestamp in `columns` that nanoseconds cannot hold."""
    file = open_parquet(source, pre_buffer=False)
    wanted = int96_columns(file) & set(columns)
    if not wanted:
        return
    nanos = pq.ParquetFile(source, metadata=file.metadata).schema_arrow
    for batch in file.iter_batches(columns=sorted(wanted), use_threads=False):
        for name in sorted(wanted):
            try:
                batch.column(name).cast(nanos.field(name).type)
            except pa.ArrowInvalid as error:
                raise InvalidJob(
                    f"{where}: column {name!r} has INT96 times beyond the years 1677 to 2262 ({error}), which are not "
                    "read here: rewrite the file with microseconds (Spark: "
                    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS)"
                ) from error
