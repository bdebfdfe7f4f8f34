"""Which entries of a columnar table leave memory next: those that nobody asked for longest.

To find them takes a look at every entry, so many are chosen at a time, and taken from bit by bit. What was asked for
since stays. They are in the order of the store, which takes neighbours much faster.
"""

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.keys.row_index import IntKeys, RowIds, TupleKeys

# What a table notes for a row id that is no entry's, in place of the number of the call that asked for it last.
GONE = np.iinfo(np.int64).max

_NO_ROWS: RowIds = np.empty(0, np.int64)


class Victims:
    def __init__(self, stored: EntryKeys) -> None:
        self._stored = stored
        self._row_ids = _NO_ROWS
        self._newest = 0  # call that asked for one of them, when they were chosen

    @property
    def left(self) -> int:
        return len(self._row_ids)

    def choose(self, keys: IntKeys | TupleKeys, used: npt.NDArray[np.int64], count: int) -> None:
        row_ids = keys.all()
        if count < len(row_ids):
            row_ids = row_ids[np.argpartition(used[row_ids], count - 1)[:count]]
        if len(row_ids):
            self._newest = int(used[row_ids].max())
            if isinstance(keys, IntKeys):
                key_batch = keys.key_batch(row_ids)
                row_ids = row_ids[self._stored.order_of_ints(key_batch, self._stored.groups_of_ints(key_batch))]
        self._row_ids = row_ids

    def take(self, count: int, used: npt.NDArray[np.int64]) -> RowIds:
        """Up to `count` of them."""
        taken, self._row_ids = self._row_ids[:count], self._row_ids[count:]
        still: RowIds = taken[used[taken] <= self._newest]
        return still
