"""Harness of users' keyed functions, and the base of other harnesses.

The operator, keyed state and snapshots are production's.
"""

import datetime
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from barrier_runtime.coordinator.checkpoints.checkpoint import disagreement
from barrier_runtime.coordinator.status.latency import merged
from barrier_runtime.data.argument_types import arguments_checked, kinds_checked
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.data.row_class import RowClass, is_instance, row_class
from barrier_runtime.data.rows import Row, RowWriter
from barrier_runtime.data.schemas import Rows, SchemaLike, SchemaOf, as_schema
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.operators.functions.declared import check_keyed_function
from barrier_runtime.operators.functions.given_rows import side_classes
from barrier_runtime.operators.functions.instances import Instances
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.functions.user_metrics import PREFIX
from barrier_runtime.operators.keyed.timers import whole_ms
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.operators.outputs.side_outputs import OnError, side_schemas
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.run_alone import OperatorAlone, snapshot_of
from barrier_runtime.operators.state.broadcast import BroadcastState
from barrier_runtime.operators.state.folded import AggregatingState, ReducingState
from barrier_runtime.operators.state.handle import KeyedState
from barrier_runtime.operators.state.lists import ListState
from barrier_runtime.operators.state.maps import MapState
from barrier_runtime.operators.state.value import ValueState
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import key_groups_of
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore

NAME = "function"
_MEMORY = 64 << 20

if TYPE_CHECKING:
    import typing_extensions

    Out = typing_extensions.TypeVar("Out", default=dict[str, Any])
else:
    Out = TypeVar("Out")
_H = TypeVar("_H", bound="FunctionHarness[Any]")


@dataclass(frozen=True)
class HarnessSnapshot:
    """State of a harness at a barrier."""

    operators: tuple[OperatorSnapshot, ...]
    store: MemoryStore
    rows: pa.Schema | None
    checkpoint: int
    event_ms: int
    wall_ms: int


