"""Partial aggregates: rows that each stand for several rows of a key, from exchange to merge.
Design: docs/design/combiner.md.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import first_rows, greatest_magnitude
from barrier_runtime.operators.aggregation.accumulators import SumBounds
from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left
from barrier_runtime.operators.aggregation.merging import (
    in_any_order,
    may_be_in_any_order,
    merge_columns,
)
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.partial_schema import PARTIAL, is_partial
from barrier_runtime.operators.aggregation.plan import AggregationPlan, plan_aggregates
from barrier_runtime.operators.aggregation.state_columns import Accumulator, Columns, Ints, Values
from barrier_runtime.state.errors import InvalidJob

_TOO_FAR = 1 << 63
_ROWS = f"{PARTIAL}rows "


def why_not_partial(aggregates: Mapping[str, AnyAggregate], schema: pa.Schema, where: str) -> str:
    """Returns the first of `aggregates` that depends on the order of rows; else ""."""
    for name, aggregate in aggregates.items():
        if not may_be_in_any_order(plan_aggregates({name: aggregate}, schema, where)):
            return f"{name}={aggregate} depends on the order of rows"
    return ""


def combined_said(why_not: str) -> str:
    if why_not:
        return f"rows are not combined before the exchange: {why_not}"
    return "rows are combined before the exchange if that saves rows"


def partial_rows(plan: AggregationPlan, batch: Batch, last_of: Ints, last: Ints, where: str) -> Batch | None:
    """Returns a partial row per group, in the order of the groups' last rows.
    None: a sum may leave 64 bits. `last_of`: last row of each row's group; `last`: last rows of all groups, ascending.
    """
    values = BatchValues(batch.rows, where)
    groups, of_row = len(last), _numbered(last_of, last)
    counts: Ints = np.bincount(of_row, minlength=groups)
    columns: dict[str, Values] = {_ROWS: counts}
    for accumulator in plan.accumulators:
        if accumulator.kind in ("rows", "carry"):
            continue
        found = _accumulated(accumulator, values, of_row, groups, counts)
        if found is None:
            return None
        columns[_name(accumulator)] = found
    rows = batch.rows.take(pa.array(last))
    arrays = [*rows.columns, *map(pa.array, columns.values())]
    schema = pa.schema([*rows.schema, *[pa.field(name, pa.int64()) for name in columns]])
    return batch.only(pa.RecordBatch.from_arrays(arrays, schema=schema), last)


def _name(accumulator: Accumulator) -> str:
    return f"{PARTIAL}{accumulator.kind} {accumulator.column or ''}"


def _numbered(last_of: Ints, last: Ints) -> Ints:
    """Returns each row's group as an index of `last`."""
    numbers = np.empty(len(last_of), np.int64)
    numbers[last] = np.arange(len(last))
    return numbers.take(last_of)


def _accumulated(
    accumulator: Accumulator, values: BatchValues, of_row: Ints, groups: int, counts: Ints
) -> Values | None:
    assert accumulator.column is not None
    if accumulator.kind == "values":
        valid = values.valid(accumulator.column)
        return counts if valid is None else np.bincount(of_row[valid], minlength=groups)
    each = values.values(accumulator)
    if accumulator.kind == "sum" and greatest_magnitude(each) * len(each) >= _TOO_FAR:
        return None
    found = np.full(groups, accumulator.initial, np.int64)
    accumulator.ufunc.at(found, of_row, each)
    return found


def merge_partial_rows(
    plan: AggregationPlan,
    columns: Columns,
    row_ids: Ints,
    rows: pa.RecordBatch,
    left: Left,
    bounds: SumBounds | None = None,
) -> None:
    sent = _sent(plan, rows)
    may_leave = _may_leave if bounds is None else bounds.may_leave
    sums = [(each, values) for each, values in sent if each.sums_integers]
    if plan.composites or any(may_leave(each, columns[each.name], row_ids, values) for each, values in sums):
        if bounds is not None:
            bounds.forget_all()
        others = _with_initial(plan, columns, sent, rows.num_rows)
        for row in range(rows.num_rows):  # one by one, since a key may occur twice
            merge_columns(plan, columns, row_ids[row : row + 1], others, slice(row, row + 1), left)
        return
    for accumulator, values in sent:
        with np.errstate(invalid="ignore"):
            accumulator.ufunc.at(columns[accumulator.name], row_ids, values)


def merge_different(
    plan: AggregationPlan, columns: Columns, row_ids: Ints, rows: pa.RecordBatch, left: Left
) -> dict[str, Values]:
    """Merges rows of different entries. Returns the merged entries, a value per row."""
    others = _with_initial(plan, columns, _sent(plan, rows), rows.num_rows)
    return merge_columns(plan, columns, row_ids, others, slice(None), left)


def _sent(plan: AggregationPlan, rows: pa.RecordBatch) -> list[tuple[Accumulator, Values]]:
    names = frozenset(rows.schema.names)
    named = [(each, _name(each)) for each in plan.accumulators]
    return [(each, rows.column(name).to_numpy()) for each, name in named if name in names]


def _with_initial(
    plan: AggregationPlan, columns: Columns, sent: list[tuple[Accumulator, Values]], count: int
) -> dict[str, Values]:
    found = {accumulator.name: values for accumulator, values in sent}
    for name, (_, initial) in plan.storage().items():
        if name not in found:
            found[name] = np.full(count, initial, columns[name].dtype)
    return found


def _may_leave(accumulator: Accumulator, column: Values, row_ids: Ints, values: Values) -> bool:
    return greatest_magnitude(column[row_ids]) + greatest_magnitude(values) * len(values) >= _TOO_FAR


def add_any_order(plan: AggregationPlan, columns: Columns, row_ids: Ints, values: BatchValues) -> bool:
    if not is_partial(values.rows.schema):
        return in_any_order(plan, columns, row_ids, values.values)
    names = frozenset(values.rows.schema.names)
    none = np.zeros(0, np.int64)

    def sums(accumulator: Accumulator) -> Values:
        name = _name(accumulator)
        return values.rows.column(name).to_numpy() if name in names else none

    return in_any_order(plan, columns, row_ids, sums)


def first_of_groups(batch: Batch, last_of: Ints, last: Ints) -> Batch:
    """Returns the first row of each group, in order, as a partial row.
    `last_of`, `last`: as for `partial_rows`.
    """
    first = first_rows(last_of, batch.count)[last]
    order = np.argsort(first)
    rows = batch.rows.take(pa.array(first[order]))
    counts = pa.array(np.bincount(last_of, minlength=batch.count)[last][order])
    return batch.only(rows.append_column(_ROWS, counts), first[order])


def rows_of(rows: pa.RecordBatch) -> Ints:
    if not is_partial(rows.schema):
        return np.ones(rows.num_rows, np.int64)
    counted: Ints = rows.column(_ROWS).to_numpy()
    return counted


def refuse_partial_rows(schema: pa.Schema, where: str) -> None:
    if is_partial(schema):
        raise InvalidJob(
            f"{where}: the checkpoint has rows in flight that are aggregated in part, which this step does not take: "
            "start the version of the program that wrote it, end it with stop(), and start the new one from there"
        )
