"""What a source is: splits found once by the driver, and a reader per split with a position that can be sought.

The subtask polls readers; nothing here may block. A reader's position after `poll` covers exactly the rows returned so
far: restoring it yields the very next row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True)
class Split:
    """One independently read part of a source. `id` is stable across runs; positions are kept under it."""

    id: str
    payload: bytes = b""  # what the reader needs; the source's own encoding (JSON), never pickle


@dataclass(frozen=True)
class Polled:
    """`emit_ns`: intended emission time of the first row (wall clock, ns); now, when the source has no schedule."""

    rows: pa.RecordBatch
    emit_ns: int


class SplitReader(Protocol):
    @property
    def finished(self) -> bool:
        """True once the last row has been returned by `poll`."""
        ...

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        """What is there now, at most `max_rows` rows; None when nothing is. Never waits."""
        ...

    def next_due_ns(self) -> int | None:
        """When the next row is due (wall clock, ns) if that is known; None = as soon as possible."""
        ...

    def position(self) -> bytes:
        """Small, serialisable (JSON)."""
        ...

    def seek(self, position: bytes) -> None: ...

    def close(self) -> None: ...


class Source(Protocol):
    """Described in the driver, carried to the slots in Spark's closure."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def exactly_once(self) -> bool:
        """True when positions are stable, so that a replay yields the same rows."""
        ...

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Called once, in the driver. Raises `InvalidJob` for missing or unreadable input."""
        ...

    def reader(self, split: Split) -> SplitReader:
        """Called in the slot, in `open` (may block)."""
        ...
