"""The exact `count_distinct` of many rows at once.

Only a value that comes first in its batch, for its key, can be new: such rows are found in arrays, and they alone are
looked up in the key's set. What a row counts is what was known before its batch, and how many were new up to it.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder, running_integers
from barrier_runtime.operators.aggregation.kinds.cells import Cells
from barrier_runtime.operators.aggregation.kinds.collecting import SetCell, number_of
from barrier_runtime.operators.aggregation.state_columns import Columns, Ints, Values


@dataclass(frozen=True)
class DistinctCells(Cells):
    """Cells that are sets, of which only the number of values is read."""

    kind: SetCell

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        return {self.name: self._added(before, rows, batch, left)[0]}

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        cells, new = self._added(before, rows, batch, left)
        counts = running_integers(new, _counts(before[self.name]), rows)
        return {self.name: cells}, {self._results(reader): counts for reader in self.readers.values()}

    def result(self, accumulators: Columns, key: str) -> pa.Array:
        after_rows = accumulators.get(self._results(self.readers[key]))
        return pa.array(_counts(accumulators[self.name]) if after_rows is None else after_rows)

    def _added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> tuple[Values, Ints]:
        """The cells, per group, and 1 for each row whose value is new, else 0, in the order of `rows.order`."""
        kind, cells = self.kind, before[self.name].copy()
        new = np.zeros(len(rows.order), np.int64)
        first = _first_of_group(rows, *batch.codes(kind.column))
        values = kind.encoding.of(batch, kind.column, rows.order[first])
        bounds = np.searchsorted(first, [*rows.starts, len(rows.order)]).tolist()
        positions = first.tolist()
        found = []
        for group in np.flatnonzero(np.diff(bounds)).tolist():
            begin, end = bounds[group], bounds[group + 1]
            room = kind.room(cells[group])
            state = kind.opened(cells[group])
            fresh = state.unknown(values[begin:end])
            if len(fresh) > room:
                raise left(kind.column, int(rows.row_ids[group]), str(kind))
            if fresh:
                state.learn([values[begin + index] for index in fresh])
                cells[group] = kind.closed(state)
                found += [positions[begin + index] for index in fresh]
            else:
                kind.remember(cells[group], state)
        new[found] = 1
        return cells, new


def _first_of_group(rows: RunningOrder, codes: Ints, distinct: int) -> Ints:
    """Where in `rows.order` a value is that comes first in its group, rising. `codes`: a number below `distinct` per
    row of the batch, -1 for null."""
    ordered = codes[rows.order]
    positions = np.flatnonzero(ordered >= 0)
    taken = ordered[positions]
    if len(rows.starts) > 1:
        taken = taken + rows.groups()[positions] * distinct
    numbers = pa.array(taken).dictionary_encode().indices.to_numpy()  # rise by one where a value comes first
    highest = np.maximum.accumulate(numbers) if len(numbers) else numbers
    return positions[np.flatnonzero(np.diff(highest, prepend=-1))]


def _counts(cells: Values) -> Ints:
    return np.fromiter(map(number_of, cells), np.int64, len(cells))
