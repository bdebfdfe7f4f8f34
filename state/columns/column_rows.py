"""In-memory entries of a column table: a row id per key, a row over numpy arrays, and marks per row.

`Victims` chooses the least recently used entries, from a part of the row ids at a time. Victims are taken in the
store's order, which writes neighbours much faster; entries used meanwhile stay.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.columns.frozen_rows import tuples_of
from barrier_runtime.state.columns.segment import Keys, Segment, count
from barrier_runtime.state.columns.wide_columns import EMPTY, CellBytes, is_wide
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys, int_key_batch, tuple_keys

Place = Callable[[Sequence[Key]], RowIds]

_SEARCHES = 16  # after which the texts of a batch are counted again
_RESTS = 64  # batches without search, after too many texts
_GROWN = 2  # times the rows of the batch whose texts are known: its texts tell little of this batch
_MOST = 4  # times the texts of a batch: a search in more costs more than lookups
_MOST_BYTES = 4 << 20


class RecentTexts:
    """Arrow makes a table of the known texts in each search, so only texts of recent batches are known."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """The row ids are no longer valid."""
        self._texts: pa.Array | None = None
        self._row_ids: RowIds = np.empty(0, np.int64)
        self._searches = 0
        self._rests = 0
        self._most = 0
        self._rows = 0

    def row_ids(self, column: pa.Array, place: Place) -> RowIds:
        """Row id of each row. `place` returns those of keys, and may make them; nulls are equal."""
        if self._texts is None or not self._searches:
            return self._learnt(column, place)
        self._searches -= 1
        found = pc.index_in(column, value_set=self._texts)
        if not found.null_count:
            row_ids: RowIds = self._row_ids[found.to_numpy()]
            return row_ids
        is_new = found.is_null()
        new = column.filter(is_new).dictionary_encode(null_encoding="encode")
        more = new.dictionary
        if 4 * len(more) > 3 * len(column) or len(self._texts) + len(more) > self._most:
            grown = len(column) > _GROWN * self._rows
            self.clear()
            self._rests = 0 if grown else _RESTS
            return self._learnt(column, place)
        of_more, mask = place(_keys(more)), is_new.to_numpy(zero_copy_only=False)
        row_ids = np.empty(len(column), np.int64)
        row_ids[~mask] = self._row_ids[found.drop_null().to_numpy()]
        row_ids[mask] = of_more[new.indices.to_numpy()]
        self._row_ids = np.concatenate([self._row_ids, of_more])
        self._texts = pa.concat_arrays([self._texts, more])
        return row_ids

    def _learnt(self, column: pa.Array, place: Place) -> RowIds:
        encoded = column.dictionary_encode(null_encoding="encode")
        texts = encoded.dictionary
        of_texts = place(_keys(texts))
        self._most, self._searches = _MOST * len(texts), _SEARCHES
        if self._rests:
            self._rests -= 1
        elif texts.nbytes > _MOST_BYTES:
            self.clear()
        elif self._texts is None or self._texts.nbytes > _MOST_BYTES or len(self._texts) > self._most:
            self._texts, self._row_ids, self._rows = texts, of_texts, len(column)
        row_ids: RowIds = of_texts[encoded.indices.to_numpy()]
        return row_ids


def _keys(texts: pa.Array) -> list[Key]:
    return [(text,) for text in texts.to_pylist()]


# Value of `used` for row ids without an entry.
GONE = np.iinfo(np.int64).max

_NO_ROWS: RowIds = np.empty(0, np.int64)
_LOOKED_AT = 16_384  # row ids per step
_SAMPLED = 2_048
_OLDEST = 8  # at most 1/8 of all entries is chosen


class Victims:
    def __init__(self, stored: EntryKeys) -> None:
        self._stored = stored
        self._row_ids = _NO_ROWS
        self._newest = 0  # latest call that used a victim, at the choice
        self._hand = 0

    @property
    def left(self) -> int:
        return len(self._row_ids)

    def choose(self, keys: IntKeys | TupleKeys, used: npt.NDArray[np.int64], count: int) -> None:
        limit = keys.numbers.limit
        self._newest = _oldest_eighth(used[:limit])
        found: list[RowIds] = []
        looked_at, number, most = 0, 0, max(count, len(keys) // _OLDEST)
        while looked_at < limit and number < count:
            first = self._hand if self._hand < limit else 0
            self._hand = min(limit, first + min(_LOOKED_AT, limit - looked_at))
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
        taken, self._row_ids = self._row_ids[:count], self._row_ids[count:]
        still: RowIds = taken[used[taken] <= self._newest]
        return still


def _oldest_eighth(used: npt.NDArray[np.int64]) -> int:
    sample = used[:: max(1, len(used) // _SAMPLED)]
    sample = sample[sample != GONE]
    if not len(sample):
        return int(GONE) - 1
    at = len(sample) // _OLDEST
    return int(np.partition(sample, at)[at])


class RemovedKeys:
    """Keys whose removal is not frozen yet.

    Keys of ended windows, a million at a time, wait as arrays; the index is made once an arriving key may be among
    them.
    """

    def __init__(self, index: IntKeys | TupleKeys) -> None:
        self._index = index
        self._waiting: list[Ints] = []
        self._many = 0
        self._highest = 0

    def __len__(self) -> int:
        """Keys removed twice may count twice."""
        return len(self._index) + self._many

    def add(self, keys: Ints | Sequence[Key]) -> None:
        self.index.place(keys)  # type: ignore[arg-type]

    def add_by_last(self, keys: Ints) -> None:
        """Adds keys of a table whose keys arrive nearly in the order of their last fields."""
        highest = int(keys[-1].max())
        self._highest = max(self._highest, highest) if self._waiting else highest
        self._waiting.append(keys)
        self._many += keys.shape[1]

    def may_have(self, lowest_last: Callable[[], int]) -> bool:
        """True if the set may contain a key with last field `lowest_last()` or higher."""
        return len(self._index) > 0 or (bool(self._waiting) and lowest_last() <= self._highest)

    @property
    def index(self) -> IntKeys | TupleKeys:
        for keys in self._waiting:
            self._index.place(keys)  # type: ignore[arg-type]
        self._waiting, self._many = [], 0
        return self._index

    def with_tuples(self) -> "RemovedKeys":
        return RemovedKeys(tuple_keys(self.index))


_FIRST_CAPACITY = 1_536  # so that columns do not grow in the same call as their keys
NO_ROWS: RowIds = np.empty(0, np.int64)


class ColumnRows:
    """`columns`: name → (numpy dtype, initial value)."""

    def __init__(self, columns: Mapping[str, tuple[str, Any]], key_width: int) -> None:
        self.initial = {column: value for column, (_, value) in columns.items()}
        self.wide = tuple(column for column, (kind, _) in columns.items() if is_wide(kind))
        self.keys: IntKeys | TupleKeys = IntKeys(key_width)
        self.removed = RemovedKeys(IntKeys(key_width))  # keys to delete from stored entries
        self.recent: dict[int, int] = {}  # single int key -> row id, of keys used in small batches
        self.texts = RecentTexts()
        self._cells = CellBytes()
        self._capacity = 0
        self.columns: dict[str, npt.NDArray[Any]] = {name: np.empty(0, kind) for name, (kind, _) in columns.items()}
        self.dirty = np.empty(0, np.bool_)
        self.stored = np.empty(0, np.bool_)  # True if the store may have the key
        self.used = np.empty(0, np.int64)  # last call that used the row; in evictable tables with many entries
        self.grow(_FIRST_CAPACITY)

    @property
    def cell_bytes(self) -> int:
        return self._cells.total

    def key_batch(self, keys: Sequence[Key]) -> Any:
        """The first key with another field than ints changes the index to tuples."""
        if isinstance(self.keys, IntKeys):
            key_batch = int_key_batch(keys, len(keys[0])) if keys and self.fits(len(keys[0])) else None
            if key_batch is not None or not keys:
                return key_batch if key_batch is not None else np.empty((self.keys.fields, 0), np.int64)
            self.keys, self.removed = tuple_keys(self.keys), self.removed.with_tuples()
            self._forget_recent()
        return keys

    def fits(self, fields: int) -> bool:
        """An empty index is replaced to fit."""
        keys = self.keys
        if isinstance(keys, IntKeys) and keys.fields != fields and not len(keys) and not len(self.removed):
            self.keys, self.removed = IntKeys(fields), RemovedKeys(IntKeys(fields))
        return isinstance(self.keys, IntKeys) and self.keys.fields == fields

    def last_fields(self, row_ids: RowIds) -> Ints:
        if isinstance(self.keys, IntKeys):
            return self.keys.last_fields(row_ids)
        return np.array([key[-1] for key in self.keys.key_batch(row_ids)], np.int64)

    def no_keys(self) -> IntKeys | TupleKeys:
        return IntKeys(self.keys.fields) if isinstance(self.keys, IntKeys) else TupleKeys()

    def none_removed(self) -> None:
        self.removed = RemovedKeys(self.no_keys())

    def mark_dirty(self, row_ids: RowIds) -> None:
        self.dirty[row_ids] = True
        if self.wide:
            self._count_cells(row_ids)

    def mark_frozen(self, row_ids: RowIds) -> None:
        self.dirty[row_ids] = False
        self.stored[row_ids] = True

    def place(self, key_batch: Any) -> RowIds:
        row_ids, _ = self.keys.place(key_batch)
        self.grow(self.keys.numbers.limit)
        return row_ids

    def begin(self, row_ids: RowIds, now: int) -> None:
        """`now`: number of the current call."""
        self.grow(self.keys.numbers.limit)
        for column, initial in self.initial.items():
            self.columns[column][row_ids] = initial
        self.dirty[row_ids] = False
        self.stored[row_ids] = False
        self.used[row_ids] = now

    def put_stored(self, row_ids: RowIds, numbers: npt.NDArray[np.void], cells: list[list[bytes]]) -> None:
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
        """`changed`: all rows are written again, and the next segment is a base."""
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
        self.keys.remove(row_ids)
        self.dirty[row_ids] = False
        self.stored[row_ids] = False
        self.used[row_ids] = GONE
        self._forget_recent()
        if self.wide:
            self._cells.gone(row_ids)
            for column in self.wide:
                self.columns[column][row_ids] = EMPTY

    def _forget_recent(self) -> None:
        self.recent.clear()
        self.texts.clear()

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
        if isinstance(keys, np.ndarray) and self.fits(len(keys)):
            return keys
        return self.key_batch(tuples_of(keys))

    def _count_cells(self, row_ids: RowIds) -> None:
        self._cells.changed(row_ids, [self.columns[column] for column in self.wide])


def _extended(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    extended = np.zeros(capacity, array.dtype)
    extended[: len(array)] = array
    return extended
