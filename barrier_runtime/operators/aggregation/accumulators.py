"""Updates accumulators by a batch: into groups (windows), or with the value after each row (running).

Unless the extremes of a batch rule out that an integer sum leaves 64 bits, `_carries` counts exactly, in two halves of
32 bits, how often and at which row a sum leaves.
"""

import numpy as np

from barrier_runtime.data.grouping import greatest_magnitude
from barrier_runtime.operators.aggregation.batch_values import (
    BatchValues,
    Composite,
    Left,
    RunningOrder,
    running_integers,
)
from barrier_runtime.operators.aggregation.plan import AggregationPlan
from barrier_runtime.operators.aggregation.state_columns import Accumulator, Columns, Ints, Values

_HALF = np.int64(0xFFFFFFFF)
_TOO_FAR = 1 << 63
_ROUNDS = 32  # longer groups are accumulated one by one, shorter groups side by side


class SumBounds:
    def __init__(self) -> None:
        self._bounds: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def may_leave(self, accumulator: Accumulator, column: Values, row_ids: Ints, values: Values) -> bool:
        most = greatest_magnitude(values) * len(values)
        bound = self._bounds.get(accumulator.name, _TOO_FAR) + most
        if bound < _TOO_FAR:
            self._bounds[accumulator.name] = bound
            return False
        self._measure(accumulator.name, column, len(values), most)
        return self._bounds[accumulator.name] >= _TOO_FAR and greatest_magnitude(column[row_ids]) + most >= _TOO_FAR

    def forget_all(self) -> None:
        """Called after entries changed other than by adding values."""
        self._bounds = dict.fromkeys(self._bounds, _TOO_FAR)

    def _measure(self, name: str, column: Values, rows: int, most: int) -> None:
        self._rows[name] = self._rows.get(name, len(column)) + rows
        if self._rows[name] > len(column):
            self._bounds[name], self._rows[name] = greatest_magnitude(column), 0
        self._bounds[name] += most


def add_to_groups(
    plan: AggregationPlan, columns: Columns, row_ids: Ints, batch: BatchValues, bounds: SumBounds, left: Left
) -> None:
    for accumulator in plan.accumulators:
        target = columns[accumulator.name]
        if accumulator.kind == "rows":
            np.add.at(target, row_ids, 1)
        elif accumulator.kind == "values":
            assert accumulator.column is not None
            valid = batch.valid(accumulator.column)
            np.add.at(target, row_ids if valid is None else row_ids[valid], 1)
        elif accumulator.kind != "carry":
            values = batch.values(accumulator)
            if accumulator.sums_integers and bounds.may_leave(accumulator, target, row_ids, values):
                _carry_groups(plan, accumulator, columns, row_ids, values, left)
            with np.errstate(invalid="ignore"):
                accumulator.ufunc.at(target, row_ids, values)
    if plan.composites:
        rows = RunningOrder.of(row_ids)
        for composite in plan.composites:
            for name, values in composite.added(_before(composite, columns, rows), rows, batch, left).items():
                columns[name][rows.row_ids] = values


def _carry_groups(
    plan: AggregationPlan, accumulator: Accumulator, columns: Columns, row_ids: Ints, values: Values, left: Left
) -> None:
    rows = RunningOrder.of(row_ids)
    before = columns[accumulator.name][rows.row_ids]
    carries = _carries(values[rows.order], before, rows)
    _refuse(plan, accumulator, carries, rows, left)
    carry = columns.get(f"carry:{accumulator.column}")
    if carry is not None:
        carry[rows.row_ids] += carries[rows.starts + rows.lengths - 1]


def _refuse(plan: AggregationPlan, accumulator: Accumulator, carries: Values, rows: "RunningOrder", left: Left) -> None:
    if accumulator.column in plan.within_64_bits and carries.any():
        raise left(accumulator.column, rows.row_id_at(np.argmax(carries != 0)))


def _carries(values: Values, before: Values, rows: "RunningOrder") -> Values:
    """Counts how often each sum has left 64 bits since `before`; negative: downwards."""
    low = running_integers(values & _HALF, before & _HALF, rows)
    high = running_integers(values >> 32, before >> 32, rows) + (low >> 32)
    carries: Values = (high + (1 << 31)) >> 32
    return carries


