"""Entries of a column table that are in the key-value store, or frozen and on their way there."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.column_rows import NO_ROWS, ColumnRows
from barrier_runtime.state.columns.entry_keys import EntryKeys, int_fields
from barrier_runtime.state.columns.frozen_rows import FrozenRuns, IntRun, TupleRun
from barrier_runtime.state.columns.stored_rows import StoredRows
from barrier_runtime.state.columns.wide_columns import tails
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import IntKeys, Ints, RowIds, TupleKeys
from barrier_runtime.state.kv.shard import Shard, entry_key, range_end
from barrier_runtime.state.kv.store import Entry

_AT_ONCE = 1_024
_REKEYED_AT_ONCE = 8_192
_MOST = 2**63 - 1


class Lasts:
    """Last fields of stored keys: few, because they are windows."""

    def __init__(self, stored: EntryKeys) -> None:
        self._stored = stored
        self._found: set[int] = set()
        self._away: set[int] = set()  # last fields of entries that may be in the store only
        self._looked = True  # the store was searched since the open
        self._sorted: Ints | None = None

    def unknown(self) -> None:
        self._looked = False

    def away(self, lasts: Ints) -> None:
        self._away |= set(distinct_ints(lasts).tolist())

    @property
    def none_is_away(self) -> bool:
        return self._looked and not self._away

    def none(self) -> None:
        self._found, self._sorted = set(), None

    def add(self, lasts: Ints) -> None:
        unknown = lasts[~self._are_found(lasts)]
        if len(unknown):
            self._found |= set(distinct_ints(unknown).tolist())
            self._sorted = None

    def discard(self, last: int) -> None:
        self._found.discard(last)
        self._away.discard(last)
        self._sorted = None

    def has(self, lasts: Ints) -> npt.NDArray[np.bool_]:
        """True for each last field that an entry may have."""
        if not self._looked:
            return np.ones(len(lasts), np.bool_)
        return self._are_found(lasts)

    def _are_found(self, lasts: Ints) -> npt.NDArray[np.bool_]:
        if self._sorted is None:
            self._sorted = np.array(sorted(self._found), np.int64)
        known = self._sorted
        if not len(known):
            return np.zeros(len(lasts), np.bool_)
        at = np.minimum(np.searchsorted(known, lasts), len(known) - 1)
        found: npt.NDArray[np.bool_] = known[at] == lasts
        return found

    def all_from(self, first: int) -> Ints:
        """All last fields, ascending. Searches from `first` on, to skip deleted entries below."""
        if not self._looked:
            self._looked = True
            self._away |= set(self._in_store(first))
            self._found |= self._away
            self._sorted = None
        return np.array(sorted(self._found), np.int64)

    def _in_store(self, first: int) -> Iterator[int]:
        stored, shard = self._stored, self._stored.shard
        group, last, end = shard.key_group_first, first, range_end(shard.key_group_last)
        while group <= shard.key_group_last:
            start, _ = stored.range_of(group, last)
            entry = next(iter(shard.kv.scan(start, end)), None)
            if entry is None:
                return
            found_group, state_id = shard.group_and_state(entry[0])
            if state_id == stored.state_id and found_group == group:
                found = stored.last_of(entry[0])
                yield found
                if found < _MOST:
                    last = found + 1
                    continue
                found_group += 1
            elif state_id > stored.state_id:
                found_group += 1
            group, last = found_group, first


def entries_under(stored: EntryKeys, last: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yields stored entries with that last field, in lists, by key group and key.

    A list is read when requested, because entries may be deleted between two requests.
    """
    shard = stored.shard
    for group in range(shard.key_group_first, shard.key_group_last + 1):
        start, end = stored.range_of(group, last)
        while some := list(islice(shard.kv.scan(start, end), _AT_ONCE)):
            yield some
            start = some[-1][0] + b"\0"


def rekeyed(shard: Shard, state_id: int, stored: EntryKeys) -> None:
    """An older release stored entries in plain order. The checkpoint stays unchanged."""
    rows = shard.scan_state(state_id)
    moved: list[Entry] = []
    while some := list(islice(rows, _REKEYED_AT_ONCE)):
        keys = [entry_key(data_key) for data_key, _ in some]
        moved += zip(stored.of_tuples(keys), [data for _, data in some], strict=True)
        shard.write([(data_key, None) for data_key, _ in some])
    for first in range(0, len(moved), _REKEYED_AT_ONCE):
        shard.write(moved[first : first + _REKEYED_AT_ONCE])


