"""The distinct keys of a dense table, each with a slot number: as int64 columns, or as tuples of anything.

`IntKeys` is for keys whose fields are all ints of 64 bits, the usual case: an open-addressing hash table in numpy that
takes whole arrays at once and holds no Python object per key (about 10 ns a row, some 30 bytes a key). `TupleKeys` is a
dict. A *bag* is several keys together: an int64 array of shape (fields, keys), or a list of tuples.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Slots: TypeAlias = npt.NDArray[np.int64]
Key: TypeAlias = tuple[Any, ...]

_FIRST_BITS = 11
_FEW = 16  # keys looked for one by one, when that is faster
_FREE, _GONE = -1, -2  # places that hold no slot; a search goes on behind one that is gone
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: multiplying by it spreads neighbours evenly
_32 = np.uint64(32)
_NO_SLOTS: Slots = np.empty(0, np.int64)


class SlotNumbers:
    """Which slots are taken. Freed ones are used again first."""

    def __init__(self) -> None:
        self._free = np.empty(0, np.int64)
        self.limit = 0  # all slots are below it
        self.count = 0

    def take(self, count: int) -> Slots:
        kept = max(0, len(self._free) - count)
        reused, self._free = self._free[kept:], self._free[:kept]
        first = self.limit
        self.limit += count - len(reused)
        self.count += count
        return np.concatenate([reused, np.arange(first, self.limit)])

    def give_back(self, slots: Slots) -> None:
        self.count -= len(slots)
        if not self.count:
            self._free, self.limit = _NO_SLOTS, 0
        else:
            self._free = np.concatenate([self._free, slots])


class IntKeys:
    """Keys of `fields` int64 fields."""

    bytes_per_key = 48  # with the table's own few bytes per slot

    def __init__(self, fields: int) -> None:
        self.fields = fields
        self.numbers = SlotNumbers()
        self._keys: Ints = np.zeros((fields, 1 << _FIRST_BITS - 1), np.int64)  # by slot
        self._active = np.zeros(1 << _FIRST_BITS - 1, np.bool_)
        self._clear(_FIRST_BITS)

    def __len__(self) -> int:
        return self.numbers.count

    def find(self, bag: Ints) -> Slots:
        """The slot of each key; negative where there is none."""
        places = self._home(bag)
        there = self._places.take(places)
        found = there.astype(np.int64)
        wrong = (~self._equal(bag, there) & (there != _FREE)).nonzero()[0]
        rows = wrong
        while len(wrong) > _FEW:  # somebody else lives there, or did: look one further
            places, bag = places[wrong] + 1 & self._mask, bag[:, wrong]
            there = self._places.take(places)
            found[rows] = there
            wrong = (~self._equal(bag, there) & (there != _FREE)).nonzero()[0]
            rows = rows[wrong]
        for row, at in zip(rows.tolist(), wrong.tolist(), strict=True):
            found[row] = self._search(places.item(at), bag[:, at].tolist())
        return found

    def place(self, bag: Ints) -> tuple[Slots, Slots]:
        """The slot of each key, which may repeat; and the slots that were made for those that had none."""
        slots = self.find(bag)
        missing = np.flatnonzero(slots < 0)
        if not len(missing):
            return slots, _NO_SLOTS
        self._make_room(len(missing))
        slots[missing], made = self._insert(bag[:, missing])
        return slots, made

    def remove(self, slots: Slots) -> None:
        """The slots (each once) are free."""
        self._active[slots] = False
        self.numbers.give_back(slots)
        if len(slots) >= len(self):
            self._clear(self._bits)
            left = self.all()
            self._settle(left, self._home(self._keys[:, left]))
            return
        places = self._home(self._keys[:, slots])
        wanted = slots
        while len(wanted):
            there = self._places[places] == wanted
            self._places[places[there]] = _GONE
            wanted, places = wanted[~there], places[~there] + 1 & self._mask
        self._gone += len(slots)

    def bag(self, slots: Slots) -> Ints:
        bag: Ints = self._keys.take(slots, axis=1)
        return bag

    def tuples(self, slots: Slots) -> list[Key]:
        return list(zip(*self.bag(slots).tolist(), strict=True))

    def all(self) -> Slots:
        return np.flatnonzero(self._active[: self.numbers.limit])

    # ---- inside

    def _clear(self, bits: int) -> None:
        self._bits = bits
        self._shift = np.uint64(64 - bits)
        self._mask = np.int64((1 << bits) - 1)
        self._places = np.full(1 << bits, _FREE, np.int32)
        self._gone = 0

    def _home(self, bag: Ints) -> Ints:
        mixed = bag[0].view(np.uint64) * _MIX
        for field in bag[1:]:
            mixed ^= mixed >> _32
            mixed += field.view(np.uint64)
            mixed *= _MIX
        mixed >>= self._shift
        home: Ints = mixed.view(np.int64)
        return home

    def _search(self, place: int, key: list[int]) -> int:
        """`find` for one key that does not live at `place`."""
        mask, slot_at, field_of = len(self._places) - 1, self._places.item, self._keys.item
        while True:
            place = place + 1 & mask
            slot = slot_at(place)
            if slot == _FREE or (slot >= 0 and all(field_of(f, slot) == value for f, value in enumerate(key))):
                return slot

    def _equal(self, bag: Ints, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        equal: npt.NDArray[np.bool_] = slots >= 0
        for own, wanted in zip(self._keys, bag, strict=True):
            equal &= own.take(slots) == wanted
        return equal

    def _make_room(self, count: int) -> None:
        needed = len(self) + count
        if needed > len(self._active):
            capacity = 2 * len(self._active)
            while capacity < needed:
                capacity *= 2
            self._keys = np.concatenate(
                [self._keys, np.zeros((self.fields, capacity - len(self._active)), np.int64)], 1
            )
            self._active = np.concatenate([self._active, np.zeros(capacity - len(self._active), np.bool_)])
        bits = self._bits
        while 2 * needed > 1 << bits:
            bits += 1
        if bits > self._bits or 2 * (needed + self._gone) > 1 << bits:
            self._clear(bits)
            known = self.all()
            self._settle(known, self._home(self._keys[:, known]))

    def _settle(self, slots: Slots, places: Ints) -> None:
        """Slots of distinct keys into the hash table."""
        while len(slots):
            free = self._places[places] == _FREE
            self._places[places[free]] = slots[free]  # of several that want a place, the last one gets it
            left = self._places[places] != slots
            slots, places = slots[left], places[left] + 1 & self._mask

    def _insert(self, bag: Ints) -> tuple[Slots, Slots]:
        """Keys that have no slot, and may repeat: for each free place one of those that want it wins; those with the
        same key find it there, others look one further."""
        found = np.empty(bag.shape[1], np.int64)
        made = []
        rows = np.arange(bag.shape[1])
        places = self._home(bag)
        while len(rows):
            free = np.flatnonzero(self._places.take(places) == _FREE)
            if len(free):
                claims = _GONE - 1 - free
                self._places[places[free]] = claims
                winners = free[self._places[places[free]] == claims]
                fresh = self.numbers.take(len(winners))
                self._keys[:, fresh] = bag[:, winners]
                self._active[fresh] = True
                self._places[places[winners]] = fresh
                made.append(fresh)
            there = self._places.take(places)
            same = self._equal(bag, there)
            found[rows[same]] = there[same]
            left = np.flatnonzero(~same)
            rows, places, bag = rows[left], places[left] + 1 & self._mask, bag[:, left]
        return found, np.concatenate(made)


class TupleKeys:
    """Keys as tuples, of any kinds and lengths."""

    bytes_per_key = 250

    def __init__(self, numbers: SlotNumbers | None = None, index: dict[Key, int] | None = None) -> None:
        self.numbers = numbers or SlotNumbers()
        self._index = index or {}
        self._keys: list[Any] = [None] * self.numbers.limit  # by slot
        self._data_keys: list[bytes | None] = [None] * self.numbers.limit  # the key in the store, once it was encoded
        for key, slot in self._index.items():
            self._keys[slot] = key

    def __len__(self) -> int:
        return len(self._index)

    def find(self, bag: Sequence[Key]) -> Slots:
        """The slot of each key; negative where there is none."""
        get = self._index.get
        return np.fromiter((get(key, _FREE) for key in bag), np.int64, len(bag))

    def place(self, bag: Sequence[Key]) -> tuple[Slots, Slots]:
        """The slot of each key, which may repeat; and the slots that were made for those that had none."""
        index = self._index
        try:
            return np.fromiter(map(index.__getitem__, bag), np.int64, len(bag)), _NO_SLOTS
        except KeyError:
            pass
        keys = list(dict.fromkeys(key for key in bag if key not in index))
        made = self.numbers.take(len(keys))
        more = self.numbers.limit - len(self._keys)
        self._keys.extend([None] * more)
        self._data_keys.extend([None] * more)
        for key, slot in zip(keys, made.tolist(), strict=True):
            index[key] = slot
            self._keys[slot] = key
        return np.fromiter(map(index.__getitem__, bag), np.int64, len(bag)), made

    def remove(self, slots: Slots) -> None:
        """The slots (each once) are free."""
        for slot in slots.tolist():
            del self._index[self._keys[slot]]
            self._keys[slot] = None
            self._data_keys[slot] = None
        self.numbers.give_back(slots)

    def bag(self, slots: Slots) -> list[Key]:
        keys = self._keys
        return [keys[slot] for slot in slots.tolist()]

    def tuples(self, slots: Slots) -> list[Key]:
        return self.bag(slots)

    def all(self) -> Slots:
        return np.sort(np.fromiter(self._index.values(), np.int64, len(self._index)))

    def known_data_key(self, slot: int, key: Key) -> bytes | None:
        """What `remember_data_key` was told of this key in this slot."""
        return self._data_keys[slot] if self._keys[slot] is key else None

    def remember_data_key(self, slot: int, key: Key, data_key: bytes) -> None:
        if self._keys[slot] is key:
            self._data_keys[slot] = data_key


def tuple_keys(keys: "IntKeys | TupleKeys") -> TupleKeys:
    """The same keys in the same slots."""
    if isinstance(keys, TupleKeys):
        return keys
    slots = keys.all()
    return TupleKeys(keys.numbers, dict(zip(keys.tuples(slots), slots.tolist(), strict=True)))


def int_bag(keys: Sequence[Key], fields: int) -> Ints | None:
    """The keys as int64 columns, if all of them have that many fields and are ints of 64 bits; None otherwise."""
    if set(map(len, keys)) != {fields}:
        return None
    columns = list(zip(*keys, strict=True))
    for column in columns:
        if set(map(type, column)) != {int} or not (min(column) >= -(1 << 63) and max(column) < 1 << 63):
            return None
    return np.array(columns, np.int64)
