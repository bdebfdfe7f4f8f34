"""Built-in aggregates, as SQL means them, and the registers (numpy columns of a dense state table) they are made of.

An aggregate is a function of a few registers; aggregates over the same column share them (`mean` and `sum_` use one
sum). Registers are updated for a whole batch at once. Nulls are ignored; an aggregate over no value is null, `count`
is 0. NaN is the greatest number, as in Spark. Integer sums are exact (64 bits); float sums add in row order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.errors import InvalidJob

Kind = Literal["count", "sum", "mean", "min", "max"]
RegisterKind = Literal["rows", "values", "sum", "min", "max"]
Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]

_INT64, _FLOAT64 = pa.int64(), pa.float64()

ROWS = "rows"  # name of the register that counts rows; every table has it


@dataclass(frozen=True)
class Aggregate:
    """Made by `count`, `sum_`, `mean`, `min_`, `max_`. `column` is None for `count()` of rows."""

    kind: Kind
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}({self.column or '*'})"


def count(column: str | None = None) -> Aggregate:
    """Number of rows; with a column, of its values that are not null."""
    return Aggregate("count", column)


def sum_(column: str) -> Aggregate:
    """Sum of an integer column (int64) or float column (float64)."""
    return Aggregate("sum", column)


def mean(column: str) -> Aggregate:
    """Average (float64)."""
    return Aggregate("mean", column)


def min_(column: str) -> Aggregate:
    """Smallest value of a number, date or timestamp column, in the column's type."""
    return Aggregate("min", column)


def max_(column: str) -> Aggregate:
    """Greatest value of a number, date or timestamp column, in the column's type."""
    return Aggregate("max", column)


@dataclass(frozen=True)
class Register:
    """One numpy column of state. `name` is its name in the state table and never changes."""

    name: str
    kind: RegisterKind
    column: str | None
    dtype: str  # "int64" or "float64"

    @property
    def initial(self) -> int | float:
        """What nothing adds up to: updating with it changes nothing."""
        if self.dtype == "float64":
            return {"sum": 0.0, "min": float("nan"), "max": float("-inf")}[self.kind]
        return {"min": 2**63 - 1, "max": -(2**63)}.get(self.kind, 0)

    @property
    def ufunc(self) -> np.ufunc:
        """How two values become one. `fmin` skips NaN and `maximum` keeps it: NaN is the greatest number."""
        if self.kind == "min":
            return np.fmin
        return np.maximum if self.kind == "max" else np.add


@dataclass(frozen=True)
class Output:
    """One output column and the registers it is computed from."""

    name: str
    aggregate: Aggregate
    type: pa.DataType
    value: Register
    values: Register | None  # how many values are not null; None where null cannot be

    def column(self, registers: Columns) -> pa.Array:
        """Result per entry of `registers` (arrays of equal length, by register name)."""
        found = registers[self.value.name]
        if self.values is None:
            return pa.array(found, self.type)
        counted = registers[self.values.name]
        absent = counted == 0
        mask = absent if absent.any() else None
        if self.aggregate.kind == "mean":
            return pa.array(found / np.maximum(counted, 1), self.type, mask=mask)
        if self.value.dtype == "float64":
            result = pa.array(found, mask=mask)
            return result if self.type == _FLOAT64 else result.cast(self.type)
        if mask is not None:
            found = np.where(absent, 0, found)
        return from_register(pa.array(found, mask=mask), self.type)


@dataclass(frozen=True)
class Plan:
    """Aggregates bound to a schema: the registers to keep and the columns to give."""

    registers: tuple[Register, ...]
    outputs: tuple[Output, ...]

    def storage(self) -> dict[str, tuple[str, int | float]]:
        """Columns of the dense table."""
        return {register.name: (register.dtype, register.initial) for register in self.registers}

    def fields(self) -> list[pa.Field]:
        return [pa.field(output.name, output.type) for output in self.outputs]


def plan_aggregates(aggregates: Mapping[str, Aggregate], schema: pa.Schema, where: str) -> Plan:
    """Bind; raises `InvalidJob` for unknown columns and types that cannot be aggregated."""
    registers: dict[str, Register] = {ROWS: Register(ROWS, "rows", None, "int64")}

    def register(kind: RegisterKind, column: str, dtype: str) -> Register:
        made = Register(f"{kind}:{column}", kind, column, dtype)
        return registers.setdefault(made.name, made)

    outputs = []
    for name, aggregate in aggregates.items():
        column = aggregate.column
        if column is None:
            outputs.append(Output(name, aggregate, pa.int64(), registers[ROWS], None))
            continue
        if column not in schema.names:
            raise InvalidJob(
                f"{where}: {name}={aggregate} needs a column {column!r}: the rows have {', '.join(schema.names)}"
            )
        if aggregate.kind == "count":
            outputs.append(Output(name, aggregate, pa.int64(), register("values", column, "int64"), None))
            continue
        kind = schema.field(column).type
        dtype = _register_dtype(kind, aggregate, name, where)
        values = register("values", column, "int64")
        if aggregate.kind == "mean":
            outputs.append(Output(name, aggregate, pa.float64(), register("sum", column, dtype), values))
        elif aggregate.kind == "sum":
            total = pa.int64() if dtype == "int64" else pa.float64()
            outputs.append(Output(name, aggregate, total, register("sum", column, dtype), values))
        else:
            outputs.append(Output(name, aggregate, kind, register(aggregate.kind, column, dtype), values))
    return Plan(tuple(registers.values()), tuple(outputs))


def _register_dtype(kind: pa.DataType, aggregate: Aggregate, name: str, where: str) -> str:
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


def to_register(array: pa.Array, dtype: str) -> pa.Array:
    """A column as int64 or float64, nulls kept."""
    kind = array.type
    if kind in (_INT64, _FLOAT64):
        return array
    if dtype == "float64":
        return array.cast(_FLOAT64)
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    return array.cast(pa.int64())


def from_register(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The way back: int64 to the column's own type."""
    if kind == _INT64:
        return array
    if pa.types.is_temporal(kind):
        return array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return array.cast(kind)
