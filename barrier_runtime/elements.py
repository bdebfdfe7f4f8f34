"""What flows through a channel: batches of rows, and control elements between them.

Elements are values. Nothing here knows of sockets, operators or threads.
"""

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

WATERMARK_MIN = -(2**63)
WATERMARK_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one fixed schema. `emit_ns` is the *earliest* intended emission time in it (wall clock, nanoseconds)."""

    rows: pa.RecordBatch
    emit_ns: int


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
