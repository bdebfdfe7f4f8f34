"""Partial aggregates: rows that each stand for several rows of a key, from exchange to merge.
Design: docs/design/combiner.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import first_rows, greatest_magnitude, last_of_groups
from barrier_runtime.operators.aggregation.accumulators import SumBounds
from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left
from barrier_runtime.operators.aggregation.frequent_keys import FrequentKeys, Numbered
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.partial_schema import PARTIAL, is_partial
from barrier_runtime.operators.aggregation.plan import AggregationPlan, plan_aggregates
from barrier_runtime.operators.aggregation.state_columns import Accumulator, Columns, Ints, Values
from barrier_runtime.state.errors import InvalidJob

# Merging of two entries of an aggregation, whose rows count as earlier and later.


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


_TOO_FAR = 1 << 63
_ROWS = f"{PARTIAL}rows "
_COUNTS = ("rows", "values", "carry")
_START_THE_OLD = "start the version of the program that wrote it, end it with stop(), and start the new one from there"


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


def partial_rows(plan: AggregationPlan, batch: Batch, keys: Numbered, where: str) -> Batch | None:
    """Returns a partial row per key, in the order of the last rows. None: a sum may leave 64 bits."""
    values = BatchValues(batch.rows, where)
    columns: dict[str, Values] = {_ROWS: keys.rows}
    for accumulator in plan.accumulators:
        if accumulator.kind in ("rows", "carry"):
            continue
        found = _accumulated(accumulator, values, keys.of_row, keys.rows)
        if found is None:
            return None
        columns[_name(accumulator)] = found
    rows = batch.rows.take(pa.array(keys.last))
    arrays = [*rows.columns, *[pa.array(keys.of_last(column)) for column in columns.values()]]
    schema = pa.schema([*rows.schema, *[pa.field(name, pa.int64()) for name in columns]])
    return batch.only(pa.RecordBatch.from_arrays(arrays, schema=schema), keys.last)


def _name(accumulator: Accumulator) -> str:
    return f"{PARTIAL}{accumulator.kind} {accumulator.column or ''}"


def _accumulated(accumulator: Accumulator, values: BatchValues, of_row: Ints, counts: Ints) -> Values | None:
    assert accumulator.column is not None
    if accumulator.kind == "values":
        valid = values.valid(accumulator.column)
        return counts if valid is None else np.bincount(of_row[valid], minlength=len(counts))
    each = values.values(accumulator)
    if accumulator.kind == "sum" and greatest_magnitude(each) * len(each) >= _TOO_FAR:
        return None
    found = np.full(len(counts), accumulator.initial, np.int64)
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
    lacking = [each.column for each, name in named if each.kind not in _COUNTS and name not in names]
    for column in (*lacking, *plan.decimal_sums):
        if f"{PARTIAL}values {column}" in names:  # that count would be taken for one of the new aggregate's values
            raise InvalidJob(
                f"an aggregate of {column!r} was added, and the checkpoint has rows in flight that are aggregated in "
                f"part without it: {_START_THE_OLD}"
            )
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


def first_of_keys(batch: Batch, keys: Numbered) -> Batch:
    """Returns the first row of each key, in order, as a partial row."""
    first = keys.of_last(first_rows(keys.of_row, len(keys.rows)))
    order = np.argsort(first)
    rows = batch.rows.take(pa.array(first[order]))
    counts = pa.array(keys.of_last(keys.rows)[order])
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
            f"{_START_THE_OLD}"
        )


# The combiner: turns a batch into partial rows before the exchange by key.
#
# The measured share of different keys decides whether to combine. Design: docs/design/combiner.md.

FEWEST = 512  # rows of a batch from which combining pays
_SAMPLE = 16_384
_ON, _OFF = 0.25, 0.28  # shares of different keys at which combining begins and ends
_TRIED, _TRY = 0.24, 0.55  # a larger batch, if a sample has at most the second share: at most the first begins
_PAUSE = 64  # batches between two samples
_LONG_PAUSE = 512  # after a larger batch in vain
_MORE = 4  # a batch with so many times the rows of the last sample is sampled at once
_NARROW = 64  # bytes per row of batches that may be larger

# batch, key columns -> columns by which rows are combined; None: the batch is not combined
CombinedBy: TypeAlias = Callable[[Batch, list[pa.Array]], list[pa.Array] | None]


class _Share:
    def __init__(self) -> None:
        self._is_on = False
        self._pause = 0
        self._sampled = 0  # rows of the last sample
        self.tries = False  # the next batch, which may be larger, decides

    def looks(self, rows: int) -> bool:
        """Small batches, such as the first batches of a source, do not decide on batches of many more rows."""
        if self._is_on or self.tries or not self._pause or rows >= min(_SAMPLE, _MORE * self._sampled) > self._sampled:
            return True
        self._pause -= 1
        return False

    def is_low(self, keys: Sequence[pa.Array]) -> bool:
        if self._is_on or self.tries:
            return True
        sample = [column.slice(0, _SAMPLE) for column in keys]
        rows, different = len(sample[0]), len(last_of_groups(sample)[1])
        self._is_on = different <= _ON * rows
        self.tries = not self._is_on and rows == _SAMPLE and different <= _TRY * rows
        self._pause, self._sampled = _PAUSE, rows
        return self._is_on

    def stays_low(self, rows: int, different: int) -> bool:
        self._is_on = different <= (_TRIED if self.tries else _OFF) * rows
        if self.tries:
            self.tries, self._pause = False, _LONG_PAUSE
        return self._is_on


def _is_narrow(batch: Batch) -> bool:
    is_narrow: bool = batch.rows.nbytes <= _NARROW * batch.count
    return is_narrow


class Combiner:
    mode: ClassVar[Literal["chosen", "on", "off"]] = "chosen"  # tests force the others

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, AnyAggregate],
        where: str,
        by: CombinedBy | None = None,
    ) -> None:
        self._keys = tuple(keys)
        self._by = by
        self._aggregates = aggregates
        self._where = where
        self._share = _Share()
        self._frequent = FrequentKeys()
        self.takes_more = False
        self._schema: pa.Schema | None = None
        self._plan: AggregationPlan | None = None  # None: rows of `_schema` are not combined

    def combined(self, batch: Batch) -> Batch:
        chosen = self.mode == "chosen"
        self.takes_more = False
        if self.mode == "off" or not batch.count or (chosen and batch.count < FEWEST):
            return batch
        if chosen and not self._share.looks(batch.count):
            return batch
        keys = self._keys_of(batch) if self._combines(batch.schema) else None
        if keys is None or (chosen and not self._share.is_low(keys)):
            self.takes_more = self._share.tries and _is_narrow(batch)
            return batch
        numbered = self._frequent.numbered(keys)
        if chosen and not self._share.stays_low(batch.count, len(numbered.last)):
            return batch
        partial = self._partial_rows(batch, numbered)
        self.takes_more = partial is not None and _is_narrow(batch)
        return partial or batch

    def _keys_of(self, batch: Batch) -> list[pa.Array] | None:
        if not set(self._keys) <= set(batch.schema.names):
            return None
        keys = [batch.rows.column(key) for key in self._keys]
        return keys if self._by is None else self._by(batch, keys)

    def _partial_rows(self, batch: Batch, keys: Numbered) -> Batch | None:
        assert self._plan is not None
        return partial_rows(self._plan, batch, keys, self._where)

    def _combines(self, schema: pa.Schema) -> bool:
        if self._schema is None or not (schema is self._schema or schema.equals(self._schema)):
            self._schema, self._plan = schema, None
            names = schema.names
            if not any(name.startswith(PARTIAL) for name in names):
                plan = plan_aggregates(self._aggregates, schema, self._where)
                self._plan = plan if may_be_in_any_order(plan) else None
        return self._plan is not None
