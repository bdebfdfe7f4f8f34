"""Window join: rows of a key match if they are in the same window.
It is an interval join of window starts with bounds of 0. A row in several windows is held, and joined, once per window.
Pairs are emitted at once, unmatched rows when their window is over."""

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.joins.base import Bools, Ints
from barrier_runtime.operators.joins.columns import JoinColumns, Side, inner_name
from barrier_runtime.operators.joins.interval import JoinKind, MatchingJoin
from barrier_runtime.operators.windows.assigners import KnownWindows, WindowAssigner
from barrier_runtime.state.errors import InvalidJob

_TIME = pa.timestamp("ms", "UTC")
ADDED = (pa.field("window_start", _TIME), pa.field("window_end", _TIME))
_NAMES = tuple(map(inner_name, ADDED))


def window_columns(left: Side, right: Side, how: JoinKind, suffix: tuple[str, str], where: str) -> JoinColumns:
    return JoinColumns(left, right, suffix, where, how not in ("semi", "anti"), ADDED)


def window_definition(left: Side, right: Side, window: WindowAssigner, how: JoinKind) -> str:
    return f"{how} join, {left.event_time} and {right.event_time} in {window.definition}"


class WindowJoinOperator(MatchingJoin):
    def __init__(
        self,
        name: str,
        left: Side,
        right: Side,
        window: KnownWindows,
        how: JoinKind = "inner",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> None:
        where = f"window_join {name!r}"
        columns = window_columns(left, right, how, suffix, where)
        definition = window_definition(left, right, window, how)
        super().__init__("window_join", name, how, left, right, columns, definition, late)
        self._window = window
        self.output_delay_ms = window.longest_ms - 1

    def take(self, batch: Batch, emit: Emit, port: int) -> None:
        batch = self._without_tombstones(batch, port)
        rows, times_ms = self._rows_of(batch, port)
        if not len(rows):
            return
        lowest, highest = int(times_ms.min()), int(times_ms.max())
        if not self._window.holds(lowest, highest):
            raise InvalidJob(
                f"{self.where}: the event times {lowest} to {highest} ms are in windows beyond 64 bits of "
                "milliseconds: filter or correct such rows before"
            )
        assigned, starts = self._window.assign(times_ms)
        of_row = np.arange(len(rows)) if assigned is None else assigned
        watermarks = self._watermarks(batch, port)
        open_ = starts >= self._window.first_open_starts(watermarks)[of_row]
        if not open_.all():
            of_row, starts = of_row[open_], starts[open_]
            late: Bools = np.ones(len(rows), np.bool_)
            late[of_row] = False
            if late.any():
                self._give_late(batch, late, port, emit)
        if len(of_row):
            if assigned is not None or len(of_row) < len(rows):
                rows = rows.take(pa.array(of_row))
            self._match(self._with_windows(rows, starts), starts, port, emit)

    def _with_windows(self, rows: pa.RecordBatch, starts: Ints) -> pa.RecordBatch:
        ends = self._window.ends(starts)
        bounds = [pa.array(starts).view(_TIME), pa.array(ends).view(_TIME)]
        return pa.RecordBatch.from_arrays([*bounds, *rows.columns], names=[*_NAMES, *rows.schema.names])

    def _without_added(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in schema if field.name not in _NAMES])

    def _times_of(self, rows: pa.RecordBatch, side: int) -> Ints:
        starts: Ints = rows.column(_NAMES[0]).view(pa.int64()).to_numpy(zero_copy_only=False)
        return starts

    def _done_before(self, watermark_ms: int) -> tuple[int, int]:
        if watermark_ms == WATERMARK_MAX:
            return WATERMARK_MAX, WATERMARK_MAX
        before = self._window.first_open_start(watermark_ms)
        return before, before
