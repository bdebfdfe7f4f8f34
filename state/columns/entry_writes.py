"""Frozen rows of a columnar table on their way into the key-value store, some at a time, in the order of their keys
there: RocksDB takes neighbours ten times faster than keys at random.

A run is what one freeze found dirty (`rows` packed as they were then), or removed (`rows` is None). Nothing is sorted
or encoded at the freeze: that happens step by step as entries are taken.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.keys.key_codec import INT_TAG, encode_key
from barrier_runtime.state.keys.key_groups import key_groups_of_int64
from barrier_runtime.state.keys.row_index import Ints, Key, RowIds, TupleKeys
from barrier_runtime.state.kv.shard import PREFIX_BYTES, Shard
from barrier_runtime.state.kv.store import Entry

Rows = npt.NDArray[np.void]

_CHUNK = 2_048  # entries sorted and encoded at a time, at least
_INT_SIGN = np.uint64(1 << 63)


class IntRun:
    """Keys of int64 fields (an array of shape (fields, keys))."""

    def __init__(
        self,
        shard: Shard,
        state_id: int,
        key_width: int,
        key_batch: Ints,
        rows: Rows | None,
        cells: list[bytes] | None = None,
    ) -> None:
        """`cells`: what each entry has behind its row."""
        self.removes = rows is None
        self._cells = cells
        self._shard = shard
        self._state_id = state_id
        self._key_width = key_width
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

    def tuples(self) -> list[Key]:
        return list(zip(*self._key_batch.tolist(), strict=True))

    def _encoded(self) -> Iterator[Entry]:
        groups = self._groups()
        order = np.argsort(groups, kind="stable")
        ends = np.flatnonzero(np.diff(groups[order], append=-1)) + 1  # of the groups, in `order`
        start = 0
        for end in ends.tolist():
            if end - start >= _CHUNK or end == len(order):
                chunk = order[start:end]
                yield from self._encode(chunk[np.lexsort((self._key_batch[0, chunk], groups[chunk]))], groups)
                start = end

    def _groups(self) -> npt.NDArray[np.uint16]:
        shard = self._shard
        groups = key_groups_of_int64(self._key_batch[0], shard.max_parallelism, *self._key_batch[1 : self._key_width])
        foreign = (groups < shard.key_group_first) | (groups > shard.key_group_last)
        if foreign.any():
            at = int(np.argmax(foreign))
            raise shard.foreign(tuple(self._key_batch[:, at].tolist()), int(groups[at]))
        return groups

    def _encode(self, chosen: npt.NDArray[np.intp], groups: npt.NDArray[np.uint16]) -> Iterator[Entry]:
        encoded = np.empty(len(chosen), int_key(len(self._key_batch)))
        encoded["group"] = groups[chosen]
        encoded["state"] = self._state_id
        put_ints(encoded, self._key_batch[:, chosen])
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
    """Keys of any kind: those of `row_ids`, which also keep what a key is in the store."""

    def __init__(
        self,
        shard: Shard,
        state_id: int,
        key_width: int,
        keys: TupleKeys,
        row_ids: RowIds,
        rows: Rows | None,
        cells: list[bytes] | None = None,
    ) -> None:
        """`cells`: what each entry has behind its row."""
        self.removes = rows is None
        self._cells = cells
        self._shard = shard
        self._state_id = state_id
        self._key_width = key_width
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
        """The next `count` keys as they are in the store, in the order of `row_ids`."""
        start, end = self._taken, min(self._taken + count, len(self._key_batch))
        self._taken = end
        return self._data_keys(start, end)

    def tuples(self) -> list[Key]:
        return self._key_batch

    def _data_keys(self, start: int, end: int) -> list[bytes]:
        key_batch, row_ids = self._key_batch[start:end], self._row_ids[start:end].tolist()
        known = [self._keys.known_data_key(row_id, key) for row_id, key in zip(row_ids, key_batch, strict=True)]
        missing = [at for at, data_key in enumerate(known) if data_key is None]
        if missing:
            encoded = self._shard.kv_keys(self._state_id, self._key_width, [key_batch[at] for at in missing])
            for at, data_key in zip(missing, encoded, strict=True):
                known[at] = data_key
                self._keys.remember_data_key(row_ids[at], key_batch[at], data_key)
        return known  # type: ignore[return-value]


def int_key(fields: int, prefix: Sequence[str] = ("group", "state")) -> np.dtype[np.void]:
    """How keys of that many ints are stored (see `key_codec`), behind their key group and state id."""
    parts = [(name, ">u2") for name in prefix]
    for number in range(fields):
        parts += [(f"tag{number}", "u1"), (f"field{number}", ">u8")]
    return np.dtype(parts)


def put_ints(encoded: npt.NDArray[np.void], key_batch: Ints) -> None:
    """The keys into an array of `int_key`."""
    for number, field in enumerate(key_batch):
        encoded[f"tag{number}"] = INT_TAG
        encoded[f"field{number}"] = field.view(np.uint64) ^ _INT_SIGN


def decoded_ints(data_keys: Sequence[bytes], fields: int) -> Ints | None:
    """The keys behind stored ones, if all of them are that many ints; None otherwise."""
    layout = int_key(fields)
    if set(map(len, data_keys)) != {layout.itemsize}:
        return None
    stored = np.frombuffer(b"".join(data_keys), layout)
    if any((stored[f"tag{number}"] != INT_TAG).any() for number in range(fields)):
        return None
    return np.stack(
        [(stored[f"field{number}"].astype(np.uint64) ^ _INT_SIGN).view(np.int64) for number in range(fields)]
    )


def int_fields(data_key: bytes) -> int:
    """How many ints a stored key has if it has nothing else."""
    return (len(data_key) - PREFIX_BYTES) // len(encode_key((0,)))
