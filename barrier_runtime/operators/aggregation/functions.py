"""Built-in aggregates, as SQL means them, and the accumulators they are made of: numpy columns of a state table.

An aggregate is a function of a few accumulators; aggregates over the same column share them (`mean` and `sum_` use one
sum). Accumulators are updated for a whole batch at once. Nulls are ignored; an aggregate over no value is null, `count`
is 0. NaN is the greatest number, as in Spark. Float sums add in row order. Integer sums are exact: a sum's accumulator
has 64 bits, and a *carry* beside it counts how often they were left, so that the sum is `sum + carry * 2**64`. Means
and widened sums have one; a plain `sum_` must stay within 64 bits (see `accumulators`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.errors import InvalidJob

Kind = Literal["count", "sum", "mean", "min", "max"]
AccumulatorKind = Literal["rows", "values", "sum", "min", "max", "carry"]
Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]

_INT64, _FLOAT64 = pa.int64(), pa.float64()
WIDE = pa.decimal128(38, 0)  # type of a widened sum

ROWS = "rows"  # name of the accumulator that counts rows; every table has it


@dataclass(frozen=True)
class Aggregate:
    """Made by `count`, `sum_`, `mean`, `min_`, `max_`. `column` is None for `count()` of rows."""

    kind: Kind
    column: str | None = None
    widen: bool = False  # sums only

    def __str__(self) -> str:
        return f"{self.kind}({self.column or '*'}{', widen=True' if self.widen else ''})"


def count(column: str | None = None) -> Aggregate:
    """Number of rows; with a column, of its values that are not null."""
    return Aggregate("count", column)


def sum_(column: str, *, widen: bool = False) -> Aggregate:
    """Sum of an integer column (int64) or float column (float64). An integer sum that leaves 64 bits ends the job, as
    Spark's does; with `widen` it is a decimal128(38, 0), which has room for every sum."""
    return Aggregate("sum", column, widen)


def mean(column: str) -> Aggregate:
    """Average (float64). That of integers is exact up to its one rounding, however large their sum."""
    return Aggregate("mean", column)


def min_(column: str) -> Aggregate:
    """Smallest value of a number, date or timestamp column, in the column's type."""
    return Aggregate("min", column)


def max_(column: str) -> Aggregate:
    """Greatest value of a number, date or timestamp column, in the column's type."""
    return Aggregate("max", column)


@dataclass(frozen=True)
class Accumulator:
    """One numpy column of state. `name` is its name in the state table and never changes."""

    name: str
    kind: AccumulatorKind
    column: str | None
    dtype: str  # "int64" or "float64"

    @property
    def initial(self) -> int | float:
        """What nothing adds up to: updating with it changes nothing."""
        if self.dtype == "float64":
            return {"sum": 0.0, "min": float("nan"), "max": float("-inf")}[self.kind]
        return {"min": 2**63 - 1, "max": -(2**63)}.get(self.kind, 0)

    @property
    def sums_integers(self) -> bool:
        return self.kind == "sum" and self.dtype == "int64"

    @property
    def ufunc(self) -> np.ufunc:
        """How two values become one. `fmin` skips NaN and `maximum` keeps it: NaN is the greatest number."""
        if self.kind == "min":
            return np.fmin
        return np.maximum if self.kind == "max" else np.add


@dataclass(frozen=True)
class Output:
    """One output column and the accumulators it is computed from."""

    name: str
    aggregate: Aggregate
    type: pa.DataType
    value: Accumulator
    values: Accumulator | None  # how many values are not null; None where null cannot be
    carry: Accumulator | None = None  # how often `value` left 64 bits; None where it cannot

    def column(self, accumulators: Columns) -> pa.Array:
        """Result per entry of `accumulators` (arrays of equal length, by accumulator name)."""
        found = accumulators[self.value.name]
        if self.values is None:
            return pa.array(found, self.type)
        counted = accumulators[self.values.name]
        absent = counted == 0
        mask = absent if absent.any() else None
        if self.aggregate.kind == "mean":
            carry = self._carry(accumulators)
            if carry is not None:
                found = found + carry * 2.0**64
            return pa.array(found / np.maximum(counted, 1), self.type, mask=mask)
        if self.carry is not None:
            return _decimals(found, self._carry(accumulators), mask)
        if self.value.dtype == "float64":
            result = pa.array(found, mask=mask)
            return result if self.type == _FLOAT64 else result.cast(self.type)
        if mask is not None:
            found = np.where(absent, 0, found)
        return from_accumulator(pa.array(found, mask=mask), self.type)

    def _carry(self, accumulators: Columns) -> npt.NDArray[np.int64] | None:
        """None when it is 0 in all entries, or given for none."""
        carry = None if self.carry is None else accumulators.get(self.carry.name)
        return carry if carry is not None and np.count_nonzero(carry) else None


