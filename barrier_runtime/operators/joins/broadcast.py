"""`broadcast_join`: adds the columns of a small table to every row, by unique key.
The operator contains the table, so there is no state.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.keys import plain_floats
from barrier_runtime.data.schemas import one_array, require_columns
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.state.errors import InvalidJob

How = Literal["left", "inner"]

_DICT_PAYS = 4  # a dict wins while rows * this < the table's rows


def check_small_table(table: pa.Table, on: Sequence[str], where: str) -> None:
    for column in on:
        if column not in table.schema.names:
            raise InvalidJob(
                f"{where}: the small table has no column {column!r}: it has {', '.join(table.schema.names)}"
            )
    if len(on) == len(table.schema.names):
        raise InvalidJob(f"{where}: the small table has no columns besides its keys: there is nothing to add")
    keys = [_plain(one_array(table.column(column)), f"{where}: key column {column!r} of the table") for column in on]
    if twice := _twice(keys):
        raise InvalidJob(
            f"{where}: the key {_shown(table, on, twice[0])} is in the small table more than once: make "
            f"{', '.join(on)} unique in it"
        )


def small_keys(table: pa.Table, on: Sequence[str], schema: pa.Schema, where: str) -> list[pa.Array]:
    """Returns the table's key columns in the types of `schema`, plain (`_plain`) and still unique."""
    keys = []
    for column in on:
        mine, theirs = one_array(table.column(column)), schema.field(column).type
        if pa.types.is_dictionary(theirs):
            theirs = theirs.value_type
        try:
            key = mine.cast(theirs)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidJob(
                f"{where}: key column {column!r} is {theirs} in the rows and {mine.type} in the small table, "
                f"and cannot be converted ({error}): give both one type"
            ) from error
        keys.append(_plain(key, f"{where}: key column {column!r} of the table"))
    if twice := _twice(keys):
        one, other = (_shown(table, on, row) for row in twice)
        types = ", ".join(str(schema.field(column).type) for column in on)
        raise InvalidJob(
            f"{where}: the keys {one} and {other} of the small table are one key as {types}, which the rows have: make "
            f"{', '.join(on)} unique as {types}, or cast the rows to the table's type"
        )
    return keys


def enriched_schema(left: pa.Schema, right: pa.Schema, on: Sequence[str], where: str) -> pa.Schema:
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
        self._keys: list[pa.Array] = []
        self._combined: pa.Array | None = None  # None: codes of keys would leave 64 bits
        self._is_row = False
        self._index: dict[Any, int] = {}

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        if self._input is None or (rows.schema is not self._input and not rows.schema.equals(self._input)):
            self._bind(rows.schema)
        columns = [_plain(rows.column(column), f"{self._where}: key column {column!r}") for column in self._on]
        if self._combined is None or rows.num_rows * _DICT_PAYS < self._table.num_rows:
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
        keys = small_keys(self._table, self._on, schema, self._where)
        self._keys = [key.unique() for key in keys]
        # the code of a key is the key's row in the table
        self._is_row = len(keys) == 1 and len(self._keys[0]) == len(keys[0])
        fits = math.prod(len(key) for key in self._keys) < 1 << 63
        self._combined = self._codes(keys) if fits else None
        self._index = {key: row for row, key in enumerate(_tuples(keys)) if not _has_null(key)}

    def _look_up(self, columns: list[pa.Array]) -> pa.Array:
        find = self._index.get
        return pa.array([find(key) for key in _tuples(columns)], pa.int64())

    def _search(self, columns: list[pa.Array]) -> pa.Array:
        codes = self._codes(columns)
        if self._is_row:
            return codes
        return pc.index_in(codes, value_set=self._combined, skip_nulls=True)

    def _codes(self, columns: list[pa.Array]) -> pa.Array:
        combined = None
        for column, distinct in zip(columns, self._keys, strict=True):
            code = pc.index_in(column, value_set=distinct, skip_nulls=True).cast(pa.int64())
            combined = code if combined is None else pc.add(pc.multiply(combined, np.int64(len(distinct))), code)
        return combined


def _plain(column: pa.Array, what: str) -> pa.Array:
    """Returns a form in which both kinds of lookup agree about equality.
    Python and Arrow differ about -0.0 and 0.0, and about the hour that a clock change repeats.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        return plain_floats(column, what, "broadcast_join")
    if pa.types.is_timestamp(kind):
        return column.view(pa.int64())
    return column.dictionary_decode() if pa.types.is_dictionary(kind) else column


def _tuples(keys: list[pa.Array]) -> Iterable[Any]:
    return keys[0].to_pylist() if len(keys) == 1 else zip(*[key.to_pylist() for key in keys], strict=True)


def _twice(keys: list[pa.Array]) -> tuple[int, int] | None:
    seen: dict[Any, int] = {}
    for row, key in enumerate(_tuples(keys)):
        first = seen.setdefault(key, row)
        if first != row:
            return first, row
    return None


def _shown(table: pa.Table, on: Sequence[str], row: int) -> str:
    values = [table.column(column)[row].as_py() for column in on]
    return repr(values[0] if len(values) == 1 else tuple(values))


def _has_null(key: Any) -> bool:
    return key is None or (isinstance(key, tuple) and None in key)
