"""A batch as accumulators see it, and accumulators of state columns that change together, in row order.

Column names never change, such as `first.has:price`: kind, part, column.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.grouping import greatest_magnitude, stable_order
from barrier_runtime.operators.aggregation.state_columns import (
    Accumulator,
    Columns,
    Initial,
    Ints,
    Values,
    Words,
    is_decimal,
    to_accumulator,
    to_words,
)
from barrier_runtime.state.errors import InvalidJob

_NEAR, _SIGN = 2.0**62, 2.0**63
_EXACT_INTEGER, _EXACT_POWER = 1 << 53, 22  # doubles represent all integers, and powers of ten, up to these


class Left(Protocol):
    """Makes the error for a result that does not fit the type: a sum of `column`, or another `aggregate`."""

    def __call__(self, column: str, row_id: int, aggregate: str = "sum_", /) -> Exception: ...


class BatchValues:
    def __init__(self, batch: pa.RecordBatch, where: str) -> None:
        self.rows = batch
        self._where = where
        self._valid: dict[str, npt.NDArray[np.bool_] | None] = {}
        self._filled: dict[tuple[str, str], Values] = {}
        self._words: dict[str, Words] = {}
        self.latest: dict[Any, tuple[RunningOrder, list[Values], npt.NDArray[np.intp]]] = {}

    def take(self, rows: npt.NDArray[Any]) -> "BatchValues":
        return BatchValues(self.rows.take(pa.array(rows)), self._where)

    def valid(self, column: str) -> npt.NDArray[np.bool_] | None:
        if column not in self._valid:
            array = self.rows.column(column)
            self._valid[column] = _valid(array) if array.null_count else None
        return self._valid[column]

    def values(self, accumulator: Accumulator) -> Values:
        """Returns a value per row; for null the neutral value."""
        assert accumulator.column is not None
        key = (accumulator.column, accumulator.name)
        found = self._filled.get(key)
        if found is None:
            array = self._as_accumulator(self.rows.column(accumulator.column), accumulator)
            if array.null_count:
                array = array.fill_null(pa.scalar(accumulator.initial, array.type))
            found = array.to_numpy(zero_copy_only=False)
            self._filled[key] = found
        return found

    def words(self, column: str) -> Words:
        found = self._words.get(column)
        if found is None:
            array = self.rows.column(column)
            try:
                found = self._words[column] = to_words(array)
            except pa.ArrowInvalid as error:
                raise self._too_large(column, array.type, error) from error
        return found

    def codes(self, column: str) -> tuple[Ints, int]:
        """Returns a number per row, equal for equal values, -1 for null; and the number of distinct values."""
        encoded = self.encoded(column)
        return codes_of(encoded), len(encoded.dictionary)

    def encoded(self, column: str) -> pa.DictionaryArray:
        array = self.rows.column(column)
        if is_decimal(array.type):  # Arrow does not encode decimals of 32 and 64 bits
            array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
        return array.dictionary_encode()

    def plain(self, column: str) -> list[Any]:
        return self.rows.column(column).to_pylist()  # type: ignore[no-any-return]

    def numpy(self, column: str, rows: npt.NDArray[np.intp]) -> Values:
        return self.rows.column(column).take(pa.array(rows)).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def floats(self, column: str) -> npt.NDArray[np.float64]:
        array = self.rows.column(column)
        if is_decimal(array.type):
            return self._decimals_as_floats(array, self.words(column))
        array = array.cast(pa.float64(), safe=False)
        if array.null_count:
            array = array.fill_null(0.0)
        return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def apart(self, column: str, rows: npt.NDArray[np.intp], floats: Values, shifts: Values) -> Values:
        """Returns the distances of the values of `rows` (not null) from `shifts`.
        `floats`: the values as doubles. Whole numbers beyond 2^53 are subtracted exactly."""
        kind = self.rows.column(column).type
        found: Values = floats - shifts
        if not pa.types.is_integer(kind) or kind.bit_width < 64 or not (np.abs(floats) >= _EXACT_INTEGER).any():
            return found
        near = (np.abs(found) < _NEAR) & (shifts == np.trunc(shifts))  # a shift may exceed the largest number
        whole = self.numpy(column, rows).astype(np.uint64)[near] - _modulo(shifts[near])
        found[near] = whole.astype(np.int64)
        return found

    def _decimals_as_floats(self, array: pa.Array, words: Words) -> npt.NDArray[np.float64]:
        low, high = words
        of_one_word = 0 <= array.type.scale <= _EXACT_POWER and (high == low >> 63).all()
        if of_one_word and greatest_magnitude(low) < _EXACT_INTEGER:
            return low / 10.0**array.type.scale  # type: ignore[no-any-return]
        return np.array([float(value or 0) for value in array.to_pylist()])

    def _as_accumulator(self, column: pa.Array, accumulator: Accumulator) -> pa.Array:
        try:
            return to_accumulator(column, accumulator.dtype)
        except pa.ArrowInvalid as error:
            raise self._too_large(accumulator.column, column.type, error) from error

    def _too_large(self, column: str | None, kind: pa.DataType, error: pa.ArrowInvalid) -> InvalidJob:
        return InvalidJob(
            f"{self._where}: column {column!r} ({kind}) has a value beyond 64 bits with a sign "
            f"({error}): cast it to float64 in a select() before, or use process()"
        )


@dataclass(frozen=True, slots=True)
class RunningOrder:
    """Rows of a batch ordered by key, then by arrival. `order`: row numbers; `row_ids`: of the groups."""

    order: npt.NDArray[np.intp]
    row_ids: Ints
    starts: npt.NDArray[np.intp]  # first index of each group in `order`
    lengths: npt.NDArray[np.intp]

    @staticmethod
    def of(groups: npt.NDArray[Any], row_ids: Ints | None = None) -> "RunningOrder":
        """`groups`: a number per row. `row_ids`: by this number; None: the number is the row id."""
        order = stable_order(groups)
        ordered = groups[order]
        changes = np.empty(len(groups), np.bool_)
        changes[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
        starts = np.flatnonzero(changes)
        lengths = np.empty_like(starts)
        np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
        lengths[-1] = len(groups) - starts[-1]
        unique = ordered[starts]
        return RunningOrder(order, unique if row_ids is None else row_ids[unique], starts, lengths)

    def ordered(self, values: Values) -> Values:
        return values if len(self.starts) == 1 else values[self.order]

    def as_they_came(self, ordered: Values) -> Values:
        if len(self.starts) == 1:
            return ordered
        result = np.empty_like(ordered)
        result[self.order] = ordered
        return result

    def row_id_of(self, row: int) -> int:
        return self.row_id_at(int(np.flatnonzero(self.order == row)[0]))

    def row_id_at(self, position: int | np.intp) -> int:
        return int(self.row_ids[np.searchsorted(self.starts, position, side="right") - 1])

    def last_rows(self) -> npt.NDArray[np.intp]:
        return np.sort(self.order[self.starts + self.lengths - 1])

    def groups(self) -> npt.NDArray[np.intp]:
        return np.repeat(np.arange(len(self.starts)), self.lengths)

    def latest(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Returns for each row the last of `positions` up to the row in its group; -1: none.
        `positions`: rising indices of `order`."""
        found = np.full(len(self.order), -1, np.intp)
        found[positions] = positions
        np.maximum.accumulate(found, out=found)
        found[found < np.repeat(self.starts, self.lengths)] = -1
        return found


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    bits = array.buffers()[0]
    if bits is None:
        return array.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    first, begin = divmod(array.offset, 8)
    found = np.unpackbits(np.frombuffer(bits, np.uint8)[first:], count=begin + len(array), bitorder="little")
    return found[begin:].view(np.bool_)


