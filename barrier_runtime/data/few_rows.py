"""A small batch as a list of values per column, and parts of a batch, which are cut only when needed.

Arrow and numpy take microseconds per call, and at 10,000 rows per second a batch has five rows. So the most frequent
steps (partition, frame, running aggregate, select) work on lists.

Times of all kinds are the numbers that Arrow stores. A batch with other columns than numbers, booleans, text, bytes and
times stays in Arrow.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as types

from barrier_runtime.data.values.into_columns import column_of

MOST_ROWS = 128
_MOST_CELL_BYTES = 9  # 64 bits, and a null bit
_COLUMNS = msgspec.msgpack.Decoder(list[list[Any]])
_ENCODE = msgspec.msgpack.Encoder().encode


class Layout:
    __slots__ = (
        "_key_columns",
        "_read",
        "accepted",
        "codes",
        "dtypes",
        "has_times",
        "integers",
        "keys",
        "names",
        "positions",
        "sizes",
        "texts",
        "times",
        "types",
        "width",
    )

    def __init__(self, schema: pa.Schema, dtypes: list[str]) -> None:
        self.types = schema.types
        self.names = schema.names
        self.width = len(dtypes)
        self.dtypes = dtypes  # numpy's type of each buffer; "": from `to_pylist`
        self.codes = [_CODES[np.dtype(dtype).str[1:]] if dtype else "" for dtype in dtypes]
        self.sizes = tuple(np.dtype(dtype).itemsize for dtype in dtypes) if all(dtypes) else ()
        self.texts = [at for at, kind in enumerate(schema.types) if _is_text(kind)]
        self.times = [types.is_temporal(kind) for kind in schema.types]  # numbers here, other objects for users
        self.has_times = any(self.times)
        self.accepted = [_accepted(kind) for kind in schema.types]  # True if users' values need no conversion
        self.positions = {name: position for position, name in enumerate(schema.names)}
        self.integers = frozenset(  # positions of columns whose values fit in int64
            at for at, kind in enumerate(schema.types) if types.is_integer(kind) and not types.is_uint64(kind)
        )
        self.keys = frozenset(at for at, kind in enumerate(schema.types) if _is_key(kind))
        self._key_columns: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}
        self._read: dict[frozenset[str], list[int]] = {}

    def key_columns(self, keys: tuple[str, ...]) -> tuple[list[int], list[int]]:
        """Positions and types (Arrow's ids) of `keys`; empty lists if one is missing or no key type."""
        known = self._key_columns.get(keys)
        if known is None:
            at_keys = [self.positions.get(key, -1) for key in keys]
            fit = self.keys.issuperset(at_keys)
            known = self._key_columns[keys] = (at_keys, [self.types[at].id for at in at_keys]) if fit else ([], [])
        return known

    def positions_of(self, names: frozenset[str]) -> list[int]:
        known = self._read.get(names)
        if known is None:
            known = self._read[names] = [at for at, name in enumerate(self.names) if name in names]
        return known


_CODES = {  # numpy's kind and size of a number -> typecode of `array`
    **{f"i{array(code).itemsize}": code for code in "bhiq"},
    **{f"u{array(code).itemsize}": code for code in "BHIQ"},
    **{f"f{array(code).itemsize}": code for code in "fd"},
}

_Known: TypeAlias = tuple[pa.Schema, "Layout | None", pa.Schema]

# Comparing schemas is slow, so each object is known by its id, and replaced by the first equal object. Kept objects
# (third item) keep their ids unique.
_by_id: dict[int, _Known] = {}
_by_schema: dict[pa.Schema, _Known] = {}
_MOST_KNOWN = 256


def layout_of(schema: pa.Schema) -> Layout | None:
    return _known(schema)[1]


def _known(schema: pa.Schema) -> _Known:
    known = _by_id.get(id(schema))
    if known is not None:
        return known
    if len(_by_id) >= _MOST_KNOWN:
        _by_id.clear()  # each batch in Arrow brings a new schema object
    if len(_by_schema) >= _MOST_KNOWN:
        _by_schema.clear()
    first = _by_schema.get(schema)
    if first is None or not first[0].equals(schema, check_metadata=True):
        first = _by_schema[schema] = schema, _layout(schema), schema
    known = _by_id[id(schema)] = *first[:2], schema
    return known


def _layout(schema: pa.Schema) -> Layout | None:
    dtypes = [_dtype(kind) for kind in schema.types]
    if not dtypes or None in dtypes or len(set(schema.names)) < len(dtypes):
        return None
    return Layout(schema, [dtype or "" for dtype in dtypes])


def _dtype(kind: pa.DataType) -> str | None:
    """numpy's type of the column's buffer; None: not a column for lists."""
    if types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind):
        name: str = _number_type(kind).name
        return name
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind) or types.is_date(kind):
        return f"i{kind.bit_width // 8}"
    return "" if _is_text(kind) or types.is_boolean(kind) else None


def _number_type(kind: pa.DataType) -> np.dtype[Any]:
    """Arrow's `to_pandas_dtype` imports pandas in some releases."""
    return np.dtype({"float": "float32", "double": "float64"}.get(str(kind), str(kind)))


def _accepted(kind: pa.DataType) -> Callable[[list[Any]], bool]:
    """Returns a check: False if Arrow may change or refuse values."""
    if types.is_integer(kind) or types.is_timestamp(kind) or types.is_duration(kind):
        limits = np.iinfo(_number_type(kind) if types.is_integer(kind) else np.int64)
        lowest, highest = int(limits.min), int(limits.max)

        def integers(values: list[Any]) -> bool:
            return set(map(type, values)) == {int} and lowest <= min(values) and max(values) <= highest

        return integers
    if types.is_float64(kind):
        return lambda values: set(map(type, values)) == {float}
    if types.is_boolean(kind):
        return lambda values: set(map(type, values)) == {bool}
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda values: set(map(type, values)) == {str} and all(map(str.isascii, values))
    return lambda values: False


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _is_key(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_boolean(kind)) or _is_text(kind)


