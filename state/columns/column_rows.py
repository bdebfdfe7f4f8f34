"""The entries of a column table that are in memory: a row id per key, a row over numpy arrays, and marks per row.

It owns the index of keys, the columns, and of each row whether it was changed, whether the store may have it, and when
it was last asked for. Where rows come from and go to is `column_table`'s matter.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.eviction import GONE
from barrier_runtime.state.columns.frozen_rows import FrozenSegment, tuples_of
from barrier_runtime.state.columns.removed_keys import RemovedKeys
from barrier_runtime.state.columns.segment import Keys, Segment, count
from barrier_runtime.state.columns.stored_rows import StoredRows
from barrier_runtime.state.columns.wide_columns import EMPTY, CellBytes
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys, int_key_batch, tuple_keys
from barrier_runtime.state.kv.shard import Shard

_FIRST_CAPACITY = 1_536  # so that columns do not grow in the same call as their keys
FEWEST = 1_024  # entries that are held in any case
NO_ROWS: RowIds = np.empty(0, np.int64)


class ColumnRows:
    """The part of a `ColumnTable` that is in memory; used by one thread."""

    columns: dict[str, npt.NDArray[Any]]  # sized to the capacity; read it again after each call of `row_ids`
    made: RowIds  # row ids that the last call of `row_ids` or `row_ids_int64` gave to keys that had none

    def __init__(
        self,
        name: str,
        state_id: int,
        shard: Shard,
        columns: Mapping[str, tuple[str, Any]],
        key_width: int,
        added: Collection[str],
        before: Mapping[str, str] | None,
        cache_bytes: int,
        held_bytes: Callable[[], int] | None,
    ) -> None:
        self.name = name
        self._state_id = state_id
        self._shard = shard
        self.key_width = key_width
        self._held_bytes = held_bytes
        self._initial = {column: value for column, (_, value) in columns.items()}
        self._rows = StoredRows(shard.operator, name, {column: kind for column, (kind, _) in columns.items()}, added)
        self._wide = self._rows.wide
        self._cells = CellBytes()
        self._added = frozenset(added)
        self._changed = before is not None  # what is stored has other columns
        if before is not None:
            self._rows.check_kinds({column: np.dtype(kind) for column, kind in before.items()})
        self._keys: IntKeys | TupleKeys = IntKeys(key_width)
        self._removed = RemovedKeys(IntKeys(key_width))  # to delete from what is stored
        self._recent: dict[int, int] = {}  # key of a single int -> row id, of those asked for in small batches
        self._capacity = 0
        self.columns = {column: np.empty(0, kind) for column, (kind, _) in columns.items()}
        self.made = NO_ROWS
        self._dirty = np.empty(0, np.bool_)
        self._stored = np.empty(0, np.bool_)  # the store may have this key
        self._used = np.empty(0, np.int64)  # when last asked for, in calls; only kept if evictable, and while many are
        self.limit_cache(cache_bytes)
        self._grow(_FIRST_CAPACITY)

    @property
    def entries(self) -> int:
        """How many keys have a row id now."""
        return len(self._keys)

    def mark_dirty(self, row_ids: RowIds) -> None:
        """The rows of `row_ids` were changed and belong to the next snapshot."""
        self._dirty[row_ids] = True
        if self._wide:
            self._count_cells(row_ids)

    def mark_few_dirty(self, row_ids: list[int]) -> None:
        """`mark_dirty` for a few rows."""
        if self._wide:
            self.mark_dirty(np.array(row_ids))
            return
        dirty = self._dirty.data
        for row_id in row_ids:
            dirty[row_id] = True

    def keys_of(self, row_ids: RowIds) -> list[Key]:
        return self._keys.tuples(row_ids)

    def int_keys_of(self, row_ids: RowIds) -> Ints | None:
        """`keys_of` as an array of shape (fields, keys); None if there are, or were, keys that are not all ints."""
        return self._keys.key_batch(row_ids) if isinstance(self._keys, IntKeys) else None

    def limit_cache(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes

    # ---- the index

    @property
    def _entry_bytes(self) -> int:
        return self._rows.dtype.itemsize + self._keys.bytes_per_key

    @property
    def _entry_limit(self) -> int:
        cells = self._cells.total // len(self._keys) if self._wide and len(self._keys) else 0
        held = self._cache_bytes if self._held_bytes is None else max(self._cache_bytes, self._held_bytes())
        return max(FEWEST, held // (self._entry_bytes + cells))

    def _key_batch(self, keys: Sequence[Key]) -> Any:
        """`keys` as the index takes them; from the first one on that is not of ints alone, it takes tuples."""
        if isinstance(self._keys, IntKeys):
            key_batch = int_key_batch(keys, len(keys[0])) if keys and self._fits(len(keys[0])) else None
            if key_batch is not None or not keys:
                return key_batch if key_batch is not None else np.empty((self._keys.fields, 0), np.int64)
            self._use_tuples()
        return keys

    def _fits(self, fields: int) -> bool:
        """Whether the index takes keys of that many ints. An empty one can be made to."""
        keys = self._keys
        if isinstance(keys, IntKeys) and keys.fields != fields and not len(keys) and not len(self._removed):
            self._keys, self._removed = IntKeys(fields), RemovedKeys(IntKeys(fields))
        return isinstance(self._keys, IntKeys) and self._keys.fields == fields

    def _last_fields(self, row_ids: RowIds) -> Ints:
        if isinstance(self._keys, IntKeys):
            return self._keys.last_fields(row_ids)
        return np.array([key[-1] for key in self._keys.key_batch(row_ids)], np.int64)

    def _set_rows(self, row_ids: RowIds, data: Sequence[bytes]) -> None:
        rows, cells = self._rows.read(data)
        for column in self._rows.numbers:
            self.columns[column][row_ids] = rows[column]
        if self._wide:
            for row_id, found in zip(row_ids.tolist(), cells, strict=True):
                for column, cell in zip(self._wide, found, strict=True):
                    self.columns[column][row_id] = cell
            self._count_cells(row_ids)
        self._stored[row_ids] = True
        self._dirty[row_ids] = False

    def _count_cells(self, row_ids: RowIds) -> None:
        self._cells.changed(row_ids, [self.columns[column] for column in self._wide])

    def _grow(self, needed: int) -> None:
        if needed <= self._capacity:
            return
        capacity = max(self._capacity, _FIRST_CAPACITY)
        while capacity < needed:
            capacity *= 2
        self.columns = {column: _extended(array, capacity) for column, array in self.columns.items()}
        self._dirty = _extended(self._dirty, capacity)
        self._stored = _extended(self._stored, capacity)
        self._used = _extended(self._used, capacity)
        if self._wide:
            self._cells.grow(capacity)
        self._capacity = capacity

    def _use_tuples(self) -> None:
        """From now on the index holds tuples. Row ids stay what they are."""
        self._keys, self._removed = tuple_keys(self._keys), self._removed.with_tuples()
        self._recent.clear()

    def _emptied(self) -> IntKeys | TupleKeys:
        return IntKeys(self._keys.fields) if isinstance(self._keys, IntKeys) else TupleKeys()

    def _forget(self, row_ids: RowIds) -> None:
        self._keys.remove(row_ids)
        self._dirty[row_ids] = False
        self._stored[row_ids] = False
        self._used[row_ids] = GONE
        self._recent.clear()
        if self._wide:
            self._cells.gone(row_ids)
            for column in self._wide:
                self.columns[column][row_ids] = EMPTY

    # ---- segments: all rows that changed, at once

    def _load_segment(self, segment: Segment) -> None:
        if not self._changed:
            self._rows.check_written({name: column.dtype for name, column in segment.columns.items()}, self._added)
        if segment.base:
            self._forget(self._keys.all())
        if count(segment.removed):
            removed = self._own(segment.removed)
            found = self._keys.find(removed)
            self._forget(found[found >= 0])
        key_batch = self._own(segment.keys)
        row_ids, _ = self._keys.place(key_batch)
        self._grow(self._keys.numbers.limit)
        for name, column in self.columns.items():
            column[row_ids] = segment.columns.get(name, self._initial[name])
        self._stored[row_ids] = True
        self._dirty[row_ids] = self._changed  # then all are written again, and the next segment is a base
        if self._wide:
            self._count_cells(row_ids)

    def _own(self, keys: Keys) -> Any:
        """As the index takes them."""
        if isinstance(keys, np.ndarray) and self._fits(len(keys)):
            return keys
        return self._key_batch(tuples_of(keys))

    def _segment(self, row_ids: RowIds, removed: IntKeys | TupleKeys, base: bool) -> FrozenSegment:
        columns = {name: column[row_ids] for name, column in self.columns.items()}
        return FrozenSegment(
            self._shard, self.name, self._state_id, self.key_width, base, self._keys, row_ids, columns, removed
        )


def _extended(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    extended = np.zeros(capacity, array.dtype)
    extended[: len(array)] = array
    return extended