class FunctionHarness(Generic[Out]):
    """Base of harnesses. Subclasses set `_keys`, `_rows` and `_event_time` before this constructor."""

    _keys: tuple[str, ...]
    _rows: pa.Schema | None
    _event_time: str | None
    _row_class: RowClass | None = None

    def __init__(
        self,
        schema: SchemaOf[Out] | None,
        side: Mapping[str, SchemaLike] | None,
        on_error: OnError | Retry,
        parallelism: int,
        max_parallelism: int,
        restore: HarnessSnapshot | None,
        wall_ms: int | None,
    ) -> None:
        where = self._where = type(self).__name__
        for what, number in (("parallelism", parallelism), ("max_parallelism", max_parallelism)):
            if type(number) is not int or number < 1:
                raise InvalidJob(f"{where}: {what}={number!r}: use a whole number, 1 or more")
        self._store = restore.store if restore is not None else MemoryStore()
        self._checkpoint = restore.checkpoint if restore is not None else 0
        before = restore.wall_ms if restore is not None else 0
        self._wall_ms = before if wall_ms is None else wall_ms
        self._event_ms = restore.event_ms if restore is not None else WATERMARK_MIN  # latest row or watermark
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._directory = Path(tempfile.mkdtemp(prefix="barrier-runtime-harness-"))
        self._removed = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._given: list[Out] = []
        self._metrics = MetricGroup()
        sides = side_schemas(side, on_error, where)
        self._side: dict[str, list[Any]] = {name: [] for name in sides}
        classes = side_classes(side, where)
        self._emit = Emit(
            partial(_extend, self._given, row_class(schema, where)),
            {name: [partial(_extend, rows, classes.get(name))] for name, rows in self._side.items()},
        )
        declared = {name: classes.get(name, sides[name]) for name in side or {}}
        output = row_class(schema, where) or (as_schema(schema, where) if schema is not None else None)
        self._subtasks = [self._made(output, declared, on_error) for _ in range(parallelism)]
        for subtask, operator in enumerate(self._subtasks):
            operator.open(self._context(subtask, restore.operators if restore is not None else ()))

    def _made(
        self, output: pa.Schema | RowClass | None, side: Mapping[str, pa.Schema | RowClass], on_error: OnError | Retry
    ) -> ProcessOperator:
        raise NotImplementedError

    @arguments_checked
    def watermark(self, at_ms: int | datetime.datetime) -> list[Out]:
        """Advances event time to `at_ms` (since the epoch; or a datetime); returns results of due timers."""
        at_ms = whole_ms(at_ms)
        for operator in self._subtasks:
            operator.on_watermark(at_ms, self._emit)
        if at_ms < WATERMARK_MAX:
            self._event_ms = max(self._event_ms, at_ms)
        return self._taken()

    @arguments_checked
    def wall(self, at_ms: int | datetime.datetime) -> list[Out]:
        """Sets the wall clock to `at_ms` (since the epoch; or a datetime); returns results of due timers."""
        at_ms = whole_ms(at_ms)
        self._wall_ms = at_ms
        for operator in self._subtasks:
            while operator.on_wall_clock(self._emit):
                pass
        return self._taken()

    def end(self) -> list[Out]:
        """Ends the input. Returns results of all event-time timers and of due wall-clock timers."""
        for operator in self._subtasks:
            operator.on_wall_clock(self._emit, last=True)
        given = self.watermark(WATERMARK_MAX)
        for operator in self._subtasks:
            operator.on_end(self._emit)
        return given + self._taken()

    @arguments_checked
    def side(self, name: str) -> list[Any]:
        """Returns rows of the side output `name` since the last call; "errors" is that of `on_error="side"`."""
        if name not in self._side:
            raise InvalidJob(
                f"{self._where}: there is no side output {name!r}, only {', '.join(map(repr, self._side)) or 'none'}: "
                "declare it in side="
            )
        rows = list(self._side[name])
        self._side[name].clear()
        return rows

    def metrics(self) -> dict[str, float]:
        """Returns counts of `ctx.metrics` by name, over all subtasks.

        A histogram `n` is `n.count`, `n.p50`, `n.p99` and `n.max`.
        """
        counts = self._metrics.counts.items()
        found = {name.removeprefix(PREFIX): value for name, value in counts if name.startswith(PREFIX)}
        recorded = {name: recorder.encoded() for name, recorder in self._metrics.latencies.items()}
        for name, spread in merged([recorded]).items():
            if name.startswith(PREFIX):
                for figure in ("count", "p50", "p99", "max"):
                    found[f"{name.removeprefix(PREFIX)}.{figure}"] = float(getattr(spread, figure))
        return found

    @arguments_checked
    def state(self, key: Any, at_ms: int | None = None) -> dict[str, Any]:
        """All states of `key` (a tuple for several columns) by name: a value, a list, or a dict.

        States with a TTL in event time appear as to a row at `at_ms` (default: the latest time); the call counts as a
        read. With several inputs, broadcast states of the key's subtask are included.
        """
        return {name: _content(each) for name, each in self._at(key, at_ms).states.items()}

    def timers(self, key: Any) -> list[int]:
        """Times (ms) of pending timers of `key`, earliest first."""
        return self._at(key).timers.of_key()

    def wall_timers(self, key: Any) -> list[int]:
        """Times (ms) of pending wall-clock timers of `key`, earliest first."""
        return self._at(key).wall_timers.of_key()

    def _snapshot(self) -> HarnessSnapshot:
        self._checkpoint += 1
        taken = [
            snapshot_of(operator, NAME, subtask, self._parallelism, self._checkpoint)
            for subtask, operator in enumerate(self._subtasks)
        ]
        differing = disagreement(taken)
        if differing:
            raise InvalidJob(f"{self._where}: {differing}")
        for operator in self._subtasks:
            operator.on_complete(self._checkpoint)
        return HarnessSnapshot(tuple(taken), self._store, self._rows, self._checkpoint, self._event_ms, self._wall_ms)

    def close(self) -> None:
        for operator in self._subtasks:
            operator.close()
        self._removed()

    def __enter__(self: _H) -> _H:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batch(self, row: Any) -> pa.RecordBatch:
        if self._row_class is not None and type(row) is self._row_class.kind:
            row = self._row_class.record(row)
        if is_instance(row):
            raise InvalidJob(f"{self._where}: the row {row!r} is an instance: pass rows={type(row).__name__}")
        if not isinstance(row, Mapping):
            raise InvalidJob(f"{self._where}: the row {row!r} is not a dict: push() takes rows, one after the other")
        if self._rows is None:
            self._rows = RowWriter(self._where, None).batch([row]).schema
        unknown = row.keys() - set(self._rows.names)
        if unknown:
            raise InvalidJob(
                f"{self._where}: the row {row!r} has {', '.join(sorted(map(repr, unknown)))}, which earlier rows (or "
                "rows=) do not have: give all columns in rows="
            )
        return RowWriter(self._where, self._rows, "correct the row, or rows=").batch([row])

    def _reached_by(self, batch: pa.RecordBatch) -> None:
        times = None if self._event_time is None else batch.column(self._event_time)
        if times is not None and not times.null_count:
            self._event_ms = max(self._event_ms, int(event_times_ms(times)[0]))

    def _of(self, batch: pa.RecordBatch) -> ProcessOperator:
        missing = [column for column in self._keys if column not in batch.schema.names]
        if missing:
            raise InvalidJob(f"{self._where}: the rows have no key column {missing[0]!r}: add it, or correct key=")
        group = int(key_groups_of([batch.column(column) for column in self._keys], self._max_parallelism)[0])
        return self._subtasks[group * self._parallelism // self._max_parallelism]

    def _at(self, key: Any, at_ms: int | None = None) -> ProcessOperator:
        if self._rows is None:
            raise InvalidJob(f"{self._where}: no row came yet, so the types of its keys are not known: give rows=")
        values = (key,) if len(self._keys) == 1 else key
        if not isinstance(values, tuple) or len(values) != len(self._keys):
            raise InvalidJob(f"{self._where}: key={key!r}: give a tuple of {', '.join(map(repr, self._keys))}")
        batch = self._batch(dict(zip(self._keys, values, strict=True)))
        operator = self._of(batch)
        operator.visit(batch, self._event_ms if at_ms is None else at_ms)
        return operator

    def _taken(self) -> list[Out]:
        given = list(self._given)
        self._given.clear()
        return given

    def _context(self, subtask: int, restored: tuple[OperatorSnapshot, ...]) -> OperatorContext:
        alone = OperatorAlone(
            *("harness", NAME, self._parallelism, self._max_parallelism, restored, self._store),
            directory=self._directory,
            backend="memory",
            memory_bytes=_MEMORY,
            watched=True,
        )
        return alone.context(
            subtask,
            lambda url: self._store,
            metrics=self._metrics,
            call_later=lambda seconds, callback: callback(),
            wall_ms=lambda: self._wall_ms,
        )


def key_columns(key: Any, where: str) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, list | tuple) else ()
    if not columns or not all(isinstance(column, str) for column in columns):
        raise InvalidJob(f"{where}: key={key!r}: name the column of key_by, or several")
    return columns


