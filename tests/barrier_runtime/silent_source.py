"""A source that emits all rows at once, and no more until an event was observed (`fired`).

The source requests no earlier poll, so the observed rows were made without input. After a long time the source ends,
and `fired` reports the end.
"""

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.source import Polled, Split

TIMED_OUT = "nothing was seen"


class SilentReader:
    def __init__(self, rows: pa.RecordBatch, fired: list[Any]) -> None:
        self._rows = rows
        self._fired = fired
        self._given = False
        self._until_s = time.monotonic() + 120

    @property
    def finished(self) -> bool:
        if self._given and not self._fired and time.monotonic() > self._until_s:
            self._fired.append(TIMED_OUT)
        return self._given and bool(self._fired)

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if self._given:
            return None
        self._given = True
        return Polled(self._rows, now_ns)

    def next_due_ns(self) -> int | None:
        return None if self._fired or not self._given else time.time_ns() + 121_000_000_000

    def position(self) -> bytes:
        return b"1" if self._given else b"0"

    def seek(self, position: bytes) -> None:
        self._given = position == b"1"

    def close(self) -> None: ...


class SilentSource:
    exactly_once = True

    def __init__(self, rows: list[dict[str, Any]], schema: pa.Schema, fired: list[Any]) -> None:
        self.schema = schema
        self._rows = pa.RecordBatch.from_pylist(rows, schema)
        self._fired = fired

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("one")]

    def reader(self, split: Split) -> SilentReader:
        return SilentReader(self._rows, self._fired)
