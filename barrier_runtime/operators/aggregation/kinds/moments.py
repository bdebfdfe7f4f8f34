"""Count, mean and sum of squared deviations of a column, for variances (Welford's steps).

All are relative to the first value (the *shift*), so numbers far from 0, such as times, lose no digits. Values are
added one by one.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RowByRow, RunningOrder, carried
from barrier_runtime.operators.aggregation.state_columns import Columns, Initial, Values

Statistic = Literal["variance", "var_pop", "stddev", "stddev_pop"]
Floats: TypeAlias = npt.NDArray[np.float64]

_MANY = 64  # groups from which numpy is faster


@dataclass(frozen=True)
class Moments(RowByRow):
    column: str

    @property
    def name(self) -> str:
        return f"moments:{self.column}"

    @property
    def _names(self) -> tuple[str, str, str]:
        return f"moments.count:{self.column}", f"moments.mean:{self.column}", f"moments.m2:{self.column}"

    @property
    def _shift(self) -> str:
        return f"moments.shift:{self.column}"

    def storage(self) -> dict[str, tuple[str, Initial]]:
        count, mean, m2 = self._names
        return {count: ("int64", 0), mean: ("float64", 0.0), m2: ("float64", 0.0), self._shift: ("float64", 0.0)}

    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> dict[str, Values]:
        groups, valid = rows.groups(), batch.valid(self.column)
        positions = np.arange(len(groups)) if valid is None else np.flatnonzero(valid[rows.order])
        latest = rows.latest(positions)
        values = batch.floats(self.column)[rows.order[positions]]
        its_group = groups[positions]
        held = [before[name] for name in self._names]
        shift = before[self._shift].copy()
        begins = (held[0][its_group] == 0) & (np.diff(its_group, prepend=-1) != 0)
        shift[its_group[begins]] = values[begins]
        shifts = shift[its_group]
        with np.errstate(invalid="ignore", over="ignore"):
            apart = batch.apart(self.column, rows.order[positions], values, shifts)
            found = _welford(apart, its_group, held)
        after = {}
        for name, known in zip((*self._names, self._shift), (*found, shifts), strict=True):
            spread = np.zeros(len(groups), known.dtype)
            spread[positions] = known
            after[name] = carried(latest, groups, before[name], spread)
        return after

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        (count, mean, m2), shift = self._names, self._shift
        ours, theirs = before[count], later[count]
        together = ours + theirs
        share = theirs / np.maximum(together, 1)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = (later[shift] - before[shift]) + (later[mean] - before[mean])
            merged = {
                count: together,
                mean: before[mean] + apart * share,
                m2: before[m2] + later[m2] + apart * apart * ours * share,
                shift: before[shift],
            }
        alone, others = theirs == 0, ours == 0
        return {
            name: np.where(alone, before[name], np.where(others, later[name], values))
            for name, values in merged.items()
        }

    def result(self, accumulators: Columns, statistic: Statistic) -> pa.Array:
        count, _, m2 = (accumulators[name] for name in self._names)
        divisor = count if statistic.endswith("_pop") else count - 1
        absent = divisor < 1
        found = m2 / np.maximum(divisor, 1)
        if statistic.startswith("stddev"):
            found = np.sqrt(found)
        return pa.array(found, mask=absent if absent.any() else None)


def _welford(values: Floats, groups: npt.NDArray[np.intp], held: list[Values]) -> tuple[Values, Values, Values]:
    results = np.empty(len(values), np.int64), np.empty(len(values)), np.empty(len(values))
    lengths = np.bincount(groups, minlength=len(held[0]))
    by_length = np.argsort(-lengths, kind="stable")
    starts, lengths = (np.cumsum(lengths) - lengths)[by_length], lengths[by_length]
    count, mean, m2 = (column[by_length] for column in held)
    round_, alive = 0, _longer(lengths, 0)
    while alive >= _MANY:
        at = starts[:alive] + round_
        taken = values[at]
        count = count[:alive] + 1
        delta = taken - mean[:alive]
        mean = mean[:alive] + delta / count
        m2 = m2[:alive] + delta * (taken - mean)
        for result, column in zip(results, (count, mean, m2), strict=True):
            result[at] = column
        round_ += 1
        alive = _longer(lengths, round_)
    for group in range(alive):
        of_group = slice(int(starts[group]) + round_, int(starts[group] + lengths[group]))
        one = _welford_of_one(values[of_group].tolist(), int(count[group]), float(mean[group]), float(m2[group]))
        results[0][of_group], results[1][of_group], results[2][of_group] = one
    return results


def _longer(lengths: npt.NDArray[np.intp], than: int) -> int:
    return len(lengths) - int(np.searchsorted(lengths[::-1], than, side="right"))


def _welford_of_one(
    values: list[float], count: int, mean: float, m2: float
) -> tuple[list[int], list[float], list[float]]:
    counts, means, m2s = [], [], []
    for value in values:
        count += 1
        delta = value - mean
        mean += delta / count
        m2 += delta * (value - mean)
        counts.append(count)
        means.append(mean)
        m2s.append(m2)
    return counts, means, m2s
