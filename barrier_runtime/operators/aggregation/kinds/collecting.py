"""`collect_list`, `collect_set` and the exact `count_distinct`: values of a key, as they came.

A cell is the number of values (4 bytes, little endian) and the values (`encoded_values`).
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder, running_integers
from barrier_runtime.operators.aggregation.kinds.cells import Cells, EncodedValues, Full
from barrier_runtime.operators.aggregation.state_columns import Columns, Ints, Values
from barrier_runtime.state.columns.wide_columns import EMPTY
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import IntKeys

COUNT = struct.Struct("<I")
REMEMBERED = 200_000  # values in sets that are kept besides their bytes

Collected: TypeAlias = tuple[int, bytes]


def _opened(cell: bytes) -> Collected:
    return (COUNT.unpack_from(cell)[0], cell[COUNT.size :]) if cell else (0, EMPTY)


def number_of(cell: bytes) -> int:
    return int(COUNT.unpack_from(cell)[0]) if cell else 0


def _closed(count: int, data: bytes) -> bytes:
    return COUNT.pack(count) + data


@dataclass(frozen=True)
class ListCell:
    column: str
    encoding: EncodedValues
    limit: int

    @property
    def name(self) -> str:
        return f"collect_list {self.limit}:{self.column}"

    def values(self, batch: BatchValues) -> tuple[Sequence[bytes], Values | None]:
        return self.encoding.of(batch, self.column), batch.valid(self.column)

    def opened(self, cell: bytes) -> Collected:
        return _opened(cell)

    def add(self, state: Collected, values: Sequence[bytes]) -> Collected:
        count, data = state
        taken = values[: self.limit - count]
        return (count + len(taken), data + b"".join(taken)) if taken else state

    def closed(self, state: Collected) -> bytes:
        return _closed(*state)

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        return self.closed(self.add(self.opened(earlier), self.encoding.split(self.opened(later)[1])))


@dataclass(slots=True, eq=False)
class KnownValues:
    known: set[bytes]
    data: bytes

    def __len__(self) -> int:
        return len(self.known)

    @property
    def collected(self) -> Collected:
        return len(self.known), self.data

    def unknown(self, values: Sequence[bytes]) -> list[int]:
        """Returns indices of unknown values; among equal values the first."""
        known = self.known
        found = [index for index, value in enumerate(values) if value not in known]
        if len(found) < 2:
            return found
        return sorted({values[index]: index for index in reversed(found)}.values())

    def learn(self, values: Sequence[bytes]) -> None:
        self.known.update(values)
        self.data += b"".join(values)


class Recent:
    """Sets of recently written cells, not to be built again.
    The last set stays, however large.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[bytes, KnownValues]] = OrderedDict()
        self._values = 0

    def take(self, cell: bytes) -> KnownValues | None:
        kept = self._kept.pop(id(cell), None)
        if kept is None:
            return None
        self._values -= len(kept[1])
        return kept[1]

    def keep(self, cell: bytes, values: KnownValues) -> None:
        self._kept[id(cell)] = cell, values  # keeps the id unique
        self._values += len(values)
        while self._values > REMEMBERED and len(self._kept) > 1:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._values -= len(oldest)


@dataclass(frozen=True)
class SetCell:
    """`exact`: a value beyond `limit` raises `Full`; otherwise the value is left out."""

    column: str
    encoding: EncodedValues
    limit: int
    exact: bool
    _recent: Recent = field(default_factory=Recent, compare=False)

    @property
    def name(self) -> str:
        """Exact counts share state between limits; sets do not, since a set lacks values."""
        return f"count_distinct:{self.column}" if self.exact else f"collect_set {self.limit}:{self.column}"

    def __str__(self) -> str:
        return "count_distinct"

    def values(self, batch: BatchValues) -> tuple[Sequence[bytes], Values | None]:
        return self.encoding.of(batch, self.column), batch.valid(self.column)

    def opened(self, cell: bytes) -> KnownValues:
        kept = self._recent.take(cell)
        if kept is not None:
            return kept
        _, data = _opened(cell)
        return KnownValues(set(self.encoding.split(data)), data)

    def add(self, state: KnownValues, values: Sequence[bytes]) -> KnownValues:
        known, new = state.known, []
        for value in values:
            if value not in known:
                if len(known) >= self.limit:
                    if self.exact:
                        raise Full
                    break
                known.add(value)
                new.append(value)
        if new:
            state.data += b"".join(new)
        return state

    def closed(self, state: KnownValues) -> bytes:
        cell = _closed(*state.collected)
        self._recent.keep(cell, state)
        return cell

    def remember(self, cell: bytes, state: KnownValues) -> None:
        self._recent.keep(cell, state)

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        return self.closed(self.add(self.opened(earlier), self.encoding.split(_opened(later)[1])))


def lists(encoding: EncodedValues, collected: Sequence[Collected]) -> pa.Array:
    offsets = np.zeros(len(collected) + 1, np.int32)
    np.cumsum([count for count, _ in collected], out=offsets[1:])
    values = encoding.array([data for _, data in collected])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


