"""A small batch as Python lists: a list of values per column.

Arrow and numpy take some microseconds per call, whatever the number of rows; at 10,000 rows per second a batch has
five. Up to `MOST_ROWS` rows the steps on the way of most rows (partition, frame, running aggregate, select) work on
lists instead, and everybody else asks `Batch.rows`, which makes Arrow of them. Both ways give the same rows: see
`test_few_rows`.

Numbers, booleans, text, bytes and nulls (None) are what Python has for them; times of all kinds are the numbers that
Arrow stores. A batch with other columns (lists, structs, decimals) stays in Arrow.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as types

MOST_ROWS = 64
_COLUMNS = msgspec.msgpack.Decoder(list[list[Any]])
_ENCODE = msgspec.msgpack.Encoder().encode


class Layout:
    """What lists need to know of one schema."""

    __slots__ = ("dtypes", "integers", "keys", "positions", "types", "width")

    def __init__(self, schema: pa.Schema, dtypes: list[str]) -> None:
        self.types = schema.types
        self.width = len(dtypes)
        self.dtypes = dtypes  # per column numpy's type of its buffer, "" where values come from `to_pylist`
        self.positions = {name: position for position, name in enumerate(schema.names)}
        self.integers = frozenset(  # columns of integers that fit in 64 bits with a sign
            at for at, kind in enumerate(schema.types) if types.is_integer(kind) and not types.is_uint64(kind)
        )
        self.keys = frozenset(at for at, kind in enumerate(schema.types) if _is_key(kind))  # whose values state has


_Known: TypeAlias = tuple[pa.Schema, "Layout | None"]

# Comparing schemas takes as long as all else, so a schema that is one of these objects is known by its id; an equal one
# stands for the first of them. The objects are kept, so their ids are their own.
_by_id: dict[int, _Known] = {}
_by_schema: dict[pa.Schema, _Known] = {}
_MOST_KNOWN = 256


def layout_of(schema: pa.Schema) -> Layout | None:
    """None: rows of `schema` stay in Arrow."""
    return _known(schema)[1]


def _known(schema: pa.Schema) -> _Known:
    known = _by_id.get(id(schema)) or _by_schema.get(schema)
    if known is None or (known[0] is not schema and not known[0].equals(schema, check_metadata=True)):
        if len(_by_id) >= _MOST_KNOWN:
            _by_id.clear()
            _by_schema.clear()
        known = _by_id[id(schema)] = _by_schema[schema] = schema, _layout(schema)
    return known


def _layout(schema: pa.Schema) -> Layout | None:
    dtypes = [_dtype(kind) for kind in schema.types]
    if not dtypes or None in dtypes or len(set(schema.names)) < len(dtypes):
        return None
    return Layout(schema, [dtype or "" for dtype in dtypes])


def _dtype(kind: pa.DataType) -> str | None:
    """None: not a column for lists."""
    if types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind):
        return str(kind.to_pandas_dtype()().dtype)
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind) or types.is_date(kind):
        return f"i{kind.bit_width // 8}"
    return "" if _is_text(kind) or types.is_boolean(kind) else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _is_key(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_boolean(kind)) or _is_text(kind)


class FewRows:
    """`columns`: as many values each as there are rows, in the order of `schema`."""

    __slots__ = ("columns", "count", "layout", "schema")

    def __init__(self, schema: pa.Schema, layout: Layout, columns: Sequence[list[Any]], count: int) -> None:
        self.schema = schema
        self.layout = layout
        self.columns = columns
        self.count = count

    @staticmethod
    def of(rows: pa.RecordBatch) -> "FewRows | None":
        """None: these rows stay in Arrow."""
        schema, layout = _known(rows.schema)
        count = rows.num_rows
        if layout is None or not 0 < count <= MOST_ROWS:
            return None
        columns = [_values(column, dtype, count) for column, dtype in zip(rows.columns, layout.dtypes, strict=True)]
        return FewRows(schema, layout, columns, count)

    @staticmethod
    def made_of(schema: pa.Schema, columns: Sequence[list[Any]]) -> "FewRows":
        """`columns`: equally long lists, of a schema that has a layout."""
        layout = layout_of(schema)
        assert layout is not None, f"rows of {schema} are for Arrow"
        return FewRows(schema, layout, columns, len(columns[0]))

    @staticmethod
    def decoded(schema: pa.Schema, payload: bytes) -> "FewRows":
        """What `payload` gave. Raises `ValueError` when it is not that of such rows."""
        layout = layout_of(schema)
        columns = _COLUMNS.decode(payload)
        if layout is None or len(columns) != layout.width or len(set(map(len, columns))) != 1 or not columns[0]:
            raise ValueError(f"{len(payload)} bytes are not rows of {schema.names}")
        return FewRows(schema, layout, columns, len(columns[0]))

    def payload(self) -> bytes:
        return _ENCODE(self.columns)

    def record_batch(self) -> pa.RecordBatch:
        arrays = [pa.array(values, kind) for values, kind in zip(self.columns, self.layout.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def take(self, positions: Sequence[int]) -> "FewRows":
        columns = [[column[at] for at in positions] for column in self.columns]
        return FewRows(self.schema, self.layout, columns, len(positions))


def _values(column: pa.Array, dtype: str, count: int) -> list[Any]:
    if not dtype:
        return column.to_pylist()  # type: ignore[no-any-return]
    validity, data = column.buffers()
    if validity is None or not column.null_count:
        return np.frombuffer(data, dtype, column.offset + count)[column.offset :].tolist()  # type: ignore[no-any-return]
    values = np.frombuffer(data, dtype, column.offset + count)[column.offset :].tolist()
    return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]