@dataclass(frozen=True)
class AggregationPlan:
    """Aggregates bound to a schema: the accumulators to keep and the columns to give. `within_64_bits`: columns whose
    sum some output gives as int64."""

    accumulators: tuple[Accumulator, ...]
    outputs: tuple[Output, ...]
    within_64_bits: frozenset[str]

    def storage(self) -> dict[str, tuple[str, int | float]]:
        """Columns of the columnar table."""
        return {accumulator.name: (accumulator.dtype, accumulator.initial) for accumulator in self.accumulators}

    def added(self) -> frozenset[str]:
        """Columns that state of older releases lacks."""
        return frozenset(accumulator.name for accumulator in self.accumulators if accumulator.kind == "carry")

    def fields(self) -> list[pa.Field]:
        return [pa.field(output.name, output.type) for output in self.outputs]


def plan_aggregates(aggregates: Mapping[str, Aggregate], schema: pa.Schema, where: str) -> AggregationPlan:
    """Bind; raises `InvalidJob` for unknown columns and types that cannot be aggregated."""
    accumulators: dict[str, Accumulator] = {ROWS: Accumulator(ROWS, "rows", None, "int64")}
    carries: dict[str, Accumulator] = {}
    within_64_bits = set()

    def carry(column: str, dtype: str) -> Accumulator | None:
        return None if dtype == "float64" else carries.setdefault(column, _carry(column))

    def accumulator(kind: AccumulatorKind, column: str, dtype: str) -> Accumulator:
        made = Accumulator(f"{kind}:{column}", kind, column, dtype)
        return accumulators.setdefault(made.name, made)

    outputs = []
    for name, aggregate in aggregates.items():
        column = aggregate.column
        if column is None:
            outputs.append(Output(name, aggregate, pa.int64(), accumulators[ROWS], None))
            continue
        if column not in schema.names:
            raise InvalidJob(
                f"{where}: {name}={aggregate} needs a column {column!r}: the rows have {', '.join(schema.names)}"
            )
        if aggregate.kind == "count":
            outputs.append(Output(name, aggregate, pa.int64(), accumulator("values", column, "int64"), None))
            continue
        kind = schema.field(column).type
        dtype = _accumulator_dtype(kind, aggregate, name, where)
        values = accumulator("values", column, "int64")
        if aggregate.kind == "mean":
            total = accumulator("sum", column, dtype)
            outputs.append(Output(name, aggregate, pa.float64(), total, values, carry(column, dtype)))
        elif aggregate.widen:
            total = accumulator("sum", column, dtype)
            outputs.append(Output(name, aggregate, WIDE, total, values, carry(column, dtype)))
        elif aggregate.kind == "sum":
            if dtype == "int64":
                within_64_bits.add(column)
            total = accumulator("sum", column, dtype)
            outputs.append(Output(name, aggregate, _INT64 if dtype == "int64" else _FLOAT64, total, values))
        else:
            outputs.append(Output(name, aggregate, kind, accumulator(aggregate.kind, column, dtype), values))
    return AggregationPlan((*accumulators.values(), *carries.values()), tuple(outputs), frozenset(within_64_bits))


def sum_left(where: str, column: str, key: tuple[Any, ...]) -> InvalidJob:
    shown = repr(key[0] if len(key) == 1 else key)
    return InvalidJob(
        f"{where}: sum_({column!r}) of key {shown[:200]} leaves 64 bits: use sum_({column!r}, widen=True), "
        f"whose result is {WIDE}, or cast the column to float64 in a select() before"
    )


def _carry(column: str) -> Accumulator:
    return Accumulator(f"carry:{column}", "carry", column, "int64")


def _accumulator_dtype(kind: pa.DataType, aggregate: Aggregate, name: str, where: str) -> str:
    if aggregate.widen and pa.types.is_floating(kind):
        raise InvalidJob(
            f"{where}: {name}={aggregate} is for integers, but {aggregate.column!r} is {kind}: leave widen out"
        )
    if pa.types.is_floating(kind):
        return "float64"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int64"
    if aggregate.kind in ("min", "max") and pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return "int64"
    raise InvalidJob(
        f"{where}: {name}={aggregate} cannot be computed of type {kind}: cast the column to a number"
        + (", date or timestamp" if aggregate.kind in ("min", "max") else "")
        + " in a select() before, or use process()"
    )


def to_accumulator(array: pa.Array, dtype: str) -> pa.Array:
    """A column as int64 or float64, nulls kept."""
    kind = array.type
    if kind in (_INT64, _FLOAT64):
        return array
    if dtype == "float64":
        return array.cast(_FLOAT64)
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    return array.cast(pa.int64())


def from_accumulator(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The way back: int64 to the column's own type."""
    if kind == _INT64:
        return array
    if pa.types.is_temporal(kind):
        return array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return array.cast(kind)


def _decimals(
    low: npt.NDArray[np.int64], carry: npt.NDArray[np.int64] | None, absent: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """`low + carry * 2**64` as decimals: two words of 64 bits each, in two's complement."""
    high = low >> 63
    words = np.stack([low, high if carry is None else high + carry], axis=1)
    valid = None if absent is None else pa.array(~absent).buffers()[1]
    return pa.Array.from_buffers(WIDE, len(low), [valid, pa.py_buffer(words)])