Flags = npt.NDArray[np.bool_]
_UNUSED_BATCHES = 32  # an index unused for so many batches gives the room to another
_WORD_BYTES = 8
_GAP = bytes(_WORD_BYTES - COUNT.size)
_NONE = COUNT.pack(0)
_LOOKED_THROUGH = 1 << 15
_MARK_BITS = 5  # places per word, as a power of two
_MIX = np.uint64(0x9E3779B97F4A7C15)  # as in `row_index`


def learned_together(cells: Values, groups: Ints, codes: Ints, words: Ints) -> Flags:
    """Returns which values are new, and adds these to `cells`.
    Value i is `words[codes[i]]` of the cell with index `groups[i]`. `groups` rise; values of a cell are distinct."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    touched = groups[starts]
    befores = cells[touched].tolist()
    numbers = np.repeat(np.arange(len(touched)), np.diff(starts, append=len(groups)))
    pairs = pa.array(numbers * len(words) + codes)
    known = pa.array(_found_in([cell or _NONE for cell in befores], words))
    fresh: Flags = ~pc.is_in(pairs, value_set=known).to_numpy(zero_copy_only=False)
    data, at = words[codes[fresh]].tobytes(), 0
    added = np.bincount(numbers[fresh], minlength=len(touched))
    counts = (counts_of_words(befores) + added).tolist()
    for group, cell, count, more in zip(touched.tolist(), befores, counts, added.tolist(), strict=True):
        if more:
            end = at + more * words.itemsize
            cells[group] = b"".join((COUNT.pack(count), cell[COUNT.size :], data[at:end]))
            at = end
    return fresh


def counts_of_words(cells: Sequence[bytes]) -> Ints:
    sizes = np.fromiter(map(len, cells), np.int64, len(cells))
    return np.maximum(sizes - COUNT.size, 0) // _WORD_BYTES


def _found_in(cells: Sequence[bytes], words: Ints) -> Ints:
    """Returns each cell's values among `words`: cell number times `len(words)`, plus index in `words`.
    Cells are joined with a gap, so the next cell's number of values is a word too, and searched in parts that fit the
    processor's cache.
    """
    ends = np.cumsum(counts_of_words(cells) + 1)
    bits = len(words).bit_length() + _MARK_BITS
    marks, shift = np.zeros(1 << bits, np.bool_), np.uint64(64 - bits)
    marks[words.view(np.uint64) * _MIX >> shift] = True
    cuts = distinct_ints(np.searchsorted(ends, np.arange(0, int(ends[-1]), _LOOKED_THROUGH)))
    found, values, begin = [], [], 0
    for first, last in zip(cuts.tolist(), [*cuts[1:].tolist(), len(cells)], strict=True):
        part = np.frombuffer(_GAP.join(cells[first:last]), np.int64, offset=COUNT.size)
        mixed = part.view(np.uint64) * _MIX
        mixed >>= shift
        some = np.flatnonzero(marks.take(mixed.view(np.int64)))
        values.append(part[some])
        found.append(some + begin)
        begin = int(ends[last - 1])
    code_of = pc.index_in(pa.array(np.concatenate(values)), value_set=pa.array(words))
    at = np.concatenate(found)[code_of.is_valid().to_numpy(zero_copy_only=False)]
    cell = np.searchsorted(ends, at, side="right")
    is_value = at != ends[cell] - 1
    known: Ints = (cell * len(words) + code_of.drop_null().to_numpy())[is_value]
    return known


class KnownWords:
    __slots__ = ("_bytes", "_index")

    def __init__(self, cell: bytes) -> None:
        self._index = IntKeys(1)
        self._bytes = bytearray(cell)
        self._index.place(np.frombuffer(cell, np.int64, offset=COUNT.size).reshape(1, -1))

    def __len__(self) -> int:
        return len(self._index)

    def unknown(self, words: Ints) -> Flags:
        return self._index.find(words.reshape(1, -1)) < 0

    def learn(self, words: Ints) -> bytes:
        self._index.place(words.reshape(1, -1))
        self._bytes += words.tobytes()
        COUNT.pack_into(self._bytes, 0, len(self))
        return bytes(self._bytes)


class Indexes:
    """Indexes of recently used cells, up to `REMEMBERED` values in all; a single index may be larger.
    An index in use is not replaced.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[bytes, KnownWords, int]] = OrderedDict()
        self._values = 0
        self._batch = 0

    def next_batch(self) -> None:
        self._batch += 1
        while self._kept:
            cell_id, (_, known, used) = next(iter(self._kept.items()))
            if self._batch - used <= _UNUSED_BATCHES:
                return
            del self._kept[cell_id]
            self._values -= len(known)

    def take(self, cell: bytes, count: int) -> KnownWords | None:
        """Returns the index of a cell of `count` values, to be given back to `keep`; None: no room."""
        kept = self._kept.pop(id(cell), None)
        if kept is not None:
            self._values -= len(kept[1])
            return kept[1]
        return KnownWords(cell) if not self._kept or self._values + count <= REMEMBERED else None

    def keep(self, cell: bytes, known: KnownWords) -> None:
        self._kept[id(cell)] = cell, known, self._batch  # keeps the id unique
        self._values += len(known)


