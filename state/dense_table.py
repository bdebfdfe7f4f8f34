"""Keyed state as columns: every key has a slot number, and a value is one row over a few numpy arrays.

For vectorised operators: `slots(keys)` once per batch, then plain numpy on `columns`, then `mark_dirty`. A freeze
copies the dirty rows; they are written to the key-value store in slices later, one entry per key: a version byte and
the row's values, packed, little endian. A table of single int64 keys keeps plain ints instead of tuples.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from state.dense_index import IntIndex
from state.errors import InvalidJob
from state.key_codec import INT_TAG, encode_key
from state.key_groups import key_groups_of_int64
from state.kv_store import Entry
from state.shard import PREFIX_BYTES, Shard, entry_key

Key = tuple[Any, ...]
Slots = npt.NDArray[np.int64]

VALUE_VERSION = 1
_FIRST_CAPACITY = 1_024
_LOAD_ROWS = 8_192
_FEW_ROWS = 256  # below, the dict is faster than the index
_KEY_OVERHEAD_BYTES = 250  # of a key in the index and its slot's bookkeeping
_SPILL_SLICE = 512
_INT_KEY = np.dtype([("group", ">u2"), ("state", ">u2"), ("tag", "u1"), ("value", ">u8")])
_INT_SIGN = np.uint64(1 << 63)


@dataclass
class _Frozen:
    """Rows as they were at one freeze, and what is still to be written of them."""

    removed: list[Any]  # index keys
    keys: Any  # index keys of `rows`: an int64 array in int mode, else a list
    slots: Slots
    rows: npt.NDArray[np.void]
    written: int = 0

    def __len__(self) -> int:
        return len(self.removed) + len(self.rows) - self.written


class DenseTable:
    """Made by `KeyedBackend.dense_table`; used by one thread."""

    columns: dict[str, npt.NDArray[Any]]  # sized to the capacity; read it again after each call of `slots`

    def __init__(
        self,
        name: str,
        state_id: int,
        shard: Shard,
        columns: Mapping[str, tuple[str, Any]],
        key_width: int,
        evictable: bool,
        cache_bytes: int,
        stored: bool,
    ) -> None:
        """`stored`: the key-value store may hold entries of this table already."""
        self.name = name
        self.key_width = key_width
        self._state_id = state_id
        self._shard = shard
        self._evictable = evictable
        self._initial = {column: value for column, (_, value) in columns.items()}
        self._row = np.dtype([("", "u1")] + [(column, _little(kind)) for column, (kind, _) in columns.items()])
        self._names = tuple(columns)
        self._complete = not stored  # every entry there is has a slot
        self._ints = False  # index keys are plain ints instead of tuples
        self._index: dict[Any, int] = {}
        self._keys: list[Any] = []  # slot -> index key; None behind a free slot is told apart by _active
        self._data_keys: list[bytes | None] = []  # slot -> key in the store, tuple mode only
        self._free: list[int] = []
        self._removed: dict[Any, None] = {}  # index keys to delete from the store
        self._frozen: deque[_Frozen] = deque()
        self._capacity = 0
        self.columns = {column: np.empty(0, kind) for column, (kind, _) in columns.items()}
        self._int_keys = np.empty(0, np.int64)
        self._int_index: IntIndex | None = None  # only in int mode, and only once a large batch has come
        self._active = np.empty(0, np.bool_)
        self._dirty = np.empty(0, np.bool_)
        self._stored = np.empty(0, np.bool_)  # the store may have this key
        self._used = np.empty(0, np.int64)  # when last asked for, in calls; only kept if evictable
        self._calls = 0
        self.limit_cache(cache_bytes)
        self._grow(_FIRST_CAPACITY)

    # ---- what operators use

    @property
    def entries(self) -> int:
        """How many keys have a slot now."""
        return len(self._index)

    def slots(self, keys: Sequence[Key]) -> Slots:
        """The slots of `keys`, loaded or made with initial values as needed. They stay valid as long as the entry
        exists; in an evictable table only until the next call."""
        self._begin_call()
        index_keys: Sequence[Any] = keys
        if self._ints:
            plain = _plain_ints(keys)
            if plain is None:
                self._use_tuples()
            else:
                index_keys = plain
        return self._touched(self._lookup(index_keys))

    def slots_int64(self, values: npt.NDArray[np.int64]) -> Slots:
        """The slot of each value, for a table of single int64 keys; values may repeat."""
        self._begin_call()
        if not self._ints and not self._use_ints():
            return self._touched(self._lookup([(value,) for value in values.tolist()]))
        if len(values) < _FEW_ROWS:
            return self._touched(self._lookup(values.tolist()))
        return self._touched(self._lookup_many(values))

    def mark_dirty(self, slots: Slots) -> None:
        """The rows of `slots` were changed and belong to the next snapshot."""
        self._dirty[slots] = True

    def remove(self, slots: Slots) -> None:
        """Delete the entries of `slots` (each once). The slots may be used for other keys from now on."""
        stored = self._stored[slots].tolist()
        for slot, was_stored in zip(slots.tolist(), stored, strict=True):
            key = self._keys[slot]
            del self._index[key]
            if was_stored:
                self._removed[key] = None
            self._forget(slot)
        self._active[slots] = False
        self._dirty[slots] = False
        self._int_index = None

    def keys_of(self, slots: Slots) -> list[Key]:
        keys = self._keys
        if self._ints:
            return [(keys[slot],) for slot in slots.tolist()]
        return [keys[slot] for slot in slots.tolist()]

    def load_all(self) -> Slots:
        """Give every entry a slot, and return all slots. After a restore, for those who must see everything."""
        if not self._complete:
            self._load_stored()
        return np.flatnonzero(self._active)

    # ---- what the backend uses

    def freeze(self) -> None:
        dirty = np.flatnonzero(self._dirty)
        if len(dirty) or self._removed:
            self._frozen.append(self._pack(dirty, list(self._removed)))
            self._removed = {}

    @property
    def frozen_entries(self) -> int:
        return sum(map(len, self._frozen))

    def take(self, max_entries: int) -> list[Entry]:
        """Up to `max_entries` frozen entries, to be written to the store at once, oldest freeze first."""
        entries: list[Entry] = []
        while self._frozen and len(entries) < max_entries:
            part = self._frozen[0]
            while part.removed and len(entries) < max_entries:
                entries.append((self._data_key(part.removed.pop()), None))
            if not part.removed and len(entries) < max_entries:
                entries += self._take_rows(part, max_entries - len(entries))
            if not len(part):
                self._frozen.popleft()
        return entries

    def limit_cache(self, cache_bytes: int) -> None:
        per_entry = self._row.itemsize + _KEY_OVERHEAD_BYTES
        self._entry_limit = max(1_024, cache_bytes // per_entry)

    def memory_bytes(self) -> int:
        frozen = self.frozen_entries * (self._row.itemsize + _KEY_OVERHEAD_BYTES // 2)
        return len(self._index) * _KEY_OVERHEAD_BYTES + self._capacity * self._row.itemsize + frozen

    # ---- finding and making entries

    def _begin_call(self) -> None:
        if not self._evictable:
            if not self._complete:
                self._load_stored()
        else:
            self._calls += 1
            if len(self._index) > self._entry_limit:
                self._make_room()

    def _touched(self, slots: Slots) -> Slots:
        if self._evictable:
            self._used[slots] = self._calls
        return slots

    def _lookup(self, keys: Sequence[Any]) -> Slots:
        index = self._index
        try:
            return np.fromiter(map(index.__getitem__, keys), np.int64, len(keys))
        except KeyError:
            self._create(list(dict.fromkeys(key for key in keys if key not in index)))
            return np.fromiter(map(index.__getitem__, keys), np.int64, len(keys))

    def _lookup_many(self, values: npt.NDArray[np.int64]) -> Slots:
        values = np.ascontiguousarray(values, np.int64)
        if self._int_index is None:
            self._int_index = IntIndex()
            known = np.flatnonzero(self._active)
            self._int_index.add(self._int_keys[known], known)
        slots = self._int_index.find(values)
        missing = slots < 0
        if missing.any():
            self._create(np.unique(values[missing]).tolist())
            slots = self._int_index.find(values)
        return slots

    def _create(self, keys: list[Any]) -> None:
        """Slots for keys that have none: stored values if the store has them, initial values otherwise."""
        slots = self._assign(keys)
        for column, initial in self._initial.items():
            self.columns[column][slots] = initial
        removed = [key in self._removed for key in keys] if self._removed else None
        if removed is not None:
            for key in keys:
                self._removed.pop(key, None)
        self._stored[slots] = removed if removed is not None else False
        if not self._complete:
            self._load_each(keys, slots, removed)

    def _assign(self, keys: list[Any]) -> Slots:
        free, count = self._free, len(keys)
        reused = [free.pop() for _ in range(min(len(free), count))]
        first = len(self._keys)
        fresh = count - len(reused)
        if first + fresh > self._capacity:
            self._grow(first + fresh)
        slots = np.array(reused + list(range(first, first + fresh)), np.int64)
        self._keys.extend([None] * fresh)
        self._data_keys.extend([None] * fresh)
        for key, slot in zip(keys, slots.tolist(), strict=True):
            self._index[key] = slot
            self._keys[slot] = key
            self._data_keys[slot] = None
        if self._ints:
            self._int_keys[slots] = keys
            if self._int_index is not None:
                self._int_index.add(self._int_keys[slots], slots)
        self._active[slots] = True
        self._dirty[slots] = False
        return slots

    def _load_each(self, keys: list[Any], slots: Slots, removed: list[bool] | None) -> None:
        gone = set().union(*(part.removed for part in self._frozen)) if self._frozen else set()
        found_slots, found = [], []
        for position, key in enumerate(keys):
            if (removed is not None and removed[position]) or key in gone:
                continue
            data = self._shard.kv.get(self._data_key(key))
            if data is not None:
                found_slots.append(int(slots[position]))
                found.append(data)
        if found:
            self._set_rows(np.array(found_slots, np.int64), found)

    def _load_stored(self) -> None:
        rows = self._shard.scan_state(self._state_id)
        while chunk := list(islice(rows, _LOAD_ROWS)):
            self._load_chunk([key for key, _ in chunk], [data for _, data in chunk])
        self._complete = True

    def _load_chunk(self, data_keys: list[bytes], data: list[bytes]) -> None:
        ints = _decode_ints(data_keys) if self.key_width == 1 else None
        keys: list[Any]
        if ints is not None and (self._ints or self._use_ints()):
            keys = ints
        else:
            if self._ints:
                self._use_tuples()
            keys = [entry_key(data_key) for data_key in data_keys]
        gone = set(self._removed).union(*(part.removed for part in self._frozen))
        wanted = [at for at, key in enumerate(keys) if key not in self._index and key not in gone]
        if wanted:
            slots = self._assign([keys[at] for at in wanted])
            self._set_rows(slots, [data[at] for at in wanted])

    def _set_rows(self, slots: Slots, data: Sequence[bytes]) -> None:
        width = self._row.itemsize
        for value in data:
            if len(value) != width or value[0] != VALUE_VERSION:
                raise InvalidJob(
                    f"state {self.name!r} of {self._shard.operator} was written with other columns than it has now "
                    f"({len(value)} bytes a row instead of {width}): restore with the columns it was written with, or "
                    "give the changed state a new name"
                )
        rows = np.frombuffer(b"".join(data), self._row)
        for column in self._names:
            self.columns[column][slots] = rows[column]
        self._stored[slots] = True
        self._dirty[slots] = False

    def _grow(self, needed: int) -> None:
        capacity = max(self._capacity, _FIRST_CAPACITY)
        while capacity < needed:
            capacity *= 2
        if capacity == self._capacity:
            return
        self.columns = {column: _extended(array, capacity) for column, array in self.columns.items()}
        self._int_keys = _extended(self._int_keys, capacity)
        self._active = _extended(self._active, capacity)
        self._dirty = _extended(self._dirty, capacity)
        self._stored = _extended(self._stored, capacity)
        self._used = _extended(self._used, capacity)
        self._capacity = capacity

    # ---- int mode and tuple mode

    def _use_ints(self) -> bool:
        """Change to plain ints as index keys, if every key there is allows it."""
        if self.key_width != 1 or self._frozen:
            return False
        if self._index or self._removed:
            if _plain_ints(list(self._index)) is None or _plain_ints(list(self._removed)) is None:
                return False
            self._index = {key[0]: slot for key, slot in self._index.items()}
            self._removed = {key[0]: None for key in self._removed}
            for key, slot in self._index.items():
                self._keys[slot] = key
                self._int_keys[slot] = key
        self._ints = True
        return True

    def _use_tuples(self) -> None:
        self._ints = False
        self._int_index = None
        self._index = {(key,): slot for key, slot in self._index.items()}
        self._removed = {(key,): None for key in self._removed}
        for key, slot in self._index.items():
            self._keys[slot] = key
        for part in self._frozen:
            part.removed = [(key,) for key in part.removed]
            part.keys = [(key,) for key in part.keys.tolist()]

    # ---- freezing and writing

    def _pack(self, slots: Slots, removed: list[Any]) -> _Frozen:
        rows = np.empty(len(slots), self._row)
        rows[self._row.names[0]] = VALUE_VERSION  # type: ignore[index]
        for column in self._names:
            rows[column] = self.columns[column][slots]
        keys: Any
        if self._ints:
            keys = self._int_keys[slots]
        else:
            every = self._keys
            keys = [every[slot] for slot in slots.tolist()]
        self._dirty[slots] = False
        self._stored[slots] = True
        return _Frozen(removed, keys, slots, rows)

    def _take_rows(self, part: _Frozen, count: int) -> Iterator[Entry]:
        start, end = part.written, min(part.written + count, len(part.rows))
        part.written = end
        width = self._row.itemsize
        packed = part.rows[start:end].tobytes()
        if self._ints:
            data_keys = self._int_data_keys(part.keys[start:end])
        else:
            data_keys = self._tuple_data_keys(part.keys[start:end], part.slots[start:end].tolist())
        return zip(data_keys, [packed[at : at + width] for at in range(0, len(packed), width)], strict=True)

    def _data_key(self, index_key: Any) -> bytes:
        key = (index_key,) if self._ints else index_key
        return self._shard.kv_key(self._state_id, self.key_width, key)

    def _int_data_keys(self, values: npt.NDArray[np.int64]) -> list[bytes]:
        """`_data_key` of many ints at once."""
        shard = self._shard
        groups = key_groups_of_int64(values, shard.max_parallelism)
        foreign = (groups < shard.key_group_first) | (groups > shard.key_group_last)
        if foreign.any():
            at = int(np.argmax(foreign))
            raise shard.foreign((int(values[at]),), int(groups[at]))
        encoded = np.empty(len(values), _INT_KEY)
        encoded["group"] = groups
        encoded["state"] = self._state_id
        encoded["tag"] = INT_TAG
        encoded["value"] = values.view(np.uint64) ^ _INT_SIGN
        packed, width = encoded.tobytes(), _INT_KEY.itemsize
        return [packed[at : at + width] for at in range(0, len(packed), width)]

    def _tuple_data_keys(self, keys: list[Key], slots: list[int]) -> list[bytes]:
        """`_data_key` of many tuples; a key is encoded once as long as it keeps its slot."""
        known, owners = self._data_keys, self._keys
        data_keys = [known[slot] if owners[slot] is key else None for key, slot in zip(keys, slots, strict=True)]
        missing = [at for at, data_key in enumerate(data_keys) if data_key is None]
        if missing:
            encoded = self._shard.kv_keys(self._state_id, self.key_width, [keys[at] for at in missing])
            for at, data_key in zip(missing, encoded, strict=True):
                data_keys[at] = data_key
                if owners[slots[at]] is keys[at]:
                    known[slots[at]] = data_key
        return data_keys  # type: ignore[return-value]

    # ---- eviction

    def _make_room(self) -> None:
        """Forget the longest unused entries; write some dirty ones behind if there are not enough clean ones."""
        if self._frozen:
            if not self._shard.may_write():
                return
            self._shard.write(self.take(_SPILL_SLICE))
            if self._frozen:
                return
        surplus = len(self._index) - self._entry_limit + self._entry_limit // 8
        clean = np.flatnonzero(self._active & ~self._dirty)
        if len(clean) < surplus and self._shard.may_write():
            dirty = _oldest(np.flatnonzero(self._dirty), self._used, 4 * _SPILL_SLICE)
            self._frozen.append(self._pack(dirty, []))
            self._shard.write(self.take(len(dirty)))
            clean = np.flatnonzero(self._active & ~self._dirty)
        victims = _oldest(clean, self._used, surplus)
        for slot in victims.tolist():
            del self._index[self._keys[slot]]
            self._forget(slot)
        self._active[victims] = False
        self._int_index = None
        self._complete = self._complete and not bool(self._stored[victims].any())

    def _forget(self, slot: int) -> None:
        self._keys[slot] = None
        self._data_keys[slot] = None
        self._free.append(slot)


def _little(kind: str) -> np.dtype[Any]:
    return np.dtype(kind).newbyteorder("<")


def _extended(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    extended = np.zeros(capacity, array.dtype)
    extended[: len(array)] = array
    return extended


def _oldest(slots: Slots, used: npt.NDArray[np.int64], count: int) -> Slots:
    if count >= len(slots):
        return slots
    return slots[np.argpartition(used[slots], count)[:count]]


def _plain_ints(keys: Sequence[Key]) -> list[int] | None:
    """The single field of each key, if all of them are ints of 64 bits; None otherwise."""
    if not keys:
        return []
    if max(map(len, keys)) != 1 or min(map(len, keys)) != 1:
        return None
    fields = [key[0] for key in keys]
    if set(map(type, fields)) != {int} or not (min(fields) >= -(1 << 63) and max(fields) < 1 << 63):
        return None
    return fields


def _decode_ints(data_keys: list[bytes]) -> list[int] | None:
    """The int behind each stored key, if all of them are single ints; None otherwise."""
    if any(len(data_key) != _INT_KEY.itemsize or data_key[PREFIX_BYTES] != INT_TAG for data_key in data_keys):
        return None
    encoded = np.frombuffer(b"".join(data_keys), _INT_KEY)
    values: list[int] = (encoded["value"].astype(np.uint64) ^ _INT_SIGN).view(np.int64).tolist()
    return values


assert encode_key((0,))[0] == INT_TAG
