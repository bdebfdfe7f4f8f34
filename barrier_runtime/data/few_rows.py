"""A small batch as Python lists: a list of values per column.

Arrow and numpy take some microseconds per call, whatever the number of rows; at 10,000 rows per second a batch has
five. Up to `MOST_ROWS` rows the steps on the way of most rows (partition, frame, running aggregate, select) work on
lists instead, and everybody else asks `Batch.rows`, which makes Arrow of them. Both ways give the same rows: see
`test_few_rows`.

Only columns of 64 bits: integers, floats, timestamps, durations and times (as the number that Arrow stores). A batch
with nulls or with other columns stays in Arrow.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

MOST_ROWS = 64
_WIDTH = 8  # bytes of a value
_INTEGERS = ("int64", "timestamp", "duration", "time64", "date64")


class Layout:
    """How the columns of one schema stand in bytes: column after column, each value in 8 bytes, little endian."""

    __slots__ = ("_structs", "codes", "integers", "positions", "row_bytes", "types")

    def __init__(self, schema: pa.Schema, codes: str) -> None:
        self.codes = codes  # per column "q" or "d", as `struct` has them
        self.types = schema.types
        self.positions = {name: position for position, name in enumerate(schema.names)}
        self.integers = frozenset(at for at, kind in enumerate(schema.types) if kind == pa.int64())
        self.row_bytes = _WIDTH * len(codes)
        self._structs: dict[int, struct.Struct] = {}

    def struct_of(self, count: int) -> struct.Struct:
        """For `count` rows."""
        made = self._structs.get(count)
        if made is None:
            made = self._structs[count] = struct.Struct("<" + "".join(f"{count}{code}" for code in self.codes))
        return made


# By the schema object's id: comparing schemas takes as long as all else. The object is kept, so the id is its own.
_layouts: dict[int, tuple[pa.Schema, Layout | None]] = {}
_MOST_LAYOUTS = 256


def layout_of(schema: pa.Schema) -> Layout | None:
    """None: rows of `schema` stay in Arrow."""
    known = _layouts.get(id(schema))
    if known is None:
        if len(_layouts) >= _MOST_LAYOUTS:
            _layouts.clear()
        known = _layouts[id(schema)] = schema, _layout(schema)
    return known[1]


def _layout(schema: pa.Schema) -> Layout | None:
    codes = "".join(_code(kind) for kind in schema.types)
    return Layout(schema, codes) if codes and len(codes) == len(schema.types) == len(set(schema.names)) else None


def _code(kind: pa.DataType) -> str:
    if kind == pa.float64():
        return "d"
    return "q" if str(kind).split("[")[0] in _INTEGERS else ""


class FewRows:
    """`columns`: as many values each as there are rows, in the order of `schema`, as Arrow stores them."""

    __slots__ = ("columns", "count", "layout", "schema")

    def __init__(self, schema: pa.Schema, layout: Layout, columns: Sequence[list[Any]], count: int) -> None:
        self.schema = schema
        self.layout = layout
        self.columns = columns
        self.count = count

    @staticmethod
    def of(rows: pa.RecordBatch) -> "FewRows | None":
        """None: these rows stay in Arrow."""
        layout = layout_of(schema := rows.schema)
        count = rows.num_rows
        if layout is None or count > MOST_ROWS:
            return None
        columns = []
        for column, code in zip(rows.columns, layout.codes, strict=True):
            if column.null_count:
                return None
            data = np.frombuffer(column.buffers()[1], code, count, _WIDTH * column.offset)
            columns.append(data.tolist())
        return FewRows(schema, layout, columns, count)

    @staticmethod
    def made_of(schema: pa.Schema, columns: Sequence[list[Any]]) -> "FewRows":
        """`columns`: equally long lists, of columns of 64 bits, without None."""
        layout = layout_of(schema)
        assert layout is not None, f"{schema} has columns that are not of 64 bits"
        return FewRows(schema, layout, columns, len(columns[0]))

    @staticmethod
    def decoded(schema: pa.Schema, payload: bytes) -> "FewRows":
        """What `payload` gave. Raises `ValueError` when it is not that of such rows."""
        layout = layout_of(schema)
        if layout is None or not payload or len(payload) % layout.row_bytes:
            raise ValueError(f"{len(payload)} bytes are not rows of {schema.names}")
        count = len(payload) // layout.row_bytes
        values = layout.struct_of(count).unpack(payload)
        columns = [list(values[start : start + count]) for start in range(0, len(values), count)]
        return FewRows(schema, layout, columns, count)

    def payload(self) -> bytes:
        return self.layout.struct_of(self.count).pack(*(value for column in self.columns for value in column))

    def record_batch(self) -> pa.RecordBatch:
        count, size = self.count, _WIDTH * self.count
        data = pa.py_buffer(self.payload())
        arrays = [
            pa.Array.from_buffers(kind, count, [None, data.slice(size * position, size)], 0)
            for position, kind in enumerate(self.layout.types)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def take(self, positions: Sequence[int]) -> "FewRows":
        columns = [[column[at] for at in positions] for column in self.columns]
        return FewRows(self.schema, self.layout, columns, len(positions))
