"""Built-in aggregates, as users write them and as SQL means them.

Nulls are ignored; an aggregate over no value is null, `count` is 0. Only `first` and `last` take a null for a value, as
Spark's do, unless they are told to ignore it. NaN is the greatest number, as in Spark, and -0.0 equals 0.0. Float sums
add in row order. *First* and *last* are by the order in which rows of a key arrive; by event time it is `arg_min` and
`arg_max`. See `plan` for the state that they keep.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "first",
    "last",
    "any",
    "all",
    "variance",
    "var_pop",
    "stddev",
    "stddev_pop",
    "arg_min",
    "arg_max",
]


@dataclass(frozen=True)
class Aggregate:
    """Made by `count`, `sum_` and the others of this file. `column` is None for `count()` of rows."""

    kind: Kind
    column: str | None = None
    widen: bool = False  # sums only
    by: str | None = None  # arg_min and arg_max only
    ignore_nulls: bool = False  # first and last only

    @property
    def columns(self) -> list[str]:
        """That it is computed of."""
        return [column for column in (self.column, self.by) if column is not None]

    def __str__(self) -> str:
        given = [self.column or "*"]
        given += [f"by={self.by}"] if self.by is not None else []
        given += [f"{name}=True" for name in ("widen", "ignore_nulls") if getattr(self, name)]
        return f"{self.kind}({', '.join(given)})"


def count(column: str | None = None) -> Aggregate:
    """Number of rows; with a column, of its values that are not null."""
    return Aggregate("count", column)


def sum_(column: str, *, widen: bool = False) -> Aggregate:
    """Sum of an integer column (int64), float column (float64) or decimal column (ten digits more, at most 38). An
    integer sum that leaves 64 bits, or a decimal one that leaves its digits, ends the job, as Spark's does; with
    `widen` that of integers is a decimal128(38, 0), which has room for every sum."""
    return Aggregate("sum", column, widen)


def mean(column: str) -> Aggregate:
    """Average (float64). That of integers is exact up to its one rounding, however large their sum; that of decimals
    is a decimal with four more digits behind the point, rounded half up."""
    return Aggregate("mean", column)


def min_(column: str) -> Aggregate:
    """Smallest value of a column of numbers, decimals, booleans, times, text or bytes, in the column's type.
    Text compares by code points, bytes from the first one on."""
    return Aggregate("min", column)


def max_(column: str) -> Aggregate:
    """Greatest value of a column of numbers, decimals, booleans, times, text or bytes, in the column's type.
    Text compares by code points, bytes from the first one on."""
    return Aggregate("max", column)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """The value in the row of the key that arrived first, in the column's type; null if it is null there. With
    `ignore_nulls` the first one that is not null."""
    return Aggregate("first", column, ignore_nulls=ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """The value in the row of the key that arrived last, in the column's type; null if it is null there. With
    `ignore_nulls` the last one that is not null."""
    return Aggregate("last", column, ignore_nulls=ignore_nulls)


def any_(column: str) -> Aggregate:
    """Whether a value of a boolean column is true; nulls are ignored, and without a value it is null."""
    return Aggregate("any", column)


def all_(column: str) -> Aggregate:
    """Whether all values of a boolean column are true; nulls are ignored, and without a value it is null."""
    return Aggregate("all", column)


def variance(column: str) -> Aggregate:
    """Variance of a sample (float64) of numbers, which are taken as doubles: Spark's `variance` and `var_samp`. Null
    for fewer than two values; NaN as soon as one is NaN or infinite."""
    return Aggregate("variance", column)


def var_pop(column: str) -> Aggregate:
    """Variance of all there is (float64), of numbers, which are taken as doubles. Null without a value."""
    return Aggregate("var_pop", column)


def stddev(column: str) -> Aggregate:
    """Standard deviation of a sample (float64), the root of `variance`: Spark's `stddev` and `stddev_samp`."""
    return Aggregate("stddev", column)


def stddev_pop(column: str) -> Aggregate:
    """Standard deviation of all there is (float64), the root of `var_pop`."""
    return Aggregate("stddev_pop", column)


def arg_min(column: str, *, by: str) -> Aggregate:
    """The value of `column` in the row with the smallest value of `by`, in the column's type: Spark's `min_by`. Of
    several such rows the one that arrived first. Rows where `by` is null do not count; a null of `column` does."""
    return Aggregate("arg_min", column, by=by)


def arg_max(column: str, *, by: str) -> Aggregate:
    """The value of `column` in the row with the greatest value of `by`, in the column's type: Spark's `max_by`. Of
    several such rows the one that arrived first. Rows where `by` is null do not count; a null of `column` does."""
    return Aggregate("arg_max", column, by=by)
