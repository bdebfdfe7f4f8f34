"""Bloom filters over a batch's hashes: "surely never added" or "perhaps", a numpy gather per filter.

An id sets `_BITS` bits of a 64-bit word, so a test touches one place in memory. With `_IDS_PER_WORD` ids per word a
filter says "perhaps" for about one unknown id in a thousand. A larger filter follows a full filter; once a time bucket
has used up the bytes, full filters take more ids and say "perhaps" more often.

Hashes are in memory only: `hash_rows` may change between releases.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.keys.key_groups import NULL_HASH, splitmix64_of

U64: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_IDS_PER_WORD = 3
_BITS = 5
_SMALLEST = 9  # log2 of words: 4 KiB
_GROWTH = 4  # size of a further filter, relative to the full filter
_ROOM = 5 / 4  # capacity of a new bucket, relative to the ids of the largest bucket

_ONE, _63 = np.uint64(1), np.uint64(63)
_SHIFTS = [np.uint64(6 * bit) for bit in range(1, _BITS)]


@dataclass(frozen=True)
class Hashed:
    hashes: U64
    masks: U64

    @staticmethod
    def of(hashes: U64) -> "Hashed":
        masks = _ONE << (hashes & _63)
        for shift in _SHIFTS:
            masks |= _ONE << (hashes >> shift & _63)
        return Hashed(hashes, masks)

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, which: Mask | slice) -> "Hashed":
        return Hashed(self.hashes[which], self.masks[which])


class BloomFilter:
    def __init__(self, ids: int) -> None:
        bits = max(_SMALLEST, (-(-ids // _IDS_PER_WORD) - 1).bit_length())
        self._words = np.zeros(1 << bits, np.uint64)
        self._shift = np.uint64(64 - bits)  # the top bits of a hash select the word
        self.capacity = _IDS_PER_WORD << bits
        self.ids = 0

    @property
    def bytes(self) -> int:
        return self._words.nbytes

    def add(self, ids: Hashed) -> None:
        words, places, masks = self._words, ids.hashes >> self._shift, ids.masks
        self.ids += len(places)
        while len(places):
            words[places] |= masks  # among ids with the same place only the last counts
            missing = words[places] & masks != masks
            places, masks = places[missing], masks[missing]

    def may_have(self, ids: Hashed) -> Mask:
        found: Mask = self._words[ids.hashes >> self._shift] & ids.masks == ids.masks
        return found


class TimeBuckets:
    """Filters by bucket, a number that never falls as time advances."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._buckets: dict[int, list[BloomFilter]] = {}
        self._most_words = None if most_bytes is None else max(1 << _SMALLEST, most_bytes // 8)

    def add(self, bucket: int, ids: Hashed) -> None:
        filters = self._buckets.get(bucket)
        if filters is None:
            expected = max((sum(each.ids for each in old) for old in self._buckets.values()), default=0)
            filters = self._buckets[bucket] = [BloomFilter(self._as_many(max(len(ids), int(expected * _ROOM)), []))]
        added = 0
        while added < len(ids):
            last = filters[-1]
            room = last.capacity - last.ids
            if room <= 0:
                if (capacity := self._as_many(last.capacity * _GROWTH, filters)) == 0:
                    least_full = min(filters, key=lambda each: each.ids / each.capacity)
                    least_full.add(ids.take(slice(added, None)))
                    return
                last = BloomFilter(capacity)
                filters.append(last)
                room = last.capacity
            last.add(ids.take(slice(added, added + room)))
            added += room

    def _as_many(self, ids: int, beside: list[BloomFilter]) -> int:
        """Returns the capacity of a further filter, at most `ids`; 0: no bytes left."""
        if self._most_words is None:
            return ids
        left = self._most_words - sum(each.bytes // 8 for each in beside)
        return min(ids, _IDS_PER_WORD << left.bit_length() - 1) if left >= 1 << _SMALLEST else 0

    def may_have(self, ids: Hashed) -> Mask:
        """Returns False for ids surely not in a bucket."""
        found = np.zeros(len(ids), np.bool_)
        for filters in self._buckets.values():
            for each in filters:
                found |= each.may_have(ids)
        return found

    def move(self, bucket: int, to: int) -> None:
        """Needs an empty bucket `to`."""
        if bucket in self._buckets:
            self._buckets[to] = self._buckets.pop(bucket)

    def drop_below(self, bucket: int) -> None:
        for number in [number for number in self._buckets if number < bucket]:
            del self._buckets[number]

    @property
    def ids(self) -> int:
        return sum(each.ids for filters in self._buckets.values() for each in filters)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for filters in self._buckets.values() for each in filters)


_LONG = 256  # bytes; longer texts are hashed alone
_31 = np.uint64(31)
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


def hash_rows(columns: Sequence[pa.Array]) -> U64:
    """Returns a hash per row. `columns` come from `KeyCodec.arrays`; null is a value."""
    hashes = _hash_column(columns[0])
    for column in columns[1:]:
        hashes = splitmix64_of(hashes * _31 + _hash_column(column))
    return hashes


def _hash_column(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    if pa.types.is_integer(column.type):
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        hashes = splitmix64_of(values.astype(np.uint64, copy=False))
    elif pa.types.is_floating(kind):
        hashes = splitmix64_of(pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).view(np.uint64))
    else:
        hashes = _hash_texts(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _hash_texts(column: pa.Array) -> U64:
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets_buffer, data_buffer = column.buffers()
    rows = len(column)
    if not rows:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = offsets[column.offset : column.offset + rows + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)  # padded, so that eight bytes can be read at any place
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8)[first:last]
    words = np.ndarray((last - first + 1,), "<u8", data.data, strides=(1,))
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    hashes = splitmix64_of(lengths.astype(np.uint64))
    long = lengths > _LONG
    some = np.flatnonzero((lengths > 0) & ~long)
    done = 0
    while len(some):
        left = lengths[some] - done
        taken = words[starts[some] + done] & _FIRST_BYTES[np.minimum(left, 8)]
        hashes[some] = splitmix64_of(hashes[some] * _31 + taken)
        some = some[left > 8]
        done += 8
    for row in np.flatnonzero(long).tolist():
        text = data[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return hashes
