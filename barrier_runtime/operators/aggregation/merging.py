"""Merging of two entries of an aggregation, whose rows count as earlier and later."""

from collections.abc import Callable

import numpy as np

from barrier_runtime.data.grouping import greatest_magnitude
from barrier_runtime.operators.aggregation.accumulators import SumBounds
from barrier_runtime.operators.aggregation.batch_values import Left
from barrier_runtime.operators.aggregation.plan import AggregationPlan
from barrier_runtime.operators.aggregation.state_columns import Accumulator, Columns, Ints, Values

_TOO_FAR = 1 << 63


def merge_entries(
    plan: AggregationPlan, columns: Columns, into: Ints, later: Ints, bounds: SumBounds, left: Left
) -> None:
    """Merges `later[i]` into `into[i]`, whose rows count as earlier. All row ids are different."""
    bounds.forget_all()
    merge_columns(plan, columns, into, columns, later, left)


def merge_columns(
    plan: AggregationPlan, columns: Columns, into: Ints, others: Columns, later: Ints | slice, left: Left
) -> dict[str, Values]:
    """Merges entries `later` of `others` into `into`. Returns the merged entries."""
    result: dict[str, Values] = {}

    def of_entry(column: str, index: int, aggregate: str = "sum_", /) -> Exception:
        return left(column, int(into[index]), aggregate)

    for accumulator in plan.accumulators:
        if accumulator.kind == "carry":
            continue
        target = columns[accumulator.name]
        ours, theirs = target[into], others[accumulator.name][later]
        with np.errstate(invalid="ignore"):
            merged: Values = accumulator.ufunc(ours, theirs)
        if accumulator.sums_integers:
            assert accumulator.column is not None
            leaves = ((ours ^ merged) & (theirs ^ merged)) < 0
            if accumulator.column in plan.within_64_bits and leaves.any():
                raise of_entry(accumulator.column, int(np.argmax(leaves)))
            carry = columns.get(f"carry:{accumulator.column}")
            if carry is not None:
                more, carries = others[f"carry:{accumulator.column}"][later], carry[into]
                if leaves.any() or np.count_nonzero(more):
                    carries = carries + more + np.where(leaves, np.where(ours < 0, -1, 1), 0)
                    carry[into] = carries
                result[f"carry:{accumulator.column}"] = carries
        target[into] = result[accumulator.name] = merged
    for composite in plan.composites:
        names = list(composite.storage())
        before = {name: columns[name][into] for name in names}
        after = {name: others[name][later] for name in names}
        for name, values in composite.merged(before, after, of_entry).items():
            columns[name][into] = result[name] = values
    return result


def merge_at_once(plan: AggregationPlan, columns: Columns, into: Ints, others: Columns, later: Ints) -> bool:
    """Merges entries into `into`, which may repeat, in this order.

    False, without a change: merge the entries one by one.
    """
    if plan.composites:
        return False
    for accumulator in plan.accumulators:
        values = others[accumulator.name][later]
        if accumulator.kind == "carry":
            if np.count_nonzero(values):
                return False
        elif accumulator.sums_integers:
            most = greatest_magnitude(columns[accumulator.name][into]) + greatest_magnitude(values) * len(values)
            if most >= _TOO_FAR:
                return False
    for accumulator in plan.accumulators:
        if accumulator.kind != "carry":
            with np.errstate(invalid="ignore"):
                accumulator.ufunc.at(columns[accumulator.name], into, others[accumulator.name][later])
    return True


def may_be_in_any_order(plan: AggregationPlan) -> bool:
    return not plan.composites and all(accumulator.dtype == "int64" for accumulator in plan.accumulators)


def in_any_order(
    plan: AggregationPlan, columns: Columns, row_ids: Ints, values_of: Callable[[Accumulator], Values]
) -> bool:
    for accumulator in plan.accumulators:
        if accumulator.kind == "carry":
            if np.count_nonzero(columns[accumulator.name][row_ids]):
                return False
        elif accumulator.sums_integers:
            values, before = values_of(accumulator), columns[accumulator.name][row_ids]
            if greatest_magnitude(values) * len(values) + greatest_magnitude(before) * len(before) >= _TOO_FAR:
                return False
    return True
