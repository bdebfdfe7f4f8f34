"""Windows by start, with their entries."""

import heapq
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.grouping import order_of_ints
from barrier_runtime.state.keys.distinct_ints import distinct_ints

Ints = npt.NDArray[np.int64]


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
