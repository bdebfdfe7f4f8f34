"""Timers of an operator subtask in the store, in firing order (docs/design/timers.md).

Layout, after key group and state id (`kv/shard`), encoded by `keys/key_codec`:

    time (ms, an int) · user key  →  01

The user key alone determines the key group. Unwritten timers are in the dicts of `StateTable`, by (time, user key);
written timers are not cached. The last timers that were set, and that nobody holds in memory, may be in the lists
`times` and `keys`, and are written from there unless the dicts have the same timer. All other methods first move the
lists into the dicts (`_fold`), so the lists never contain a timer that was deleted later.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

from barrier_runtime.state.keys.key_codec import INT_TAG, decode_key, encode_key
from barrier_runtime.state.keys.key_groups import key_group, key_groups_of_keys
from barrier_runtime.state.kv.shard import PREFIX_BYTES, Shard
from barrier_runtime.state.kv.store import Entry
from barrier_runtime.state.values.table import Key, StateTable

_MOST = 16_384
_MOST_BYTES = 8 << 20


class KnownKeys:
    """Caches encoded keys: for user keys with many entries, encoding is most of a write.

    `make`: (key group and state id, encoded user key) -> cached value.
    """

    def __init__(self, shard: Shard, state_id: int, key_width: int, make: Callable[[bytes, bytes], Any]) -> None:
        self._shard = shard
        self._state_id = state_id
        self._key_width = key_width
        self._make = make
        self._known: dict[Key, Any] = {}
        self._bytes = 0

    def of(self, keys: list[Key]) -> list[Any]:
        known = self._known
        try:
            return [known[key] for key in keys]
        except KeyError:
            self._know(keys)
            return [known[key] for key in keys]

    def _know(self, wanted: Iterable[Key]) -> None:
        if len(self._known) > _MOST or self._bytes > _MOST_BYTES:
            self._known.clear()
            self._bytes = 0
        keys, shard = list(set(wanted).difference(self._known)), self._shard
        groups = key_groups_of_keys(keys, self._key_width, shard.max_parallelism)
        prefixes = shard.checked_prefixes(self._state_id, groups, keys)
        for key, group in zip(keys, groups, strict=True):
            encoded = encode_key(key)
            self._known[key] = self._make(prefixes[group], encoded)
            self._bytes += 2 * len(encoded)  # the key itself is about as large


LAYOUTS = 1  # newest layout that this release reads
_TIME_BYTES = len(encode_key((0,)))
_MOST_WAITING = 16_384  # firing timers reads all of them
_TIMER_BYTES = 500  # size in memory
_TAG = bytes((INT_TAG,))
_SIGN = np.uint64(1 << 63)
_SET = b"\x01"
_LOOKED_AT = 16  # keys of a state are about equally long

Timer = tuple[int, Key]  # time in ms, user key


class TimerTable(StateTable):
    """Timers, for a single thread."""

    most_cache_bytes = 2 * _MOST_WAITING * _TIMER_BYTES
    spilled_at_once = 512  # less than a millisecond; sorted timers of a key group are neighbours

    def __init__(self, name: str, state_id: int, shard: Shard, key_width: int, cache_bytes: int, stored: bool) -> None:
        super().__init__(name, state_id, shard, encode_timer, decode_timer, key_width, True, cache_bytes)
        self.stored = stored
        self._known = KnownKeys(shard, state_id, key_width, lambda prefix, encoded: (prefix + _TAG, encoded))
        self.times: list[int] = []
        self.keys: list[Key] = []
        self._deleted_ms = -1 << 63  # latest time of timers whose deletion is in the dicts

    @property
    def key_groups(self) -> tuple[int, int]:
        return self._shard.key_group_first, self._shard.key_group_last

    def write_listed(self) -> None:
        """Writes the lists, unless older changes must be written first."""
        if not self._shard.may_write() or (min(self.times) <= self._deleted_ms and self._any_listed_waits()):
            self._fold()
            return
        data_keys = self._packed(self.times, self.keys)
        data_keys.sort()
        self._shard.write(list(zip(data_keys, repeat(_SET), strict=False)))
        self.times.clear()
        self.keys.clear()

    def is_unwritten(self, timer: Timer) -> bool:
        if self.times:
            self._fold()
        return timer in self._dirty or timer in self._frozen

    def is_deleted(self, timer: Timer) -> bool:
        return self.unwritten(timer) == (True, None)

    def waiting(self) -> list[Timer]:
        if self.times:
            self._fold()
        dirty = self._dirty
        older = [timer for timer, is_set in self._frozen.items() if is_set and timer not in dirty]
        return older + [timer for timer, is_set in dirty.items() if is_set]

    def behind(self, position: bytes, first: int, last: int, most: int) -> tuple[list[Timer], bytes, int]:
        """Stored timers of key group `first` after `position` (see `position_of`), in order.

        Returns up to `most` timers; the last timer's position if more may follow, else empty; and the next key group up
        to `last` that may have timers, or `last + 1`.
        """
        found: list[Timer] = []
        for data_key, _ in self._shard.state_behind(self._state_id, first, last, position):
            group, state_id = self._shard.group_and_state(data_key)
            if (group, state_id) != (first, self._state_id):
                return found, b"", max(first + 1, group if state_id <= self._state_id else group + 1)
            found.append(_timer_of(data_key))
            if len(found) == most:
                return found, data_key[PREFIX_BYTES:], first + 1
        return found, b"", last + 1

    def of_key(self, key: Key, from_ms: int) -> list[int]:
        """Times of a key's timers from `from_ms` on. Reads all timers of the key group."""
        group, encoded = key_group(key, self._shard.max_parallelism), encode_key(key)
        stored = self._shard.state_behind(self._state_id, group, group, position_of(from_ms))
        times = {at_ms for at_ms, other in self.waiting() if other == key}
        for data_key, _ in stored:
            if self._shard.group_and_state(data_key) != (group, self._state_id):
                break
            if data_key[PREFIX_BYTES + _TIME_BYTES :] == encoded:
                timer = (_timer_of(data_key)[0], key)
                if not self.is_deleted(timer):
                    times.add(timer[0])
        return sorted(times)

    def scan(self) -> Iterator[tuple[Key, Any]]:
        waiting = self.waiting()
        for data_key, _ in self._shard.scan_state(self._state_id):
            timer = _timer_of(data_key)
            if not self.is_unwritten(timer):
                yield timer, True
        for timer in waiting:
            if not self.is_deleted(timer):
                yield timer, True

    def convert(self, older: StateTable) -> None:
        """Moves the timers of an older release, stored like values by (*user key, time)."""
        for key, _ in older.scan():
            self.put((key[-1], key[:-1]), True)
            older.delete(key)

    def put(self, key: Key, value: Any) -> None:
        """Does not cache: every event of a stream may set a timer."""
        if value is None:
            if self.times:
                self._fold()
            if key[0] > self._deleted_ms:
                self._deleted_ms = key[0]
        dirty = self._dirty
        dirty[key] = value
        if len(dirty) > self._dirty_bound:
            self._relieve()

    def get(self, key: Key) -> Any:
        if self.times:
            self._fold()
        return super().get(key)

    def unwritten(self, key: Key) -> tuple[bool, Any]:
        if self.times:
            self._fold()
        return super().unwritten(key)

    def freeze(self) -> None:
        if self.times:
            self._fold()
        super().freeze()

    def memory_bytes(self) -> int:
        return super().memory_bytes() + int(len(self.times) * self._entry_bytes)

    def _any_listed_waits(self) -> bool:
        for timers in (self._dirty, self._frozen):
            if not timers.keys().isdisjoint(zip(self.times, self.keys, strict=True)):
                return True
        if not self._dirty and not self._frozen:
            self._deleted_ms = -1 << 63
        return False

    def _fold(self) -> None:
        self._dirty.update(zip(zip(self.times, self.keys, strict=True), repeat(True), strict=False))
        self.times.clear()
        self.keys.clear()
        if len(self._dirty) > self._dirty_bound:
            self._relieve()

    def _kv_key(self, key: Key) -> bytes:
        return self._kv_keys([key])[0]

    def _kv_keys(self, keys: Sequence[Key]) -> list[bytes]:
        return self._packed([at_ms for at_ms, _ in keys], [key for _, key in keys])

    def _packed(self, times: list[int], keys: list[Key]) -> list[bytes]:
        packed = (np.array(times, np.int64).view(np.uint64) ^ _SIGN).astype(">u8").tobytes()
        starts = range(0, 8 * len(times), 8)
        return [
            head + packed[start : start + 8] + encoded
            for start, (head, encoded) in zip(starts, self._known.of(keys), strict=True)
        ]

    def _take_frozen(self, count: int) -> list[Entry]:
        popitem = self._frozen.popitem
        items = [popitem() for _ in range(count)]
        data_keys = self._kv_keys([timer for timer, _ in items])
        self._learn_sizes(data_keys[:_LOOKED_AT], [_SET] * min(count, _LOOKED_AT))
        data = [_SET if is_set else None for _, is_set in items]
        # The store takes adjacent keys in half the time.
        if None not in data:
            data_keys.sort()
            return list(zip(data_keys, data, strict=True))
        return sorted(zip(data_keys, data, strict=True), key=_key_of)

    def _look_at_size(self) -> None:
        """Timers have no values."""

    def _fit_limits(self) -> None:
        super()._fit_limits()
        self._dirty_limit = min(self._dirty_limit, _MOST_WAITING)

    def _remember(self, key: Key, value: Any) -> None:
        """A timer is rarely read twice."""

    def _remember_all(self, items: list[tuple[Key, Any]]) -> None:
        """Caches nothing."""


def position_of(from_ms: int) -> bytes:
    return encode_key((from_ms,))


def encode_timer(value: Any) -> bytes:
    return _SET


def decode_timer(data: bytes) -> Any:
    return True


_key_of = itemgetter(0)  # of an entry of the store


def _timer_of(data_key: bytes) -> Timer:
    fields = decode_key(data_key, PREFIX_BYTES)
    return fields[0], fields[1:]
