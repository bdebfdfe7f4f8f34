"""Reference results of every aggregate in plain Python, for the rows of a key in arrival order."""

import datetime
import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from barrier_runtime.operators.aggregation.functions import Aggregate

EXACT = Context(prec=200)
Row = dict[str, Any]


def expected(aggregate: Aggregate, rows: Sequence[Row], kind: pa.DataType | None) -> Any:
    """`kind`: of the result."""
    column, by = aggregate.column, aggregate.by
    if column is None:
        return len(rows)
    every = [row[column] for row in rows]
    known = [value for value in every if value is not None]
    match aggregate.kind:
        case "count":
            return len(known)
        case "first" | "last":
            given = known if aggregate.ignore_nulls else every
            return given[0 if aggregate.kind == "first" else -1] if given else None
        case "any":
            return any(known) if known else None
        case "all":
            return all(known) if known else None
        case "min" | "max":
            return picked(aggregate.kind == "max", known, known)
        case "arg_min" | "arg_max":
            assert by is not None
            there = [row for row in rows if row[by] is not None]
            return picked(aggregate.kind == "arg_max", [row[by] for row in there], [row[column] for row in there])
        case "sum":
            return sum_of(known)
        case "mean":
            return mean_of(known, kind)
        case _:
            return moment(aggregate.kind, [float(value) for value in known])


def picked(greatest: bool, keys: Sequence[Any], values: Sequence[Any]) -> Any:
    """Returns the value at the greatest or least key; the first row wins a tie; NaN is the greatest key."""
    best = None
    for at, key in enumerate(keys):
        if best is None or (before(keys[best], key) if greatest else before(key, keys[best])):
            best = at
    return None if best is None else values[best]


def before(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left):
        return False
    if isinstance(right, float) and math.isnan(right):
        return True
    return bool(left < right)


def sum_of(known: Sequence[Any]) -> Any:
    if not known:
        return None
    total = known[0]
    for value in known[1:]:
        total = EXACT.add(total, value) if isinstance(value, Decimal) else total + value
    return total


def mean_of(known: Sequence[Any], kind: pa.DataType | None) -> Any:
    if not known:
        return None
    if not isinstance(known[0], Decimal):
        return sum_of(known) / len(known)
    assert kind is not None
    exact = Fraction(sum_of(known)) / len(known) * 10**kind.scale
    magnitude = math.floor(abs(exact) + Fraction(1, 2))
    return Decimal(-magnitude if exact < 0 else magnitude).scaleb(-kind.scale, EXACT)


def moment(statistic: str, values: Sequence[float]) -> float | None:
    count, mean, m2 = 0, 0.0, 0.0
    for value in values:
        count += 1
        distance = value - values[0]
        delta = distance - mean
        mean += delta / count
        m2 += delta * (distance - mean)
    divisor = count if statistic.endswith("_pop") else count - 1
    if divisor < 1:
        return None
    return math.sqrt(m2 / divisor) if statistic.startswith("stddev") else m2 / divisor


def same(value: Any) -> Any:
    """Returns a key that is equal for bit-identical values: NaN equals NaN, and 0.0 differs from -0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, Decimal):
        return ("decimal", Fraction(value))
    return ("date", value) if isinstance(value, datetime.date) else (type(value).__name__, value)
