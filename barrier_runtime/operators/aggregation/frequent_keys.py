"""Numbers rows by key. Keys that were frequent in earlier batches have places in a table that stays in the cache.
Design: docs/design/combiner.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from barrier_runtime.data.grouping import last_of_groups, plain_ints
from barrier_runtime.operators.aggregation.state_columns import Ints
from barrier_runtime.state.keys.row_index import mixed_ints

_BITS = 13
_PLACES = 1 << _BITS
_SHIFT = np.uint64(64 - _BITS)
_AT_ONCE = 16_384  # rows whose numbers stay in the cache
_LEARNED = 8  # batches between two choices of frequent keys
_RARE = 0.25  # share of rows above which the table costs more than it saves


@dataclass(frozen=True, slots=True)
class Numbered:
    """`of_row`: number of each row's key; `rows`: rows of each number, which may be 0.
    `last`: last row of each key, ascending; `numbers`: their numbers, None: from 0.
    """

    of_row: Ints
    rows: Ints
    last: Ints
    numbers: Ints | None = None

    def of_last(self, values: Ints) -> Ints:
        """Returns the value of each key, of `values` by number."""
        return values if self.numbers is None else values.take(self.numbers)


class FrequentKeys:
    """A key at its place has the place as number. 0 is the content of free places, and the key of place 0 only."""

    def __init__(self) -> None:
        self._keys = np.zeros(_PLACES, np.int64)
        self._heat = np.zeros(_PLACES, np.int64)  # rows of each place, of late batches above all
        self._batches = 0
        self._pays = True

    def numbered(self, columns: Sequence[pa.Array]) -> Numbered:
        """Nulls are equal."""
        learns, self._batches = self._batches % _LEARNED == 0, self._batches + 1
        keys = None
        if len(columns) == 1 and len(columns[0]) >= _PLACES and (self._pays or learns):
            keys = plain_ints(columns[0])
        return _by_last(columns) if keys is None else self._by_place(keys, learns)

    def _by_place(self, keys: Ints, learns: bool) -> Numbered:
        of_row, rare, last_at = self._placed(keys)
        self._pays = learns or len(rare) <= _RARE * len(keys)
        places = (last_at[:_PLACES] >= 0).nonzero()[0]
        last, numbers, different = last_at.take(places), places, _PLACES
        if len(rare):
            rare_keys = keys.take(rare)
            rare_last_of, rare_last = last_of_groups([pa.array(rare_keys)])
            of_row[rare] = _numbered(rare_last_of, rare_last, _PLACES)
            different += len(rare_last)
            last = np.concatenate((last, rare.take(rare_last)))
            numbers = np.concatenate((places, np.arange(_PLACES, different)))
        rows = np.bincount(of_row, minlength=different)
        if learns:
            self._learn(keys.take(last[len(places) :]), rows)
        return Numbered(of_row, rows, *_ascending(last, numbers, len(keys)))

    def _placed(self, keys: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns the place of each row's key, the rows whose keys have none, and the last row of each place, or -1."""
        of_row, rare = np.empty(len(keys), np.int64), []
        last_at = np.full(_PLACES + 1, -1)  # with a place for keys without a place
        every = np.arange(min(_AT_ONCE, len(keys)))
        for first in range(0, len(keys), _AT_ONCE):
            part, places = keys[first : first + _AT_ONCE], of_row[first : first + _AT_ONCE]
            np.right_shift(mixed_ints([part]), _SHIFT, out=places.view(np.uint64))
            without = (self._keys.take(places) != part).nonzero()[0]
            places[without] = _PLACES
            last_at[places] = every[: len(places)]  # of equal indices the last write stays
            every += _AT_ONCE
            rare.append(without + first)
        return of_row, np.concatenate(rare), last_at

    def _learn(self, keys: Ints, rows: Ints) -> None:
        """`keys`: those without places; `rows`: of each place, then of these keys."""
        self._heat >>= 1
        self._heat += rows[:_PLACES]
        rows = rows[_PLACES:]
        places = (mixed_ints([keys]) >> _SHIFT).view(np.int64)
        better = (rows > self._heat.take(places)).nonzero()[0]
        better = better.take(rows.take(better).argsort())
        places = places.take(better)
        self._keys[places] = keys.take(better)  # of several keys for a place the last, most frequent one stays
        self._heat[places] = rows.take(better)


def _by_last(columns: Sequence[pa.Array]) -> Numbered:
    last_of, last = last_of_groups(columns)
    of_row = _numbered(last_of, last, 0)
    return Numbered(of_row, np.bincount(of_row, minlength=len(last)), last)


def _numbered(last_of: Ints, last: Ints, first: int) -> Ints:
    """Returns each row's group as an index of `last`, counted from `first`."""
    numbers = np.empty(len(last_of), np.int64)
    numbers[last] = np.arange(first, first + len(last))
    return numbers.take(last_of)


def _ascending(last: Ints, numbers: Ints, rows: int) -> tuple[Ints, Ints]:
    """Sorts both by `last`."""
    number_at, is_last = np.empty(rows, np.int64), np.zeros(rows, np.bool_)
    number_at[last], is_last[last] = numbers, True
    ordered = is_last.nonzero()[0]
    return ordered, number_at.take(ordered)
