"""Built-in aggregates, as users write them and as SQL means them.

Nulls are ignored; an aggregate over no value is null, `count` is 0. Only `first` and `last` take a null for a value, as
Spark's do, unless they are told to ignore it. NaN is the greatest number, as in Spark, and -0.0 equals 0.0. Float sums
add in row order. *First* and *last* are by the order in which rows of a key arrive; by event time it is `arg_min` and
`arg_max`. See `plan` for the state that they keep.
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

_FUNCTIONS = {kind: f"{kind}_" for kind in ("sum", "min", "max", "any", "all")}  # what users call them
_MOST_COLLECTED = 1_000_000
_MOST_FREQUENT = _MOST_PLACES = 100


@dataclass(frozen=True)
class Aggregate:
    """Made by `count`, `sum_` and the others of this file. `column` is None for `count()` of rows."""

    kind: Kind
    column: str | None = None
    widen: bool = False  # sums only
    by: str | None = None  # arg_min and arg_max only
    ignore_nulls: bool = False  # first and last only
    limit: int | None = None  # values that are kept, at most: of collections, the exact count_distinct, top_k, places
    ranks: tuple[float, ...] = ()  # quantiles only
    approximate: bool = False  # count_distinct only

    def __post_init__(self) -> None:
        """Only a count is of no column: any other of `None` would count rows, or take their last value."""
        for name in ("column", *(("by",) if self.kind in ("arg_min", "arg_max") else ())):
            if getattr(self, name) is None and self.kind != "count":
                raise InvalidJob(f"{_FUNCTIONS.get(self.kind, self.kind)}: {name}=None: give the name of a column")

    @property
    def columns(self) -> list[str]:
        """That it is computed of."""
        return [column for column in (self.column, self.by) if column is not None]

    def __str__(self) -> str:
        given = ["*" if self.column is None else str(self.column)]
        given += [f"by={self.by}"] if self.by is not None else []
        given += [f"{name}=True" for name in ("widen", "ignore_nulls", "approximate") if getattr(self, name)]
        given += [str(rank) for rank in self.ranks]
        given += [f"limit={self.limit}"] if self.limit is not None else []
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


def collect_list(column: str, *, limit: int) -> Aggregate:
    """The values of a key in the order of their arrival, as a list; nulls are left out, and an empty list stands for no
    value. It holds the first `limit` values: what comes after them is left out, and `count(column)` beside it tells."""
    return Aggregate("collect_list", column, limit=_limit("collect_list", limit, _MOST_COLLECTED))


def collect_set(column: str, *, limit: int) -> Aggregate:
    """The distinct values of a key in the order in which they came first, as a list without nulls. It holds the first
    `limit` of them; others are left out."""
    return Aggregate("collect_set", column, limit=_limit("collect_set", limit, _MOST_COLLECTED))


def count_distinct(column: str, *, approximate: bool = False, limit: int = 100_000) -> Aggregate:
    """How many distinct values (int64); nulls are left out. The exact count keeps every distinct value, and ends the
    job when a key has more than `limit` of them. With `approximate` it keeps 4 KB (HyperLogLog), whatever their number,
    with a standard error of 1.6 %; that needs the package datasketches (`pip install 'barrier-runtime[sketches]'`)."""
    if approximate:
        return Aggregate("count_distinct", column, approximate=True)
    return Aggregate("count_distinct", column, limit=_limit("count_distinct", limit, _MOST_COLLECTED))


def quantile(column: str, rank: float) -> Aggregate:
    """The value that a part of `rank` (0 to 1) of the values does not exceed (float64), of numbers, which are taken as
    doubles: 0.5 is the median. Exact up to 511 values of a key, approximate beyond (t-digest, best at both ends); nulls
    and NaN are left out. Needs the package datasketches (`pip install 'barrier-runtime[sketches]'`)."""
    return Aggregate("quantile", column, ranks=(_rank(rank),))


def quantiles(column: str, ranks: Sequence[float]) -> Aggregate:
    """`quantile` of each of `ranks`, as a list in their order; a list of nulls without a value."""
    if isinstance(ranks, str | int | float) or not len(ranks):
        raise InvalidJob(f"quantiles({column!r}, {ranks!r}): give a list of ranks, such as [0.5, 0.99]")
    return Aggregate("quantiles", column, ranks=tuple(_rank(rank) for rank in ranks))


def top_k(column: str, k: int) -> Aggregate:
    """The `k` values that come most often, the most frequent one first, as a list of structs of `value` and `count`.
    Counts are exact up to 768 distinct values of a key; beyond, they are too high by at most 0.35 % of its number of
    values, and a value that comes less often than that may be missing. Nulls are left out. Needs the package
    datasketches (`pip install 'barrier-runtime[sketches]'`)."""
    return Aggregate("top_k", column, limit=_limit("top_k", k, _MOST_FREQUENT))


def largest(column: str, n: int) -> Aggregate:
    """The `n` largest values of a column of numbers, booleans or times, the largest one first, as a list; equal values
    stand there as often as they come. Nulls are left out; fewer values make a shorter list."""
    return Aggregate("largest", column, limit=_limit("largest", n, _MOST_PLACES))


def smallest(column: str, n: int) -> Aggregate:
    """The `n` smallest values, the smallest one first: see `largest`."""
    return Aggregate("smallest", column, limit=_limit("smallest", n, _MOST_PLACES))


def _limit(kind: str, limit: int, most: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidJob(f"{kind}: {limit!r} is not a number of values to keep: give one from 1 to {most:,}")
    return limit


def _rank(rank: float) -> float:
    if isinstance(rank, bool) or not isinstance(rank, int | float) or not 0 <= rank <= 1:
        raise InvalidJob(f"a quantile of rank {rank!r}: give a number from 0 to 1, such as 0.99")
    return float(rank)
