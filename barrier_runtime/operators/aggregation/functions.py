"""Built-in aggregates. A name ends in `_` only where Python has a builtin of that name.

Aggregates ignore nulls, except `first` and `last` without `ignore_nulls`, as in Spark. An aggregate over no value is
null, `count` is 0. NaN is the greatest number, as in Spark; -0.0 equals 0.0. Float sums add in row order. *First* and
*last* follow the rows' arrival; by event time use `arg_min` and `arg_max`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from barrier_runtime.state.errors import InvalidJob

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
    "collect_list",
    "collect_set",
    "count_distinct",
    "quantile",
    "quantiles",
    "top_k",
    "largest",
    "smallest",
]

_FUNCTIONS = {kind: f"{kind}_" for kind in ("sum", "min", "max", "any", "all")}
_MOST_COLLECTED = 1_000_000
_MOST_FREQUENT = _MOST_PLACES = 100


@dataclass(frozen=True)
class Aggregate:
    """Aggregate made by a function of this file. `column` is None for `count()`."""

    kind: Kind
    column: str | None = None
    widen: bool = False  # sums only
    by: str | None = None  # arg_min and arg_max only
    ignore_nulls: bool = False  # first and last only
    limit: int | None = None  # greatest number of values
    ranks: tuple[float, ...] = ()  # quantiles only
    approximate: bool = False  # count_distinct only

    def __post_init__(self) -> None:
        for name in ("column", *(("by",) if self.kind in ("arg_min", "arg_max") else ())):
            given = getattr(self, name)
            if not isinstance(given, str) and not (given is None and self.kind == "count"):
                function = _FUNCTIONS.get(self.kind, self.kind)
                raise InvalidJob(
                    f"{function}: {name}={given}: give the name of a column, such as {function}('v'); an expression "
                    'is a column after .with_columns(v="price * 2")'
                )

    @property
    def columns(self) -> list[str]:
        """Columns of the computation."""
        return [column for column in (self.column, self.by) if column is not None]

    def __str__(self) -> str:
        given = ["*" if self.column is None else str(self.column)]
        given += [f"by={self.by}"] if self.by is not None else []
        given += [f"{name}=True" for name in ("widen", "ignore_nulls", "approximate") if getattr(self, name)]
        given += [str(rank) for rank in self.ranks]
        given += [f"limit={self.limit}"] if self.limit is not None else []
        return f"{self.kind}({', '.join(given)})"


def count(column: str | None = None) -> Aggregate:
    """Number of rows; with a column, of the values that are not null."""
    return Aggregate("count", column)


def sum_(column: str, *, widen: bool = False) -> Aggregate:
    """Sum of a column of integers (int64), floats (float64) or decimals (ten more digits, at most 38).
    A sum beyond 64 bits or the digits ends the job, as in Spark. With `widen` the sum of integers is a decimal128(38,
    0).
    """
    return Aggregate("sum", column, widen)


def mean(column: str) -> Aggregate:
    """Average (float64), with a single rounding for integers.
    The average of decimals is a decimal with four more digits after the point, rounded half up."""
    return Aggregate("mean", column)


def min_(column: str) -> Aggregate:
    """Smallest value of a column, in the column's type.
    Takes numbers, decimals, booleans, times, text (by code points) and bytes.
    """
    return Aggregate("min", column)


def max_(column: str) -> Aggregate:
    """Greatest value of a column, in the column's type. Types and order: see `min_`."""
    return Aggregate("max", column)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Value in the key's first row by arrival, in the column's type; null if that value is null.
    With `ignore_nulls` the first value that is not null."""
    return Aggregate("first", column, ignore_nulls=ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Value in the key's last row by arrival, in the column's type; null if that value is null.
    With `ignore_nulls` the last value that is not null."""
    return Aggregate("last", column, ignore_nulls=ignore_nulls)


def any_(column: str) -> Aggregate:
    """True if a value of a boolean column is true; null without a value."""
    return Aggregate("any", column)


def all_(column: str) -> Aggregate:
    """True if all values of a boolean column are true; null without a value."""
    return Aggregate("all", column)


def variance(column: str) -> Aggregate:
    """Variance of a sample (float64) of numbers, taken as doubles: Spark's `variance` and `var_samp`.
    Null for fewer than two values; NaN as soon as a value is NaN or infinite."""
    return Aggregate("variance", column)


def var_pop(column: str) -> Aggregate:
    """Variance of a population (float64) of numbers, taken as doubles. Null without a value."""
    return Aggregate("var_pop", column)


