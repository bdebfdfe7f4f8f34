"""Batches as rows (plain dicts) for user functions, and rows back into batches of one fixed schema.

The schema of what a function returns is given by the user or taken from its first batch, and is fixed from then on: a
channel carries one schema. A row that does not fit is an error that says which column, and that `schema=` is the cure.
"""

import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from state.errors import InvalidJob

Row: TypeAlias = dict[str, Any]

_CUT = 500  # characters of a record shown in an error


def values_of(array: pa.Array) -> list[Any]:
    """Python values of a column. Timestamps become `datetime` (digits below a microsecond are dropped), UTC ones
    aware."""
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.tz in (None, "UTC"):
        if kind.unit == "ns":
            array = array.cast(pa.timestamp("us", kind.tz), safe=False)
        elif kind.unit != "us":
            array = array.cast(pa.timestamp("us", kind.tz))
        values = array.to_numpy(zero_copy_only=False).tolist()
        if kind.tz is None:
            return list(values)
        utc = datetime.timezone.utc
        return [value.replace(tzinfo=utc) if value is not None else None for value in values]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        array = array.cast(pa.timestamp("us", kind.tz), safe=False)
    return list(array.to_pylist())


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """One dict per row."""
    return list(each_row(batch))


def each_row(batch: pa.RecordBatch) -> Iterator[Row]:
    """One dict per row, made when it is asked for: a large batch of them is not in the processor's cache."""
    columns = [values_of(column) for column in batch.columns]
    return map(dict, map(zip, itertools.repeat(batch.schema.names), zip(*columns, strict=True)))


def preview(batch: pa.RecordBatch, row: int) -> str:
    """Row `row` for an error message, cut to 500 characters."""
    text = repr(rows_of(batch.slice(row, 1))[0])
    return text if len(text) <= _CUT else text[: _CUT - 1] + "…"


class RowWriter:
    """Rows of one operator's user function as batches of one schema."""

    def __init__(self, where: str, schema: pa.Schema | None) -> None:
        self.schema = schema
        self._where = where
        self._declared = schema is not None

    def batch(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """`rows`, at least one. Raises `InvalidJob` for a row that does not fit."""
        if self.schema is None:
            self.schema = self._infer(rows)
        schema = self.schema
        arrays = [self._column(rows, field) for field in schema]
        if sum(map(len, rows)) != len(rows) * len(schema.names):
            self._check_names(rows)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, rows: Sequence[Mapping[str, Any]], field: pa.Field) -> pa.Array:
        name = field.name
        try:
            values = [row[name] for row in rows]
        except (KeyError, TypeError):
            self._check_names(rows)
            values = [row.get(name) for row in rows]
        try:
            array = pa.array(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
            raise self._misfit(name, field.type, values) from error
        if array.null_count and not field.nullable:
            raise InvalidJob(f"{self._where}: column {name!r} is declared not nullable, but a row has None there")
        return array

    def _infer(self, rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
        for row in rows:
            self._check_row(row)
        names = list(dict.fromkeys(name for row in rows for name in row))
        if not names:
            raise InvalidJob(f"{self._where}: the returned row has no columns: return at least one")
        fields = []
        for name in names:
            try:
                fields.append((name, pa.array([row.get(name) for row in rows]).type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise InvalidJob(
                    f"{self._where}: no type fits all values of column {name!r} ({error}): pass schema="
                ) from error
        return pa.schema(fields)

    def _check_row(self, row: object) -> None:
        if not isinstance(row, Mapping):
            raise InvalidJob(
                f"{self._where}: the function gave a {type(row).__name__} where a row is expected: "
                "return a dict of column name to value"
            )

    def _check_names(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Unknown columns are always wrong; absent ones mean null where the user declared the schema."""
        assert self.schema is not None
        known = set(self.schema.names)
        for row in rows:
            self._check_row(row)
            unknown = [name for name in row if name not in known]
            if unknown:
                raise InvalidJob(
                    f"{self._where}: a row has the column {unknown[0]!r}, which is not in its schema "
                    f"({', '.join(self.schema.names)}): {self._remedy()}"
                )
            if not self._declared and len(row) < len(known):
                absent = next(name for name in self.schema.names if name not in row)
                raise InvalidJob(
                    f"{self._where}: a row lacks the column {absent!r}, which earlier rows had: {self._remedy()}"
                )

    def _misfit(self, name: str, kind: pa.DataType, values: list[Any]) -> InvalidJob:
        wrong = next((value for value in values if not _fits(value, kind)), None)
        return InvalidJob(
            f"{self._where}: column {name!r} is {kind}, but a row has {wrong!r} ({type(wrong).__name__}) there: "
            + self._remedy()
        )

    def _remedy(self) -> str:
        if self._declared:
            return "return what schema= declares, or correct schema="
        return "the schema was taken from the first rows; pass schema= to say what the function returns"


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
        return False
    return True
