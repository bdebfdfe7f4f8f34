"""Generator of rows with intended emission times, for measurements."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.memory.iterator import SHARE, SplitShare, shares
from barrier_runtime.connectors.pacing import Schedule
from barrier_runtime.connectors.source import Polled, SourceSettings, Split, SplitReader
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: int  # next row of this split
    start_ns: int | None


_POSITION = msgspec.json.Decoder(_Position)


@kinds_checked
@dataclass(frozen=True)
class RateSource(SourceSettings):
    """Generated rows on a schedule.

    Columns: `value` (0, 1, 2, …; int64), `intended_at` (due time of the row; timestamp[ns, UTC]) and, with `keys`,
    `key` (`value % keys`). `rows_per_second` and `rows` are totals over all `splits` (default: one per subtask).
    Without `rows` the source is endless.

    >>> flow.source("ticks", RateSource(1_000, keys=100), event_time="intended_at")
    """

    rows_per_second: float
    rows: int | None = None
    _: KW_ONLY
    keys: int | None = None
    splits: int | None = None

    def named(self, name: str) -> "GeneratedRows":
        """Checks the settings. Raises `InvalidJob`."""
        return GeneratedRows(name, self.rows_per_second, self.rows, self.keys, self.splits)


class GeneratedRows:
    exactly_once = True
    positions_in = "generated rows"
    pauses = False

    def __init__(
        self, name: str, rows_per_second: float, rows: int | None, keys: int | None, splits: int | None
    ) -> None:
        for what, number in (("rows_per_second", rows_per_second), ("rows", rows), ("keys", keys), ("splits", splits)):
            missing = number is None and what == "rows_per_second"
            if missing or (number is not None and not (isinstance(number, int | float) and number > 0)):
                raise InvalidJob(f"source {name!r}: {what}={number!r}: give a number above 0")
        self._rows_per_second = float(rows_per_second)
        self._rows = rows
        self._keys = keys
        self._splits = splits
        fields = [pa.field("value", pa.int64()), pa.field("intended_at", pa.timestamp("ns", "UTC"))]
        self.schema = pa.schema(fields + ([pa.field("key", pa.int64())] if keys is not None else []))

    @property
    def endless(self) -> bool:
        return self._rows is None

    def __repr__(self) -> str:
        return f"rate {self._rows_per_second:g}/s, " + ("endless" if self._rows is None else counted(self._rows, "row"))

    def splits(self, parallelism: int) -> Sequence[Split]:
        return shares(self._splits or parallelism)

    def reader(self, split: Split) -> SplitReader:
        part = SHARE.decode(split.payload)
        rows = None if self._rows is None else max(0, math.ceil((self._rows - part.index) / part.of))
        return RateReader(part, rows, self._rows_per_second, self._keys, self.schema)


class RateReader:
    def __init__(
        self, part: SplitShare, rows: int | None, rows_per_second: float, keys: int | None, schema: pa.Schema
    ) -> None:
        self._part = part
        self._rows = rows
        self._keys = keys
        self._schema = schema
        self._row = 0
        self._schedule = Schedule(rows_per_second / part.of)
        self._period_ns = 1e9 / rows_per_second

    @property
    def finished(self) -> bool:
        return self._rows is not None and self._row >= self._rows

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if self.finished:
            return None
        start_ns = self._schedule.begin(now_ns, self._row)
        count = min(max_rows, self._schedule.due_rows(self._row, now_ns))
        if self._rows is not None:
            count = min(count, self._rows - self._row)
        if count <= 0:
            return None
        emit_ns = self._schedule.due_ns(self._row)
        if count <= MOST_ROWS:
            few = self._few(range(self._row, self._row + count), start_ns)
            self._row += count
            return Polled(few, emit_ns)
        numbers = np.arange(self._row, self._row + count)
        values = numbers * self._part.of + self._part.index
        intended = start_ns + (numbers * (self._period_ns * self._part.of)).astype(np.int64)
        columns = [pa.array(values), pa.array(intended).view(self._schema.field(1).type)]
        if self._keys is not None:
            columns.append(pa.array(values % self._keys))
        self._row += count
        return Polled(pa.RecordBatch.from_arrays(columns, schema=self._schema), emit_ns)

    def _few(self, numbers: range, start_ns: int) -> FewRows:
        of, index, period_ns = self._part.of, self._part.index, self._period_ns * self._part.of
        values = [number * of + index for number in numbers]
        columns = [values, [start_ns + int(number * period_ns) for number in numbers]]
        if self._keys is not None:
            columns.append([value % self._keys for value in values])
        return FewRows.made_of(self._schema, columns)

    def next_due_ns(self) -> int | None:
        return self._schedule.next_due_ns(self._row)

    def position(self) -> bytes:
        return msgspec.json.encode(_Position(self._row, self._schedule.start_ns))

    def seek(self, position: bytes) -> None:
        found = _POSITION.decode(position)
        self._row = found.row
        self._schedule.start_ns = found.start_ns

    def close(self) -> None:
        """Nothing to close."""
