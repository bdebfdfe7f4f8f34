"""How far a replay reads one source: to where each of its splits stood at a later checkpoint, and no row further.

One object for all subtasks of the source, which run in one process. It is told what is read, and knows when all is.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

ENDLESS = 1 << 62  # rows


class SplitNames(Protocol):
    """As `NameSet`."""

    def __contains__(self, name: object) -> bool: ...

    def __len__(self) -> int: ...


class ReadRange:
    """`begun`: rows of each unfinished split at the earlier checkpoint. `rows`: the same at the later one. `finished`:
    the splits that had been read to their end by then, `to_finish` of them between the two. `ended`: subtasks that had
    come to the end of their input."""

    def __init__(
        self,
        begun: Mapping[str, int],
        rows: Mapping[str, int],
        finished: SplitNames,
        to_finish: int,
        ended: Collection[int] = (),
    ) -> None:
        self._read = dict(begun)
        self._rows = dict(rows)
        self._finished = finished
        self._to_finish = to_finish
        self._ended = frozenset(ended)
        self.total = 0  # rows read so far
        self.row_at: RowAt | None = None  # the one that is looked for

    def knows(self, split_id: str) -> bool:
        return split_id in self._rows or split_id in self._finished

    def left(self, split_id: str, rows: int) -> int:
        """How many rows more the split may give, of which `rows` were read."""
        most = ENDLESS if self.row_at is None else self.row_at.most(split_id, rows)
        return min(most, self._left(split_id, rows))

    def _left(self, split_id: str, rows: int) -> int:
        if split_id in self._rows:
            return self._rows[split_id] - rows
        return ENDLESS if split_id in self._finished else 0

    def ends(self, subtask: int) -> bool:
        """Whether that subtask may end when all of its splits have."""
        return subtask in self._ended

    def has_read(self, split_id: str, rows: int) -> None:
        self.total += rows - self._read.get(split_id, 0)
        self._read[split_id] = rows
        if self.row_at is not None:
            self.row_at.has_read(split_id, rows)

    def has_finished(self) -> None:
        self._to_finish -= 1

    @property
    def reached(self) -> bool:
        return self._to_finish <= 0 and not self.missing()

    def missing(self) -> dict[str, int]:
        """Splits of which rows are still to be read, and how many."""
        left = {split: rows - self._read.get(split, 0) for split, rows in self._rows.items()}
        return {split: rows for split, rows in left.items() if rows > 0}

    @property
    def unfinished(self) -> int:
        """How many splits are still to be read to their end."""
        return max(0, self._to_finish)


class OpenRange(ReadRange):
    """Of a replay without a later checkpoint: all that is there."""

    def __init__(self) -> None:
        super().__init__({}, {}, frozenset(), 0)

    def knows(self, split_id: str) -> bool:
        return True

    def _left(self, split_id: str, rows: int) -> int:
        return ENDLESS

    def ends(self, subtask: int) -> bool:
        return True

    @property
    def reached(self) -> bool:
        return False


class RowAt:
    """Rows of a source: of split `split`, those from `first` to `last` (from 0). A range that has it gives none of them
    in one batch with others."""

    def __init__(self, split: str, first: int, last: int) -> None:
        self.split = split
        self.first = first
        self.last = last
        self._came = False

    def came(self) -> bool:
        """Whether the rows that were given last are among them."""
        return self._came

    def most(self, split_id: str, rows: int) -> int:
        """How many rows the split may give at once, of which `rows` were read."""
        if split_id != self.split or rows > self.last:
            return ENDLESS
        return self.first - rows if rows < self.first else self.last + 1 - rows

    def has_read(self, split_id: str, rows: int) -> None:
        self._came = split_id == self.split and self.first < rows <= self.last + 1
