"""95 % intervals of a median over few rounds. Pure.

From six values on, order statistics give the interval, for any distribution. With three to five values no such
interval exists (the lowest and the highest of five hold the median in 94 % of cases, of three in 75 %). There Student's
t over the logarithms gives the interval, on the assumption that rounds differ by log-normal factors; if a value is not
positive, t over the values themselves.

Differences of pairs measured in turn (`of_differences`) are as often too high as too low by the same amount, whatever
else their distribution is. So averages of any two differences can be ordered too (Wilcoxon's signed ranks, Hodges and
Lehmann); this takes a third fewer pairs than order statistics for an interval of the same width.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.report.summary import number

_STUDENT = {3: 4.303, 4: 3.182, 5: 2.776}  # values -> 97.5th percentile with one degree of freedom less
_BEYOND = 0.025  # on each side


def interval95(values: Sequence[float]) -> tuple[float, float] | None:
    """(low, high); None with fewer than three values."""
    if len(values) in _STUDENT:
        return _of_logarithms(values) if min(values) > 0 else _students(values)
    if len(values) < min(_STUDENT):
        return None
    ordered = sorted(values)
    left_out = _outside(len(values))
    return ordered[left_out], ordered[-1 - left_out]


def of_differences(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Middle and interval; None with fewer than ten values, for which the approximation is too coarse."""
    count = len(values)
    averages = sorted((one + other) / 2 for at, one in enumerate(values) for other in values[at:])
    left_out = math.floor(count * (count + 1) / 4 - 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24))
    interval = None if count < 10 else (averages[left_out], averages[-1 - left_out])
    return statistics.median(averages), interval


def told(values: Iterable[float | None], text: Callable[[float], str] = number) -> str | None:
    """`1.23 [1.1, 1.4]`: the median and, from three values on, the interval. None without values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    middle, interval = text(statistics.median(known)), interval95(known)
    return middle if interval is None else f"{middle} [{text(interval[0])}, {text(interval[1])}]"


def _of_logarithms(values: Sequence[float]) -> tuple[float, float]:
    low, high = _students([math.log(value) for value in values])
    return math.exp(low), math.exp(high)


def _students(values: Sequence[float]) -> tuple[float, float]:
    half = _STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def _outside(count: int) -> int:
    """Values outside on each side: `count` fair coins show that few heads in at most 2.5 % of cases."""
    sum_, left_out = 0.0, 0
    while (sum_ := sum_ + math.comb(count, left_out) / 2**count) <= _BEYOND:
        left_out += 1
    return left_out - 1
