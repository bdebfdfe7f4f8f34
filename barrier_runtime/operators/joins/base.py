"""Common parts of joins of two streams: keyed inputs (port 0: left), held rows, late rows, snapshots.

A late row is not joined. A row with a null key is not held, and is emitted at once if that side emits rows without a
partner.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import LATE_LEFT_ROWS, LATE_RIGHT_ROWS
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.operators.base import Capture, Emit, OperatorContext
from barrier_runtime.operators.joins.join_buffer import JoinBuffer, KeyNumbers
from barrier_runtime.operators.joins.stored_runs import TIME_LIMIT, RowRun, RunsOnDisk, RunStore, restored_runs
from barrier_runtime.operators.keyed.operator import KeyedLife
from barrier_runtime.operators.keyed.progress import VALUE, Progress, check_same, columns_of, keys_said
from barrier_runtime.operators.outputs.side_outputs import warn_of_first_late
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import key_groups_of
from barrier_runtime.state.snapshots.snapshot import DEFINITION, JOIN_KEYS
from barrier_runtime.state.texts import counted


@dataclass(frozen=True)
class Side:
    """Input of a join. `event_time`: "" if rows count in order of arrival."""

    keys: tuple[str, ...]
    event_time: str
    schema: pa.Schema


def join_keys_said(
    left: pa.Schema | None, left_keys: Sequence[str], right: pa.Schema | None, right_keys: Sequence[str]
) -> str:
    sides = keys_said(left, left_keys), keys_said(right, right_keys)
    return f"left {sides[0]}, right {sides[1]}" if all(sides) else ""


def inner_name(added: pa.Field) -> str:
    return f"@{added.name}"


class JoinColumns:
    """Columns of a result: keys (named as on the left), `added`, other columns of left and right.
    Without `both` there are no right columns. Clashing names get the suffixes. Rows of both sides have the `added`
    columns under `inner_name`."""

    def __init__(
        self,
        left: Side,
        right: Side,
        suffix: tuple[str, str],
        where: str,
        both: bool = True,
        added: Sequence[pa.Field] = (),
    ) -> None:
        self._keys = (left.keys, right.keys)
        self._added = tuple(inner_name(field) for field in added)
        rest = [[field for field in side.schema if field.name not in side.keys] for side in (left, right)]
        self._rest = rest if both else [rest[0], []]
        keys = [left.schema.field(key) for key in left.keys]
        taken = {field.name for field in (*keys, *added)}
        clashing = {field.name for field in self._rest[0]} & {field.name for field in self._rest[1]}
        clashing |= taken & {field.name for field in (*self._rest[0], *self._rest[1])}
        fields = [*keys, *added]
        self._names = self._named(clashing, suffix)
        for one, named in zip(self._rest, self._names, strict=True):
            fields += [field.with_name(named[field.name]) for field in one]
        self.schema = pa.schema([pa.field(field.name, field.type) for field in fields])
        for key in {field.name for field in keys} & {field.name for field in added}:
            raise InvalidJob(
                f"{where}: the key column {key!r} has the name of a column that the join adds: rename it in a select() "
                "before key_by"
            )
        twice = sorted({name for name in self.schema.names if self.schema.names.count(name) > 1})
        if twice:
            firm = [field.name for field in (*keys, *added)]
            others = (("", "_right"), ("_left", "_right"), ("_1", "_2"), ("_of_left", "_of_right"))
            good = (pair for pair in others if _differ([*firm, *self._all(self._named(clashing, pair))]))
            endings = next((f"suffix={pair!r}".replace("'", '"') for pair in good), "two other endings in suffix=")
            raise InvalidJob(
                f"{where}: column {twice[0]!r} would be there twice: give {endings}, or select() it away on one side"
            )

    def _named(self, clashing: set[str], suffix: tuple[str, str]) -> list[dict[str, str]]:
        return [
            {field.name: field.name + ending if field.name in clashing else field.name for field in one}
            for one, ending in zip(self._rest, suffix, strict=True)
        ]

    @staticmethod
    def _all(names: list[dict[str, str]]) -> list[str]:
        return [name for side in names for name in side.values()]

    def left_name(self, column: str) -> str:
        return self._names[0].get(column, column)

    def right_name(self, column: str) -> str:
        return self._names[1].get(column, column)

    def rows(self, left: pa.RecordBatch | None, right: pa.RecordBatch | None) -> pa.RecordBatch:
        sides = (left, right)
        present = 0 if left is not None else 1
        some = sides[present]
        assert some is not None
        arrays = [some.column(key) for key in (*self._keys[present], *self._added)]
        for rows, fields in zip(sides, self._rest, strict=True):
            if rows is None:
                arrays += [pa.nulls(len(some), field.type) for field in fields]
            else:
                arrays += [rows.column(field.name) for field in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


_PER_MS = {"us": 1_000, "ns": 1_000_000}


class JoinClock:
    def __init__(self, *kinds: pa.DataType) -> None:
        units = (_PER_MS.get(kind.unit, 1) if pa.types.is_timestamp(kind) else 1 for kind in kinds)
        self.per_ms = max(units, default=1)

    def times(self, column: pa.Array, times_ms: npt.NDArray[np.int64], where: str) -> npt.NDArray[np.int64]:
        """Returns the times of `column` (no nulls) in units. `times_ms`: the same times in ms."""
        kind = column.type
        per_ms = _PER_MS.get(kind.unit, 1) if pa.types.is_timestamp(kind) else 1
        limit = TIME_LIMIT // self.per_ms
        for time in (int(times_ms.min()), int(times_ms.max())):
            if abs(time) >= limit:
                raise InvalidJob(
                    f"{where}: a row has the event time {time} ms, and a join counts in 1/{self.per_ms} ms within 63 "
                    "bits: filter or correct such rows before"
                )
        if per_ms == 1:
            return times_ms * self.per_ms if self.per_ms > 1 else times_ms
        values: npt.NDArray[np.int64] = column.view(pa.int64()).to_numpy(zero_copy_only=False)
        return values * (self.per_ms // per_ms)

    def first_after(self, watermark_ms: int) -> int:
        """Returns the first time after the watermark; at the end of time a value greater than all times."""
        if watermark_ms == WATERMARK_MAX:
            return WATERMARK_MAX
        return max(WATERMARK_MIN, min(WATERMARK_MAX, (watermark_ms + 1) * self.per_ms))

    def floor(self, span: datetime.timedelta) -> int:
        return (span // datetime.timedelta(microseconds=1)) * self.per_ms // 1_000

    def ceil(self, span: datetime.timedelta) -> int:
        return -self.floor(-span)


LATE_LEFT, LATE_RIGHT = "late left rows", "late right rows"
_TAGS = (LATE_LEFT, LATE_RIGHT)
_NAMES = ("left", "right")

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class JoinOperator(KeyedLife):
    """`definition`: meaning of the held rows; a restore with another definition is refused."""

    is_followed = False  # set by the compiler if needed: a pass per event time is costly

    def __init__(
        self, kind: str, name: str, left: Side, right: Side, columns: JoinColumns, definition: str, late: bool
    ) -> None:
        """`late`: late rows go to the side outputs `LATE_LEFT` and `LATE_RIGHT`, else are counted."""
        super().__init__()
        self.name = name
        self.where = f"{kind} {name!r}"
        self.definition = definition
        self._sides = (left, right)
        self._columns = columns
        self._late = late
        self._schemas = [columns_of(side.schema, side.schema.names, self.where) for side in self._sides]
        self._seen: list[pa.Schema | None] = [None, None]
        self._codecs = [
            KeyCodec(schema, side.keys, self.where) for schema, side in zip(self._schemas, self._sides, strict=True)
        ]
        self._keys_said = join_keys_said(left.schema, left.keys, right.schema, right.keys).encode()
        self._clock = JoinClock(*[side.schema.field(side.event_time).type for side in self._sides if side.event_time])
        self._numbers = KeyNumbers(len(left.keys))
        self._buffers = (JoinBuffer(self._numbers), JoinBuffer(self._numbers))
        self._store = RunStore()
        self._by_row = False
        self._before_ms = WATERMARK_MIN

    def open(self, context: OperatorContext) -> None:
        self._restore_progress(context)
        self._disk = RunsOnDisk(context.local_dir, self.backend.held_bytes, self.where)
        for side, rows, alive, matched in restored_runs(context.restored):
            check_same(self._schemas[side], self._without_added(rows.schema), self.where)
            self._restore(side, rows, alive, matched)

    def snapshot(self, checkpoint: int) -> Capture:
        self.backend.snapshots.freeze(checkpoint)
        progress = Progress(self._watermark_ms, self._emit_ns, floors=self._floors_to_store())
        values = {VALUE: progress.encode(), DEFINITION: self.definition.encode(), JOIN_KEYS: self._keys_said}
        return self._store.capture([buffer.runs for buffer in self._buffers], values, keyed=self.backend.snapshots)

    @property
    def held(self) -> tuple[int, int]:
        return len(self._buffers[0]), len(self._buffers[1])

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        """Takes rows of one event time at a time if a later step follows event time row by row."""
        if not self.is_followed or batch.reached is None:
            self._before_ms = self._watermark_ms
            self.take(batch, emit, port)
            return
        self._by_row = True
        for moment in batch.moments():
            assert moment.reached is not None
            self.on_watermark(int(moment.reached[0]), emit)
            self._before_ms = self._watermark_ms
            self.take(moment, emit, port)

    def take(self, batch: Batch, emit: Emit, port: int) -> None:
        raise NotImplementedError

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        if watermark_ms <= self._watermark_ms:
            return
        self._before_ms, self._watermark_ms = self._watermark_ms, watermark_ms
        self.advance(emit)
        for buffer in self._buffers:
            buffer.sweep()
        self._relieve()

    def advance(self, emit: Emit) -> None:
        """Emits and removes rows that are due at `_watermark_ms`."""
        raise NotImplementedError

    def _times_of(self, rows: pa.RecordBatch, side: int) -> Ints:
        column = rows.column(self._sides[side].event_time)
        return self._clock.times(column, event_times_ms(column), self.where)

    def _without_added(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def _columns_of(self, batch: Batch, port: int) -> pa.RecordBatch:
        rows, wanted = batch.rows, self._schemas[port]
        if rows.schema is not self._seen[port]:
            check_same(columns_of(rows.schema, wanted.names, self.where), wanted, self.where)
            self._seen[port] = rows.schema
        return pa.RecordBatch.from_arrays([rows.column(name) for name in wanted.names], schema=wanted)

    def _rows_of(self, batch: Batch, port: int) -> tuple[pa.RecordBatch, Ints]:
        if self._watermark_ms == WATERMARK_MAX:
            raise InvalidJob(
                f"{self.where}: this job had read all of its input and joined every row, so rows added since would "
                "all be late. Run them under another name, or all rows anew: restore='none' with allow_replay=True"
            )
        rows = self._columns_of(batch, port)
        self._emit_ns = max(self._emit_ns, batch.emit_ns)
        times = rows.column(self._sides[port].event_time)
        if times.null_count:
            column = self._sides[port].event_time
            raise InvalidJob(
                f"{self.where}: {counted(times.null_count, 'row')} of the {_NAMES[port]} stream without event time in "
                "column "
                f'{column!r}: filter them before, as in .filter("{column} IS NOT NULL")'
            )
        return rows, event_times_ms(times)

    def _keeps_unmatched(self, port: int) -> bool:
        return True

    def _without_tombstones(self, batch: Batch, port: int) -> Batch:
        column = self._sides[port].event_time
        if self._keeps_unmatched(port) or column not in batch.schema.names or not batch.column(column).null_count:
            return batch
        rows = self._columns_of(batch, port)
        keyless = np.logical_or.reduce(
            [rows.column(key).is_null().to_numpy(zero_copy_only=False) for key in self._sides[port].keys]
        )
        kept = ~(keyless & rows.column(column).is_null().to_numpy(zero_copy_only=False))
        return batch if kept.all() else batch.only(batch.rows.filter(pa.array(kept)), kept)

    def _watermarks(self, batch: Batch, port: int) -> Ints:
        reached = self._watermarks_by_key(batch, self._sides[port].keys)
        return np.full(len(batch), self._watermark_ms) if reached is None else reached

    def _give_late(self, batch: Batch, late: Bools, port: int, emit: Emit) -> None:
        if self._late:
            if batch.reached is not None and self.output_delay_ms:  # after the join, event time lags by the delay
                least_ms = WATERMARK_MIN + self.output_delay_ms
                batch = batch.reaching(np.maximum(batch.reached, least_ms) - self.output_delay_ms)
            emit.to(_TAGS[port], batch.only(batch.rows.filter(pa.array(late)), late))
        else:
            counter = LATE_LEFT_ROWS if port == 0 else LATE_RIGHT_ROWS
            warn_of_first_late(self.metrics, counter, self.where, late, partial(self._late_times, batch, port))
            rows = float(np.count_nonzero(late))
            if port == 0:
                self.metrics.count(LATE_LEFT_ROWS, rows)
            else:
                self.metrics.count(LATE_RIGHT_ROWS, rows)

    def _late_times(self, batch: Batch, port: int) -> tuple[Ints, Ints]:
        return self._rows_of(batch, port)[1], self._watermarks(batch, port)

    def _in_time(self, batch: Batch, port: int, emit: Emit) -> tuple[pa.RecordBatch, Ints] | None:
        """Returns the rows in time, with their times; None: no rows.
        Raises `InvalidJob` for a time out of range, even of a late row.
        """
        batch = self._without_tombstones(batch, port)
        rows, times_ms = self._rows_of(batch, port)
        if not len(rows):
            return None
        times = self._clock.times(rows.column(self._sides[port].event_time), times_ms, self.where)
        late = times_ms <= self._watermarks(batch, port)
        if late.any():
            self._give_late(batch, late, port, emit)
            rows, times = rows.filter(pa.array(~late)), times[~late]
        return (rows, times) if len(rows) else None

    def _with_keys(
        self, rows: pa.RecordBatch, times: Ints, port: int
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None, Ints]:
        columns = [rows.column(key) for key in self._sides[port].keys]
        if not any(column.null_count for column in columns):
            return None, rows, times
        whole = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
        null, rows = rows.filter(pa.array(~whole)), rows.filter(pa.array(whole))
        return null, rows if len(rows) else None, times[whole]

    def _run(self, rows: pa.RecordBatch, times: Ints, port: int) -> RowRun:
        codec = self._codecs[port]
        return RowRun.of(rows, self._numbers.hold(codec, codec.arrays(rows)), times)

    def _add(self, run: RowRun, port: int) -> None:
        self._buffers[port].add(run, self._disk.most_merged_bytes)
        self._relieve()

    def _relieve(self) -> None:
        self._disk.relieve([buffer.runs for buffer in self._buffers])

    def _send(self, rows: pa.RecordBatch, emit: Emit) -> None:
        reached = None
        if self._by_row:
            reached = np.full(len(rows), max(WATERMARK_MIN, self._before_ms - self.output_delay_ms))
        emit(Batch(rows, self._emit_ns, reached))

    def _restore(self, side: int, rows: pa.RecordBatch, alive: Bools, matched: Bools) -> None:
        keys: Sequence[pa.Array] = [rows.column(key) for key in self._sides[side].keys]
        groups = key_groups_of(keys, self.context.max_parallelism)
        own = alive & (groups >= self.backend.key_group_first) & (groups <= self.backend.key_group_last)
        if not own.any():
            return
        if not own.all():
            rows, matched = rows.filter(pa.array(own)), matched[own]
        run = self._run(rows, self._times_of(rows, side), side)
        run.matched = matched.copy()
        self._add(run, side)
