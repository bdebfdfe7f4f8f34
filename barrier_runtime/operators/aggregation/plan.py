"""Aggregates bound to a stream's columns: state, and results from state.

Aggregates over the same column share state. The *carry* of an integer sum, for means and widened sums, counts how often
the accumulator left 64 bits: the sum is `sum + carry * 2**64`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.grouping import greatest_magnitude
from barrier_runtime.data.schemas import meant
from barrier_runtime.operators.aggregation.batch_values import Composite, Left
from barrier_runtime.operators.aggregation.functions import Aggregate
from barrier_runtime.operators.aggregation.kinds.cell_outputs import cell_output
from barrier_runtime.operators.aggregation.kinds.cells import Cells, Reader
from barrier_runtime.operators.aggregation.kinds.decimal_sums import DecimalSum
from barrier_runtime.operators.aggregation.kinds.extremes import Extremes
from barrier_runtime.operators.aggregation.kinds.moments import Moments
from barrier_runtime.operators.aggregation.kinds.picks import Pick
from barrier_runtime.operators.aggregation.own import AnyAggregate, ColumnAggregate, OwnAggregate, RowAggregate
from barrier_runtime.operators.aggregation.own_state import OwnColumns, row_cells
from barrier_runtime.operators.aggregation.state_columns import (
    ROWS,
    Accumulator,
    AccumulatorKind,
    Columns,
    Initial,
    Ints,
    Values,
    decimals,
    from_words,
    is_decimal,
    is_text_or_bytes,
    word_dtypes,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import shortened

_INT64, _FLOAT64, _BOOL = pa.int64(), pa.float64(), pa.bool_()
_MOST_DIGITS = 38
_EXPRESSION = '; an expression is a column after .with_columns(x="v * 2")'
_EXACT_INTEGER = 1 << 53
WIDE = pa.decimal128(_MOST_DIGITS, 0)


@dataclass(frozen=True)
class Output:
    name: str
    aggregate: Aggregate
    type: pa.DataType
    value: Accumulator
    values: Accumulator | None  # number of values that are not null; None: nulls are impossible
    carry: Accumulator | None = None  # how often `value` left 64 bits; None: impossible

    def column(self, accumulators: Columns, left: Left) -> pa.Array:
        """`left`: makes the error for an entry (by index) whose result does not fit."""
        found = accumulators[self.value.name]
        if self.values is None:
            return pa.array(found, self.type)
        if self.carry is not None and self.aggregate.kind == "sum" and not self.aggregate.widen:
            carry = self._carry(accumulators)
            if carry is not None:
                raise left(self.value.column or "", int(np.argmax(carry != 0)))
        counted = accumulators[self.values.name]
        absent = counted == 0
        mask = absent if absent.any() else None
        if self.aggregate.kind == "mean":
            return pa.array(_means(found, self._carry(accumulators), counted), self.type, mask=mask)
        if self.carry is not None:
            high = found >> 63
            carry = self._carry(accumulators)
            return decimals(found, high if carry is None else high + carry, WIDE, mask)
        return from_words((found,), self.type, mask)

    def _carry(self, accumulators: Columns) -> npt.NDArray[np.int64] | None:
        carry = None if self.carry is None else accumulators.get(self.carry.name)
        return carry if carry is not None and np.count_nonzero(carry) else None


def _means(sums: Values, carries: Ints | None, counted: Ints) -> npt.NDArray[np.float64]:
    """Returns means; those of integers have a single rounding.
    Beyond 2^53 integers are divided, because numpy would round a sum to a double first. The remainder then decides on
    which side of the middle of two doubles the mean lies: as a double if the whole part is an exact double and not less
    than the divisor, otherwise as one bit.
    """
    divisors = np.maximum(counted, 1)
    means: npt.NDArray[np.float64] = sums / divisors
    if sums.dtype == np.float64 or (carries is None and greatest_magnitude(sums) <= _EXACT_INTEGER):
        return means
    magnitudes, by = np.abs(sums).view(np.uint64), divisors.view(np.uint64)
    wholes, rests = np.divmod(magnitudes, by)
    far = np.where(rests > 0, (2 * wholes + 1) / 2.0, wholes)
    exact = np.where(wholes < _EXACT_INTEGER, wholes + rests / by, far)
    beyond = magnitudes > _EXACT_INTEGER
    means = np.where(beyond, np.copysign(exact, sums), means)
    carried = np.zeros(len(sums), np.int64) if carries is None else carries
    for at in np.flatnonzero((carried != 0) | (beyond & (wholes < by))).tolist():
        means[at] = (int(sums[at]) + (int(carried[at]) << 64)) / int(divisors[at])
    return means


@dataclass(frozen=True)
class CompositeOutput:
    name: str
    aggregate: AnyAggregate
    type: pa.DataType
    read: Callable[[Columns, Left], pa.Array]

    def column(self, accumulators: Columns, left: Left) -> pa.Array:
        return self.read(accumulators, left)


AnyOutput: TypeAlias = Output | CompositeOutput


@dataclass(frozen=True)
class AggregationPlan:
    """`within_64_bits`: columns whose sum an output gives as int64. `decimal_sums`: by column."""

    accumulators: tuple[Accumulator, ...]
    composites: tuple[Composite, ...]
    outputs: tuple[AnyOutput, ...]
    within_64_bits: frozenset[str]
    decimal_sums: Mapping[str, DecimalSum]

    def storage(self) -> dict[str, tuple[str, Initial]]:
        """Columns of the columnar table, with those unknown to older releases last."""
        added = self.added()
        simple: dict[str, tuple[str, Initial]] = {each.name: (each.dtype, each.initial) for each in self.accumulators}
        columns = {name: column for name, column in simple.items() if name not in added}
        for composite in self.composites:
            columns |= composite.storage()
        return columns | simple

    def added(self) -> frozenset[str]:
        return frozenset(accumulator.name for accumulator in self.accumulators if accumulator.kind == "carry")

    def fields(self) -> list[pa.Field]:
        return [pa.field(output.name, output.type) for output in self.outputs]

    def left(self, where: str, column: str, key: tuple[Any, ...], aggregate: str) -> InvalidJob:
        shown = shortened(repr(key[0] if len(key) == 1 else key))
        if aggregate == "count_distinct":
            return InvalidJob(
                f"{where}: count_distinct({column!r}) of key {shown} has more distinct values than its limit: give a "
                "higher one (limit=), which goes on with the same state, or approximate=True to a step of another name"
            )
        sums = self.decimal_sums.get(column)
        if sums is None:
            return InvalidJob(
                f"{where}: sum_({column!r}) of key {shown} leaves 64 bits: use sum_({column!r}, widen=True), "
                f"whose result is {WIDE}, or cast the column to float64 in a select() before"
            )
        kind = sums.mean_type if aggregate == "mean" else sums.type
        remedy = "to float64" if kind.precision == _MOST_DIGITS else "to a decimal of more digits, or float64,"
        return InvalidJob(
            f"{where}: {aggregate}({column!r}) of key {shown} leaves {kind}: cast the column {remedy} in a select() "
            "before"
        )


def plan_aggregates(
    aggregates: Mapping[str, AnyAggregate], schema: pa.Schema, where: str, stored: Collection[str] = ()
) -> AggregationPlan:
    """Raises `InvalidJob` for unknown columns and unsupported types.
    `stored`: columns of the restored state.
    """
    planner = _Planner(schema, where, stored)
    outputs = tuple(planner.output(name, aggregate) for name, aggregate in aggregates.items())
    return AggregationPlan(
        (*planner.accumulators.values(), *planner.carries.values()),
        tuple(composite for _, composite in sorted(planner.composites.items())),
        outputs,
        frozenset(planner.within_64_bits),
        planner.decimal_sums,
    )


class _Planner:
    def __init__(self, schema: pa.Schema, where: str, stored: Collection[str]) -> None:
        self._stored = stored
        self._schema = schema
        self._where = where
        self.accumulators: dict[str, Accumulator] = {ROWS: Accumulator(ROWS, "rows", None, "int64")}
        self.carries: dict[str, Accumulator] = {}
        self.composites: dict[str, Composite] = {}
        self.within_64_bits: set[str] = set()
        self.decimal_sums: dict[str, DecimalSum] = {}

    def output(self, name: str, aggregate: AnyAggregate) -> AnyOutput:
        for used in aggregate.columns:
            if used not in self._schema.names:
                raise InvalidJob(
                    f"{self._where}: {name}={aggregate} needs a column {used!r}{meant(used, self._schema.names)}: the "
                    f"rows have {', '.join(self._schema.names)}{'' if used.isidentifier() else _EXPRESSION}"
                )
        if isinstance(aggregate, OwnAggregate):
            return self._own(name, aggregate)
        column = aggregate.column
        if column is None:
            return Output(name, aggregate, _INT64, self.accumulators[ROWS], None)
        if aggregate.kind == "count":
            return Output(name, aggregate, _INT64, self._accumulator("values", column, "int64"), None)
        kind = self._schema.field(column).type
        self._check(name, aggregate)
        cells = cell_output(aggregate, kind)
        if cells is not None:
            return self._of_cells(name, aggregate, *cells)
        if aggregate.kind in ("first", "last", "arg_min", "arg_max"):
            return self._pick(name, aggregate, column, kind)
        if aggregate.kind in ("largest", "smallest"):
            return self._extremes(name, aggregate, column, kind)
        if aggregate.kind in ("variance", "var_pop", "stddev", "stddev_pop"):
            return self._statistic(name, aggregate, column)
        if is_text_or_bytes(kind):
            return self._extreme(name, aggregate, column, kind)
        if is_decimal(kind):
            return self._of_decimals(name, aggregate, column, kind)
        return self._of_numbers(name, aggregate, column, kind)

    def _of_numbers(self, name: str, aggregate: Aggregate, column: str, kind: pa.DataType) -> Output:
        (dtype,) = word_dtypes(kind)
        if aggregate.kind in ("min", "all"):
            values = self._values_of(f"min:{column}", column)
            return Output(name, aggregate, kind, self._accumulator("min", column, dtype), values)
        if aggregate.kind in ("max", "any"):
            values = self._values_of(f"max:{column}", column)
            return Output(name, aggregate, kind, self._accumulator("max", column, dtype), values)
        values = self._values_of(f"sum:{column}", column)
        total = self._accumulator("sum", column, dtype)
        if aggregate.kind == "mean" or aggregate.widen:
            result = WIDE if aggregate.widen else _FLOAT64
            return Output(name, aggregate, result, total, values, self._carry(column, dtype))
        if dtype == "int64":
            self.within_64_bits.add(column)
            # An earlier mean or widened sum may have left 64 bits.
            carry = self._carry(column, dtype) if f"carry:{column}" in self._stored else None
            return Output(name, aggregate, _INT64, total, values, carry)
        return Output(name, aggregate, _FLOAT64, total, values)

    def _of_decimals(self, name: str, aggregate: Aggregate, column: str, kind: pa.DataType) -> CompositeOutput:
        if aggregate.kind in ("min", "max"):
            return self._extreme(name, aggregate, column, kind)
        total = self.decimal_sums[column] = DecimalSum(column, kind)
        counted = self._values_of(total.name, column).name
        self.composites[total.name] = total
        if aggregate.kind == "sum":
            return CompositeOutput(
                name, aggregate, total.type, lambda accumulators, left: total.sum(accumulators, accumulators[counted])
            )
        return CompositeOutput(
            name,
            aggregate,
            total.mean_type,
            lambda accumulators, left: total.mean(accumulators, accumulators[counted], left),
        )

    def _extreme(self, name: str, aggregate: Aggregate, column: str, kind: pa.DataType) -> CompositeOutput:
        extreme = Pick("min" if aggregate.kind == "min" else "max", column, kind, by=column, by_kind=kind)
        self.composites[extreme.name] = extreme
        return CompositeOutput(name, aggregate, kind, lambda accumulators, left: extreme.result(accumulators))

    def _extremes(self, name: str, aggregate: Aggregate, column: str, kind: pa.DataType) -> CompositeOutput:
        assert aggregate.limit is not None
        extremes = Extremes(column, kind, aggregate.limit, aggregate.kind == "largest")
        self.composites[extremes.name] = extremes
        return CompositeOutput(
            name, aggregate, pa.list_(kind), lambda accumulators, left: extremes.result(accumulators)
        )

    def _pick(self, name: str, aggregate: Aggregate, column: str, kind: pa.DataType) -> CompositeOutput:
        by = aggregate.by
        if by is not None:
            pick = Pick("min" if aggregate.kind == "arg_min" else "max", column, kind, by, self._schema.field(by).type)
        else:
            pick = Pick("first" if aggregate.kind == "first" else "last", column, kind, known=aggregate.ignore_nulls)
        self.composites[pick.name] = pick
        return CompositeOutput(name, aggregate, kind, lambda accumulators, left: pick.result(accumulators))

    def _own(self, name: str, aggregate: OwnAggregate) -> CompositeOutput:
        if isinstance(aggregate, RowAggregate):
            return self._of_cells(name, aggregate, *row_cells(aggregate, name, self._where))
        assert isinstance(aggregate, ColumnAggregate), "there are two forms"
        columns = OwnColumns.of(aggregate, name, self._where)
        self.composites[columns.name] = columns
        return CompositeOutput(name, aggregate, aggregate.type, lambda accumulators, left: columns.result(accumulators))

    def _of_cells(self, name: str, aggregate: AnyAggregate, cells: Cells, reader: Reader) -> CompositeOutput:
        kept = self.composites.setdefault(cells.name, cells)
        assert isinstance(kept, Cells), "its name says so"
        if getattr(kept.kind, "limit", 0) != getattr(cells.kind, "limit", 0):
            raise InvalidJob(
                f"{self._where}: {name}={aggregate} has another limit than the one before: give both the same"
            )
        kept.readers[reader.key] = reader
        return CompositeOutput(
            name, aggregate, reader.type, lambda accumulators, left: kept.result(accumulators, reader.key)
        )

    def _statistic(self, name: str, aggregate: Aggregate, column: str) -> CompositeOutput:
        moments = Moments(column)
        statistic: Any = aggregate.kind
        self.composites[moments.name] = moments
        return CompositeOutput(
            name, aggregate, _FLOAT64, lambda accumulators, left: moments.result(accumulators, statistic)
        )

    def _accumulator(self, kind: AccumulatorKind, column: str, dtype: str) -> Accumulator:
        made = Accumulator(f"{kind}:{column}", kind, column, dtype)
        return self.accumulators.setdefault(made.name, made)

    def _values_of(self, accumulator: str, column: str) -> Accumulator:
        """Returns the count of values, which accumulators of a column share.
        An accumulator added to restored state that already counts the column gets a separate count, which also starts
        at the restore.
        """
        own, shared = f"values.{accumulator}", f"values:{column}"
        alone = own in self._stored or (shared in self._stored and accumulator not in self._stored)
        name = own if alone else shared
        return self.accumulators.setdefault(name, Accumulator(name, "values", column, "int64"))

    def _carry(self, column: str, dtype: str) -> Accumulator | None:
        if dtype == "float64":
            return None
        return self.carries.setdefault(column, Accumulator(f"carry:{column}", "carry", column, "int64"))

    def _check(self, name: str, aggregate: Aggregate) -> None:
        for column in aggregate.columns:
            kind = self._schema.field(column).type
            if aggregate.widen and (pa.types.is_floating(kind) or is_decimal(kind)):
                raise InvalidJob(
                    f"{self._where}: {name}={aggregate} is for integers, but {column!r} is {kind}: leave widen out"
                )
            takes, remedy = _TAKES[aggregate.kind]
            if not takes(kind):
                raise InvalidJob(
                    f"{self._where}: {name}={aggregate} cannot be computed of type {kind} (column {column!r}): "
                    f"{remedy}, or use process()"
                )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_decimal(kind))


_Takes: TypeAlias = tuple[Callable[[pa.DataType], bool], str]
_NUMBERS: _Takes = _is_number, "cast the column to a number in a select() before"
_SUMMED: _Takes = lambda kind: _is_number(kind) or kind == _BOOL, _NUMBERS[1]
_HELD: _Takes = (
    lambda kind: bool(word_dtypes(kind)),
    "its state holds numbers, booleans, decimals of up to 38 digits, times, text and bytes: select() a column of such "
    "a type before",
)
_OF_ONE_WORD: _Takes = (
    lambda kind: word_dtypes(kind) in (("int64",), ("float64",)),
    "cast the column to a number or a time in a select() before",
)
_BOOLEANS: _Takes = lambda kind: kind == _BOOL, "compute a boolean column in a select() before"
_TAKES: dict[str, _Takes] = {
    "sum": _SUMMED,
    "mean": _SUMMED,
    "min": _HELD,
    "max": _HELD,
    "any": _BOOLEANS,
    "all": _BOOLEANS,
    "variance": _NUMBERS,
    "var_pop": _NUMBERS,
    "stddev": _NUMBERS,
    "stddev_pop": _NUMBERS,
    "first": _HELD,
    "last": _HELD,
    "arg_min": _HELD,
    "arg_max": _HELD,
    "collect_list": _HELD,
    "collect_set": _HELD,
    "count_distinct": _HELD,
    "quantile": _NUMBERS,
    "quantiles": _NUMBERS,
    "top_k": _HELD,
    "largest": _OF_ONE_WORD,
    "smallest": _OF_ONE_WORD,
}
