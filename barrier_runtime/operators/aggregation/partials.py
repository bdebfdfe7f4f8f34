"""Partial aggregates: rows that each stand for several rows of their key, made before an exchange and merged after it.

A partial row is the last of these rows, with their number, and a column per accumulator. Names of these columns tell
partial rows from other rows, also among stored rows in flight. Accumulators go by kind and column, because their names
depend on the state that a step continues with. Accumulators that partial rows lack get their initial value: the program
got the aggregate after the rows were stored. See docs/design/combiner.md.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import first_rows, greatest_magnitude, last_rows
from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left
from barrier_runtime.operators.aggregation.merging import (
    in_any_order,
    may_be_in_any_order,
    merge_at_once,
    merge_columns,
)
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.partial_schema import PARTIAL, is_partial
from barrier_runtime.operators.aggregation.plan import AggregationPlan, plan_aggregates
from barrier_runtime.operators.aggregation.state_columns import Accumulator, Columns, Ints, Values
from barrier_runtime.state.errors import InvalidJob

_TOO_FAR = 1 << 63
_ROWS = f"{PARTIAL}rows "
_EXACT = 1 << 53  # doubles represent every integer up to this


def why_not_partial(aggregates: Mapping[str, AnyAggregate], schema: pa.Schema, where: str) -> str:
    """Returns the first of `aggregates` that depends on the order of rows; else ""."""
    for name, aggregate in aggregates.items():
        if not may_be_in_any_order(plan_aggregates({name: aggregate}, schema, where)):
            return f"{name}={aggregate} depends on the order of rows"
    return ""


def combined_said(why_not: str) -> str:
    """Text of a plan. `why_not`: why rows are not combined, or empty."""
    if why_not:
        return f"rows are not combined before the exchange: {why_not}"
    return "rows are combined before the exchange if that saves rows"


def partial_rows(plan: AggregationPlan, batch: Batch, of_row: Ints, groups: int, where: str) -> Batch | None:
    """Returns a partial row per group, in the order of the groups' last rows. None: a sum may leave 64 bits.
    `of_row`: group of each row, from 0 to `groups` - 1."""
    values = BatchValues(batch.rows, where)
    counts: Ints = np.bincount(of_row, minlength=groups)
    columns: dict[str, Values] = {_ROWS: counts}
    for accumulator in plan.accumulators:
        if accumulator.kind in ("rows", "carry"):
            continue
        found = _accumulated(accumulator, values, of_row, counts)
        if found is None:
            return None
        columns[_name(accumulator)] = found
    last = last_rows(of_row, groups)
    order = np.argsort(last)
    rows = batch.rows.take(pa.array(last[order]))
    arrays = [*rows.columns, *[pa.array(column[order]) for column in columns.values()]]
    schema = pa.schema([*rows.schema, *[pa.field(name, pa.int64()) for name in columns]])
    return batch.only(pa.RecordBatch.from_arrays(arrays, schema=schema), last[order])


def _name(accumulator: Accumulator) -> str:
    return f"{PARTIAL}{accumulator.kind} {accumulator.column or ''}"


def _accumulated(accumulator: Accumulator, values: BatchValues, of_row: Ints, counts: Ints) -> Values | None:
    """Accumulator of each group, without earlier rows. None: a sum may leave 64 bits. `counts`: rows of each group."""
    assert accumulator.column is not None
    groups = len(counts)
    if accumulator.kind == "values":
        valid = values.valid(accumulator.column)
        return counts if valid is None else np.bincount(of_row[valid], minlength=groups)
    each = values.values(accumulator)
    if accumulator.kind == "sum":
        most = greatest_magnitude(each) * len(each)
        if most >= _TOO_FAR:
            return None
        if most <= _EXACT:
            return np.bincount(of_row, weights=each, minlength=groups).astype(np.int64)
    found = np.full(groups, accumulator.initial, np.int64)
    accumulator.ufunc.at(found, of_row, each)
    return found


def merge_partial_rows(
    plan: AggregationPlan, columns: Columns, row_ids: Ints, rows: pa.RecordBatch, left: Left
) -> None:
    """Merges partial rows into the entries `row_ids` of `columns`, which may repeat."""
    count = rows.num_rows
    others = {name: np.full(count, initial, columns[name].dtype) for name, (_, initial) in plan.storage().items()}
    names = frozenset(rows.schema.names)
    for accumulator in plan.accumulators:
        if _name(accumulator) in names:
            others[accumulator.name] = rows.column(_name(accumulator)).to_numpy()
    if not merge_at_once(plan, columns, row_ids, others, np.arange(count)):
        for row in range(count):  # merged in order, since a key may occur twice
            merge_columns(plan, columns, row_ids[row : row + 1], others, np.arange(row, row + 1), left)


def add_any_order(plan: AggregationPlan, columns: Columns, row_ids: Ints, values: BatchValues) -> bool:
    """Returns whether the order does not matter for these entries and rows, partial or not (see `in_any_order`)."""
    if not is_partial(values.rows.schema):
        return in_any_order(plan, columns, row_ids, values.values)
    names = frozenset(values.rows.schema.names)
    none = np.zeros(0, np.int64)

    def sums(accumulator: Accumulator) -> Values:
        name = _name(accumulator)
        return values.rows.column(name).to_numpy() if name in names else none

    return in_any_order(plan, columns, row_ids, sums)


def first_of_groups(batch: Batch, of_row: Ints, groups: int) -> Batch:
    """The first row of each group, in order, as a partial row."""
    first = first_rows(of_row, groups)
    order = np.argsort(first)
    rows = batch.rows.take(pa.array(first[order]))
    counts = pa.array(np.bincount(of_row, minlength=groups)[order])
    return batch.only(rows.append_column(_ROWS, counts), first[order])


def rows_of(rows: pa.RecordBatch) -> Ints:
    """Number of rows that each row stands for."""
    if not is_partial(rows.schema):
        return np.ones(rows.num_rows, np.int64)
    counted: Ints = rows.column(_ROWS).to_numpy()
    return counted


def refuse_partial_rows(schema: pa.Schema, where: str) -> None:
    """Raises `InvalidJob` for stored partial rows that reach a step which does not merge them."""
    if is_partial(schema):
        raise InvalidJob(
            f"{where}: the checkpoint has rows in flight that are aggregated in part, which this step does not take: "
            "start the version of the program that wrote it, end it with stop(), and start the new one from there"
        )
