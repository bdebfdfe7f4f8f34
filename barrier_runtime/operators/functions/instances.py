"""Rows of a batch as instances of their class, made of whole columns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.row_class import ClassField, RowClass, UnfitField
from barrier_runtime.data.rows import values_by_column


class UnfitRow(ValueError):
    """A row that is no instance of its class."""


@dataclass(frozen=True)
class Unmade:
    """Placeholder of a row that is no instance, if later rows count nevertheless."""

    error: Exception


def tried(rows: Iterator[Any], count: int) -> Iterator[Any]:
    """Yields `count` rows; an `Unmade` for each row that raises. `rows` must continue after an error."""
    for _ in range(count):
        try:
            row = next(rows)
        except Exception as error:
            row = Unmade(error)
        yield row


def check_made(row: Any) -> None:
    if type(row) is Unmade:
        raise row.error


class _Finer(NamedTuple):
    """A time with digits that `datetime` does not have."""

    cut: Any
    rest: int  # nanoseconds


@dataclass(frozen=True)
class Instances:
    rows: RowClass

    def each(self, batch: Batch) -> Iterator[Any]:
        """Yields an instance per row. After an error continues with the next row."""
        fields = self.rows.fields
        columns = values_by_column(batch, [field.column for field in fields])
        make = self.rows.make
        fine = [self._with_nanoseconds(field, each, batch) for field, each in zip(fields, columns, strict=True)]
        if any(fine):
            return map(partial(self._one, make), *columns)
        try:
            values = [self._column(field, each) for field, each in zip(fields, columns, strict=True)]
        except Exception:  # made one by one, each row raises its own error
            return map(partial(self._one, make), *columns)
        return map(make, *values)

    def _with_nanoseconds(self, field: ClassField, values: list[Any], batch: Batch) -> bool:
        """Replaces each time that `datetime` would cut by a `_Finer`."""
        kind = self.rows.schema.field(field.column).type
        if not (pa.types.is_timestamp(kind) and kind.unit == "ns"):
            return False
        numbers = batch.rows.column(field.column).cast(pa.int64()).fill_null(0).to_numpy()
        finer = np.flatnonzero(numbers % 1_000)
        for at in finer:
            values[at] = _Finer(values[at], int(numbers[at] % 1_000))
        return len(finer) > 0

    def _one(self, make: Callable[..., Any], *values: Any) -> Any:
        made: list[Any] = []
        for field, value in zip(self.rows.fields, values, strict=True):
            if type(value) is _Finer:
                raise self._refused(field, UnfitField(f"{field.slot.said} would lose {value.rest} ns of {value.cut}"))
            made += self._column(field, [value])
        return make(*made)

    def _column(self, field: ClassField, values: list[Any]) -> list[Any]:
        slot = field.slot
        if slot.form is None:
            if slot.optional or None not in values:
                return values
            raise self._refused(field, UnfitField(f"{slot.said} is null", null=True))
        try:
            return list(map(slot.read, values))
        except UnfitField as error:
            raise self._refused(field, error) from None

    def _refused(self, field: ClassField, error: UnfitField) -> UnfitRow:
        remedy = f"correct class {self.rows.name}, or keep such rows out by an expression before this step"
        if error.null:
            column = field.column
            remedy = f'declare the field with "| None", or keep such rows out before: filter("{column} IS NOT NULL")'
        return UnfitRow(f"column {field.column!r}: {error}: {remedy}")
