"""The entries of a column table that are in memory: a row id per key, a row over numpy arrays, and marks per row.

It owns the index of keys, the columns, and of each row whether it was changed, whether the store may have it, and when
it was last asked for; and the keys that were removed since the last freeze. Where rows come from and go to is
`column_table`'s matter.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.eviction import GONE
from barrier_runtime.state.columns.frozen_rows import tuples_of
from barrier_runtime.state.columns.removed_keys import RemovedKeys
from barrier_runtime.state.columns.segment import Keys, Segment, count
from barrier_runtime.state.columns.wide_columns import EMPTY, CellBytes, is_wide
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys, int_key_batch, tuple_keys

_FIRST_CAPACITY = 1_536  # so that columns do not grow in the same call as their keys
NO_ROWS: RowIds = np.empty(0, np.int64)


class ColumnRows:
    """Of one `ColumnTable`. `columns`: name → (numpy dtype, initial value)."""

    def __init__(self, columns: Mapping[str, tuple[str, Any]], key_width: int) -> None:
        self.initial = {column: value for column, (_, value) in columns.items()}
        self.wide = tuple(column for column, (kind, _) in columns.items() if is_wide(kind))
        self.keys: IntKeys | TupleKeys = IntKeys(key_width)
        self.removed = RemovedKeys(IntKeys(key_width))  # to delete from what is stored
        self.recent: dict[int, int] = {}  # key of a single int -> row id, of those asked for in small batches
        self._cells = CellBytes()
        self._capacity = 0
        self.columns: dict[str, npt.NDArray[Any]] = {name: np.empty(0, kind) for name, (kind, _) in columns.items()}
        self.dirty = np.empty(0, np.bool_)
        self.stored = np.empty(0, np.bool_)  # the store may have this key
        self.used = np.empty(0, np.int64)  # when last asked for, in calls; only kept if evictable, and while many are
        self.grow(_FIRST_CAPACITY)

    @property
    def cell_bytes(self) -> int:
        return self._cells.total

    # ---- keys

    def key_batch(self, keys: Sequence[Key]) -> Any:
        """`keys` as the index takes them; from the first one on that is not of ints alone, it takes tuples."""
        if isinstance(self.keys, IntKeys):
            key_batch = int_key_batch(keys, len(keys[0])) if keys and self.fits(len(keys[0])) else None
            if key_batch is not None or not keys:
                return key_batch if key_batch is not None else np.empty((self.keys.fields, 0), np.int64)
            self.keys, self.removed = tuple_keys(self.keys), self.removed.with_tuples()  # row ids stay what they are
            self.recent.clear()
        return keys

    def fits(self, fields: int) -> bool:
        """Whether the index takes keys of that many ints. An empty one can be made to."""
        keys = self.keys
        if isinstance(keys, IntKeys) and keys.fields != fields and not len(keys) and not len(self.removed):
            self.keys, self.removed = IntKeys(fields), RemovedKeys(IntKeys(fields))
        return isinstance(self.keys, IntKeys) and self.keys.fields == fields

    def last_fields(self, row_ids: RowIds) -> Ints:
        if isinstance(self.keys, IntKeys):
            return self.keys.last_fields(row_ids)
        return np.array([key[-1] for key in self.keys.key_batch(row_ids)], np.int64)

    def no_keys(self) -> IntKeys | TupleKeys:
        """An empty index of the same kind."""
        return IntKeys(self.keys.fields) if isinstance(self.keys, IntKeys) else TupleKeys()

    def none_removed(self) -> None:
        self.removed = RemovedKeys(self.no_keys())

    # ---- rows

    def mark_dirty(self, row_ids: RowIds) -> None:
        self.dirty[row_ids] = True
        if self.wide:
            self._count_cells(row_ids)

    def mark_frozen(self, row_ids: RowIds) -> None:
        """They are as the next snapshot has them."""
        self.dirty[row_ids] = False
        self.stored[row_ids] = True

    def place(self, key_batch: Any) -> RowIds:
        """Row ids of keys that are to have a row from now on."""
        row_ids, _ = self.keys.place(key_batch)
        self.grow(self.keys.numbers.limit)
        return row_ids

    def begin(self, row_ids: RowIds, now: int) -> None:
        """They are rows of new keys: initial values, asked for `now`."""
        self.grow(self.keys.numbers.limit)
        for column, initial in self.initial.items():
            self.columns[column][row_ids] = initial
        self.dirty[row_ids] = False
        self.stored[row_ids] = False
        self.used[row_ids] = now

    def put_stored(self, row_ids: RowIds, numbers: npt.NDArray[np.void], cells: list[list[bytes]]) -> None:
        """They are as the store has them: `numbers`, and the cells of each row of a table that has some."""
        for column in self.columns:
            if column not in self.wide:
                self.columns[column][row_ids] = numbers[column]
        if self.wide:
            for row_id, found in zip(row_ids.tolist(), cells, strict=True):
                for column, cell in zip(self.wide, found, strict=True):
                    self.columns[column][row_id] = cell
            self._count_cells(row_ids)
        self.stored[row_ids] = True
        self.dirty[row_ids] = False

    def put_segment(self, segment: Segment, changed: bool) -> None:
        """As the segment has them. `changed`: all are written again, and the next segment is a base."""
        if segment.base:
            self.forget(self.keys.all())
        if count(segment.removed):
            found = self.keys.find(self._own(segment.removed))
            self.forget(found[found >= 0])
        row_ids = self.place(self._own(segment.keys))
        for name, column in self.columns.items():
            column[row_ids] = segment.columns.get(name, self.initial[name])
        self.stored[row_ids] = True
        self.dirty[row_ids] = changed
        if self.wide:
            self._count_cells(row_ids)

    def forget(self, row_ids: RowIds) -> None:
        """There are no rows of these keys in memory any more."""
        self.keys.remove(row_ids)
        self.dirty[row_ids] = False
        self.stored[row_ids] = False
        self.used[row_ids] = GONE
        self.recent.clear()
        if self.wide:
            self._cells.gone(row_ids)
            for column in self.wide:
                self.columns[column][row_ids] = EMPTY

    def grow(self, needed: int) -> None:
        if needed <= self._capacity:
            return
        capacity = max(self._capacity, _FIRST_CAPACITY)
        while capacity < needed:
            capacity *= 2
        self.columns = {column: _extended(array, capacity) for column, array in self.columns.items()}
        self.dirty = _extended(self.dirty, capacity)
        self.stored = _extended(self.stored, capacity)
        self.used = _extended(self.used, capacity)
        if self.wide:
            self._cells.grow(capacity)
        self._capacity = capacity

    def _own(self, keys: Keys) -> Any:
        """As the index takes them."""
        if isinstance(keys, np.ndarray) and self.fits(len(keys)):
            return keys
        return self.key_batch(tuples_of(keys))

    def _count_cells(self, row_ids: RowIds) -> None:
        self._cells.changed(row_ids, [self.columns[column] for column in self.wide])


def _extended(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    extended = np.zeros(capacity, array.dtype)
    extended[: len(array)] = array
    return extended
