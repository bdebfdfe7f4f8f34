"""Open windows by start, and ordered firing of due windows in turns, so that barriers come in between.

Sorting a million windows takes a second. So a sorted sample gives *splitters*, which divide the others into *parts*,
chunk by chunk; each turn sorts a part.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.grouping import order_of_ints, stable_order
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.plan import plan_aggregates
from barrier_runtime.state.keys.distinct_ints import distinct_ints

UPDATE = "update"  # output column of windows that may fire again
EARLY = "early"  # output column of windows with early results: True in an early result
# output column: the session of an earlier result no longer exists
RETRACTED = "retracted"
FIRINGS = "firings"  # state column: number of results
TIME = pa.timestamp("ms", "UTC")
SPAN = (pa.field("window_start", TIME), pa.field("window_end", TIME))


def window_schema(
    schema: pa.Schema,
    keys: Sequence[str],
    aggregates: Mapping[str, AnyAggregate],
    where: str,
    beside: Sequence[pa.Field] = SPAN,
) -> pa.Schema:
    return pa.schema(
        [
            *[pa.field(key, schema.field(key).type) for key in keys],
            *beside,
            *plan_aggregates(aggregates, schema, where).fields(),
        ]
    )


def told_of_windows(
    bounded: bool = True, updates: bool = False, early: bool = False, retracted: bool = False
) -> tuple[pa.Field, ...]:
    return (
        *(SPAN if bounded else ()),
        *([pa.field(UPDATE, pa.int64())] if updates or early else []),
        *([pa.field(EARLY, pa.bool_())] if early else []),
        *([pa.field(RETRACTED, pa.bool_())] if retracted else []),
    )


Ints: TypeAlias = npt.NDArray[np.int64]

FEW = 16_384  # row ids ordered at once
FEW_TUPLES = 4_096  # for keys other than ints, which are slower
PART = 8_192  # approximate row ids of a part
PART_TUPLES = 2_048
_SAMPLED = 8
_CHUNK = 4_096
_PACKED_CHUNK = 16_384
_BITS = 63


def in_order(row_ids: Ints, order: Callable[[Ints], Ints], few: int, part: int) -> Iterator[Ints | None]:
    """Yields parts of `row_ids`, which in sequence are in order; None after a step without a part.
    `row_ids` are distinct. Up to `few` row ids are a single part; otherwise parts have about `part`.
    """
    if len(row_ids) <= few:
        if len(row_ids):
            yield order(row_ids)
        return
    count = -(-len(row_ids) // part)
    sample = order(row_ids[:: max(1, len(row_ids) // (count * _SAMPLED))])
    splitters = sample[min(_SAMPLED // 2, len(sample) - 1) :: _SAMPLED]
    is_splitter = np.zeros(int(row_ids.max()) + 1, np.bool_)
    is_splitter[splitters] = True
    yield None
    parts = [[splitter] for splitter in np.split(splitters, len(splitters))]
    parts.append([])
    at_once = max(_CHUNK, 2 * len(splitters))
    for first in range(0, len(row_ids), at_once):
        chunk = row_ids[first : first + at_once]
        ordered = order(np.concatenate([splitters, chunk[~is_splitter[chunk]]]))
        at = np.flatnonzero(is_splitter[ordered])
        for number, its in enumerate(np.split(ordered, at)):
            its = its[1:] if number else its
            if len(its):
                parts[number].append(its)
        yield None
    for number, its_chunks in enumerate(parts):
        parts[number] = []
        if its_chunks:
            yield order(np.concatenate(its_chunks))


def ints_in_order(
    row_ids: Ints, fields_of: Callable[[Ints], Sequence[Ints]], few: int, part: int
) -> Iterator[Ints | None]:
    """As `in_order`, by int fields, first field first. No two row ids have equal fields."""

    def order(some: Ints) -> Ints:
        ordered: Ints = some[order_of_ints(fields_of(some))]
        return ordered

    if len(row_ids) <= few:
        yield from in_order(row_ids, order, few, part)
        return
    chunks = [row_ids[first : first + _PACKED_CHUNK] for first in range(0, len(row_ids), _PACKED_CHUNK)]
    fields, extremes = [], []
    for chunk in chunks:
        fields.append(fields_of(chunk))
        extremes.append([(int(field.min()), int(field.max())) for field in fields[-1]])
        yield None
    spans = [(min(low for low, _ in of), max(high for _, high in of)) for of in zip(*extremes, strict=True)]
    widths = [(high - low).bit_length() for low, high in spans]
    if sum(widths) > _BITS:
        yield from in_order(row_ids, order, few, part)
        return

    def packed(some: Sequence[Ints]) -> Ints:
        numbers = np.zeros(len(some[0]), np.int64)
        for field, (low, _), width in zip(some, spans, widths, strict=True):
            numbers = (numbers << width) | (field - low)
        return numbers

    count = -(-len(row_ids) // part)
    step = max(1, len(row_ids) // (count * _SAMPLED))
    sample = np.sort(np.concatenate([packed([field[::step] for field in some]) for some in fields]))
    splitters = sample[_SAMPLED // 2 :: _SAMPLED]  # each is the last of its part
    shift = max(0, sum(widths) - 16)
    alike = distinct_ints(splitters >> shift)
    by_counting = 2 * len(alike) > len(splitters)  # sorts the highest 16 bits by counting
    splitters = alike if by_counting else splitters
    parted: list[tuple[Ints, Ints, list[int]]] = []
    for at, chunk in enumerate(chunks):
        numbers = packed(fields[at])
        fields[at] = ()
        ranks = numbers >> shift if by_counting else numbers
        by_part = stable_order(ranks) if by_counting else np.argsort(ranks)
        begins = np.searchsorted(ranks[by_part], splitters, side="right").tolist()
        parted.append((chunk[by_part], numbers[by_part], [0, *begins, len(chunk)]))
        yield None
    for number in range(len(splitters) + 1):
        its = [(ids[b[number] : b[number + 1]], of[b[number] : b[number + 1]]) for ids, of, b in parted]
        ids = np.concatenate([ids for ids, _ in its])
        if len(ids):
            yield ids[order_of_ints([np.concatenate([of for _, of in its])])]


class ByStart:
    """Entries by start of the window.
    Once entries may be evicted, row ids are invalid and only starts are known.
    """

    def __init__(self) -> None:
        self._row_ids: dict[int, list[Ints]] = {}
        self._starts: list[int] = []
        self.has_row_ids = True

    @property
    def first(self) -> int | None:
        return self._starts[0] if self._starts else None

    @property
    def starts(self) -> Collection[int]:
        return self._row_ids.keys()

    def forget_row_ids(self) -> None:
        if self.has_row_ids:
            self.has_row_ids = False
            self._row_ids = {start: [] for start in self._row_ids}

    def note(self, row_ids: Ints, starts: Ints) -> None:
        if not len(row_ids):
            return
        if not self.has_row_ids:
            self.note_starts(starts)
            return
        if (starts != starts[0]).any():
            order = order_of_ints([starts])
            row_ids, starts = row_ids[order], starts[order]
        firsts = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1))
        for start, its_ids in zip(starts[firsts].tolist(), np.split(row_ids, firsts[1:]), strict=True):
            known = self._row_ids.get(start)
            if known is None:
                self._row_ids[start] = [its_ids]
                heapq.heappush(self._starts, start)
            else:
                known.append(its_ids)

    def note_starts(self, starts: Ints) -> None:
        for start in distinct_ints(starts).tolist():
            if start not in self._row_ids:
                self._row_ids[start] = []
                heapq.heappush(self._starts, start)

    def row_ids_of(self, start: int) -> Ints:
        row_ids = self._row_ids[start]
        if len(row_ids) > 1:
            row_ids[:] = [np.concatenate(row_ids)]
        return row_ids[0]

    def take(self, before: int) -> Ints | None:
        """Takes the entries of windows that start before `before`; None: no windows. Needs row ids."""
        taken: list[Ints] = []
        for start in self._popped(before):
            taken += self._row_ids.pop(start)
        return np.concatenate(taken) if taken else None

    def take_each(self, before: int) -> Iterator[tuple[int, Ints]]:
        for start in self._popped(before):
            yield start, np.concatenate(self._row_ids.pop(start))

    def take_starts(self, before: int) -> Iterator[int]:
        for start in self._popped(before):
            del self._row_ids[start]
            yield start

    def _popped(self, before: int) -> Iterator[int]:
        while self._starts and self._starts[0] < before:
            yield heapq.heappop(self._starts)
