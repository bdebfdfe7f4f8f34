"""What flows through a channel: batches of rows, and control elements between them.

Elements are values. Nothing here knows of sockets, operators or threads.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WATERMARK_MIN = -(2**63)
WATERMARK_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one fixed schema. `emit_ns` is the *earliest* intended emission time in it (wall clock, nanoseconds).
    `reached`: per row the event time (ms) that its channel has reached when the row comes, which never falls; None:
    that of the last watermark. It says what a watermark before each row would say, so that it does not matter how rows
    are cut into batches."""

    rows: pa.RecordBatch
    emit_ns: int
    reached: npt.NDArray[np.int64] | None = None

    def having(self, rows: pa.RecordBatch) -> "Batch":
        """Other columns of the same rows."""
        return Batch(rows, self.emit_ns, self.reached)

    def slice(self, start: int, count: int | None = None) -> "Batch":
        rows = self.rows.slice(start, count)
        if self.reached is None:
            return Batch(rows, self.emit_ns)
        return Batch(rows, self.emit_ns, self.reached[start : start + rows.num_rows])

    def only(self, rows: pa.RecordBatch, which: Any) -> "Batch":
        """`rows` are those of this batch that `which` says: a mask or positions, of numpy or a mask of Arrow."""
        if self.reached is None:
            return Batch(rows, self.emit_ns)
        chosen = which if isinstance(which, np.ndarray) else which.fill_null(False).to_numpy(zero_copy_only=False)
        return Batch(rows, self.emit_ns, self.reached[chosen])


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
