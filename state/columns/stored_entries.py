"""The entries of a column table that are in the key-value store, or frozen and on their way there.

It owns how they are written (keys, rows), what waits to be written, and with `last_first` which last fields of keys the
store has. What of it is in memory is a `ColumnRows`, which has the last word.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.column_rows import NO_ROWS, ColumnRows
from barrier_runtime.state.columns.entries_by_last import Lasts, rekeyed
from barrier_runtime.state.columns.entry_keys import EntryKeys, int_fields
from barrier_runtime.state.columns.entry_writes import FrozenRuns, IntRun, TupleRun
from barrier_runtime.state.columns.stored_rows import StoredRows
from barrier_runtime.state.columns.wide_columns import tails
from barrier_runtime.state.keys.row_index import IntKeys, RowIds, TupleKeys
from barrier_runtime.state.kv.shard import Shard

_LOAD_ROWS = 8_192
_WRITTEN_AT_ONCE = 8_192


class StoredEntries:
    """Of one table; `written`: how its rows are."""

    def __init__(self, shard: Shard, state_id: int, key_width: int, last_first: bool, written: StoredRows) -> None:
        self._shard = shard
        self._state_id = state_id
        self._written = written
        self.keys = EntryKeys(shard, state_id, key_width, last_first)
        self.lasts = Lasts(self.keys) if last_first else None
        self.frozen = FrozenRuns()

    @property
    def may_write(self) -> bool:
        """The store may be written now."""
        return self._shard.may_write()

    def begin(self, rekey: bool, before: Mapping[str, str] | None, initial: Mapping[str, Any]) -> None:
        """The store was opened with entries; see `ColumnTable`."""
        if rekey:
            rekeyed(self._shard, self._state_id, self.keys)
        if before is not None:
            self._written.rewrite(self._shard, self._state_id, before, initial)
        if self.lasts is not None:
            self.lasts.unknown()

    # ---- to the store

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

    # ---- from the store

    def fill(self, rows: ColumnRows, fresh: RowIds) -> int:
        """What the store has of `fresh`, which are new in memory. Gives how many it has."""
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
        """All that the store has, some at a time."""
        entries = self._shard.scan_state(self._state_id)
        while some := list(islice(entries, _LOAD_ROWS)):
            yield some

    def load(self, rows: ColumnRows, entries: list[tuple[bytes, bytes]]) -> RowIds:
        """`entries` into memory, without those of which the store has not the last word. Gives their row ids."""
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
