"""Distinct values of one word, looked up as arrays: those of many cells at once, or very many of one cell.

Cells are those of `SetCell`: the number of values and the values, in the order in which they came first.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.operators.aggregation.kinds.collecting import COUNT, REMEMBERED
from barrier_runtime.operators.aggregation.state_columns import Ints, Values
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
