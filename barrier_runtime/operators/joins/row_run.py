"""A *run*: rows of a join side as columns, ordered by key and time for lookups.

The rows stay in their order of arrival, in a record batch; numpy arrays hold the order: number of the key, time, and
place of the row. A *position* is a place in this order. A row is alive until it is killed; a run never grows.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.keys.distinct_ints import distinct_ints

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

TIME_LIMIT = 2**62  # bound of times and interval bounds, either sign, so that sums fit in 64 bits
_MOST = 2**63
_FEW = 256  # below this number of keys, rows are always searched for
_LOOKS = 4  # looks at successive rows before a search
_SAMPLED = 64  # keys in the sample that estimates how many find a row
_FLAG_BYTES, _ORDER_BYTES = 2, 32  # per row


class RowRun:
    """`keys`, `times`: by position. `at`: position -> row of `rows`. `alive`, `matched`: by row of `rows`."""

    def __init__(self, rows: pa.RecordBatch, keys: Ints, times: Ints, alive: Bools, matched: Bools) -> None:
        """At least one row. `keys`, `times`: by row; some rows may be dead."""
        self._set(rows, keys, times, np.arange(len(keys)), alive, matched)

    def _set(self, rows: pa.RecordBatch, keys: Ints, times: Ints, at: Ints, alive: Bools, matched: Bools) -> None:
        self.rows, self.alive, self.matched = rows, alive, matched
        self.on_disk = False
        self.bytes = rows.nbytes
        self.row_bytes = self.bytes / len(keys)
        self.first, self.last = int(times.min()), int(times.max())
        self._highest_key = int(keys.max())
        self._ranks: Ints | None = None  # distinct times, if key and time do not fit in 64 bits
        self._width = self.last - self.first + 2
        if (self._highest_key + 2) * self._width >= _MOST:
            self._ranks = distinct_ints(times)
            self._width = len(self._ranks) + 2
        ordinals = times - self.first if self._ranks is None else np.searchsorted(self._ranks, times)
        places = keys * self._width + ordinals
        order = np.argsort(places, kind="stable")  # rows of the same key and time keep their order
        self._places = places[order]
        self.keys, self.times, self.at = keys[order], times[order], at[order]
        self.dead = len(alive) - int(np.count_nonzero(alive))
        self._by_time: Ints | None = None  # positions, computed at the first use
        self._passed = [0, 0]  # end of the returned part of `_by_time`

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def held_bytes(self) -> int:
        """Approximate bytes in memory."""
        return len(self) * _FLAG_BYTES + (0 if self.on_disk else self.bytes + len(self) * _ORDER_BYTES)

    @property
    def ordered(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Arrays that order the rows: four numbers of 64 bits each."""
        return self._places, self.keys, self.times, self.at

    def is_on_disk(self, rows: pa.RecordBatch, places: Ints, keys: Ints, times: Ints, at: Ints) -> None:
        """Replaces rows and numbers by equal ones in a mapped file."""
        self.rows, self._places, self.keys, self.times, self.at = rows, places, keys, times, at
        self.on_disk = True

    @staticmethod
    def of(rows: pa.RecordBatch, keys: Ints, times: Ints) -> "RowRun":
        return RowRun(rows, keys, times, np.ones(len(keys), np.bool_), np.zeros(len(keys), np.bool_))

    @staticmethod
    def merged(runs: Sequence["RowRun"]) -> "RowRun":
        """Returns a run of the living rows of `runs`, at least one.
        Among rows of the same key and time those of earlier runs come first."""
        lasting = [run._lasting() for run in runs if run.dead < len(run)]
        rows = pa.concat_batches([rows for rows, *_ in lasting])
        firsts = np.cumsum([0, *(part.num_rows for part, *_ in lasting)])
        at = np.concatenate([at + first for (_, _, _, at, _), first in zip(lasting, firsts[:-1], strict=True)])
        keys, times = np.concatenate([part[1] for part in lasting]), np.concatenate([part[2] for part in lasting])
        run = RowRun.__new__(RowRun)
        run._set(rows, keys, times, at, np.ones(len(keys), np.bool_), np.concatenate([part[4] for part in lasting]))
        return run

    def _lasting(self) -> tuple[pa.RecordBatch, Ints, Ints, Ints, Bools]:
        """Returns the living rows: rows, keys, times and places of rows by position, matched by row."""
        if not self.dead:
            return self.rows, self.keys, self.times, self.at, self.matched
        position = self.alive[self.at]
        now_at = np.cumsum(self.alive) - 1
        rows = self.rows.filter(pa.array(self.alive))
        at = now_at[self.at[position]]
        return rows, self.keys[position], self.times[position], at, self.matched[self.alive]

    def ranges(self, keys: Ints, lowest: Ints, highest: Ints) -> tuple[Ints, Ints]:
        """Returns for each key the positions [start, end) of its rows with times `lowest` to `highest`.
        Both times are included, and so are dead rows. Fastest if the keys are ordered."""
        first = np.minimum(keys, self._highest_key + 1) * self._width
        if self._ranks is None:
            # np.clip takes three times as long
            low = np.minimum(np.maximum(lowest, self.first), self.last + 1) - self.first
            high = np.minimum(np.maximum(highest, self.first - 1), self.last) - self.first
        else:
            low = np.searchsorted(self._ranks, lowest)
            high = np.searchsorted(self._ranks, highest, "right") - 1
        starts = np.searchsorted(self._places, first + low)
        return starts, self._ends(starts, first + high)

    def _ends(self, starts: Ints, last: Ints) -> Ints:
        """Returns for each start the position after its rows up to place `last`.
        If most keys have no row, looking at the next rows costs a fifth of a search."""
        some = slice(None, None, len(starts) // _SAMPLED or 1)
        if len(starts) < _FEW or 2 * np.count_nonzero(self._reach(starts[some], last[some])) > len(starts[some]):
            return np.maximum(starts, np.searchsorted(self._places, last, "right"))
        ends: Ints = starts.copy()
        going = np.arange(len(starts))
        for _ in range(_LOOKS):
            going = going[self._reach(ends[going], last[going])]
            ends[going] += 1
        ends[going] = np.searchsorted(self._places, last[going], "right")
        return ends

    def _reach(self, positions: Ints, last: Ints) -> Bools:
        """Returns where there is a row with a place up to `last`."""
        there: Bools = (positions < len(self)) & (self._places.take(positions, mode="clip") <= last)
        return there

    def passed(self, before: int, pointer: int = 0) -> Ints:
        """Returns positions of rows with a time less than `before` not returned before, in time order.
        `pointer`: 0 or 1; the two advance independently."""
        if self.first >= before or self._passed[pointer] == len(self):
            return self.at[:0]
        if self._by_time is None:
            self._by_time = np.argsort(self.times, kind="stable")
        end = len(self)
        if self.last >= before:
            end = int(np.searchsorted(self.times, before, sorter=self._by_time))
        start, self._passed[pointer] = self._passed[pointer], end
        return self._by_time[start:end]

    def skip(self, before: int, pointer: int) -> None:
        """Marks rows with a time less than `before` as returned."""
        self.passed(before, pointer)

    def living(self, positions: Ints) -> Ints:
        return positions[self.alive[self.at[positions]]]

    def kill(self, positions: Ints) -> None:
        """Kills living rows; `positions` has each once."""
        self.alive[self.at[positions]] = False
        self.dead += len(positions)

    def take(self, positions: Ints) -> pa.RecordBatch:
        return self.rows.take(pa.array(self.at[positions]))


def pairs(starts: Ints, ends: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Returns (row, position) for every position in [start, end) of each row, at most `most` at once."""
    counts = ends - starts
    total = int(counts.sum())
    if not total:
        return
    until = np.cumsum(counts)
    if total <= most:
        shift = starts - (until - counts)
        yield np.repeat(np.arange(len(counts)), counts), np.arange(total) + np.repeat(shift, counts)
        return
    for first in range(0, total, most):
        number = np.arange(first, min(first + most, total))
        row = np.searchsorted(until, number, "right")
        yield row, starts[row] + number - (until - counts)[row]
