"""Columns of wide rows: the numbers of each row are packed at once, while the row is in the processor's cache."""

import struct
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.values.into_columns import column_of_json

_LEAST_NUMBERS = 16  # of a row; with fewer, column by column is as quick
_INEXACT = 2.0**53  # a float of this size may have been a whole number with more digits


class Unpacked(Exception):
    """A number that only `column_of_json` keeps or refuses."""


class PackedColumns:
    """Rows decoded from JSON as columns, as `column_of_json` makes them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        codes = {at: _code(field.type) for at, field in enumerate(schema)}
        self._numbers = [at for at, code in codes.items() if code]
        self._others = [at for at, code in codes.items() if not code]
        self.useful = len(self._numbers) >= _LEAST_NUMBERS
        if self.useful:
            self._pack = struct.Struct("=" + "".join(codes.values())).pack
            self._numbers_of = itemgetter(*self._numbers)

    def arrays(self, rows: Iterable[Sequence[Any]]) -> list[pa.Array]:
        """Raises `Unpacked`, or errors of `column_of_json`."""
        packed, others, nulls = bytearray(), [], []
        pack, numbers_of = self._pack, self._numbers_of
        width, kept = len(self._numbers), self._others
        for row in rows:
            values = numbers_of(row)
            try:
                packed += pack(*values)
            except (struct.error, OverflowError):
                begin = len(packed) // 8
                nulls += [begin + at for at, value in enumerate(values) if value is None]
                packed += self._without_nulls(values)
            others.append([row[at] for at in kept])
        matrix = np.frombuffer(packed, np.int64).reshape(-1, width)
        missing = np.zeros(matrix.size, bool)
        missing[nulls] = True
        return self._columns(np.ascontiguousarray(matrix.T), missing.reshape(-1, width).T if nulls else None, others)

    def _without_nulls(self, values: Sequence[Any]) -> bytes:
        try:
            return self._pack(*[0 if value is None else value for value in values])
        except (struct.error, OverflowError) as error:
            raise Unpacked from error

    def _columns(self, numbers: Any, missing: Any, others: list[list[Any]]) -> list[pa.Array]:
        fields = list(self._schema)
        columns: list[Any] = [None] * len(fields)
        for number, at in enumerate(self._numbers):
            columns[at] = _column(numbers[number], None if missing is None else missing[number], fields[at].type)
        for place, at in enumerate(self._others):
            field = fields[at]
            columns[at] = column_of_json([row[place] for row in others], field.type, field.name, field.nullable)
        return columns


def _code(kind: pa.DataType) -> str:
    if pa.types.is_float64(kind):
        return "d"
    if kind.equals(pa.uint64()):
        return "Q"
    return "q" if pa.types.is_integer(kind) else ""


def _column(numbers: Any, missing: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_float64(kind):
        numbers = numbers.view(np.float64)
        if (np.abs(numbers) >= _INEXACT).any():
            raise Unpacked
    elif kind.equals(pa.uint64()):
        numbers = numbers.view(np.uint64)
    column = pa.array(numbers, mask=missing)
    if column.type.equals(kind):
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise Unpacked from error
