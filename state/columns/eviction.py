"""Which entries of a columnar table leave memory next: those that nobody asked for for long.

A hand goes round the row ids, a part of them at a time, and takes those that were not asked for since the oldest eighth
of all were; which call that is is judged by a sample. So no call looks at every entry. They are taken bit by bit, in
the order of the store, which takes neighbours much faster; what was asked for since stays.
"""

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.keys.row_index import IntKeys, RowIds, TupleKeys

# What a table notes for a row id that is no entry's, in place of the number of the call that asked for it last.
GONE = np.iinfo(np.int64).max

_NO_ROWS: RowIds = np.empty(0, np.int64)
_LOOKED_AT = 16_384  # row ids at a time
_SAMPLED = 2_048
_OLDEST = 8  # the part of all that may go: one in so many


class Victims:
    def __init__(self, stored: EntryKeys) -> None:
        self._stored = stored
        self._row_ids = _NO_ROWS
        self._newest = 0  # call that asked for one of them, when they were chosen
        self._hand = 0  # row id

    @property
    def left(self) -> int:
        return len(self._row_ids)

    def choose(self, keys: IntKeys | TupleKeys, used: npt.NDArray[np.int64], count: int) -> None:
        """`count` of them, or some more, as long as so many are old."""
        limit = keys.numbers.limit
        self._newest = _oldest_eighth(used[:limit])
        found: list[RowIds] = []
        looked_at, number, most = 0, 0, max(count, len(keys) // _OLDEST)
        while looked_at < limit and number < count:
            first = self._hand if self._hand < limit else 0
            self._hand = min(limit, first + min(_LOOKED_AT, limit - looked_at))  # each once
            old = first + np.flatnonzero(used[first : self._hand] <= self._newest)
            if len(old) > most - number:
                old = old[: most - number]
                self._hand = int(old[-1]) + 1
            looked_at += self._hand - first
            number += len(old)
            found.append(old)
        row_ids = np.concatenate(found) if found else _NO_ROWS
        if len(row_ids) and isinstance(keys, IntKeys):
            key_batch = keys.key_batch(row_ids)
            row_ids = row_ids[self._stored.order_of_ints(key_batch, self._stored.groups_of_ints(key_batch))]
        self._row_ids = row_ids

    def take(self, count: int, used: npt.NDArray[np.int64]) -> RowIds:
        """Up to `count` of them."""
        taken, self._row_ids = self._row_ids[:count], self._row_ids[count:]
        still: RowIds = taken[used[taken] <= self._newest]
        return still


def _oldest_eighth(used: npt.NDArray[np.int64]) -> int:
    """The call after which none of about the oldest eighth was asked for."""
    sample = used[:: max(1, len(used) // _SAMPLED)]
    sample = sample[sample != GONE]
    if not len(sample):  # nearly all row ids are free
        return int(GONE) - 1
    at = len(sample) // _OLDEST
    return int(np.partition(sample, at)[at])
