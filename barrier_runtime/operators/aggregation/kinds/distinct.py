"""The exact `count_distinct` of many rows at once.

Only a value that comes first in its batch, for its key, can be new: such rows are found in arrays, and they alone are
looked up in the key's set. What a row counts is what was known before its batch, and how many were new up to it.

How a set is looked up goes by its values:

    text, bytes, decimals       a Python set per key
    others, up to `MANY`        in the cells of all keys of the batch at once: nothing is made but arrays
    others, more than that      in an index of the key if there is room for one (see `Indexes`), else as few ones are

Distinct values of one word, looked up as arrays: those of many cells at once, or very many of one cell.

Cells are those of `SetCell`: the number of values and the values, in the order in which they came first.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder, running_integers
from barrier_runtime.operators.aggregation.kinds.cells import Cells
from barrier_runtime.operators.aggregation.kinds.collecting import COUNT, REMEMBERED, SetCell, number_of
from barrier_runtime.operators.aggregation.state_columns import Columns, Ints, Values
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import IntKeys

Flags = npt.NDArray[np.bool_]
_UNUSED_BATCHES = 32  # after which an index gives its room to another one
_WORD_BYTES = 8
_GAP = bytes(_WORD_BYTES - COUNT.size)  # between two cells: what begins behind one value is aligned for all
_NONE = COUNT.pack(0)
_LOOKED_THROUGH = 1 << 15  # words at once
_MARK_BITS = 5  # places per word, as a power of two: 31 of 32 other words are passed over
_MIX = np.uint64(0x9E3779B97F4A7C15)  # as in `row_index`


def learned_together(cells: Values, groups: Ints, codes: Ints, words: Ints) -> Flags:
    """Which values, `words[codes[i]]` of the cell with the index `groups[i]`, are new; `cells` get them. No two of a
    cell are the same, and `groups` rise. Takes as long as these cells have values, and nothing from one call to the
    next."""
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
    """How many values each cell has."""
    sizes = np.fromiter(map(len, cells), np.int64, len(cells))
    return np.maximum(sizes - COUNT.size, 0) // _WORD_BYTES


def _found_in(cells: Sequence[bytes], words: Ints) -> Ints:
    """For each value of each cell that is among `words`: the number of the cell times `len(words)`, and the value's
    index there. Cells are joined with a gap, which makes the number of values of the next one a word, and looked
    through in parts that stay in the processor's cache: nearly all values are passed over by one look at a table."""
    ends = np.cumsum(counts_of_words(cells) + 1)  # behind the word that follows each cell's values
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
    """The values of one cell."""

    __slots__ = ("_bytes", "_index")

    def __init__(self, cell: bytes) -> None:
        self._index = IntKeys(1)
        self._bytes = bytearray(cell)
        self._index.place(np.frombuffer(cell, np.int64, offset=COUNT.size).reshape(1, -1))

    def __len__(self) -> int:
        return len(self._index)

    def unknown(self, words: Ints) -> Flags:
        """Which are not known."""
        return self._index.find(words.reshape(1, -1)) < 0

    def learn(self, words: Ints) -> bytes:
        """The cell with `words`, none of which was known, and no two are the same."""
        self._index.place(words.reshape(1, -1))
        self._bytes += words.tobytes()
        COUNT.pack_into(self._bytes, 0, len(self))
        return bytes(self._bytes)


class Indexes:
    """Those of the cells that were asked for lately, of up to `REMEMBERED` values in all; one alone may have more.

    To make one takes as long as a dozen times of looking through its cell. So none gives way to another while it is in
    use: of two that are too large together one is made, and the other cell is looked through.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[bytes, KnownWords, int]] = OrderedDict()  # by the id of the cell
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
        """The index of a cell of `count` values, to be given back by `keep`. None: there is no room for it."""
        kept = self._kept.pop(id(cell), None)
        if kept is not None:
            self._values -= len(kept[1])
            return kept[1]
        return KnownWords(cell) if not self._kept or self._values + count <= REMEMBERED else None

    def keep(self, cell: bytes, known: KnownWords) -> None:
        self._kept[id(cell)] = cell, known, self._batch  # as long as the cell is here, no other one has its id
        self._values += len(known)


MANY = 2_048  # values of a key from which an index of its own pays


@dataclass(frozen=True)
class DistinctCells(Cells):
    """Cells that are sets, of which only the number of values is read."""

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
        """The cells, per group; how many values each had; and 1 for each row whose value is new, else 0, in the order
        of `rows.order`."""
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
        """Which values are new; `cells` get them. `groups`: the index of its cell, per value, rising."""
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
        """The same of `words[codes]`, where no two of a cell are the same. `counts`: of the values of each cell."""
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
    """Where in `rows.order` a value is that comes first in its group, rising. `codes`: a number below `distinct` per
    row of the batch, which rises by one where a value comes first; -1 for null."""
    ordered = rows.ordered(codes)
    positions = np.flatnonzero(ordered >= 0)
    numbers = ordered[positions]
    if len(rows.starts) > 1:
        pairs = pa.array(numbers + rows.groups()[positions] * distinct)
        numbers = pairs.dictionary_encode().indices.to_numpy()  # they rise as the codes do
    highest = np.maximum.accumulate(numbers) if len(numbers) else numbers
    return positions[np.flatnonzero(np.diff(highest, prepend=-1))]


def _runs(groups: Ints) -> Iterator[tuple[int, int, int]]:
    """Each number of `groups`, which rise, with where it begins and ends."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    ends = np.flatnonzero(np.diff(groups, append=-1)) + 1
    return zip(groups[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
