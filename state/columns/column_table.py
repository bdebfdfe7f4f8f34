"""Keyed state as columns: each key has a row id, each value is a row over a few numpy arrays.

Per batch, an operator calls `row_ids(keys)`, changes `columns`, and calls `mark_dirty`. A freeze copies the dirty rows,
for segments or, from the first eviction on, for entries of the key-value store (docs/design/columns-and-segments.md).

The first eviction makes all rows dirty. A `last_first` table (`entry_keys`) returns to segments at the first freeze
without evicted entries and with at most half of the memory limit used.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.columns.column_rows import GONE, NO_ROWS, ColumnRows, Victims
from barrier_runtime.state.columns.frozen_rows import FrozenSegment
from barrier_runtime.state.columns.segment import Segment
from barrier_runtime.state.columns.stored_entries import Lasts, StoredEntries, entries_under
from barrier_runtime.state.columns.stored_rows import StoredRows
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.kv.store import Entry

_FEW_ROWS = 256  # for fewer rows, a dict of recent keys is faster than the index
_REMEMBERED = 65_536
SPILLED_AT_ONCE = 512
_MOST_REMOVED = 4_096
_FEWEST = 1_024


class ColumnTable:
    """For a single thread."""

    most_cache_bytes = sys.maxsize

    def __init__(
        self,
        name: str,
        state_id: int,
        shard: Shard,
        columns: Mapping[str, tuple[str, Any]],
        key_width: int,
        evictable: bool,
        cache_bytes: int,
        segments: Iterable[Segment],
        stored: bool,
        added: Collection[str] = (),
        before: Mapping[str, str] | None = None,
        last_first: bool = False,
        rekey: bool = False,
        held_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`segments`: the restored segments, oldest first.

        `stored`: the key-value store has entries of the table. `added`, `before`, `last_first`: as in
        `KeyedBackend.column_table`. `rekey`: the stored entries are not `last_first` yet. `held_bytes`: memory limit of
        the entries, if above `cache_bytes`.
        """
        self.name = name
        self.key_width = key_width
        self.made = NO_ROWS  # row ids made by the last call
        self.loaded = 0
        self._state_id = state_id
        self._shard = shard
        self._held_bytes = held_bytes
        self._rows = ColumnRows(columns, key_width)
        kinds = {column: kind for column, (kind, _) in columns.items()}
        written = StoredRows(shard.operator, name, kinds, added)
        self._store = StoredEntries(shard, state_id, key_width, last_first, written)
        self._row_bytes = written.dtype.itemsize
        self.limit_cache(cache_bytes)
        self._evictable = evictable
        self._complete = not stored  # every entry has a row id
        self._came_back = False  # `_complete` has become True again
        self._in_segments = True
        self._segments: list[FrozenSegment] = []
        self._segments_end = False  # the next snapshot has no earlier segments
        self._tracks = False
        self._victims = Victims(self._store.keys)
        self._calls = 0
        if before is not None:
            written.check_kinds({column: np.dtype(kind) for column, kind in before.items()})
        for segment in segments:
            if before is None:
                written.check_written({each: column.dtype for each, column in segment.columns.items()}, added)
            self._rows.put_segment(segment, before is not None)
        if stored:
            self._leave_segments()
            self._store.begin(rekey, before, self._rows.initial)

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Read `columns` again after each call of `row_ids`."""
        return self._rows.columns

    @property
    def entries(self) -> int:
        return len(self._rows.keys)

    def keys_of(self, row_ids: RowIds) -> list[Key]:
        return self._rows.keys.tuples(row_ids)

    def int_keys_of(self, row_ids: RowIds) -> Ints | None:
        """Shape (fields, keys); None once the table has had another key than ints."""
        keys = self._rows.keys
        return keys.key_batch(row_ids) if isinstance(keys, IntKeys) else None

    def mark_dirty(self, row_ids: RowIds) -> None:
        self._rows.mark_dirty(row_ids)

    def mark_few_dirty(self, row_ids: list[int]) -> None:
        rows = self._rows
        if rows.wide:
            rows.mark_dirty(np.array(row_ids))
            return
        dirty = rows.dirty.data
        for row_id in row_ids:
            dirty[row_id] = True

    def row_ids(self, keys: Sequence[Key]) -> RowIds:
        """Row ids of `keys`, loaded or made; valid while the entry exists, if evictable until the next call."""
        self._begin_call()
        return self._placed(self._rows.key_batch(keys))

    def row_ids_int64(self, *fields: Ints) -> RowIds:
        """Row ids of keys, given as an int64 array per field; keys may repeat."""
        self._begin_call()
        if not self._rows.fits(len(fields)):
            return self._placed(self._rows.key_batch(list(zip(*(field.tolist() for field in fields), strict=True))))
        if len(fields) == 1 and len(fields[0]) < _FEW_ROWS:
            return self._remembered(fields[0])
        return self._placed(np.array(fields, np.int64))

    def row_ids_of_texts(self, texts: pa.Array) -> RowIds:
        """As `row_ids`, of each row, whose key is a single text or null."""
        self._begin_call()
        self.made = NO_ROWS
        row_ids = self._rows.texts.row_ids(texts, lambda keys: self._placed(self._rows.key_batch(keys)))
        if self._tracks:
            self._rows.used[row_ids] = self._calls
        return row_ids

    def new_row_ids_int64(self, *fields: Ints) -> RowIds:
        """As `row_ids_int64`, for distinct keys without entries."""
        self._begin_call()
        fits, keys = self._rows.fits(len(fields)), self._rows.keys
        if not fits or not isinstance(keys, IntKeys):
            return self.row_ids_int64(*fields)
        self.made = keys.add(np.array(fields, np.int64))
        self._begin_entries(self.made)
        return self.made

    def row_ids_of_few(self, keys: list[int]) -> list[int]:
        self._begin_call()
        try:
            row_ids = list(map(self._rows.recent.__getitem__, keys))
        except KeyError:
            row_ids = self._made_of_few(keys)
        else:
            self.made = NO_ROWS
            if self._tracks:
                used, now = self._rows.used.data, self._calls
                for row_id in row_ids:
                    used[row_id] = now
        return row_ids

    def _made_of_few(self, keys: list[int]) -> list[int]:
        values = np.array(keys, np.int64)
        if not self._rows.fits(1):
            row_ids: list[int] = self._placed(self._rows.key_batch([(key,) for key in keys])).tolist()
            return row_ids
        return self._remembered(values).tolist()  # type: ignore[no-any-return]

    def remove(self, row_ids: RowIds) -> None:
        """Deletes the entries of `row_ids` (each once). Other keys may get these row ids."""
        stored = row_ids[self._rows.stored[row_ids]]
        if len(stored):
            keys = self._rows.keys.key_batch(stored)
            if self._store.lasts is not None and self._in_segments and isinstance(keys, np.ndarray):
                self._rows.removed.add_by_last(keys)
            else:
                self._rows.removed.add(keys)
        self._rows.forget(row_ids)
        if len(self._rows.removed) > _MOST_REMOVED and not self._complete:
            self._relieve_removed()

    def load_all(self) -> RowIds:
        if not self._complete:
            self._load_stored()
        return self._rows.keys.all()

    # ---- entries that are not in memory

    @property
    def is_whole(self) -> bool:
        """Returns whether all entries keep row ids; otherwise valid until the next call."""
        return self._complete and not self._came_back

    @property
    def is_in_memory(self) -> bool:
        return self._complete

    def lasts(self, first: int) -> Ints:
        """Distinct last fields of all keys, ascending. None is below `first`. Only with `last_first`."""
        assert self._store.lasts is not None, "of a table whose entries are in this order"
        in_memory = self._rows.last_fields(self._rows.keys.all())
        return distinct_ints(np.concatenate([in_memory, self._store.lasts.all_from(first)]))

    def entries_of(self, last: int) -> Iterator[RowIds]:
        """Yields row ids of all entries whose key ends with `last`.

        Entries in memory come first, then stored entries in parts, by key group and key. Row ids of a part are valid
        until the next part. An entry that the caller does not remove may be yielded twice. Do not call `row_ids`
        meanwhile.
        """
        assert self._store.lasts is not None, "of a table whose entries are in this order"
        row_ids = self._rows.keys.all()
        yield row_ids[self._rows.last_fields(row_ids) == last]
        if self._complete or not self._store.lasts.has(np.array([last]))[0]:
            return
        for some in entries_under(self._store.keys, last):
            row_ids = self._load_chunk(some)
            if len(row_ids):
                yield row_ids
                left = row_ids[self._rows.used[row_ids] != GONE]
                self._rows.used[left] = 0
            if len(self._rows.keys) > self._entry_limit:
                self._make_room()

    def none_of(self, last: int) -> None:
        if self._store.lasts is not None:
            self._store.lasts.discard(last)
            if not self._complete and self._store.lasts.none_is_away:
                self._complete = self._came_back = True

    # ---- for the backend

    def limit_cache(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes

    def freeze(self) -> None:
        if self._store.lasts is not None and not self._in_segments and self._complete and not self._store.frozen:
            self._may_enter_segments(self._store.lasts)
        if self._in_segments:
            self._freeze_segment()
            return
        if self._segments_end:
            self._segments = [self._segment(NO_ROWS, self._rows.no_keys(), base=True)]
            self._segments_end = False
        if len(self._rows.removed):
            self._store.freeze_removed(self._rows)
        self._store.freeze(self._rows, np.flatnonzero(self._rows.dirty))

    @property
    def frozen_entries(self) -> int:
        return len(self._store.frozen) + sum(segment.left for segment in self._segments)

    def take(self, max_entries: int) -> list[Entry]:
        """Frozen entries, oldest freeze first; also encodes `max_entries` keys of each segment."""
        for segment in self._segments:
            segment.encode_keys(max_entries)
        return self._store.frozen.take(max_entries)

    def take_segments(self) -> list[FrozenSegment]:
        """Segments, oldest freeze first; called once no frozen entry is left."""
        taken, self._segments = self._segments, []
        return taken

    def memory_bytes(self) -> int:
        frozen = sum(segment.nbytes for segment in self._segments)
        return (len(self._rows.keys) + len(self._store.frozen)) * self._entry_bytes + frozen + self._rows.cell_bytes

    # ---- finding and making entries

    @property
    def _entry_bytes(self) -> int:
        return self._row_bytes + self._rows.keys.bytes_per_key

    @property
    def _entry_limit(self) -> int:
        rows, bytes_each = self._rows, self._entry_bytes
        if rows.wide and len(rows.keys):
            bytes_each += rows.cell_bytes // len(rows.keys)
        held = self._cache_bytes if self._held_bytes is None else max(self._cache_bytes, self._held_bytes())
        return max(_FEWEST, held // bytes_each)

    def _begin_call(self) -> None:
        if not self._evictable:
            if not self._complete:
                self._load_stored()
        else:
            self._calls += 1
            entries, limit = len(self._rows.keys), self._entry_limit
            self._tracks = 2 * entries > limit
            if entries > limit:
                self._make_room()

    def _placed(self, key_batch: Any) -> RowIds:
        row_ids, self.made = self._rows.keys.place(key_batch)
        if len(self.made):
            self._begin_entries(self.made)
        if self._tracks:
            self._rows.used[row_ids] = self._calls
        return row_ids

    def _remembered(self, values: Ints) -> RowIds:
        recent, keys = self._rows.recent, values.tolist()
        self.made = NO_ROWS
        try:
            row_ids = np.fromiter(map(recent.__getitem__, keys), np.int64, len(keys))
        except KeyError:
            row_ids = self._placed(values[np.newaxis])
            if len(recent) > _REMEMBERED:
                recent.clear()
            recent.update(zip(keys, row_ids.tolist(), strict=True))
            return row_ids
        if self._tracks:
            self._rows.used[row_ids] = self._calls
        return row_ids

    def _begin_entries(self, row_ids: RowIds) -> None:
        rows, fresh = self._rows, row_ids
        rows.begin(row_ids, self._calls)
        if rows.removed.may_have(lambda: int(rows.last_fields(row_ids).min())):
            key_batch, removed = rows.keys.key_batch(row_ids), rows.removed.index
            waiting = removed.find(key_batch)  # type: ignore[arg-type]
            known = waiting >= 0
            removed.remove(waiting[known])
            rows.stored[row_ids[known]] = True
            rows.dirty[row_ids[known]] = True  # the store still has the removed entry
            fresh = row_ids[~known]
        if not self._complete:
            self.loaded += self._store.fill(rows, fresh)

    def _load_stored(self) -> None:
        for some in self._store.all():
            self._load_chunk(some)
        self._complete = True

    def _load_chunk(self, entries: list[tuple[bytes, bytes]]) -> RowIds:
        row_ids = self._store.load(self._rows, entries)
        self._rows.used[row_ids] = self._calls
        self.loaded += len(row_ids)
        return row_ids

    # ---- segments

    def _freeze_segment(self) -> None:
        rows = self._rows
        dirty = np.flatnonzero(rows.dirty)
        if not len(dirty) and not len(rows.removed) and not self._segments_end:
            return
        changed = len(dirty) + len(rows.removed) + sum(map(len, self._segments))  # with those of aborted checkpoints
        base = self._segments_end or 2 * changed > len(rows.keys)  # deltas would be about as large
        self._segments_end = False
        if base:
            dirty = np.flatnonzero(rows.dirty | rows.stored)
            self._segments = []
        self._segments.append(self._segment(dirty, rows.no_keys() if base else rows.removed.index, base))
        rows.none_removed()
        rows.mark_frozen(dirty)

    def _segment(self, row_ids: RowIds, removed: IntKeys | TupleKeys, base: bool) -> FrozenSegment:
        columns = {name: column[row_ids] for name, column in self._rows.columns.items()}
        return FrozenSegment(
            self._shard, self.name, self._state_id, self.key_width, base, self._rows.keys, row_ids, columns, removed
        )

    def _leave_segments(self) -> None:
        """The store has none of the entries in memory."""
        self._in_segments = False
        self._segments_end = True
        self._rows.none_removed()
        self._rows.dirty |= self._rows.stored
        self._rows.stored[:] = False

    def _may_enter_segments(self, lasts: Lasts) -> None:
        if 2 * len(self._rows.keys) > self._entry_limit:
            return
        stored = np.flatnonzero(self._rows.stored)
        if len(stored):
            self._rows.removed.add(self._rows.keys.key_batch(stored))
        if len(self._rows.removed):
            self._store.freeze_removed(self._rows)
        lasts.none()
        self._in_segments = True
        self._rows.dirty[self._rows.keys.all()] = True
        self._rows.stored[:] = False

    # ---- eviction

    def _make_room(self) -> None:
        """Evicts least recently used entries, as many as arrived, to keep calls short."""
        if self._in_segments:
            self._leave_segments()
        if self._store.frozen:
            if not self._store.may_write:
                return
            self._store.write_some(SPILLED_AT_ONCE)
            if self._store.frozen:
                return
        self._relieve_removed()
        entries, limit = len(self._rows.keys), self._entry_limit
        count = max(SPILLED_AT_ONCE, 2 * (entries - limit))
        if not self._victims.left:
            self._victims.choose(self._rows.keys, self._rows.used, max(1, entries - limit))
        row_ids = self._victims.take(count, self._rows.used)
        dirty = row_ids[self._rows.dirty[row_ids]]
        if len(dirty):
            if self._store.may_write:
                self._store.freeze(self._rows, dirty)
                self._store.write_frozen()
            else:
                row_ids = row_ids[~self._rows.dirty[row_ids]]
        away = row_ids[self._rows.stored[row_ids]]
        if len(away):
            self._complete = False
            if self._store.lasts is not None:
                self._store.lasts.away(self._rows.last_fields(away))
        self._rows.forget(row_ids)

    def _relieve_removed(self) -> None:
        few = len(self._rows.removed) <= _MOST_REMOVED
        if few or self._in_segments or self._store.frozen or not self._store.may_write:
            return
        self._store.freeze_removed(self._rows)
        self._store.write_frozen()