@dataclass(slots=True, eq=False)
class FewRows:
    schema: pa.Schema
    layout: Layout
    columns: Sequence[list[Any]]
    count: int

    @staticmethod
    def of(rows: pa.RecordBatch) -> "FewRows | None":
        schema, layout, _ = _known(rows.schema)
        count = rows.num_rows
        if layout is None or not 0 < count <= MOST_ROWS:
            return None
        columns = list(map(values_as_stored, rows.columns, layout.dtypes))
        return FewRows(schema, layout, columns, count)

    @staticmethod
    def made_of(schema: pa.Schema, columns: Sequence[list[Any]]) -> "FewRows":
        schema, layout, _ = _by_id.get(id(schema)) or _known(schema)
        assert layout is not None, f"rows of {schema} are for Arrow"
        return FewRows(schema, layout, columns, len(columns[0]))

    @staticmethod
    def of_values(schema: pa.Schema, columns: Sequence[list[Any]]) -> "FewRows":
        """As `made_of`, but Arrow may have to convert the values. Raises `UnkeptValue`."""
        layout = layout_of(schema)
        assert layout is not None, f"rows of {schema} are for Arrow"
        kinds = zip(columns, layout.types, layout.dtypes, layout.accepted, strict=True)
        return FewRows.made_of(
            schema,
            [
                values if accepted(values) else values_as_stored(column_of(values, kind), dtype)
                for values, kind, dtype, accepted in kinds
            ],
        )

    @staticmethod
    def decoded(schema: pa.Schema, payload: bytes) -> "FewRows":
        """Raises `ValueError` if the bytes are not rows of `schema`."""
        schema, layout, _ = _known(schema)
        columns = _COLUMNS.decode(payload)
        if layout is None or len(columns) != layout.width or len(set(map(len, columns))) != 1 or not columns[0]:
            raise ValueError(f"{len(payload)} bytes are not rows of {schema.names}")
        return FewRows(schema, layout, columns, len(columns[0]))

    @staticmethod
    def joined(parts: "Sequence[FewRows]") -> "FewRows":
        first = parts[0]
        if len(parts) == 2:  # usual: rows of two slots
            columns = [own + other for own, other in zip(first.columns, parts[1].columns, strict=True)]
        else:
            columns = [list(chain.from_iterable(same)) for same in zip(*[part.columns for part in parts], strict=True)]
        return FewRows(first.schema, first.layout, columns, len(columns[0]))

    @property
    def most_bytes(self) -> int:
        """Upper bound of the rows' size in Arrow; for numbers nearly exact."""
        size = self.cell_bytes
        for at in self.layout.texts:
            size += sum(map(_most_text_bytes, self.columns[at]))
        return size

    @property
    def cell_bytes(self) -> int:
        """Upper bound of the rows' size in Arrow without the bytes of texts."""
        return self.layout.width * self.count * _MOST_CELL_BYTES

    def payload(self) -> bytes:
        return _ENCODE(self.columns)

    def record_batch(self) -> pa.RecordBatch:
        layout = self.layout
        arrays = list(map(_arrow, self.columns, layout.types, layout.codes))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def array(self, name: str) -> pa.Array:
        layout, at = self.layout, self.layout.positions[name]
        return _arrow(self.columns[at], layout.types[at], layout.codes[at])

    def take(self, positions: Sequence[int]) -> "FewRows":
        columns = [[column[at] for at in positions] for column in self.columns]
        return FewRows(self.schema, self.layout, columns, len(positions))

    def filter(self, which: Sequence[bool]) -> "FewRows":
        columns = [list(compress(column, which)) for column in self.columns]
        return FewRows(self.schema, self.layout, columns, len(columns[0]))


def _most_text_bytes(value: str | bytes | None) -> int:
    if value is None:
        return 0
    return len(value) if isinstance(value, bytes) or value.isascii() else 4 * len(value)


def _arrow(values: list[Any], kind: pa.DataType, code: str) -> pa.Array:
    if code:
        try:
            numbers = array(code, values)
        except (TypeError, OverflowError):
            pass
        else:
            return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    return pa.array(values, kind)


def values_as_stored(column: pa.Array, dtype: str) -> list[Any]:
    if not dtype:
        return column.to_pylist()  # type: ignore[no-any-return]
    validity, data = column.buffers()
    values: list[Any] = np.frombuffer(data, dtype, column.offset + len(column))[column.offset :].tolist()
    if validity is None or not column.null_count:
        return values
    return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]


class PartedRows:
    """`values`: per column its bytes, and bytes per value; empty if a column has nulls or no values of a fixed size."""

    __slots__ = ("row_bytes", "rows", "schema", "sizes", "values")

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.values: list[tuple[memoryview, int]] = []
        self.schema, layout, _ = _known(rows.schema)
        self.sizes = () if layout is None else layout.sizes
        self.row_bytes = sum(self.sizes)
        if self.sizes and not any(column.null_count for column in rows.columns):
            for column, size in zip(rows.columns, self.sizes, strict=True):
                self.values.append((memoryview(column.buffers()[1])[column.offset * size :], size))


class RowsOfPart:
    __slots__ = ("count", "parted", "start")

    def __init__(self, parted: PartedRows, start: int, count: int) -> None:
        self.parted = parted
        self.start = start
        self.count = count

    def record_batch(self) -> pa.RecordBatch:
        return self.parted.rows.slice(self.start, self.count)