def _modulo(whole: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    upper = np.where(whole >= _SIGN, whole - _SIGN, whole)
    lower = np.where(upper >= _SIGN, 0.0, upper).astype(np.int64).astype(np.uint64)
    lower[(whole >= _SIGN) & (upper < _SIGN)] += np.uint64(_SIGN)
    return lower


def codes_of(encoded: pa.DictionaryArray) -> Ints:
    codes = encoded.indices.fill_null(-1) if encoded.null_count else encoded.indices
    return codes.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def running_integers(values: Values, before: Values, rows: RunningOrder) -> Values:
    """Running sums of integers per group.
    Integers wrap around and back, so a running sum over all groups, less the sum before each group, is exact.
    """
    if len(before) == len(values):
        alone: Values = values + before
        return alone
    total: Values = np.cumsum(values)
    preceding = total[rows.starts] - values[rows.starts]
    running_total: Values = total + np.repeat(before - preceding, rows.lengths)
    return running_total


class Composite(Protocol):
    @property
    def name(self) -> str:
        """Name, equal for composites with the same state and behaviour."""

    def storage(self) -> dict[str, tuple[str, Initial]]:
        """State columns: name -> (numpy dtype, initial value)."""

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        """Returns the columns after all rows, per group of `rows`.

        `before`: the values before, per group. The bits do not depend on the cuts of batches.
        """

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        """Returns `added`, and the inputs of the results after each row, in the order of `rows.order`."""

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        """Merges accumulators per entry: the rows of `before` precede those of `later`.
        `left` gets the index of an entry."""


class RowByRow:
    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> dict[str, Values]:
        """Returns the columns after each row, in the order of `rows.order`."""
        raise NotImplementedError

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        return self.running(before, rows, batch, left)[0]

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        after = self.after(before, rows, batch, left)
        last = rows.starts + rows.lengths - 1
        return {name: values[last] for name, values in after.items()}, after


def carried(latest: npt.NDArray[np.intp], groups: npt.NDArray[np.intp], before: Values, after: Values) -> Values:
    """Values at the `latest` row that gave one (-1: none, so the group's value before)."""
    return np.where(latest >= 0, after[latest], before[groups])
