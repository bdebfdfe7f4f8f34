"""Tables with many entries per key, for lists and maps of state.

Layout, after key group and state id (`kv/shard`), encoded by `keys/key_codec`:

    user key · 0A · entry key  →  the entry's value        0A and 0B are False and True
    user key · 0B              →  C1 and the number of entries, 8 bytes, big endian

The entry key is a list's index (an int) or a map's key. The user key alone determines the key group. The number exists
while there are entries, so a scan ends there, before entries that neighbours have deleted. If elements of a list have
expired, 16 more bytes hold the `start` and `end` of `_Gapped`.
"""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.keys.key_codec import decode_key, encode_key
from barrier_runtime.state.kv.shard import Shard, entry_key
from barrier_runtime.state.values.table import MISSING, Key, StateTable, shown
from barrier_runtime.state.values.timer_table import KnownKeys
from barrier_runtime.state.values.watched_table import WatchedTable

_ENTRY, _NUMBER = encode_key((False,)), encode_key((True,))
_NUMBER_MARK = b"\xc1"
_NUMBER_HEAD = b"\xc1\x00"  # the first of the 8 bytes is always 0
_NUMBER_BYTES = 9
_STALE = 1_000  # bounds the number of `_orders`, and the stored keys in each
_INDEX_BYTES = 120


def is_number(data: bytes) -> bool:
    """No value and no time begins with these bytes (`expiry`)."""
    return data[:2] == _NUMBER_HEAD


class _Number(int):
    """Number of a key's entries; no user value has this class."""

    __slots__ = ()


class _Gapped(int):
    """Number of elements of a list; no index is below `start`, the next element gets `end`."""

    start: int
    end: int