def stddev(column: str) -> Aggregate:
    """Standard deviation of a sample (float64), the root of `variance`: Spark's `stddev`, `stddev_samp`."""
    return Aggregate("stddev", column)


def stddev_pop(column: str) -> Aggregate:
    """Standard deviation of a population (float64), the root of `var_pop`."""
    return Aggregate("stddev_pop", column)


def arg_min(column: str, *, by: str) -> Aggregate:
    """Value of `column`, in its type, in the row with the smallest value of `by`: Spark's `min_by`.
    Among several such rows the first arrival. Rows with a null in `by` do not count; a null in `column` does."""
    return Aggregate("arg_min", column, by=by)


def arg_max(column: str, *, by: str) -> Aggregate:
    """Value of `column`, in its type, in the row with the greatest value of `by`: Spark's `max_by`.
    Ties and nulls: see `arg_min`.
    """
    return Aggregate("arg_max", column, by=by)


def collect_list(column: str, *, limit: int) -> Aggregate:
    """Values of a key in order of arrival, as a list without nulls; without a value an empty list.
    Omits values after the first `limit`; compare with `count(column)`.
    """
    return Aggregate("collect_list", column, limit=_limit("collect_list", limit, _MOST_COLLECTED))


def collect_set(column: str, *, limit: int) -> Aggregate:
    """Distinct values of a key in the order of their first arrival, as a list without nulls.
    Omits values after the first `limit`.
    """
    return Aggregate("collect_set", column, limit=_limit("collect_set", limit, _MOST_COLLECTED))


def count_distinct(column: str, *, approximate: bool = False, limit: int = 100_000) -> Aggregate:
    """Number of distinct values (int64), without nulls.
    The exact count keeps every distinct value, and ends the job if a key has more than `limit`. With `approximate` a
    key keeps 4 KB (HyperLogLog, standard error 1.6 %; `pip install 'barrier-runtime[sketches]'`).
    """
    if approximate:
        return Aggregate("count_distinct", column, approximate=True)
    return Aggregate("count_distinct", column, limit=_limit("count_distinct", limit, _MOST_COLLECTED))


def quantile(column: str, rank: float) -> Aggregate:
    """Value that a part of `rank` (0 to 1) of the values does not exceed (float64); 0.5 is the median.
    Takes numbers as doubles, without nulls and NaN. Exact up to 511 values of a key, approximate beyond (t-digest, best
    at both ends). Needs the extra `sketches`.
    """
    return Aggregate("quantile", column, ranks=(_rank(rank),))


def quantiles(column: str, ranks: Sequence[float]) -> Aggregate:
    """`quantile` of each of `ranks`, as a list in their order; a list of nulls without a value."""
    if isinstance(ranks, str | int | float) or not len(ranks):
        raise InvalidJob(f"quantiles({column!r}, {ranks!r}): give a list of ranks, such as [0.5, 0.99]")
    return Aggregate("quantiles", column, ranks=tuple(_rank(rank) for rank in ranks))


def top_k(column: str, k: int) -> Aggregate:
    """The `k` most frequent values, most frequent first, as a list of structs of `value` and `count`.
    Counts are exact up to 768 distinct values of a key. Beyond, counts are too high by at most 0.35 % of the key's
    number of values, and a less frequent value may be missing. Omits nulls. Needs the extra `sketches`.
    """
    return Aggregate("top_k", column, limit=_limit("top_k", k, _MOST_FREQUENT))


def largest(column: str, n: int) -> Aggregate:
    """The `n` largest values of a column of numbers, booleans or times, largest first, as a list.
    Repeats equal values, omits nulls; fewer values make a shorter list.
    """
    return Aggregate("largest", column, limit=_limit("largest", n, _MOST_PLACES))


def smallest(column: str, n: int) -> Aggregate:
    """The `n` smallest values, smallest first: see `largest`."""
    return Aggregate("smallest", column, limit=_limit("smallest", n, _MOST_PLACES))


def _limit(kind: str, limit: int, most: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidJob(f"{kind}: {limit!r} is not a number of values to keep: give one from 1 to {most:,}")
    return limit


def _rank(rank: float) -> float:
    if isinstance(rank, bool) or not isinstance(rank, int | float) or not 0 <= rank <= 1:
        raise InvalidJob(f"a quantile of rank {rank!r}: give a number from 0 to 1, such as 0.99")
    return float(rank)
