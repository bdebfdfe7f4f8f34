"""Keyed state as columns: every key has a row id, and a value is one row over a few numpy arrays.

For vectorised operators: `row_ids(keys)` once per batch, then plain numpy on `columns`, then `mark_dirty`. Keys of
plain ints, of any number of fields, are held without Python objects (see `keys/row_index`) until a key comes that is no
such thing. A freeze copies the dirty rows. Where they go:

    in segments    as long as all entries are in memory: a freeze gives one segment (see `segment`), which a worker
                   writes; nothing runs once per entry
    as entries     of the key-value store, one per key (see `stored_rows`), from the first eviction on, because single
                   ones are looked up then; written in slices. With `last_first` they are in the order of the last
                   field of their keys (see `entry_keys`), and can be asked for by it (`entries_of`)

A column of dtype "O" holds bytes of any length (see `wide_columns`). What is in memory is a `ColumnRows`.
The first eviction makes everything dirty, so that the next snapshot has all entries, and no segment of this table. A
`last_first` table goes back to segments with the first freeze at which all that was evicted is gone and less than half
of what may be in memory is there: that freeze gives a segment of everything, and the removal of what the store has.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.column_rows import NO_ROWS, ColumnRows
from barrier_runtime.state.columns.entries_by_last import Lasts, entries_under, rekeyed
from barrier_runtime.state.columns.entry_keys import EntryKeys, int_fields
from barrier_runtime.state.columns.entry_writes import FrozenRuns, IntRun, TupleRun
from barrier_runtime.state.columns.eviction import GONE, Victims
from barrier_runtime.state.columns.frozen_rows import FrozenSegment
from barrier_runtime.state.columns.removed_keys import RemovedKeys
from barrier_runtime.state.columns.segment import Segment
from barrier_runtime.state.columns.wide_columns import tails
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.kv.store import Entry

_LOAD_ROWS = 8_192
_FEW_ROWS = 256  # below, remembering single keys is faster than the index
_REMEMBERED = 65_536
SPILLED_AT_ONCE = 512
_WRITTEN_AT_ONCE = 8_192
_MOST_REMOVED = 4_096


class ColumnTable(ColumnRows):
    """Made by `KeyedBackend.column_table`; used by one thread."""

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
        """`segments`: of this table, to begin with, oldest first. `stored`: the key-value store has entries of it.
        `added`: the last of `columns`, which older releases did not write; they are 0 where they were not written.
        `before`: the columns that what is stored has, name → numpy dtype in the order of its rows; None: the same (see
        `changed_columns`). `rekey`: what is stored is not `last_first` yet. `held_bytes`: how many bytes the entries in
        memory may take, if that is more than `cache_bytes`."""
        super().__init__(name, state_id, shard, columns, key_width, added, before, cache_bytes, held_bytes)
        self._evictable = evictable
        self._stored_keys = EntryKeys(shard, state_id, key_width, last_first)
        self._lasts = Lasts(self._stored_keys) if last_first else None  # of the entries that the store has
        self._complete = not stored  # every entry there is has a row id
        self._came_back = False  # it has become so again
        self._in_segments = True
        self._segments: list[FrozenSegment] = []  # frozen, not yet written
        self._segments_end = False  # none of those written before is in the next snapshot
        self._frozen = FrozenRuns()
        self._tracks = False
        self._victims = Victims(self._stored_keys)
        self._calls = 0
        self.loaded = 0  # entries that were read from the store since the table was made
        for segment in segments:
            self._load_segment(segment)
        if stored:
            self._leave_segments()
            if rekey:
                rekeyed(self._shard, state_id, self._stored_keys)
            if before is not None:
                self._rows.rewrite(self._shard, state_id, before, self._initial)
            if self._lasts is not None:
                self._lasts.unknown()

    # ---- what operators use

    def row_ids(self, keys: Sequence[Key]) -> RowIds:
        """The row ids of `keys`, loaded or made with initial values as needed. They stay valid as long as the entry
        exists; in an evictable table only until the next call."""
        self._begin_call()
        return self._placed(self._key_batch(keys))

    def row_ids_int64(self, *fields: Ints) -> RowIds:
        """The row id of each key, given as one int64 array per field; keys may repeat."""
        self._begin_call()
        if isinstance(self._keys, TupleKeys) or not self._fits(len(fields)):
            return self._placed(self._key_batch(list(zip(*(field.tolist() for field in fields), strict=True))))
        if len(fields) == 1 and len(fields[0]) < _FEW_ROWS:
            return self._remembered(fields[0])
        return self._placed(np.array(fields, np.int64))

    def row_ids_of_few(self, keys: list[int]) -> list[int]:
        """`row_ids_int64` of one field, for a few keys as a list."""
        self._begin_call()
        try:
            row_ids = list(map(self._recent.__getitem__, keys))
        except KeyError:
            row_ids = self._made_of_few(keys)
        else:
            self.made = NO_ROWS
            if self._tracks:
                used, now = self._used.data, self._calls
                for row_id in row_ids:
                    used[row_id] = now
        return row_ids

    def _made_of_few(self, keys: list[int]) -> list[int]:
        values = np.array(keys, np.int64)
        if isinstance(self._keys, TupleKeys) or not self._fits(1):
            row_ids: list[int] = self._placed(self._key_batch([(key,) for key in keys])).tolist()
            return row_ids
        return self._remembered(values).tolist()  # type: ignore[no-any-return]

    def remove(self, row_ids: RowIds) -> None:
        """Delete the entries of `row_ids` (each once). The row ids may be used for other keys from now on."""
        stored = row_ids[self._stored[row_ids]]
        if len(stored):
            keys = self._keys.key_batch(stored)
            if self._lasts is not None and self._in_segments and isinstance(keys, np.ndarray):
                self._removed.add_by_last(keys)
            else:
                self._removed.add(keys)
        self._forget(row_ids)
        if len(self._removed) > _MOST_REMOVED and not self._complete:
            self._relieve_removed()

    def load_all(self) -> RowIds:
        """Give every entry a row id, and return all row ids. After a restore, for those who must see everything."""
        if not self._complete:
            self._load_stored()
        return self._keys.all()

    # ---- entries that are not in memory

    @property
    def is_whole(self) -> bool:
        """Every entry there is has had a row id all the time. If not, row ids are good until the next call, and what is
        there is asked for by `entries_of`."""
        return self._complete and not self._came_back

    @property
    def is_in_memory(self) -> bool:
        """Every entry there is has a row id now: nothing is read from the store."""
        return self._complete

    def lasts(self, first: int) -> Ints:
        """The last fields of the keys of all entries, each once, rising; the store is asked for those from `first` on
        (below, there must be none). Only with `last_first`."""
        assert self._lasts is not None, "of a table whose entries are in this order"
        in_memory = self._last_fields(self._keys.all())
        return np.union1d(in_memory, self._lasts.all_from(first))

    def entries_of(self, last: int) -> Iterator[RowIds]:
        """Row ids of all entries whose key ends with `last`, in parts: what is in memory, then what is not, by key
        group and key. Those of a part are valid until the next one is asked for. An entry that the caller leaves may
        be given twice. Meanwhile nobody may call `row_ids`."""
        assert self._lasts is not None, "of a table whose entries are in this order"
        row_ids = self._keys.all()
        yield row_ids[self._last_fields(row_ids) == last]
        if self._complete or not self._lasts.has(np.array([last]))[0]:
            return
        for some in entries_under(self._stored_keys, last):
            row_ids = self._load_chunk([data_key for data_key, _ in some], [data for _, data in some])
            if len(row_ids):
                yield row_ids
                left = row_ids[self._used[row_ids] != GONE]
                self._used[left] = 0
            if len(self._keys) > self._entry_limit:
                self._make_room()

    def none_of(self, last: int) -> None:
        """No entry has a key that ends with `last` any more."""
        if self._lasts is not None:
            self._lasts.discard(last)
            if not self._complete and self._lasts.none_is_away:
                self._complete = self._came_back = True

    # ---- what the backend uses

    def freeze(self) -> None:
        if self._lasts is not None and not self._in_segments and self._complete and not self._frozen:
            self._may_enter_segments(self._lasts)
        if self._in_segments:
            self._freeze_segment()
            return
        if self._segments_end:
            self._segments = [self._segment(NO_ROWS, self._emptied(), base=True)]
            self._segments_end = False
        if len(self._removed):
            self._freeze_removed()
        self._pack(np.flatnonzero(self._dirty))

    @property
    def frozen_entries(self) -> int:
        return len(self._frozen) + sum(segment.left for segment in self._segments)

    def take(self, max_entries: int) -> list[Entry]:
        """Up to `max_entries` frozen entries, to be written to the store at once, oldest freeze first. Makes that many
        keys of segments ready meanwhile."""
        for segment in self._segments:
            segment.encode_keys(max_entries)
        return self._frozen.take(max_entries)

    def take_segments(self) -> list[FrozenSegment]:
        """Those of all freezes, oldest first, once nothing frozen is left. They are the caller's then."""
        taken, self._segments = self._segments, []
        return taken

    def memory_bytes(self) -> int:
        frozen = sum(segment.nbytes for segment in self._segments)
        return (len(self._keys) + len(self._frozen)) * self._entry_bytes + frozen + self._cells.total

    # ---- finding and making entries

    def _begin_call(self) -> None:
        if not self._evictable:
            if not self._complete:
                self._load_stored()
        else:
            self._calls += 1
            entries, limit = len(self._keys), self._entry_limit
            self._tracks = 2 * entries > limit
            if entries > limit:
                self._make_room()

    def _placed(self, key_batch: Any) -> RowIds:
        row_ids, self.made = self._keys.place(key_batch)
        if len(self.made):
            self._begin_entries(self.made)
        if self._tracks:
            self._used[row_ids] = self._calls
        return row_ids

    def _remembered(self, values: Ints) -> RowIds:
        """A few single ints: looking them up in a dict beats a dozen passes of numpy."""
        recent, keys = self._recent, values.tolist()
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
            self._used[row_ids] = self._calls
        return row_ids

    def _begin_entries(self, row_ids: RowIds) -> None:
        """Stored values if the store has them, initial values otherwise."""
        self._grow(self._keys.numbers.limit)
        for column, initial in self._initial.items():
            self.columns[column][row_ids] = initial
        self._dirty[row_ids] = False
        self._stored[row_ids] = False
        self._used[row_ids] = self._calls
        fresh = row_ids
        if self._removed.may_have(lambda: int(self._last_fields(row_ids).min())):
            key_batch, removed = self._keys.key_batch(row_ids), self._removed.index
            waiting = removed.find(key_batch)  # type: ignore[arg-type]
            known = waiting >= 0
            removed.remove(waiting[known])
            self._stored[row_ids[known]] = True
            self._dirty[row_ids[known]] = True  # the store has what was removed
            fresh = row_ids[~known]
        if not self._complete:
            self._load_each(fresh)

    def _load_each(self, fresh: RowIds) -> None:
        """What the store has of these entries."""
        if self._lasts is not None:
            fresh = fresh[self._lasts.has(self._last_fields(fresh))]
        if not len(fresh):
            return
        key_batch = self._keys.key_batch(fresh)
        gone = self._frozen.removed(key_batch, len(fresh))
        if gone is not None and gone.any():
            fresh = fresh[~gone]
            key_batch = self._keys.key_batch(fresh)
        data = self._shard.kv.get_many(self._stored_keys.of_any(key_batch))
        at = [number for number, value in enumerate(data) if value is not None]
        if at:
            self._set_rows(fresh[at], [value for value in data if value is not None])
            self.loaded += len(at)

    def _load_stored(self) -> None:
        rows = self._shard.scan_state(self._state_id)
        while chunk := list(islice(rows, _LOAD_ROWS)):
            self._load_chunk([key for key, _ in chunk], [data for _, data in chunk])
        self._complete = True

    def _load_chunk(self, data_keys: list[bytes], data: list[bytes]) -> RowIds:
        """Entries of the store into memory, without those of which it has not the last word. Gives their row ids."""
        key_batch: Any = None
        if self._fits(fields := int_fields(data_keys[0])):
            key_batch = self._stored_keys.ints(data_keys, fields)
        if key_batch is None:
            key_batch = self._key_batch([self._stored_keys.key(data_key) for data_key in data_keys])
        unknown = self._keys.find(key_batch) < 0
        if len(self._removed):
            unknown &= self._removed.index.find(key_batch) < 0
        gone = self._frozen.removed(key_batch, len(data_keys))
        if gone is not None:
            unknown &= ~gone
        wanted = np.flatnonzero(unknown)
        if not len(wanted):
            return NO_ROWS
        chosen: Any = (
            key_batch[:, wanted] if isinstance(key_batch, np.ndarray) else [key_batch[at] for at in wanted.tolist()]
        )
        row_ids, _ = self._keys.place(chosen)
        self._grow(self._keys.numbers.limit)
        self._set_rows(row_ids, [data[at] for at in wanted.tolist()])
        self._used[row_ids] = self._calls
        self.loaded += len(row_ids)
        return row_ids

    # ---- segments

    def _freeze_segment(self) -> None:
        dirty = np.flatnonzero(self._dirty)
        if not len(dirty) and not len(self._removed) and not self._segments_end:
            return
        changed = len(dirty) + len(self._removed) + sum(map(len, self._segments))  # with what aborted ones left
        base = self._segments_end or 2 * changed > len(self._keys)  # deltas would be about as large
        self._segments_end = False
        if base:
            dirty = np.flatnonzero(self._dirty | self._stored)
            self._segments = []
        self._segments.append(self._segment(dirty, self._emptied() if base else self._removed.index, base))
        self._removed = RemovedKeys(self._emptied())
        self._dirty[dirty] = False
        self._stored[dirty] = True

    def _leave_segments(self) -> None:
        """From now on what is stored are entries. The store has none of what is in memory."""
        self._in_segments = False
        self._segments_end = True
        self._removed = RemovedKeys(self._emptied())
        self._dirty |= self._stored
        self._stored[:] = False

    def _may_enter_segments(self, lasts: Lasts) -> None:
        """Everything is in memory. If it is little, what is stored are segments again: all of it is dirty, and what the
        store has is removed."""
        if 2 * len(self._keys) > self._entry_limit:
            return
        stored = np.flatnonzero(self._stored)
        if len(stored):
            self._removed.add(self._keys.key_batch(stored))
        if len(self._removed):
            self._freeze_removed()
        lasts.none()
        self._in_segments = True
        self._dirty[self._keys.all()] = True
        self._stored[:] = False

    # ---- freezing and writing

    def _pack(self, row_ids: RowIds) -> None:
        """Freeze the rows of `row_ids`."""
        if not len(row_ids):
            return
        rows = self._rows.pack(self.columns, row_ids)
        self._dirty[row_ids] = False
        self._stored[row_ids] = True
        if self._lasts is not None:
            self._lasts.add(self._last_fields(row_ids))
        self._frozen.add(self._run(self._keys, row_ids, rows))

    def _freeze_removed(self) -> None:
        removed = self._removed.index
        self._frozen.add_removal(self._run(removed, removed.all(), None), removed)
        self._removed = RemovedKeys(self._emptied())

    def _run(self, keys: IntKeys | TupleKeys, row_ids: RowIds, rows: npt.NDArray[np.void] | None) -> IntRun | TupleRun:
        cells = tails(self.columns, self._wide, row_ids) if self._wide and rows is not None else None
        if isinstance(keys, IntKeys):
            return IntRun(self._stored_keys, keys.key_batch(row_ids), rows, cells)
        return TupleRun(self._stored_keys, keys, row_ids, rows, cells)

    # ---- eviction

    def _make_room(self) -> None:
        """Some of the entries that nobody asked for longest leave memory, about as many as came since the last time, so
        that no call takes long. What is dirty among them is written first."""
        if self._in_segments:
            self._leave_segments()
        if self._frozen:
            if not self._shard.may_write():
                return
            self._shard.write(self.take(SPILLED_AT_ONCE))
            if self._frozen:
                return
        self._relieve_removed()
        entries, limit = len(self._keys), self._entry_limit
        count = max(SPILLED_AT_ONCE, 2 * (entries - limit))
        if not self._victims.left:
            self._victims.choose(self._keys, self._used, max(1, entries - limit))
        row_ids = self._victims.take(count, self._used)
        dirty = row_ids[self._dirty[row_ids]]
        if len(dirty):
            if self._shard.may_write():
                self._pack(dirty)
                self._write_frozen()
            else:
                row_ids = row_ids[~self._dirty[row_ids]]
        away = row_ids[self._stored[row_ids]]
        if len(away):
            self._complete = False
            if self._lasts is not None:
                self._lasts.away(self._last_fields(away))
        self._forget(row_ids)

    def _relieve_removed(self) -> None:
        """Many removals that wait for the next snapshot are written now."""
        if len(self._removed) <= _MOST_REMOVED or self._in_segments or self._frozen or not self._shard.may_write():
            return
        self._freeze_removed()
        self._write_frozen()

    def _write_frozen(self) -> None:
        while self._frozen:
            self._shard.write(self.take(_WRITTEN_AT_ONCE))