class EntryTable(StateTable):
    """The caller updates the number before adding and after deleting entries.

    The number of stored entries is therefore always stored, or on the way into the store.
    """

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
        appended: bool = False,
    ) -> None:
        """`appended`: entries are written once, then leave the cache and are read by walks."""
        super().__init__(name, state_id, shard, _encoder(encode), _decoder(decode), key_width, immutable, cache_bytes)
        self._appended = appended
        self._pending: dict[Key, dict[Any, None]] = {}  # by user key: dirty or frozen entry keys
        # The same entry keys, encoded and sorted, of user keys walked since the last barrier. Some may be stored
        # already, or occur twice; walks allow both.
        self._orders: dict[Key, list[bytes]] = {}
        self._writes = 0  # slices written to the store
        self._known = KnownKeys(shard, state_id, key_width, lambda prefix, encoded: prefix + encoded)

    def number(self, key: Key) -> int:
        return self.get((*key, True)) or 0

    def set_number(self, key: Key, number: int) -> None:
        self.put((*key, True), _Number(number) if number else None)

    def extent(self, key: Key) -> tuple[int, int, int]:
        """Number of elements of a list, with `start` and `end` as in `_Gapped`."""
        number = self.get((*key, True)) or 0
        return (int(number), number.start, number.end) if type(number) is _Gapped else (int(number), 0, int(number))

    def set_extent(self, key: Key, number: int, start: int, end: int) -> None:
        if number in (0, end):
            self.set_number(key, number)
        else:
            self.put((*key, True), _gapped(number, start, end))

    def get_entry(self, key: Key, entry: Any) -> Any:
        return self.get((*key, False, entry))

    def has_entry(self, key: Key, entry: Any) -> bool:
        """Does not cache the value."""
        whole = (*key, False, entry)
        if self._dirty.get(whole) is not None:
            return True
        for values in (self._dirty, self._young, self._frozen, self._encoded, self._old):
            if whole in values:
                return values[whole] is not None
        return self._is_stored(whole)

    def put_entry(self, key: Key, entry: Any, value: Any) -> None:
        self._index(key, entry)
        self.put((*key, False, entry), value)

    def put_counted(self, key: Key, entry: Any, value: Any) -> None:
        """Sets a value, not None, and counts it. Saves look-ups: each hashes the whole key."""
        whole = (*key, False, entry)
        known = self._dirty.get(whole, MISSING)
        if known is MISSING or known is None:
            if known is MISSING:
                known = self._young.pop(whole, MISSING)
                is_there = self.has_entry(key, entry) if known is MISSING else known is not None
            else:
                is_there = False
            if not is_there:
                self.set_number(key, self.number(key) + 1)
            self._index(key, entry)
        dirty = self._dirty  # `set_number` may have spilled, which replaces the dict
        dirty[whole] = value
        if len(dirty) > self._dirty_bound:
            self._relieve()

    def walk(self, key: Key, values: bool = True, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yields (entry key, value) of `key` by entry key; value None unless `values`.

        `start`: index below which a list has no elements. Each step goes to the next greater entry key: changes are
        visible ahead of the walk, not behind.
        """
        if not self.number(key):
            return
        prefix = self._kv_key(key) + _ENTRY
        last, writes = encode_key((start - 1,)) if start else b"", -1
        stored: Iterator[tuple[bytes, bytes]] = iter(())
        ahead: tuple[bytes, bytes] | None = None
        while True:
            if writes != self._writes:  # the read-ahead may be older than recent writes
                writes = self._writes
                stored = self._stored_entries(key, prefix, last)
                ahead = next(stored, None)
            order = self._order_of(key)
            at = bisect_right(order, last)
            pending = order[at] if at < len(order) else None
            if ahead is not None and (pending is None or ahead[0] < pending):
                last, data = ahead
                ahead = next(stored, None)
                entry = decode_key(last)[0]
                yield entry, self._stored_value((*key, False, entry), data) if values else None
                continue
            if pending is None:
                return
            last = pending
            if ahead is not None and ahead[0] == pending:
                ahead = next(stored, None)
            entry = decode_key(last)[0]
            value = self.get((*key, False, entry))
            if value is not None:
                yield entry, value if values else None

    # ---- for filling a table before the first row

    def load_entries(self, keys: Sequence[Key], entries: Sequence[Any], values: Sequence[Any]) -> None:
        """The caller also calls `load_numbers`."""
        self.load([(*key, False, entry) for key, entry in zip(keys, entries, strict=True)], values)

    def load_numbers(self, numbers: Mapping[Key, int]) -> None:
        self.load([(*key, True) for key in numbers], [_Number(number) for number in numbers.values()])

    def stored_numbers(self) -> Counter[Key]:
        found: Counter[Key] = Counter()
        for whole, data in self._shard.scan_state(self._state_id):
            if not is_number(data):
                found[entry_key(whole)[:-2]] += 1
        return found

    def _index(self, key: Key, entry: Any) -> None:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = {}
        if entry not in pending:
            pending[entry] = None
            order = self._orders.get(key)
            if order is not None:
                insort(order, encode_key((entry,)))
                if len(order) > 2 * len(pending) + _STALE:
                    del self._orders[key]

    def _stored_entries(self, key: Key, prefix: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Without a number only deleted entries are stored; a scan would go on to the next key."""
        number = (*key, True)
        if number in self._frozen or number in self._encoded or self._is_stored(number):
            start = prefix + last + b"\0" if last else prefix
            for data_key, data in self._shard.kv.scan(start, prefix[:-1] + _NUMBER):
                yield data_key[len(prefix) :], data

    def _stored_value(self, whole: Key, data: bytes) -> Any:
        """Caches mutable values, so that all readers get the same object. Others would fill the cache."""
        if self._immutable:
            return self._fetched(whole, data)
        if whole not in self._young and whole not in self._old:
            self._remember(whole, self._fetched(whole, data))
        return self.get(whole)

    def _order_of(self, key: Key) -> list[bytes]:
        order = self._orders.get(key)
        if order is None:
            order = sorted([encode_key((entry,)) for entry in self._pending.get(key, ())])
            if len(self._orders) >= _STALE:  # else only barriers clear orders
                self._orders.clear()
            self._orders[key] = order
        return order

    def _kv_keys(self, keys: Sequence[Key]) -> list[bytes]:
        width = self.key_width
        begun = self._known.of([whole[:width] for whole in keys])
        return [
            begins + _NUMBER if len(whole) == width + 1 else begins + _ENTRY + encode_key(whole[-1:])
            for whole, begins in zip(keys, begun, strict=True)
        ]

    def _write_again(self, key: Key, value: Any) -> None:
        self._index(key[: self.key_width], key[-1])
        super()._write_again(key, value)

    def _is_stored(self, whole: Key) -> bool:
        return self._shard.kv.get(self._kv_key(whole)) is not None

    def _written(self, keys: Sequence[Key]) -> None:
        self._writes += 1
        dirty, width = self._dirty, self.key_width
        for whole in keys:
            if len(whole) == width + 2 and whole not in dirty:
                pending = self._pending[whole[:width]]
                del pending[whole[-1]]
                if not pending:
                    del self._pending[whole[:width]]

    def _remember_all(self, items: list[tuple[Key, Any]]) -> None:
        if self._appended:
            width, old = self.key_width + 1, self._old
            if old:  # an element of a list cleared before may have had the index
                for key, _ in items:
                    old.pop(key, None)
            items = [item for item in items if len(item[0]) == width]
        super()._remember_all(items)

    def freeze(self) -> None:
        super().freeze()
        self._orders.clear()

    def memory_bytes(self) -> int:
        return super().memory_bytes() + _INDEX_BYTES * (len(self._dirty) + self.frozen_entries)

    def _shown(self, key: Key) -> str:
        width = self.key_width
        return f"{shown(key[:width])}, entry {shown(key[-1:])}" if len(key) == width + 2 else shown(key[:width])


class WatchedEntryTable(EntryTable, WatchedTable):
    _remedy = "store it again (state[key] = value of a map, update(list) of a list)"

    def put_counted(self, key: Key, entry: Any, value: Any) -> None:
        self._lent.pop((*key, False, entry), None)
        super().put_counted(key, entry, value)


def _gapped(number: int, start: int, end: int) -> _Gapped:
    gapped = _Gapped(number)
    gapped.start, gapped.end = start, end
    return gapped


def _encoder(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def encoded(value: Any) -> bytes:
        if type(value) is _Number:
            return _NUMBER_MARK + value.to_bytes(8, "big")
        if type(value) is _Gapped:
            return _NUMBER_MARK + b"".join([each.to_bytes(8, "big") for each in (value, value.start, value.end)])
        return encode(value)

    return encoded


def _decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(data: bytes) -> Any:
        if not is_number(data):
            return decode(data)
        if len(data) == _NUMBER_BYTES:
            return _Number.from_bytes(data[1:], "big")
        if len(data) != _NUMBER_BYTES + 16:
            raise Corrupt(f"{data[:64].hex()} is not a number of entries: restore from another checkpoint")
        number, start, end = (int.from_bytes(data[at : at + 8], "big") for at in (1, 9, 17))
        return _gapped(number, start, end)

    return decoded