_LOAD_ROWS = 8_192
_WRITTEN_AT_ONCE = 8_192


class StoredEntries:
    def __init__(self, shard: Shard, state_id: int, key_width: int, last_first: bool, written: StoredRows) -> None:
        self._shard = shard
        self._state_id = state_id
        self._written = written
        self.keys = EntryKeys(shard, state_id, key_width, last_first)
        self.lasts = Lasts(self.keys) if last_first else None
        self.frozen = FrozenRuns()

    @property
    def may_write(self) -> bool:
        return self._shard.may_write()

    def begin(self, rekey: bool, before: Mapping[str, str] | None, initial: Mapping[str, Any]) -> None:
        if rekey:
            rekeyed(self._shard, self._state_id, self.keys)
        if before is not None:
            self._written.rewrite(self._shard, self._state_id, before, initial)
        if self.lasts is not None:
            self.lasts.unknown()

    def freeze(self, rows: ColumnRows, row_ids: RowIds) -> None:
        if not len(row_ids):
            return
        numbers = self._written.pack(rows.columns, row_ids)
        rows.mark_frozen(row_ids)
        if self.lasts is not None:
            self.lasts.add(rows.last_fields(row_ids))
        cells = tails(rows.columns, rows.wide, row_ids) if rows.wide else None
        self.frozen.add(self._run(rows.keys, row_ids, numbers, cells))

    def freeze_removed(self, rows: ColumnRows) -> None:
        removed = rows.removed.index
        self.frozen.add_removal(self._run(removed, removed.all(), None, None), removed)
        rows.none_removed()

    def write_some(self, most: int) -> None:
        self._shard.write(self.frozen.take(most))

    def write_frozen(self) -> None:
        while self.frozen:
            self.write_some(_WRITTEN_AT_ONCE)

    def _run(
        self,
        keys: IntKeys | TupleKeys,
        row_ids: RowIds,
        numbers: npt.NDArray[np.void] | None,
        cells: list[bytes] | None,
    ) -> IntRun | TupleRun:
        if isinstance(keys, IntKeys):
            return IntRun(self.keys, keys.key_batch(row_ids), numbers, cells)
        return TupleRun(self.keys, keys, row_ids, numbers, cells)

    def fill(self, rows: ColumnRows, fresh: RowIds) -> int:
        """Number of rows found."""
        if self.lasts is not None:
            fresh = fresh[self.lasts.has(rows.last_fields(fresh))]
        if not len(fresh):
            return 0
        key_batch = rows.keys.key_batch(fresh)
        gone = self.frozen.removed(key_batch, len(fresh))
        if gone is not None and gone.any():
            fresh = fresh[~gone]
            key_batch = rows.keys.key_batch(fresh)
        data = self._shard.kv.get_many(self.keys.of_any(key_batch))
        at = [number for number, value in enumerate(data) if value is not None]
        if at:
            rows.put_stored(fresh[at], *self._written.read([value for value in data if value is not None]))
        return len(at)

    def all(self) -> Iterator[list[tuple[bytes, bytes]]]:
        entries = self._shard.scan_state(self._state_id)
        while some := list(islice(entries, _LOAD_ROWS)):
            yield some

    def load(self, rows: ColumnRows, entries: list[tuple[bytes, bytes]]) -> RowIds:
        """Skips entries in memory or with a pending removal; returns row ids."""
        data_keys, data = [key for key, _ in entries], [value for _, value in entries]
        key_batch: Any = None
        if rows.fits(fields := int_fields(data_keys[0])):
            key_batch = self.keys.ints(data_keys, fields)
        if key_batch is None:
            key_batch = rows.key_batch([self.keys.key(data_key) for data_key in data_keys])
        unknown = rows.keys.find(key_batch) < 0
        if len(rows.removed):
            unknown &= rows.removed.index.find(key_batch) < 0
        gone = self.frozen.removed(key_batch, len(data_keys))
        if gone is not None:
            unknown &= ~gone
        wanted = np.flatnonzero(unknown)
        if not len(wanted):
            return NO_ROWS
        chosen: Any = (
            key_batch[:, wanted] if isinstance(key_batch, np.ndarray) else [key_batch[at] for at in wanted.tolist()]
        )
        row_ids = rows.place(chosen)
        rows.put_stored(row_ids, *self._written.read([data[at] for at in wanted.tolist()]))
        return row_ids
