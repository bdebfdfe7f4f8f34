"""Updating registers for a whole batch: into groups at once (windows), or row by row with every running value (running
aggregates). Pure numpy; the arrays belong to a dense state table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.aggregates import Columns, Register, to_register
from barrier_runtime.grouping import stable_order

Ints: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[Any]

_ROUNDS = 32  # groups longer than this are accumulated one by one, shorter ones side by side


class BatchValues:
    """The columns of one batch as registers take them. Converted once per column and batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._valid: dict[str, npt.NDArray[np.bool_] | None] = {}
        self._dense: dict[tuple[str, str], Values] = {}

    def valid(self, column: str) -> npt.NDArray[np.bool_] | None:
        """Which rows are not null; None when all are."""
        if column not in self._valid:
            array = self._batch.column(column)
            self._valid[column] = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        return self._valid[column]

    def values(self, register: Register) -> Values:
        """One value per row; where the column is null, the one that changes nothing."""
        assert register.column is not None
        key = (register.column, register.name)
        found = self._dense.get(key)
        if found is None:
            array = to_register(self._batch.column(register.column), register.dtype)
            if array.null_count:
                array = array.fill_null(pa.scalar(register.initial, array.type))
            found = array.to_numpy(zero_copy_only=False)
            self._dense[key] = found
        return found


def add_to_groups(registers: Sequence[Register], columns: Columns, slots: Ints, batch: BatchValues) -> None:
    """Add every row to the entry `slots[row]`. Slots may repeat."""
    for register in registers:
        target = columns[register.name]
        if register.kind == "rows":
            np.add.at(target, slots, 1)
        elif register.kind == "values":
            assert register.column is not None
            valid = batch.valid(register.column)
            np.add.at(target, slots if valid is None else slots[valid], 1)
        else:
            with np.errstate(invalid="ignore"):  # NaN is a value here
                register.ufunc.at(target, slots, batch.values(register))


@dataclass(frozen=True, slots=True)
class RunningOrder:
    """Rows of a batch ordered by key, arrival order kept within a key."""

    order: npt.NDArray[np.intp]  # row numbers, sorted
    slots: Ints  # of the groups, in that order
    starts: npt.NDArray[np.intp]  # where each group's rows begin in `order`
    lengths: npt.NDArray[np.intp]

    @staticmethod
    def of(groups: npt.NDArray[Any], slots: Ints | None = None) -> "RunningOrder":
        """`groups`: a number per row; `slots` by that number (None: the number is the slot)."""
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
        return RunningOrder(order, unique if slots is None else slots[unique], starts, lengths)


def running(
    registers: Sequence[Register], columns: Columns, rows: RunningOrder, batch: BatchValues
) -> dict[str, Values]:
    """Per register the value after each row, in the batch's order; `columns` end at the last values."""
    results = {}
    for register in registers:
        target = columns[register.name]
        before = target[rows.slots]
        valid = batch.valid(register.column) if register.kind == "values" and register.column is not None else None
        if register.kind in ("rows", "values") and valid is None:
            ordered = np.arange(1, len(rows.order) + 1) + np.repeat(before - rows.starts, rows.lengths)
            after: Values = before + rows.lengths
        else:
            values: Values = batch.values(register) if valid is None else valid.astype(np.int64)
            values = values[rows.order]
            if register.kind in ("values", "sum") and register.dtype == "int64":
                ordered = _running_integers(values, before, rows)
            else:
                with np.errstate(invalid="ignore"):  # NaN is a value here
                    ordered = _running_rounds(register.ufunc, values, before, rows)
            after = ordered[rows.starts + rows.lengths - 1]
        target[rows.slots] = after
        result = np.empty_like(ordered)
        result[rows.order] = ordered
        results[register.name] = result
    return results


def _running_integers(values: Values, before: Values, rows: RunningOrder) -> Values:
    """Integers wrap around and come back, so one running sum over all groups minus what preceded each is exact."""
    total: Values = np.cumsum(values)
    preceding = total[rows.starts] - values[rows.starts]
    running_total: Values = total + np.repeat(before - preceding, rows.lengths)
    return running_total


def _running_rounds(ufunc: np.ufunc, values: Values, before: Values, rows: RunningOrder) -> Values:
    """Round r takes the r-th row of every group at once; the few long groups are done one by one.

    Each group sees exactly the operations, in the order, that a row-wise program would do, so float sums do not
    depend on what other keys share the batch.
    """
    result = np.empty_like(values)
    short = rows.lengths <= _ROUNDS
    for group in np.flatnonzero(~short).tolist():
        start = rows.starts[group]
        end = start + rows.lengths[group]
        result[start:end] = ufunc.accumulate(np.concatenate((before[group : group + 1], values[start:end])))[1:]
    by_length = np.argsort(-rows.lengths, kind="stable")
    by_length = by_length[len(rows.lengths) - np.count_nonzero(short) :]
    current, position, length = before[by_length], rows.starts[by_length], rows.lengths[by_length]
    for round_ in range(int(length[0]) if len(length) else 0):
        alive = len(length) - int(np.searchsorted(length[::-1], round_, side="right"))
        at = position[:alive] + round_
        current = ufunc(current[:alive], values[at])
        result[at] = current
    return result
