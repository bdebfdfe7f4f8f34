"""What flows through a channel: batches of rows, and control elements between them.

Elements are values. Nothing here knows of sockets, operators or threads.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.few_rows import FewRows

WATERMARK_MIN = -(2**63)
WATERMARK_MAX = 2**63 - 1


class Batch:
    """Rows of one fixed schema, never changed. `emit_ns` is the *earliest* intended emission time in it (wall clock,
    nanoseconds). `reached`: per row the event time (ms) that its channel has reached when the row comes, which never
    falls; None: that of the last watermark. It says what a watermark before each row would say, so that it does not
    matter how rows are cut into batches.

    The rows are there as Arrow (`rows`), as lists (`few_rows`), or both: each is made of the other when somebody asks.
    `few` are the lists, if somebody before made some; `count` is their number, as `len` says, without a call."""

    __slots__ = ("_rows", "count", "emit_ns", "few", "reached")

    def __init__(
        self, rows: pa.RecordBatch | FewRows, emit_ns: int, reached: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.few: FewRows | None
        self._rows: pa.RecordBatch | None
        if isinstance(rows, FewRows):
            self.few, self._rows = rows, None
            self.count: int = rows.count
        else:
            self.few, self._rows = None, rows
            self.count = rows.num_rows
        self.emit_ns = emit_ns
        self.reached = reached

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return (
            self.emit_ns == other.emit_ns
            and np.array_equal(self.reached, other.reached)  # type: ignore[arg-type]
            and self.rows.equals(other.rows)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch({self.rows!r}, {self.emit_ns}, {self.reached!r})"

    @property
    def rows(self) -> pa.RecordBatch:
        if self._rows is None:
            assert self.few is not None
            self._rows = self.few.record_batch()
        return self._rows

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema if self.few is None else self.few.schema

    def column(self, name: str) -> pa.Array:
        """That column alone, in Arrow."""
        return self.rows.column(name) if self._rows is not None or self.few is None else self.few.array(name)

    @property
    def as_few(self) -> FewRows | None:
        """The rows as lists; None: they are too many, or not of such columns."""
        if self.few is None:
            self.few = FewRows.of(self.rows)
        return self.few

    def having(self, rows: pa.RecordBatch | FewRows) -> "Batch":
        """Other columns of the same rows."""
        return Batch(rows, self.emit_ns, self.reached)

    def reaching(self, reached: npt.NDArray[np.int64] | None) -> "Batch":
        """The same rows at other event times."""
        return Batch(self.few or self.rows, self.emit_ns, reached)

    def slice(self, start: int, count: int | None = None) -> "Batch":
        rows = self.rows.slice(start, count)
        if self.reached is None:
            return Batch(rows, self.emit_ns)
        return Batch(rows, self.emit_ns, self.reached[start : start + rows.num_rows])

    def moments(self) -> Iterator["Batch"]:
        """Its parts of which all rows have one event time reached; itself where that is not told row by row."""
        if self.reached is None or not self.count or self.reached[0] == self.reached[-1]:
            yield self
            return
        moved = np.flatnonzero(self.reached[1:] != self.reached[:-1]) + 1
        starts = [0, *moved.tolist(), self.count]
        for start, end in itertools.pairwise(starts):
            yield self.slice(start, end - start)

    def made(self, rows: pa.RecordBatch) -> "Batch":
        """Other rows that were made of its own, whose event time reached is one (see `moments`)."""
        reached = None if self.reached is None else np.full(rows.num_rows, self.reached[0])
        return Batch(rows, self.emit_ns, reached)

    def only(self, rows: pa.RecordBatch | FewRows, which: Any) -> "Batch":
        """`rows` are those of this batch that `which` says: a mask or positions, of numpy or a mask of Arrow."""
        if self.reached is None:
            return Batch(rows, self.emit_ns)
        chosen = which if isinstance(which, np.ndarray) else which.fill_null(False).to_numpy(zero_copy_only=False)
        return Batch(rows, self.emit_ns, self.reached[chosen])


def within(batch: Batch, most_ms: int, known_ms: int = WATERMARK_MIN) -> Batch:
    """`batch` at event times no further than `most_ms`; without any where they say no more than `known_ms`."""
    if batch.reached is None or not len(batch):
        return batch
    last_ms = int(batch.reached[-1])
    if min(last_ms, most_ms) <= known_ms:
        return batch.reaching(None)
    return batch if last_ms <= most_ms else batch.reaching(np.minimum(batch.reached, most_ms))


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row with event time <= `ms` (milliseconds since the epoch) is expected any more."""

    ms: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The channel is silent for now and must not hold the watermark back. Its next batch or watermark ends it."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Everything before it belongs to checkpoint `id`, everything after does not. `aligned_timeout_ms`: how long it may
    wait for the barriers of other channels and behind queued rows; 0: it overtakes them at once, None: never."""

    id: int
    token: int
    triggered_at_ms: int = 0
    aligned_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CancelBarrier:
    """Checkpoint `id` will not happen; take it as the barrier for counting, not for a snapshot."""

    id: int
    token: int


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing follows on this channel."""


Element: TypeAlias = Batch | Watermark | Idle | Barrier | CancelBarrier | EndOfInput
