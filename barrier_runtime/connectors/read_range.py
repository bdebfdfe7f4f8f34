"""Limits of a replay for a source, shared by all subtasks."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from barrier_runtime.connectors.source import Backlogged

ENDLESS = 1 << 62  # rows


class SplitNames(Protocol):
    def __contains__(self, name: object) -> bool: ...

    def __len__(self) -> int: ...


class ReadSplit(Protocol):
    """Unfinished split of a subtask."""

    @property
    def prepared(self) -> bool: ...

    @property
    def waits_for_bytes(self) -> bool: ...

    @property
    def backlogged(self) -> Backlogged | None: ...


class ReadRange:
    """Range of rows between two checkpoints.

    `begun`, `rows`: rows of each unfinished split at the earlier and the later checkpoint. `finished`: splits read to
    their end by the later checkpoint, `to_finish` of them between the two. `ended`: subtasks at the end of their input.
    """

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
        self.total = 0
        self.row_at: RowAt | None = None  # the rows to stop at, if any
        self._unread: list[Callable[[], Iterable[ReadSplit]]] = []

    def read_by(self, unread: Callable[[], Iterable[ReadSplit]]) -> None:
        """`unread`: returns the unfinished splits of a subtask."""
        self._unread.append(unread)

    @property
    def unread(self) -> Iterator[ReadSplit]:
        return (split for each in self._unread for split in each())

    @property
    def fetches(self) -> bool:
        """Returns whether a split waits for the preparation, for bytes or for a decoding thread."""
        return any(not split.prepared or split.waits_for_bytes for split in self.unread)

    @property
    def has_backlog(self) -> bool:
        """Returns whether a split has unread rows, as far as its reader knows, or the reader does not know yet."""
        known = (split.backlogged for split in self.unread if split.prepared)
        return any(reader is not None and reader.backlog() != 0 for reader in known)

    def knows(self, split_id: str) -> bool:
        return split_id in self._rows or split_id in self._finished

    def left(self, split_id: str, rows: int) -> int:
        most = ENDLESS if self.row_at is None else self.row_at.most(split_id, rows)
        return min(most, self._left(split_id, rows))

    def _left(self, split_id: str, rows: int) -> int:
        if split_id in self._rows:
            return self._rows[split_id] - rows
        return ENDLESS if split_id in self._finished else 0

    def ends(self, subtask: int) -> bool:
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
        left = {split: rows - self._read.get(split, 0) for split, rows in self._rows.items()}
        return {split: rows for split, rows in left.items() if rows > 0}

    @property
    def unfinished(self) -> int:
        return max(0, self._to_finish)


class OpenRange(ReadRange):
    """Range without a later checkpoint: all existing rows."""

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
    """Rows `first` to `last` (from 0) of `split`, in no batch with other rows."""

    def __init__(self, split: str, first: int, last: int) -> None:
        self.split = split
        self.first = first
        self.last = last
        self._came = False

    def came(self) -> bool:
        return self._came

    def most(self, split_id: str, rows: int) -> int:
        if split_id != self.split or rows > self.last:
            return ENDLESS
        return self.first - rows if rows < self.first else self.last + 1 - rows

    def has_read(self, split_id: str, rows: int) -> None:
        self._came = split_id == self.split and self.first < rows <= self.last + 1
