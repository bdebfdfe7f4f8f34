"""A named keyed state of a subtask: a write-back cache of decoded values over the key-value store.

The first of these that has the key holds the current value:

    dirty    written since the last barrier, not yet in the store
    young    clean, used recently
    frozen   written before the last barrier, on the way into the store (as a value, or encoded already)
    old      clean, not used for a while; dropped step by step
    the store

Reading a frozen entry encodes the value, unless values are immutable: a change in place must not reach the snapshot.
None means absent. Each key field keeps a single type (1, 1.0 and True are the same key here).
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from barrier_runtime.state.errors import InvalidJob, ProtocolViolation
from barrier_runtime.state.kv.shard import Shard, entry_key
from barrier_runtime.state.kv.store import Entry
from barrier_runtime.state.texts import shortened

Key = tuple[Any, ...]

MISSING: Any = object()
_FIRST_GUESS_BYTES = 400  # per entry, until values have been encoded
_OVERHEAD_BYTES = 300  # key tuple, two dict slots and a small object
_EXPANSION = 3  # size of a Python value relative to the encoding
_SPILL_SLICE = 128
_SLICE_BYTES = 4 << 20  # approximate; a slice has an entry or more
_LEAST_BYTES = 1 << 20  # of small entries, even if the cache is tiny
_FIRST_LOOK = 16  # dirty entries before the first measurement; the next follows after twice as many
_LARGER = 8  # a value this many times larger than expected corrects the expectation
_DROP_SLICE = 4_096


class MadeNew:
    """Counts values that a decoder converted."""

    count = 0


class StateTable:
    """For a single thread."""

    most_cache_bytes = sys.maxsize
    spilled_at_once = _SPILL_SLICE

    def __init__(
        self,
        name: str,
        state_id: int,
        shard: Shard,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        key_width: int,
        immutable: bool,
        cache_bytes: int,
    ) -> None:
        self.name = name
        self.key_width = key_width
        self._state_id = state_id
        self._shard = shard
        self._encode = encode
        self._decode = decode
        self._immutable = immutable
        self._dirty: dict[Key, Any] = {}
        self._young: dict[Key, Any] = {}
        self._old: dict[Key, Any] = {}
        self._frozen: dict[Key, Any] = {}
        self._encoded: dict[Key, bytes] = {}
        self.made_new = MadeNew()
        self._entry_bytes = float(_FIRST_GUESS_BYTES)
        self.limit_cache(cache_bytes)

    def get(self, key: Key) -> Any:
        value = self._dirty.get(key)
        if value is not None:
            return value
        if key in self._dirty:
            return None
        value = self._young.get(key, MISSING)
        if value is not MISSING:
            return value
        return self._miss(key)

    def put(self, key: Key, value: Any) -> None:
        """None deletes the entry."""
        dirty = self._dirty
        if key in dirty:  # a dirty key is not young
            dirty[key] = value
            return
        dirty[key] = value
        self._young.pop(key, None)
        if len(dirty) > self._dirty_bound:
            self._relieve()

    def delete(self, key: Key) -> None:
        self.put(key, None)

    def scan(self) -> Iterator[tuple[Key, Any]]:
        """Yields all (key, value), each once, in no order. Concurrent changes may be missed."""
        overlay = {**self._encoded, **self._frozen, **self._dirty}
        for data_key, data in self._shard.scan_state(self._state_id):
            key = entry_key(data_key)
            if key not in overlay:
                cached = self._young.get(key, MISSING)
                yield key, self._decode(data) if cached is MISSING or cached is None else cached
        for key in overlay:
            value = self.get(key)
            if value is not None:
                yield key, value

    def stored_behind(self, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (whole key, data) after `last`, without unwritten changes."""
        return self._shard.scan_state_behind(self._state_id, last)

    def unwritten(self, key: Key) -> tuple[bool, Any]:
        """Returns whether a change of `key` is unwritten, and the value (None: deleted)."""
        for values in (self._dirty, self._frozen):
            if key in values:
                return True, values[key]
        data = self._encoded.get(key)
        return data is not None or key in self._encoded, None if data is None else self._decode(data)

    # ---- for filling a table before the first row

    def load(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Writes directly to the store, before any read or put of the keys."""
        data = self._encode_all(list(zip(keys, values, strict=True)))
        self._shard.write(list(zip(self._kv_keys(keys), data, strict=True)))

    def stored_entries(self) -> int:
        return sum(1 for _ in self._shard.scan_state(self._state_id))

    def drop_stored(self) -> None:
        """Deletes all stored entries, before any read or put."""
        entries = self._shard.scan_state(self._state_id)
        while slice := [(key, None) for key, _ in itertools.islice(entries, _DROP_SLICE)]:
            self._shard.write(slice)

    # ---- for the backend

    def freeze(self) -> None:
        if not self._frozen and not self._encoded:
            self._frozen, self._dirty = self._dirty, {}
        else:  # left by an aborted checkpoint or a spill: older than the dirty entries
            self._merge_leftovers()
        self._dirty_bound = min(_FIRST_LOOK, self._dirty_limit)

    @property
    def frozen_entries(self) -> int:
        return len(self._frozen) + len(self._encoded)

    def take(self, max_entries: int) -> list[Entry]:
        """Up to `max_entries` frozen entries, which the caller writes at once. Their values stay cached."""
        max_entries = min(max_entries, self._slice)
        entries = self._take_encoded(max_entries) if self._encoded else []
        count = min(max_entries - len(entries), len(self._frozen))
        if count > 0:
            entries += self._take_frozen(count)
        return entries

    def limit_cache(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._fit_limits()
        self._dirty_bound = min(_FIRST_LOOK, self._dirty_limit)

    def memory_bytes(self) -> int:
        entries = len(self._dirty) + len(self._young) + len(self._old) + self.frozen_entries
        return int(entries * self._entry_bytes)

    def _kv_key(self, key: Key) -> bytes:
        return self._shard.kv_key(self._state_id, self.key_width, key)

    def _kv_keys(self, keys: Sequence[Key]) -> list[bytes]:
        return self._shard.kv_keys(self._state_id, self.key_width, keys)

    def _written(self, keys: Sequence[Key]) -> None:
        """Called with frozen entries that are about to be written."""

    def _shown(self, key: Key) -> str:
        return shown(key)

    def _miss(self, key: Key) -> Any:
        if key in self._frozen:
            value = self._frozen[key]
            if not self._immutable and value is not None:
                self._encoded[key] = self._encode_all([(key, value)])[0]
                del self._frozen[key]
        elif key in self._encoded:
            value = self._decode(self._encoded[key])
        else:
            value = self._old.pop(key, MISSING)
            if value is MISSING:
                data = self._shard.kv.get(self._kv_key(key))
                value = None if data is None else self._fetched(key, data)
        self._remember(key, value)
        return value

    def _fetched(self, key: Key, data: bytes) -> Any:
        """Writes a converted value again, to spare later reads the conversion."""
        made = self.made_new.count
        value = self._decode(data)
        if self.made_new.count != made:
            self._write_again(key, value)
        return value

    def _write_again(self, key: Key, value: Any) -> None:
        self._encoded[key] = self._encode_all([(key, value)])[0]
        if len(self._encoded) > self.spilled_at_once and self._shard.may_write():
            self._shard.write(self.take(self.spilled_at_once))

    def _remember(self, key: Key, value: Any) -> None:
        """Drops up to two old values, so that no call takes long."""
        old = self._old
        if old:
            old.popitem()
            if old:
                old.popitem()
        self._young[key] = value
        if len(self._young) > self._young_limit:
            self._old, self._young = self._young, {}

    def _take_encoded(self, max_entries: int) -> list[Entry]:
        count = min(max_entries, len(self._encoded))
        items = [self._encoded.popitem() for _ in range(count)]
        keys = [key for key, _ in items]
        data_keys = self._kv_keys(keys)
        self._written(keys)
        return list(zip(data_keys, [data for _, data in items], strict=True))

    def _take_frozen(self, count: int) -> list[Entry]:
        popitem, dirty = self._frozen.popitem, self._dirty
        items = [popitem() for _ in range(count)]
        keys = [key for key, _ in items]
        data_keys = self._kv_keys(keys)
        data = self._encode_all(items)
        self._written(keys)
        self._remember_all([item for item in items if item[0] not in dirty] if dirty else items)
        self._learn_sizes(data_keys, [encoded for encoded in data if encoded is not None])
        return list(zip(data_keys, data, strict=True))

    def _encode_all(self, items: list[tuple[Key, Any]]) -> list[Any]:
        """Raises `InvalidJob` with state and key."""
        encode = self._encode
        try:
            return [None if value is None else encode(value) for _, value in items]
        except Exception as failed:  # from a codec or from the value's own class
            for key, value in items:
                if value is None:
                    continue
                try:
                    self._encode(value)
                except InvalidJob as error:
                    raise InvalidJob(f"key {self._shown(key)} of {error}") from error
                except Exception as error:
                    raise InvalidJob(
                        f"{self._place(key)}: its value cannot be written ({type(error).__name__}: {error}): store "
                        "what the state's declaration can hold"
                    ) from error
            raise ProtocolViolation(f"{self._place(items[0][0])}: {failed}: please report this") from failed

    def _place(self, key: Key) -> str:
        return f"{self._shard.operator}, state {self.name!r}, key {self._shown(key)}"

    def _learn_sizes(self, data_keys: list[bytes], data: list[bytes]) -> None:
        if data:
            encoded_bytes = sum(map(len, data_keys)) / len(data_keys) + sum(map(len, data)) / len(data)
            found = encoded_bytes * _EXPANSION + _OVERHEAD_BYTES
            self._entry_bytes += (found - self._entry_bytes) * min(1.0, len(data) / 1_000)
            self._fit_limits()

    def _remember_all(self, items: list[tuple[Key, Any]]) -> None:
        for _ in range(min(2 * len(items), len(self._old))):
            self._old.popitem()
        self._young.update(items)
        if len(self._young) > self._young_limit:
            self._old, self._young = self._young, {}

    def _fit_limits(self) -> None:
        entries, few = int(self._cache_bytes / self._entry_bytes), int(_LEAST_BYTES / self._entry_bytes)
        self._young_limit = max(1, min(64, few), entries // 4)  # with old entries: half of all
        self._dirty_limit = max(4, min(256, few), entries // 4)  # with frozen entries: the other half
        self._slice = max(1, int(_SLICE_BYTES / self._entry_bytes))

    def _relieve(self) -> None:
        """Writes older dirty entries in small slices, unless a snapshot must be linked first.

        Below the limit of dirty entries, only measures the newest.
        """
        if not self.frozen_entries and len(self._dirty) <= self._dirty_limit:
            self._look_at_size()
            if len(self._dirty) <= self._dirty_limit:
                self._dirty_bound = min(self._dirty_limit, 2 * len(self._dirty))
                return
        if not self._shard.may_write():
            self._dirty_bound = len(self._dirty) + self.spilled_at_once
            return
        if not self.frozen_entries:
            self._frozen, self._dirty = self._dirty, {}
        self._shard.write(self.take(self.spilled_at_once))
        # While older entries are left, half a slice of new entries causes the next write.
        some = max(1, min(self.spilled_at_once, self._slice) // 2)
        self._dirty_bound = len(self._dirty) + some if self.frozen_entries else min(_FIRST_LOOK, self._dirty_limit)

    def _look_at_size(self) -> None:
        """Measures the newest entry: large values would fill the memory before writing shows sizes."""
        key, value = next(reversed(self._dirty.items()))
        if value is not None:
            (data,) = self._encode_all([(key, value)])
            found = len(data) * _EXPANSION + _OVERHEAD_BYTES
            if found > _LARGER * self._entry_bytes:
                self._entry_bytes = found / 2
                self._fit_limits()

    def _merge_leftovers(self) -> None:
        dirty, frozen = self._dirty, self._frozen
        for key in [key for key in self._encoded if key in dirty]:
            del self._encoded[key]
        if len(frozen) < len(dirty):
            for key, value in frozen.items():
                dirty.setdefault(key, value)
            self._frozen = dirty
        else:
            frozen.update(dirty)
        self._dirty = {}


class Cached(Protocol):
    most_cache_bytes: int  # a larger cache is useless

    def limit_cache(self, cache_bytes: int) -> None: ...


def share_cache(tables: Iterable[Cached], cache_bytes: int) -> None:
    """Divides the cache equally; the remainder of tables that need less goes to the others."""
    least_first = sorted(tables, key=lambda each: each.most_cache_bytes)
    for number, table in enumerate(least_first):
        share = min(table.most_cache_bytes, cache_bytes // (len(least_first) - number))
        table.limit_cache(share)
        cache_bytes -= share


def shown(key: Key) -> str:
    return shortened(repr(key[0] if len(key) == 1 else key))


_MOST_BYTES = 8 << 20  # unwritten bytes; at most a quarter of the cache
_AT_ONCE = 64
_ENTRY_BYTES = 300
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(bytes).decode


class BytesTable(StateTable):
    """A state of bytes, for a single thread.

    Sizes of values differ a thousandfold, so unwritten bytes are counted; stored values are not cached.
    """

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
        self._waiting_bytes = 0  # frozen entries are written soon

    def _write_behind(self) -> None:
        for _ in range(2):  # frozen entries, then dirty entries
            if not self._shard.may_write():
                return
            if not self.frozen_entries:
                self._frozen, self._dirty = self._dirty, {}
            while self.frozen_entries:
                self._shard.write(self.take(_AT_ONCE))
        self._waiting_bytes = 0

    def _remember(self, key: Key, value: Any) -> None:
        """A value is read once."""

    def _remember_all(self, items: list[tuple[Key, Any]]) -> None:
        """Caches nothing."""
