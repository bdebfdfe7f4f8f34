"""The exact `count_distinct` of many rows at once.

Only a value that comes first in its batch, for its key, can be new: such rows are found in arrays, and they alone are
looked up in the key's set. What a row counts is what was known before its batch, and how many were new up to it.

How a set is looked up goes by its values:

    text, bytes, decimals       a Python set per key
    others, up to `MANY`        in the cells of all keys of the batch at once: nothing is made but arrays
    others, more than that      in an index of the key if there is room for one (see `Indexes`), else as few ones are
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder, running_integers
from barrier_runtime.operators.aggregation.kinds.cells import Cells
from barrier_runtime.operators.aggregation.kinds.collecting import SetCell, number_of
from barrier_runtime.operators.aggregation.kinds.known_words import Flags, Indexes, counts_of_words, learned_together
from barrier_runtime.operators.aggregation.state_columns import Columns, Ints, Values

MANY = 2_048  # values of a key from which an index of its own pays


@dataclass(frozen=True)
class DistinctCells(Cells):
    """Cells that are sets, of which only the number of values is read."""

    kind: SetCell
    _indexes: Indexes = field(default_factory=Indexes, compare=False)

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        return {self.name: self._added(before[self.name], rows, batch, left)[0]}

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        cells, counts, new = self._added(before[self.name], rows, batch, left)
        after = running_integers(new, counts, rows)
        return {self.name: cells}, {self._results(reader): after for reader in self.readers.values()}

    def result(self, accumulators: Columns, key: str) -> pa.Array:
        after_rows = accumulators.get(self._results(self.readers[key]))
        return pa.array(self._counts(accumulators[self.name]) if after_rows is None else after_rows)

    def _added(self, before: Values, rows: RunningOrder, batch: BatchValues, left: Left) -> tuple[Values, Ints, Ints]:
        """The cells, per group; how many values each had; and 1 for each row whose value is new, else 0, in the order
        of `rows.order`."""
        kind, cells, counts = self.kind, before.copy(), self._counts(before)
        new = np.zeros(len(rows.order), np.int64)
        if kind.encoding.is_one_word:
            codes, words = kind.encoding.coded(batch, kind.column)
            first = _first_of_group(rows, codes, len(words))
        else:
            first = _first_of_group(rows, *batch.codes(kind.column))
        if not len(first):
            return cells, counts, new
        groups = np.searchsorted(rows.starts, first, side="right") - 1
        if kind.encoding.is_one_word:
            fresh = self._learned_words(cells, counts, groups, rows.ordered(codes)[first], words)
        else:
            fresh = self._learned(cells, groups, kind.encoding.of(batch, kind.column, rows.order[first]))
        full = np.flatnonzero(counts + np.bincount(groups[fresh], minlength=len(cells)) > kind.limit)
        if len(full):
            raise left(kind.column, int(rows.row_ids[full[0]]), str(kind))
        new[first[fresh]] = 1
        return cells, counts, new

    def _counts(self, cells: Values) -> Ints:
        if self.kind.encoding.is_one_word:
            return counts_of_words(cells.tolist())
        return np.fromiter(map(number_of, cells), np.int64, len(cells))

    def _learned(self, cells: Values, groups: Ints, values: list[bytes]) -> Flags:
        """Which values are new; `cells` get them. `groups`: the index of its cell, per value, rising."""
        kind, fresh = self.kind, np.zeros(len(values), np.bool_)
        for group, begin, end in _runs(groups):
            state = kind.opened(cells[group])
            found = state.unknown(values[begin:end])
            if found:
                state.learn([values[begin + index] for index in found])
                cells[group] = kind.closed(state)
                fresh[begin + np.array(found)] = True
            else:
                kind.remember(cells[group], state)
        return fresh

    def _learned_words(self, cells: Values, counts: Ints, groups: Ints, codes: Ints, words: Ints) -> Flags:
        """The same of `words[codes]`, where no two of a cell are the same. `counts`: of the values of each cell."""
        fresh, together = np.zeros(len(codes), np.bool_), np.ones(len(codes), np.bool_)
        self._indexes.next_batch()
        many = np.flatnonzero(counts[groups] > MANY)
        for group, first, last in _runs(groups[many]):
            at = slice(many[first], many[last - 1] + 1)
            known = self._indexes.take(cells[group], int(counts[group]))
            if known is not None:
                some = words[codes[at]]
                fresh[at] = unknown = known.unknown(some)
                together[at] = False
                if unknown.any():
                    cells[group] = known.learn(some[unknown])
                self._indexes.keep(cells[group], known)
        rest = np.flatnonzero(together)
        if len(rest):
            fresh[rest] = learned_together(cells, groups[rest], codes[rest], words)
        return fresh


def _first_of_group(rows: RunningOrder, codes: Ints, distinct: int) -> Ints:
    """Where in `rows.order` a value is that comes first in its group, rising. `codes`: a number below `distinct` per
    row of the batch, which rises by one where a value comes first; -1 for null."""
    ordered = rows.ordered(codes)
    positions = np.flatnonzero(ordered >= 0)
    numbers = ordered[positions]
    if len(rows.starts) > 1:
        pairs = pa.array(numbers + rows.groups()[positions] * distinct)
        numbers = pairs.dictionary_encode().indices.to_numpy()  # they rise as the codes do
    highest = np.maximum.accumulate(numbers) if len(numbers) else numbers
    return positions[np.flatnonzero(np.diff(highest, prepend=-1))]


def _runs(groups: Ints) -> Iterator[tuple[int, int, int]]:
    """Each number of `groups`, which rise, with where it begins and ends."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    ends = np.flatnonzero(np.diff(groups, append=-1)) + 1
    return zip(groups[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
