"""The n largest or smallest values of a key, with a state column per place.

Values become *ranks*: integers that rise towards the first place. The ranks of a key are a row of a matrix, rising from
left to right, with the lowest number in free places on the left.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder
from barrier_runtime.operators.aggregation.state_columns import (
    Columns,
    Initial,
    Ints,
    Values,
    float_of_order,
    from_words,
    order_words,
    word_dtypes,
)

_LOWEST = -(2**63)
_FIRST_ROWS = 8  # rows of each key before the others are compared with the result


@dataclass(frozen=True)
class Extremes:
    column: str
    kind: pa.DataType
    number: int
    largest: bool

    @property
    def name(self) -> str:
        return self._part("")

    def storage(self) -> dict[str, tuple[str, Initial]]:
        (dtype,) = word_dtypes(self.kind)
        columns: dict[str, tuple[str, Initial]] = {self._count: ("int64", 0)}
        columns.update((place, (dtype, 0)) for place in self._places)
        return columns

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        ranks, positions = self._taken(rows, batch)
        its_group = rows.groups()[positions]
        held, counts = self._held(before), before[self._count]
        groups, width = held.shape
        every = np.concatenate((held.ravel(), ranks))
        order = np.lexsort((every, np.concatenate((np.repeat(np.arange(groups), width), its_group))))
        new = np.bincount(its_group, minlength=groups)
        ends = np.cumsum(new + width)
        best = every[order[ends[:, None] - np.arange(width, 0, -1)]]
        return self._stored(best, np.minimum(counts + new, self.number))

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        ranks, positions = self._taken(rows, batch)
        groups = rows.groups()
        held, counts = self._held(before), before[self._count]
        lines, ends, version = _lines(held, ranks, groups[positions])
        at = np.full(len(groups), -1, np.intp)
        at[positions] = version
        latest = rows.latest(positions[version >= 0])
        counted = np.zeros(len(groups), np.int64)
        counted[positions] = 1
        counted = np.cumsum(counted)
        preceding = np.concatenate(([0], counted))[rows.starts]
        after = np.minimum(counted + np.repeat(counts - preceding, rows.lengths), self.number)
        results = {
            self._result: lines[np.where(latest >= 0, at[latest], groups)],
            f"{self._result} count": after,
        }
        return self._stored(lines[ends], after[rows.starts + rows.lengths - 1]), results

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        both = np.concatenate((self._held(before), self._held(later)), axis=1)
        both.sort(axis=1)
        return self._stored(both[:, self.number :], np.minimum(before[self._count] + later[self._count], self.number))

    def result(self, accumulators: Columns) -> pa.Array:
        ranks = accumulators.get(self._result)
        if ranks is None:
            ranks, counts = self._held(accumulators), accumulators[self._count]
        else:
            counts = accumulators[f"{self._result} count"]
        places = np.arange(self.number)
        found = ranks[:, ::-1][places < counts[:, None]]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        values = from_words((self._values(found),), self.kind, None)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values).cast(pa.list_(self.kind))

    def _part(self, part: object) -> str:
        return f"{'largest' if self.largest else 'smallest'} {self.number}{'.' if part else ''}{part}:{self.column}"

    @property
    def _count(self) -> str:
        return self._part("count")

    @property
    def _places(self) -> list[str]:
        return [self._part(place) for place in range(1, self.number + 1)]

    @property
    def _result(self) -> str:
        return f"{self.name} result"

    def _taken(self, rows: RunningOrder, batch: BatchValues) -> tuple[Ints, npt.NDArray[np.intp]]:
        (ranks,) = order_words(batch.words(self.column))
        valid = batch.valid(self.column)
        positions = np.arange(len(rows.order)) if valid is None else np.flatnonzero(valid[rows.order])
        ranks = ranks[rows.order[positions]]
        return ranks if self.largest else ~ranks, positions

    def _held(self, columns: Columns) -> Ints:
        places = np.stack([columns[place] for place in reversed(self._places)], axis=1)
        (ranks,) = order_words((places,))
        if not self.largest:
            ranks = ~ranks
        absent = np.arange(self.number, 0, -1) > columns[self._count][:, None]
        return np.where(absent, _LOWEST, ranks)

    def _values(self, ranks: Ints) -> Values:
        ranks = ranks if self.largest else ~ranks
        return float_of_order(ranks) if word_dtypes(self.kind) == ("float64",) else ranks

    def _stored(self, held: Ints, counts: Ints) -> Columns:
        columns: dict[str, Values] = {self._count: counts}
        for number, place in enumerate(self._places):
            values = self._values(held[:, self.number - 1 - number])
            columns[place] = np.where(counts > number, values, values.dtype.type(0))
        return columns


def _lines(held: Ints, ranks: Ints, its_group: npt.NDArray[np.intp]) -> tuple[Ints, npt.NDArray[np.intp], Ints]:
    """Returns all versions of the groups' lines, each group's last line, and each rank's line.
    The lines start with `held`, a line per group; each rank with a place at its arrival adds a line (-1: no place).
    Some ranks of each group are taken first, then only those above the result.
    """
    current, newest = held.copy(), np.arange(len(held))
    lines, number = [held], len(held)
    version = np.full(len(ranks), -1, np.int64)
    remaining, most = np.arange(len(ranks)), max(_FIRST_ROWS, held.shape[1])
    while len(remaining):
        remaining = remaining[ranks[remaining] > current[its_group[remaining], 0]]
        firsts = np.flatnonzero(np.diff(its_group[remaining], prepend=-1))
        lengths = np.diff(firsts, append=len(remaining))
        place = np.arange(len(remaining)) - np.repeat(firsts, lengths)
        by_length = np.argsort(-lengths, kind="stable")
        starts, taken = firsts[by_length], np.minimum(lengths[by_length], most)
        for round_ in range(int(taken[0]) if len(taken) else 0):
            alive = len(taken) - int(np.searchsorted(taken[::-1], round_, side="right"))
            rows = remaining[starts[:alive] + round_]
            rows = rows[ranks[rows] > current[its_group[rows], 0]]
            if len(rows):
                groups = its_group[rows]
                changed = current[groups]
                changed[:, 0] = ranks[rows]
                changed.sort(axis=1)
                current[groups] = changed
                version[rows] = newest[groups] = np.arange(number, number + len(rows))
                lines.append(changed)
                number += len(rows)
        remaining = remaining[place >= most]
        most *= 2
    return np.concatenate(lines), newest, version
