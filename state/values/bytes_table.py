"""Values that are bytes of any size, written once and read about once; what waits to be written is bounded in bytes.

A `StateTable` bounds what it caches by a number of entries and their usual size. Where sizes differ a thousand times
that bounds nothing, so here each byte counts, and what is in the store is not cached again.
"""

from typing import Any

import msgspec

from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.values.table import Key, StateTable

_MOST_BYTES = 8 << 20  # waiting; a quarter of the cache, if that is less
_AT_ONCE = 64
_ENTRY_BYTES = 300
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(bytes).decode


class BytesTable(StateTable):
    """Made by `KeyedBackend.table_of_bytes`; used by one thread."""

    def __init__(self, name: str, state_id: int, shard: Shard, key_width: int, cache_bytes: int) -> None:
        self._waiting_bytes = 0
        super().__init__(name, state_id, shard, _encode, _decode, key_width, True, cache_bytes)

    def put(self, key: Key, value: Any) -> None:
        super().put(key, value)
        if value is not None:
            self._waiting_bytes += len(value)
            if self._waiting_bytes > min(_MOST_BYTES, self._cache_bytes // 4):
                self._write_behind()

    def memory_bytes(self) -> int:
        return self._waiting_bytes + (len(self._dirty) + self.frozen_entries) * _ENTRY_BYTES

    def freeze(self) -> None:
        super().freeze()
        self._waiting_bytes = 0  # what is frozen goes soon

    def _write_behind(self) -> None:
        """All that waits, unless a snapshot must be linked first."""
        for _ in range(2):  # what is frozen first, then what is dirty
            if not self._shard.may_write():
                return
            if not self.frozen_entries:
                self._frozen, self._dirty = self._dirty, {}
            while self.frozen_entries:
                self._shard.write(self.take(_AT_ONCE))
        self._waiting_bytes = 0

    def _remember(self, key: Key, value: Any) -> None:
        """It is read once."""

    def _remember_all(self, items: list[tuple[Key, Any]]) -> None:
        """They are read once, if at all."""