MANY = 2_048  # values of a key from which an index pays


@dataclass(frozen=True)
class DistinctCells(Cells):
    """The exact `count_distinct` for many rows at once.

    Only the first row of a value in a batch and key is looked up: for text, bytes and decimals in a Python set per key,
    for other values in the cells of all keys of the batch at once, in arrays. A key with more than `MANY` values has an
    index, if there is room.
    """

    kind: SetCell
    _indexes: Indexes = field(default_factory=Indexes, compare=False)

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        return {self.name: self._added(before[self.name], rows, batch, left)[0]}

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        cells, counts, new = self._added(before[self.name], rows, batch, left)
        after = running_integers(new, counts, rows)
        return {self.name: cells}, {self._results(reader): after for reader in self.readers.values()}

    def result(self, accumulators: Columns, key: str) -> pa.Array:
        after_rows = accumulators.get(self._results(self.readers[key]))
        return pa.array(self._counts(accumulators[self.name]) if after_rows is None else after_rows)

    def _added(self, before: Values, rows: RunningOrder, batch: BatchValues, left: Left) -> tuple[Values, Ints, Ints]:
        kind, cells, counts = self.kind, before.copy(), self._counts(before)
        new = np.zeros(len(rows.order), np.int64)
        if kind.encoding.is_one_word:
            codes, words = kind.encoding.coded(batch, kind.column)
            first = _first_of_group(rows, codes, len(words))
        else:
            first = _first_of_group(rows, *batch.codes(kind.column))
        if not len(first):
            return cells, counts, new
        groups = np.searchsorted(rows.starts, first, side="right") - 1
        if kind.encoding.is_one_word:
            fresh = self._learned_words(cells, counts, groups, rows.ordered(codes)[first], words)
        else:
            fresh = self._learned(cells, groups, kind.encoding.of(batch, kind.column, rows.order[first]))
        full = np.flatnonzero(counts + np.bincount(groups[fresh], minlength=len(cells)) > kind.limit)
        if len(full):
            raise left(kind.column, int(rows.row_ids[full[0]]), str(kind))
        new[first[fresh]] = 1
        return cells, counts, new

    def _counts(self, cells: Values) -> Ints:
        if self.kind.encoding.is_one_word:
            return counts_of_words(cells.tolist())
        return np.fromiter(map(number_of, cells), np.int64, len(cells))

    def _learned(self, cells: Values, groups: Ints, values: list[bytes]) -> Flags:
        kind, fresh = self.kind, np.zeros(len(values), np.bool_)
        for group, begin, end in _runs(groups):
            state = kind.opened(cells[group])
            found = state.unknown(values[begin:end])
            if found:
                state.learn([values[begin + index] for index in found])
                cells[group] = kind.closed(state)
                fresh[begin + np.array(found)] = True
            else:
                kind.remember(cells[group], state)
        return fresh

    def _learned_words(self, cells: Values, counts: Ints, groups: Ints, codes: Ints, words: Ints) -> Flags:
        """Returns which of `words[codes]`, distinct in each cell, are new. `counts`: values of each cell."""
        fresh, together = np.zeros(len(codes), np.bool_), np.ones(len(codes), np.bool_)
        self._indexes.next_batch()
        many = np.flatnonzero(counts[groups] > MANY)
        for group, first, last in _runs(groups[many]):
            at = slice(many[first], many[last - 1] + 1)
            known = self._indexes.take(cells[group], int(counts[group]))
            if known is not None:
                some = words[codes[at]]
                fresh[at] = unknown = known.unknown(some)
                together[at] = False
                if unknown.any():
                    cells[group] = known.learn(some[unknown])
                self._indexes.keep(cells[group], known)
        rest = np.flatnonzero(together)
        if len(rest):
            fresh[rest] = learned_together(cells, groups[rest], codes[rest], words)
        return fresh


def _first_of_group(rows: RunningOrder, codes: Ints, distinct: int) -> Ints:
    """Returns the rising positions in `rows.order` of values that come first in their group.
    `codes`: by row of the batch, below `distinct`, rising by one at each new value; -1 for null."""
    ordered = rows.ordered(codes)
    positions = np.flatnonzero(ordered >= 0)
    numbers = ordered[positions]
    if len(rows.starts) > 1:
        pairs = pa.array(numbers + rows.groups()[positions] * distinct)
        numbers = pairs.dictionary_encode().indices.to_numpy()
    highest = np.maximum.accumulate(numbers) if len(numbers) else numbers
    return positions[np.flatnonzero(np.diff(highest, prepend=-1))]


def _runs(groups: Ints) -> Iterator[tuple[int, int, int]]:
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    ends = np.flatnonzero(np.diff(groups, append=-1)) + 1
    return zip(groups[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