def running(
    plan: AggregationPlan, columns: Columns, rows: RunningOrder, batch: BatchValues, left: Left
) -> dict[str, Values]:
    """Returns by accumulator the value after each row, in the batch's order.
    `columns` then hold the last values.
    """
    results: dict[str, Values] = {}
    single = len(rows.row_ids) == len(rows.order)
    counted: tuple[Values, Values, str] | None = None
    for accumulator in plan.accumulators:
        if accumulator.kind == "carry":
            continue
        target = columns[accumulator.name]
        before = target[rows.row_ids]
        valid = (
            batch.valid(accumulator.column) if accumulator.kind == "values" and accumulator.column is not None else None
        )
        if accumulator.kind in ("rows", "values") and valid is None:
            if counted is not None and np.array_equal(counted[0], before):
                target[rows.row_ids], results[accumulator.name] = counted[1], results[counted[2]]
                continue
            after: Values = before + rows.lengths
            counted = before, after, accumulator.name
            if single:
                ordered = after
            else:
                ordered = np.arange(1, len(rows.order) + 1) + np.repeat(before - rows.starts, rows.lengths)
        else:
            values: Values = batch.values(accumulator) if valid is None else valid.astype(np.int64)
            values = rows.ordered(values)
            if accumulator.kind == "values" or accumulator.sums_integers:
                ordered = running_integers(values, before, rows)
                if accumulator.kind == "sum":
                    carry = columns.get(f"carry:{accumulator.column}")
                    leaves = greatest_magnitude(before) + greatest_magnitude(values) * len(values) >= _TOO_FAR
                    if leaves:
                        carries = _carries(values, before, rows)
                        _refuse(plan, accumulator, carries, rows, left)
                        if carry is not None:
                            _carry_running(accumulator, carry, carries, rows, results)
                    elif carry is not None and np.count_nonzero(carry[rows.row_ids]):
                        _carry_running(accumulator, carry, 0, rows, results)
            else:
                with np.errstate(invalid="ignore"):
                    ordered = _running_rounds(accumulator.ufunc, values, before, rows)
            after = ordered if single else ordered[rows.starts + rows.lengths - 1]
        target[rows.row_ids] = after
        results[accumulator.name] = rows.as_they_came(ordered)
    for composite in plan.composites:
        ends, each_row = composite.running(_before(composite, columns, rows), rows, batch, left)
        for name, end in ends.items():
            columns[name][rows.row_ids] = end
        for name, ordered in each_row.items():
            results[name] = rows.as_they_came(ordered)
    return results


def _before(composite: Composite, columns: Columns, rows: RunningOrder) -> Columns:
    return {name: columns[name][rows.row_ids] for name in composite.storage()}


def _carry_running(
    accumulator: Accumulator,
    carry: Ints,
    carries: Values | int,
    rows: RunningOrder,
    results: dict[str, Values],
) -> None:
    every = np.repeat(carry[rows.row_ids], rows.lengths) + carries
    carry[rows.row_ids] = every[rows.starts + rows.lengths - 1]
    results[f"carry:{accumulator.column}"] = rows.as_they_came(every)


def _running_rounds(ufunc: np.ufunc, values: Values, before: Values, rows: RunningOrder) -> Values:
    result = np.empty_like(values)
    short = rows.lengths <= _ROUNDS
    for group in np.flatnonzero(~short).tolist():
        start = rows.starts[group]
        end = start + rows.lengths[group]
        result[start:end] = ufunc.accumulate(np.concatenate((before[group : group + 1], values[start:end])))[1:]
    lengths = np.minimum(rows.lengths, _ROUNDS + 1)
    by_length = np.argsort((_ROUNDS + 1 - lengths).astype(np.uint16), kind="stable")  # 16 bits are sorted by radix
    by_length = by_length[len(rows.lengths) - np.count_nonzero(short) :]
    current, position, length = before[by_length], rows.starts[by_length], rows.lengths[by_length]
    for round_ in range(int(length[0]) if len(length) else 0):
        alive = len(length) - int(np.searchsorted(length[::-1], round_, side="right"))
        at = position[:alive] + round_
        current = ufunc(current[:alive], values[at])
        result[at] = current
    return result
