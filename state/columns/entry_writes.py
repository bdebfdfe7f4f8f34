"""Encodes frozen rows of a columnar table for the key-value store, in slices, in the store's order.

A run has the rows that a freeze found dirty or, if `rows` is None, removed. Runs are sorted, because RocksDB
takes neighbours ten times faster, and encoded as entries are taken, not at the freeze.
"""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys, tuple_keys
from barrier_runtime.state.kv.store import Entry

Rows = npt.NDArray[np.void]

_CHUNK = 2_048  # minimum of sorted entries


class IntRun:
    """Shape of the keys: (fields, keys)."""

    def __init__(
        self, stored: EntryKeys, key_batch: Ints, rows: Rows | None, cells: Sequence[bytes] | None = None
    ) -> None:
        """`cells`: bytes that follow each entry's row."""
        self.removes = rows is None
        self._cells = cells
        self._stored = stored
        self._key_batch = key_batch
        self._rows = rows
        self._left = int(key_batch.shape[1])
        self._entries = self._encoded()

    def __len__(self) -> int:
        return self._left

    def take(self, count: int) -> list[Entry]:
        taken = list(islice(self._entries, count))
        self._left -= len(taken)
        return taken

    def _encoded(self) -> Iterator[Entry]:
        groups = self._stored.groups_of_ints(self._key_batch)
        order = np.argsort(groups, kind="stable")
        ends = np.flatnonzero(np.diff(groups[order], append=-1)) + 1
        start = 0
        for end in ends.tolist():
            if end - start >= _CHUNK or end == len(order):
                chunk = order[start:end]
                chunk = chunk[self._stored.order_of_ints(self._key_batch[:, chunk], groups[chunk])]
                yield from self._encode(chunk, groups)
                start = end

    def _encode(self, chosen: npt.NDArray[np.intp], groups: npt.NDArray[np.uint16]) -> Iterator[Entry]:
        encoded = self._stored.of_ints(self._key_batch[:, chosen], groups[chosen])
        width = encoded.itemsize
        if self._rows is None:
            return ((key, None) for (key,) in struct.iter_unpack(f"{width}s", encoded.tobytes()))
        together = np.empty(len(chosen), [("key", encoded.dtype), ("row", self._rows.dtype)])
        together["key"] = encoded
        together["row"] = self._rows[chosen]
        entries: Iterator[Entry] = struct.iter_unpack(f"{width}s{self._rows.itemsize}s", together.tobytes())
        cells = self._cells
        if cells is None:
            return entries
        return ((key, row + cells[at]) for (key, row), at in zip(entries, chosen.tolist(), strict=True))


class TupleRun:
    def __init__(
        self,
        stored: EntryKeys,
        keys: TupleKeys,
        row_ids: RowIds,
        rows: Rows | None,
        cells: Sequence[bytes] | None = None,
    ) -> None:
        self.removes = rows is None
        self._cells = cells
        self._stored = stored
        self._key_batch = keys.key_batch(row_ids)
        self._rows = rows
        self._keys = keys
        self._row_ids = row_ids
        self._taken = 0

    def __len__(self) -> int:
        return len(self._key_batch) - self._taken

    def take(self, count: int) -> list[Entry]:
        start = self._taken
        data_keys = self.take_keys(count)
        end = self._taken
        if self._rows is None:
            return sorted((data_key, None) for data_key in data_keys)
        packed = struct.iter_unpack(f"{self._rows.itemsize}s", self._rows[start:end].tobytes())
        rows = [data for (data,) in packed]
        if self._cells is not None:
            rows = [row + cell for row, cell in zip(rows, self._cells[start:end], strict=True)]
        return sorted(zip(data_keys, rows, strict=True))

    def take_keys(self, count: int) -> list[bytes]:
        start, end = self._taken, min(self._taken + count, len(self._key_batch))
        self._taken = end
        return self._data_keys(start, end)

    def _data_keys(self, start: int, end: int) -> list[bytes]:
        key_batch = self._key_batch[start:end]
        if self._stored.last_first:  # the cache has keys in plain order, for segments
            return self._stored.of_tuples(key_batch)
        row_ids = self._row_ids[start:end].tolist()
        known = self._keys.known_data_keys(row_ids, key_batch)
        missing = [at for at, data_key in enumerate(known) if data_key is None]
        if missing:
            encoded = self._stored.of_tuples([key_batch[at] for at in missing])
            for at, data_key in zip(missing, encoded, strict=True):
                known[at] = data_key
                self._keys.remember_data_key(row_ids[at], key_batch[at], data_key)
        return known  # type: ignore[return-value]


class FrozenRuns:
    def __init__(self) -> None:
        self._runs: deque[IntRun | TupleRun] = deque()
        self._removals: list[tuple[IntRun | TupleRun, IntKeys | TupleKeys]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: IntRun | TupleRun) -> None:
        self._runs.append(run)

    def add_removal(self, run: IntRun | TupleRun, keys: IntKeys | TupleKeys) -> None:
        """Adds a run that removes `keys`, whose stored entries are invalid from now on."""
        self._runs.append(run)
        self._removals.append((run, keys))

    def take(self, most: int) -> list[Entry]:
        entries: list[Entry] = []
        while self._runs and len(entries) < most:
            run = self._runs[0]
            entries += run.take(most - len(entries))
            if not len(run):
                self._runs.popleft()
        return entries

    def removed(self, key_batch: Ints | Sequence[Key], count: int) -> npt.NDArray[np.bool_] | None:
        """None: no unwritten run removes a stored entry."""
        self._removals = [(run, keys) for run, keys in self._removals if len(run)]
        if not self._removals:
            return None
        found = np.zeros(count, np.bool_)
        for at, (run, keys) in enumerate(self._removals):
            if isinstance(key_batch, np.ndarray):
                assert isinstance(keys, IntKeys), "a table that takes tuples does so for ever"
                if keys.fields == len(key_batch):
                    found |= keys.find(key_batch) >= 0
            else:
                keys = tuple_keys(keys)
                self._removals[at] = run, keys
                found |= keys.find(key_batch) >= 0
        return found
