"""Rows that a freeze of a columnar table copied, to be written as a segment by a worker.

Keys other than ints are encoded before, in small parts on the slot's loop, where the table caches encoded keys.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.columns.entry_writes import TupleRun
from barrier_runtime.state.columns.segment import GROUP_BYTES, Keys, Segment, groups_of, part
from barrier_runtime.state.columns.wide_columns import is_wide, memory
from barrier_runtime.state.keys.key_codec import decode_key
from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, RowIds, TupleKeys
from barrier_runtime.state.kv.shard import PREFIX_BYTES, Shard

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
