"""Distinct keys of a columnar table, each with a row id.

`IntKeys`, for keys of 64-bit ints, is an open-addressing hash table in numpy; `TupleKeys`, for any scalars, is a dict.
A *key batch* is an int64 array of shape (fields, keys), or a list of tuples.

Replacing a hash table takes 200 ms for a million keys, so a large table gets a *successor*, filled in parts whenever
keys arrive; searches use the table alone.

    row ids              the table    the successor
    below `_known`       present      present: later changes go to both
    from `_known` on     present      absent: added, if they still exist, as `_known` advances

Once all row ids are known, the successor becomes the table.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
RowIds: TypeAlias = npt.NDArray[np.int64]
Key: TypeAlias = tuple[Any, ...]

_FIRST_BITS = 11
_AT_ONCE_BITS = 16  # larger tables get a successor
_KNOWN_PER_KEY = 6  # row ids that a successor gets per arriving key
_KNOWN_AT_LEAST = 4_096
_CLEARED_PER_KEY = 64  # places of a successor: unused memory takes 2 ms per MB
_CLEARED_AT_LEAST = 1 << 20
_FEW = 16  # fewer keys are searched singly
_FREE = -1
_SEARCHED_PER_KEY = 4
_SEARCHED_AT_LEAST = 4_096
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio spreads neighbours evenly
_32 = np.uint64(32)
_NO_ROWS: RowIds = np.empty(0, np.int64)


class RowNumbers:
    """Freed row ids are reused in ascending order, so that new rows are adjacent.

    The search is bounded: there may be up to a third more row ids than keys.
    """

    def __init__(self) -> None:
        self._free = np.zeros(0, np.bool_)
        self._at = 0  # where the search for free row ids continues
        self.limit = 0  # above all row ids
        self.count = 0

    def take(self, count: int) -> RowIds:
        reused = _NO_ROWS
        if self.count < self.limit:
            end = self._at + max(_SEARCHED_AT_LEAST, _SEARCHED_PER_KEY * count)
            reused = self._at + np.flatnonzero(self._free[self._at : end])[:count]
            self._free[reused] = False
            self._at = int(reused[-1]) + 1 if len(reused) == count > 0 else end
            if self._at >= self.limit:
                self._at = 0
        self.count += count
        first = self.limit
        self.limit += count - len(reused)
        made = np.arange(first, self.limit)
        return np.concatenate((reused, made)) if len(reused) else made

    def give_back(self, row_ids: RowIds) -> None:
        self.count -= len(row_ids)
        if not self.count:
            self._free, self._at, self.limit = self._free[:0], 0, 0
            return
        if len(self._free) < self.limit:
            free = np.zeros(2 * self.limit, np.bool_)
            free[: len(self._free)] = self._free
            self._free = free
        self._free[row_ids] = True


def mixed_ints(fields: Sequence[Ints] | Ints) -> npt.NDArray[np.uint64]:
    """Hash of each key. Use the highest bits."""
    mixed: npt.NDArray[np.uint64] = fields[0].view(np.uint64) * _MIX
    for field in fields[1:]:
        mixed ^= mixed >> _32
        mixed += field.view(np.uint64)
        mixed *= _MIX
    return mixed


class _Places:
    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.shift = np.uint64(64 - bits)
        self.mask = np.int64((1 << bits) - 1)
        self.row_ids = np.empty(1 << bits, np.int32)
        self.gone = 0  # places whose row ids are free, or belong to another key since
        self._cleared = 0

    def clear(self, most: int) -> bool:
        """Returns True once all places are cleared, so that row ids may be added."""
        end = min(self._cleared + most, len(self.row_ids))
        self.row_ids[self._cleared : end] = _FREE
        self._cleared = end
        return end == len(self.row_ids)

    def home(self, mixed: npt.NDArray[np.uint64]) -> Ints:
        home: Ints = (mixed >> self.shift).view(np.int64)
        return home

    def settle(self, row_ids: RowIds, mixed: npt.NDArray[np.uint64]) -> None:
        """Of distinct, absent keys."""
        places = self.home(mixed)
        while len(row_ids):
            free = self.row_ids[places] == _FREE
            self.row_ids[places[free]] = row_ids[free]  # of several row ids for a place, the last wins
            left = self.row_ids[places] != row_ids
            row_ids, places = row_ids[left], places[left] + 1 & self.mask


class IntKeys:
    bytes_per_key = 48  # including the table's few bytes

    def __init__(self, fields: int) -> None:
        self.fields = fields
        self.numbers = RowNumbers()
        self._keys: Ints = np.zeros((fields, 1 << _FIRST_BITS - 1), np.int64)
        self._active = np.zeros(1 << _FIRST_BITS - 1, np.bool_)
        self._table = _cleared(_FIRST_BITS)
        self._successor: _Places | None = None
        self._known = 0  # row ids below are in the successor

    def __len__(self) -> int:
        return self.numbers.count

    def find(self, key_batch: Ints) -> RowIds:
        """Row id of each key; negative if absent."""
        return self._looked_up(key_batch)[0]

    def place(self, key_batch: Ints) -> tuple[RowIds, RowIds]:
        """Row id of each key, which may repeat; and the new row ids."""
        row_ids, places = self._looked_up(key_batch)
        missing = np.flatnonzero(row_ids < 0)
        if not len(missing):
            return row_ids, _NO_ROWS
        table, fresh = self._table, key_batch.take(missing, axis=1)
        self._make_room(len(missing))
        there = places[missing] if table is self._table else self._table.home(mixed_ints(fresh))
        row_ids[missing], made = self._insert(fresh, there)
        if self._successor is not None:
            self._succeed(self._successor, made)
        return row_ids, made

    def add(self, key_batch: Ints) -> RowIds:
        """As `place`, for distinct keys without row ids."""
        self._make_room(key_batch.shape[1])
        made = self._begin(key_batch)
        self._table.settle(made, mixed_ints(key_batch))
        if self._successor is not None:
            self._succeed(self._successor, made)
        return made

    def remove(self, row_ids: RowIds) -> None:
        """Frees distinct row ids. Searches skip their places like those of other keys."""
        self._active[row_ids] = False
        self.numbers.give_back(row_ids)
        if len(row_ids) >= len(self):
            self._replace(self._table.bits)
            return
        self._table.gone += len(row_ids)
        if self._successor is not None:
            self._successor.gone += int(np.count_nonzero(row_ids < self._known))

    def key_batch(self, row_ids: RowIds) -> Ints:
        key_batch: Ints = self._keys.take(row_ids, axis=1)
        return key_batch

    def last_fields(self, row_ids: RowIds) -> Ints:
        fields: Ints = self._keys[-1].take(row_ids)
        return fields

    def tuples(self, row_ids: RowIds) -> list[Key]:
        return list(zip(*self.key_batch(row_ids).tolist(), strict=True))

    def all(self) -> RowIds:
        return np.flatnonzero(self._active[: self.numbers.limit])

    def _looked_up(self, key_batch: Ints) -> tuple[RowIds, Ints]:
        """Row ids, and the place where each search ended."""
        table, mask = self._table.row_ids, self._table.mask
        ends = places = self._table.home(mixed_ints(key_batch))
        found = table.take(places).astype(np.int64)
        wrong = self._others(key_batch, found)
        rows = wrong
        while len(wrong) > _FEW:  # another or a removed key: try the next place
            places, key_batch = places[wrong] + 1 & mask, key_batch.take(wrong, axis=1)
            there = table.take(places).astype(np.int64)
            found[rows], ends[rows] = there, places
            wrong = self._others(key_batch, there)
            rows = rows[wrong]
        for row, at in zip(rows.tolist(), wrong.tolist(), strict=True):
            found[row], ends[row] = self._search(places.item(at), key_batch[:, at].tolist())
        return found, ends

    def _others(self, key_batch: Ints, there: Ints) -> Ints:
        others: Ints = (~self._equal(key_batch, there) & (there != _FREE)).nonzero()[0]
        return others

    def _search(self, place: int, key: Sequence[int]) -> tuple[int, int]:
        """As `_looked_up`, for a key that is not at `place`."""
        table = self._table.row_ids
        mask, slot_at, field_of, is_active = len(table) - 1, table.item, self._keys.item, self._active.item
        while True:
            place = place + 1 & mask
            row_id = slot_at(place)
            if row_id == _FREE or (
                all(field_of(f, row_id) == value for f, value in enumerate(key)) and is_active(row_id)
            ):
                return row_id, place

    def _equal(self, key_batch: Ints, row_ids: Ints) -> npt.NDArray[np.bool_]:
        equal: npt.NDArray[np.bool_] = row_ids >= 0
        for own, wanted in zip(self._keys, key_batch, strict=True):
            equal &= own.take(row_ids) == wanted
        if self._table.gone:
            equal &= self._active.take(row_ids)
        return equal

    def _make_room(self, count: int) -> None:
        needed, most = len(self) + count, self.numbers.limit + count
        if most > len(self._active):
            capacity = 2 * len(self._active)
            while capacity < most:
                capacity *= 2
            keys, active = np.empty((self.fields, capacity), np.int64), np.zeros(capacity, np.bool_)
            keys[:, : len(self._active)], active[: len(self._active)] = self._keys, self._active
            self._keys, self._active = keys, active
        if 2 * (needed + self._table.gone) > 1 << self._table.bits:
            self._replace(_bits(2 * needed, self._table.bits))
        elif (
            self._successor is None
            and self._table.bits > _AT_ONCE_BITS
            and 8 * (needed + self._table.gone) > 3 << self._table.bits
        ):
            self._successor, self._known = _Places(_bits(4 * needed, self._table.bits)), 0

    def _replace(self, bits: int) -> None:
        self._table, self._successor = _cleared(bits), None
        there = self.all()
        self._table.settle(there, mixed_ints(self.key_batch(there)))

    def _succeed(self, successor: _Places, made: RowIds) -> None:
        if not successor.clear(_CLEARED_AT_LEAST + _CLEARED_PER_KEY * len(made)):
            return
        again = made[made < self._known]
        successor.settle(again, mixed_ints(self.key_batch(again)))
        end = min(self._known + _KNOWN_AT_LEAST + _KNOWN_PER_KEY * len(made), self.numbers.limit)
        known = self._known + np.flatnonzero(self._active[self._known : end])
        successor.settle(known, mixed_ints(self.key_batch(known)))
        self._known = end
        if end == self.numbers.limit:
            self._table, self._successor = successor, None

    def _insert(self, key_batch: Ints, places: Ints) -> tuple[RowIds, RowIds]:
        """Inserts keys without row ids, which may repeat, starting the search at `places`.

        A candidate per free place wins; candidates with the same key find the winner there, others try the next place.
        """
        found = np.empty(len(places), np.int64)
        made = []
        rows = np.arange(len(places))
        table, mask = self._table.row_ids, self._table.mask
        while len(rows) > _FEW:
            free = (table.take(places) == _FREE).nonzero()[0]
            if len(free):
                wanted, claims = places.take(free), (_FREE - 1 - free).astype(np.int32)
                table[wanted] = claims
                won = (table.take(wanted) == claims).nonzero()[0]
                winners = free.take(won)
                fresh = self._begin(key_batch.take(winners, axis=1))
                table[wanted.take(won)] = fresh
                found[rows.take(winners)] = fresh
                made.append(fresh)
                if len(winners) == len(rows):
                    return found, fresh if len(made) == 1 else np.concatenate(made)
                lost = np.ones(len(rows), np.bool_)
                lost[winners] = False
                left = lost.nonzero()[0]
                rows, places, key_batch = rows.take(left), places.take(left), key_batch.take(left, axis=1)
            there = table.take(places).astype(np.int64)
            same = self._equal(key_batch, there)
            found[rows[same]] = there[same]
            left = (~same).nonzero()[0]
            rows, places, key_batch = rows.take(left), places.take(left) + 1 & mask, key_batch.take(left, axis=1)
        if len(rows):
            found[rows], fresh = self._insert_few(list(zip(*key_batch.tolist(), strict=True)), places.tolist())
            made.append(fresh)
        return found, np.concatenate(made)

    def _insert_few(self, keys: list[Key], places: list[int]) -> tuple[list[int], RowIds]:
        before = dict(zip(keys, (place - 1 for place in places), strict=True))
        row_ids = {key: self._search(place, key)[0] for key, place in before.items()}
        absent = [key for key, row_id in row_ids.items() if row_id == _FREE]
        if not absent:
            return [row_ids[key] for key in keys], _NO_ROWS
        fresh = self._begin(np.array(absent, np.int64).T)
        for key, row_id in zip(absent, fresh.tolist(), strict=True):
            self._table.row_ids[self._search(before[key], key)[1]] = row_ids[key] = row_id
        return [row_ids[key] for key in keys], fresh

    def _begin(self, key_batch: Ints) -> RowIds:
        fresh = self.numbers.take(key_batch.shape[1])
        for own, of_key in zip(self._keys, key_batch, strict=True):
            own[fresh] = of_key
        self._active[fresh] = True
        return fresh


def _cleared(bits: int) -> _Places:
    table = _Places(bits)
    table.clear(1 << bits)
    return table


def _bits(places: int, least: int) -> int:
    return max(least, (places - 1).bit_length())


class TupleKeys:
    bytes_per_key = 250

    def __init__(self, numbers: RowNumbers | None = None, index: dict[Key, int] | None = None) -> None:
        self.numbers = numbers or RowNumbers()
        self._index = index or {}
        self._keys: list[Any] = [None] * self.numbers.limit
        self._data_keys: list[bytes | None] = [None] * self.numbers.limit  # stored form, once encoded
        for key, row_id in self._index.items():
            self._keys[row_id] = key

    def __len__(self) -> int:
        return len(self._index)

    def find(self, key_batch: Sequence[Key]) -> RowIds:
        get = self._index.get
        return np.fromiter((get(key, _FREE) for key in key_batch), np.int64, len(key_batch))

    def place(self, key_batch: Sequence[Key]) -> tuple[RowIds, RowIds]:
        index = self._index
        row_ids = np.fromiter(map(index.get, key_batch, repeat(_FREE)), np.int64, len(key_batch))
        missing = np.flatnonzero(row_ids < 0).tolist()
        if not missing:
            return row_ids, _NO_ROWS
        keys = list(dict.fromkeys([key_batch[at] for at in missing]))
        made = self.numbers.take(len(keys))
        more = self.numbers.limit - len(self._keys)
        self._keys.extend([None] * more)
        self._data_keys.extend([None] * more)
        for key, row_id in zip(keys, made.tolist(), strict=True):
            index[key] = row_id
            self._keys[row_id] = key
        row_ids[missing] = [index[key_batch[at]] for at in missing]
        return row_ids, made

    def remove(self, row_ids: RowIds) -> None:
        for row_id in row_ids.tolist():
            del self._index[self._keys[row_id]]
            self._keys[row_id] = None
            self._data_keys[row_id] = None
        self.numbers.give_back(row_ids)

    def key_batch(self, row_ids: RowIds) -> list[Key]:
        keys = self._keys
        return [keys[row_id] for row_id in row_ids.tolist()]

    def tuples(self, row_ids: RowIds) -> list[Key]:
        return self.key_batch(row_ids)

    def all(self) -> RowIds:
        return np.sort(np.fromiter(self._index.values(), np.int64, len(self._index)))

    def known_data_keys(self, row_ids: Sequence[int], key_batch: Sequence[Key]) -> list[bytes | None]:
        keys, data_keys = self._keys, self._data_keys
        return [
            data_keys[row_id] if keys[row_id] is key else None for row_id, key in zip(row_ids, key_batch, strict=True)
        ]

    def remember_data_key(self, row_id: int, key: Key, data_key: bytes) -> None:
        if self._keys[row_id] is key:
            self._data_keys[row_id] = data_key


def tuple_keys(keys: "IntKeys | TupleKeys") -> TupleKeys:
    if isinstance(keys, TupleKeys):
        return keys
    row_ids = keys.all()
    return TupleKeys(keys.numbers, dict(zip(keys.tuples(row_ids), row_ids.tolist(), strict=True)))


def int_key_batch(keys: Sequence[Key], fields: int) -> Ints | None:
    """Returns None unless all keys have that many fields, all ints of 64 bits."""
    if set(map(len, keys)) != {fields}:
        return None
    columns = list(zip(*keys, strict=True))
    for column in columns:
        if set(map(type, column)) != {int} or not (min(column) >= -(1 << 63) and max(column) < 1 << 63):
            return None
    return np.array(columns, np.int64)
