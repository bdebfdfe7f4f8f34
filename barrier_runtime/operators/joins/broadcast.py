"""`broadcast_join`: add the columns of a small table to every row, by key. The table travels in the operator itself.

Each left row meets at most one right row (keys of the table are unique), so the join neither multiplies rows nor needs
state, and a replay gives the same result.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.schemas import one_array, require_columns
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.state.errors import InvalidJob

How = Literal["left", "inner"]

_DICT_PAYS = 4  # a kernel call hashes the whole table anew: a dict wins while rows * this < the table's rows


def check_small_table(table: pa.Table, on: Sequence[str], where: str) -> None:
    """Raises `InvalidJob` unless `on` are columns of `table` whose values are unique and not null."""
    for column in on:
        if column not in table.schema.names:
            raise InvalidJob(
                f"{where}: the small table has no column {column!r}: it has {', '.join(table.schema.names)}"
            )
    if len(on) == len(table.schema.names):
        raise InvalidJob(f"{where}: the small table has no columns besides its keys: there is nothing to add")
    keys = list(zip(*[table.column(column).to_pylist() for column in on], strict=True))
    if len(set(keys)) != len(keys):
        double = Counter(keys).most_common(1)[0][0]
        raise InvalidJob(
            f"{where}: the key {double!r} is in the small table more than once: make {', '.join(on)} unique in it"
        )


def enriched_schema(left: pa.Schema, right: pa.Schema, on: Sequence[str], where: str) -> pa.Schema:
    """Left columns, then the table's other columns."""
    added = [field for field in right if field.name not in on]
    require_columns(left, tuple(on), where)
    for field in added:
        if field.name in left.names:
            raise InvalidJob(
                f"{where}: column {field.name!r} is on both sides: rename it in the small table or select() it away"
            )
    return pa.schema([*left, *[field.with_nullable(True) for field in added]])


class EnrichOperator(Operator):
    def __init__(self, name: str, table: pa.Table, on: Sequence[str], how: How) -> None:
        self._where = f"broadcast_join {name!r}"
        self._table = table.combine_chunks()
        self._on = tuple(on)
        self._how = how
        self._input: pa.Schema | None = None
        self._output: pa.Schema | None = None
        self._added: list[pa.Array] = []
        self._keys: list[pa.Array] = []  # per key column: the table's distinct values
        self._combined = pa.array([], pa.int64())  # per table row: its key as one number
        self._is_row = False
        self._index: dict[Any, int] = {}

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        if self._input is None or (rows.schema is not self._input and not rows.schema.equals(self._input)):
            self._bind(rows.schema)
        columns = [rows.column(column) for column in self._on]
        if rows.num_rows * _DICT_PAYS < self._table.num_rows:
            matches = self._look_up(columns)
        else:
            matches = self._search(columns)
        if self._how == "inner" and matches.null_count:
            found = matches.is_valid()
            rows, matches = rows.filter(found), matches.filter(found)
            batch = batch.only(rows, found)
            if not rows.num_rows:
                return
        arrays = [*rows.columns, *[array.take(matches) for array in self._added]]
        emit(batch.having(pa.RecordBatch.from_arrays(arrays, schema=self._output)))

    def _bind(self, schema: pa.Schema) -> None:
        self._output = enriched_schema(schema, self._table.schema, self._on, self._where)
        self._input = schema
        self._added = [one_array(self._table.column(name)) for name in self._table.schema.names if name not in self._on]
        keys = []
        for column in self._on:
            mine, theirs = one_array(self._table.column(column)), schema.field(column).type
            try:
                keys.append(mine.cast(theirs))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidJob(
                    f"{self._where}: key column {column!r} is {theirs} in the rows and {mine.type} in the small table, "
                    f"and cannot be converted ({error}): give both one type"
                ) from error
        self._keys = [key.unique() for key in keys]
        self._is_row = len(keys) == 1 and len(self._keys[0]) == len(keys[0])  # the code of a key is the table's row
        self._combined = self._codes(keys)
        tuples = keys[0].to_pylist() if len(keys) == 1 else zip(*[key.to_pylist() for key in keys], strict=True)
        self._index = {key: row for row, key in enumerate(tuples) if not _has_null(key)}

    def _look_up(self, columns: list[pa.Array]) -> pa.Array:
        find = self._index.get
        if len(columns) == 1:
            return pa.array([find(value) for value in columns[0].to_pylist()], pa.int64())
        tuples = zip(*[column.to_pylist() for column in columns], strict=True)
        return pa.array([find(key) for key in tuples], pa.int64())

    def _search(self, columns: list[pa.Array]) -> pa.Array:
        codes = self._codes(columns)
        if self._is_row:
            return codes
        return pc.index_in(codes, value_set=self._combined, skip_nulls=True)

    def _codes(self, columns: list[pa.Array]) -> pa.Array:
        """The key of each row as one number; null where a value is null or not in the table."""
        combined = None
        for column, distinct in zip(columns, self._keys, strict=True):
            code = pc.index_in(column, value_set=distinct, skip_nulls=True).cast(pa.int64())
            combined = code if combined is None else pc.add(pc.multiply(combined, np.int64(len(distinct))), code)
        return combined


def _has_null(key: Any) -> bool:
    return key is None or (isinstance(key, tuple) and None in key)
