"""Elements of a channel: batches of rows, and control elements."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.few_rows import FewRows, RowsOfPart

WATERMARK_MIN = -(2**63)
WATERMARK_MAX = 2**63 - 1


class Batch:
    """Rows of a fixed schema, never changed.

    `emit_ns` is the *earliest* intended emission time of the rows (wall clock, nanoseconds). `reached`: per row the
    event time (ms) that the channel has reached, never decreasing; None: the last watermark's. `reached` replaces a
    watermark before each row.

    The rows exist as Arrow (`rows`), lists (`few`) or a `part` of other rows; `rows` and `few` are made on demand.
    """

    __slots__ = ("_rows", "count", "emit_ns", "few", "part", "reached")

    def __init__(
        self, rows: pa.RecordBatch | FewRows | RowsOfPart, emit_ns: int, reached: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.few: FewRows | None = None
        self.part: RowsOfPart | None = None
        self._rows: pa.RecordBatch | None = None
        self.count: int
        if isinstance(rows, FewRows):
            self.few = rows
            self.count = rows.count
        elif isinstance(rows, RowsOfPart):
            self.part = rows
            self.count = rows.count
        else:
            self._rows = rows
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
            if self.part is not None:
                self._rows = self.part.record_batch()
            else:
                assert self.few is not None
                self._rows = self.few.record_batch()
        return self._rows

    @property
    def schema(self) -> pa.Schema:
        if self.few is not None:
            return self.few.schema
        return self.rows.schema if self.part is None else self.part.parted.schema

    def column(self, name: str) -> pa.Array:
        return self.rows.column(name) if self._rows is not None or self.few is None else self.few.array(name)

    @property
    def as_few(self) -> FewRows | None:
        """Rows as lists; None: too many rows, or other column types."""
        if self.few is None:
            self.few = FewRows.of(self.rows)
        return self.few

    def having(self, rows: pa.RecordBatch | FewRows) -> "Batch":
        return Batch(rows, self.emit_ns, self.reached)

    def reaching(self, reached: npt.NDArray[np.int64] | None) -> "Batch":
        return Batch(self.few or self.rows, self.emit_ns, reached)

    def slice(self, start: int, count: int | None = None) -> "Batch":
        rows = self.rows.slice(start, count)
        if self.reached is None:
            return Batch(rows, self.emit_ns)
        return Batch(rows, self.emit_ns, self.reached[start : start + rows.num_rows])

    def moments(self) -> Iterator["Batch"]:
        """Yields parts in which `reached` does not vary."""
        if self.reached is None or not self.count or self.reached[0] == self.reached[-1]:
            yield self
            return
        moved = np.flatnonzero(self.reached[1:] != self.reached[:-1]) + 1
        starts = [0, *moved.tolist(), self.count]
        for start, end in itertools.pairwise(starts):
            yield self.slice(start, end - start)

    def made(self, rows: pa.RecordBatch) -> "Batch":
        """Batch of other rows, made from a batch in which `reached` does not vary."""
        reached = None if self.reached is None else np.full(rows.num_rows, self.reached[0])
        return Batch(rows, self.emit_ns, reached)

    def only(self, rows: pa.RecordBatch | FewRows, which: Any) -> "Batch":
        """Batch of `rows`, selected by `which`: a mask of numpy or Arrow, or positions of numpy."""
        if self.reached is None:
            return Batch(rows, self.emit_ns)
        chosen = which if isinstance(which, np.ndarray) else which.fill_null(False).to_numpy(zero_copy_only=False)
        return Batch(rows, self.emit_ns, self.reached[chosen])


def within(batch: Batch, most_ms: int, known_ms: int = WATERMARK_MIN) -> Batch:
    """Limits `reached` to `most_ms`; drops it if no value exceeds `known_ms`."""
    if batch.reached is None or not len(batch):
        return batch
    last_ms = int(batch.reached[-1])
    if min(last_ms, most_ms) <= known_ms:
        return batch.reaching(None)
    return batch if last_ms <= most_ms else batch.reaching(np.minimum(batch.reached, most_ms))


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of the same columns, all with or all without `reached`, which never decreases from one to the next."""
    if len(batches) == 1:
        return batches[0]
    few = [batch.few for batch in batches if batch.few is not None]
    rows = FewRows.joined(few) if len(few) == len(batches) else pa.concat_batches([batch.rows for batch in batches])
    reached = [batch.reached for batch in batches if batch.reached is not None]
    return Batch(rows, min(batch.emit_ns for batch in batches), np.concatenate(reached) if reached else None)


@dataclass(frozen=True, slots=True)
class Watermark:
    """No later row with event time <= `ms` is expected."""

    ms: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The channel must not hold the watermark back until the next batch or watermark."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Boundary of checkpoint `id`.

    `aligned_timeout_ms`: maximum wait for the barriers of other channels and for queued rows; 0: overtakes them at
    once, None: never.
    """

    id: int
    token: int
    triggered_at_ms: int = 0
    aligned_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CancelBarrier:
    """Checkpoint `id` is cancelled; counts as the barrier for the alignment, without a snapshot."""

    id: int
    token: int


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Last element of the channel."""


Element: TypeAlias = Batch | Watermark | Idle | Barrier | CancelBarrier | EndOfInput
