"""Rows that a freeze of a columnar table copied: a worker writes a segment, or encodes them for the key-value store.

Keys other than ints are encoded before, in small parts on the slot's loop, where the table caches encoded keys.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.columns.segment import GROUP_BYTES, Keys, Segment, groups_of, part
from barrier_runtime.state.columns.wide_columns import is_wide, memory
from barrier_runtime.state.keys.key_codec import decode_key
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys, tuple_keys
from barrier_runtime.state.kv.shard import PREFIX_BYTES, Shard
from barrier_runtime.state.kv.store import Entry

# Encodes frozen rows of a columnar table for the key-value store, in slices, in the store's order.
#
# A run has the rows that a freeze found dirty or, if `rows` is None, removed. Runs are sorted, because RocksDB
# takes neighbours ten times faster, and encoded as entries are taken, not at the freeze.

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


_KEY_BYTES = 50  # approximate size of a key other than ints, encoded or not


class FrozenSegment:
    def __init__(
        self,
        shard: Shard,
        state: str,
        state_id: int,
        key_width: int,
        base: bool,
        keys: IntKeys | TupleKeys,
        row_ids: RowIds,
        columns: Mapping[str, npt.NDArray[Any]],
        removed: IntKeys | TupleKeys,
    ) -> None:
        """`columns`: values of `row_ids`. The segment removes all keys of `removed`."""
        self.state = state
        self.base = base
        self._shard = shard
        self._key_width = key_width
        self._columns = columns
        self._cell_bytes = sum(memory(column) for column in columns.values() if is_wide(column.dtype))
        self._keys: Ints | _Encoded
        self._removed: Ints | _Encoded
        if isinstance(keys, IntKeys) and isinstance(removed, IntKeys):
            self._keys, self._removed = keys.key_batch(row_ids), removed.key_batch(removed.all())
        else:
            assert isinstance(keys, TupleKeys), "both are"
            assert isinstance(removed, TupleKeys), "both are"
            plain = EntryKeys(shard, state_id, key_width)
            self._keys = _Encoded(TupleRun(plain, keys, row_ids, None))
            self._removed = _Encoded(TupleRun(plain, removed, removed.all(), None))

    def __len__(self) -> int:
        return sum(keys.shape[1] if isinstance(keys, np.ndarray) else keys.count for keys in self._both())

    @property
    def nbytes(self) -> int:
        keys = sum(each.nbytes if isinstance(each, np.ndarray) else each.count * _KEY_BYTES for each in self._both())
        return int(keys + self._cell_bytes + sum(column.nbytes for column in self._columns.values()))

    @property
    def left(self) -> int:
        return sum(keys.left for keys in self._both() if isinstance(keys, _Encoded))

    def encode_keys(self, max_keys: int) -> None:
        for keys in self._both():
            if isinstance(keys, _Encoded):
                keys.encode(max_keys)

    def segment(self) -> Segment:
        """Call once no key is `left`. Raises `ProtocolViolation` for a key of another subtask."""
        keys, removed = (each if isinstance(each, np.ndarray) else each.ready() for each in self._both())
        for each in (keys, removed):
            self._refuse_foreign(each)
        return Segment(self.state, self._key_width, self.base, keys, self._columns, removed)

    def _both(self) -> "tuple[Ints | _Encoded, Ints | _Encoded]":
        return self._keys, self._removed

    def _refuse_foreign(self, keys: Keys) -> None:
        shard = self._shard
        groups = groups_of(keys, self._key_width, shard.max_parallelism)
        foreign = (groups < shard.key_group_first) | (groups > shard.key_group_last)
        if foreign.any():
            at = int(np.argmax(foreign))
            key = tuples_of(part(keys, at, at + 1))[0]
            raise shard.foreign(key, int(groups[at]))


class _Encoded:
    def __init__(self, run: TupleRun) -> None:
        self._run = run
        self._ready: list[pa.LargeBinaryArray] = []
        self.count = len(run)

    @property
    def left(self) -> int:
        return len(self._run)

    def encode(self, max_keys: int) -> None:
        keys = [key[:GROUP_BYTES] + key[PREFIX_BYTES:] for key in self._run.take_keys(max_keys)]
        self._ready.append(pa.array(keys, pa.large_binary()))

    def ready(self) -> pa.LargeBinaryArray:
        return pa.concat_arrays(self._ready) if self._ready else pa.array([], pa.large_binary())


def tuples_of(keys: Keys) -> list[Key]:
    if isinstance(keys, np.ndarray):
        return list(zip(*keys.tolist(), strict=True))
    return [decode_key(key, GROUP_BYTES) for key in keys.to_pylist()]