def _extend(rows: list[Any], kind: RowClass | None, batch: Batch) -> None:
    if kind is None:
        rows += batch.rows.to_pylist()
    else:
        rows += Instances(kind).each(batch)


def _content(state: KeyedState) -> Any:
    match state:
        case ListState():
            return list(state)
        case MapState():
            return dict(state.items())
        case BroadcastState():
            return dict(state.items())
        case ValueState() | ReducingState() | AggregatingState():
            return state.value
    raise InvalidJob(f"{state!r} is a kind of state that KeyedHarness cannot show: read it in the function")


@kinds_checked
class KeyedHarness(FunctionHarness[Out], Generic[Rows, Out]):
    """Runs the functions that `KeyedStream.process` runs.

    >>> with KeyedHarness(Totals, key="user") as harness:
    ...     assert harness.push({"user": "ann", "n": 3}) == [{"user": "ann", "total": 3}]
    ...     assert harness.state("ann") == {"total": 3}
    ...     snapshot = harness.snapshot()
    >>> with KeyedHarness(Totals, key="user", restore=snapshot, parallelism=2) as harness:
    ...     assert harness.push({"user": "ann", "n": 1}) == [{"user": "ann", "total": 4}]

    `key`: the column of `key_by`, or several. `rows`: the schema of pushed rows; default: the types of the first push.
    `schema`, `state`, `event_time`, `side` and `on_error` are those of `process`. `parallelism`: number of subtasks.
    `restore`: a result of `snapshot()`, perhaps of another parallelism or an earlier version of the function. The wall
    clock stands at `wall_ms` (ms since the epoch; default: the time of the snapshot, or 0) until `wall` moves it;
    wall-clock timers and states with `TTL(…, clock="processing")` follow it. A snapshot refuses unstored changes in
    place, as `check_state`. Errors are those of a job: `UserCodeError` for errors of the function, `InvalidJob` for
    wrong use.
    """

    def __init__(
        self,
        function: Any,
        *,
        key: str | Sequence[str],
        rows: SchemaOf[Rows] | None = None,
        schema: SchemaOf[Out] | None = None,
        state: Mapping[str, KeyedState] | None = None,
        event_time: str | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError | Retry = "fail",
        parallelism: int = 1,
        max_parallelism: int = 128,
        restore: HarnessSnapshot | None = None,
        wall_ms: int | None = None,
    ) -> None:
        where = "KeyedHarness"
        if restore is not None and not isinstance(restore, HarnessSnapshot):
            raise InvalidJob(f"{where}: restore={restore!r}: give what snapshot() of such a harness returned")
        self._keys = key_columns(key, where)
        self._rows = (
            as_schema(rows, where, "rows") if rows is not None else restore.rows if restore is not None else None
        )
        self._row_class = row_class(rows, where)
        self._event_time = event_time
        self._function, self._state = function, state
        super().__init__(schema, side, on_error, parallelism, max_parallelism, restore, wall_ms)

    def _made(
        self, output: pa.Schema | RowClass | None, side: Mapping[str, pa.Schema | RowClass], on_error: OnError | Retry
    ) -> ProcessOperator:
        check_keyed_function(self._function, "KeyedHarness")
        return ProcessOperator(
            NAME, self._keys, self._function, self._state, self._event_time, output, self._rows, side, on_error,
            self._row_class,
        )  # fmt: skip

    def push(self, *rows: Rows | Row) -> list[Out]:
        """Processes rows one by one and returns the function's results."""
        for row in rows:
            batch = self._batch(row)
            self._of(batch).process(Batch(batch, 0), self._emit)
            self._reached_by(batch)
        return self._taken()

    def snapshot(self) -> HarnessSnapshot:
        """Completes a checkpoint and returns the snapshot; the harness continues.

        Raises `InvalidJob` for state that cannot be written.
        """
        return self._snapshot()
