"""Side outputs of a step: declared, filled per batch, sent at the batch's end."""

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.coordinator.metric_table import UNREAD_SIDE_ROWS, Counter
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.row_class import AnyRow, RowClass
from barrier_runtime.data.rows import Row, RowWriter
from barrier_runtime.data.schemas import SchemaLike, as_schema
from barrier_runtime.data.values.references import ALONE_ARGUMENT, references
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.operators.retry import Retry, check_pauses
from barrier_runtime.state.errors import InvalidJob

OnError: TypeAlias = Literal["fail", "skip", "side"]

ERRORS = "errors"  # its columns: docs/side-outputs.md
ERROR_SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("error_type", pa.string()),
        ("message", pa.string()),
        ("traceback", pa.string()),
        ("row", pa.string()),
        ("key", pa.string()),
        ("event_time", pa.timestamp("ms", "UTC")),
        ("replay", pa.string()),
        ("position", pa.string()),
    ]
)


class SideOutput:
    __slots__ = ("alone", "name", "reached", "rows", "taken", "writer")

    def __init__(self, name: str, where: str, schema: pa.Schema | RowClass, remedy: str) -> None:
        self.name = name
        self.writer = RowWriter(f"side output {name!r} of {where}", schema, remedy)
        self.taken = self.writer.taken
        self.alone = min(ALONE_ARGUMENT, self.writer.alone)  # a low value only means more copies
        self.rows: list[Any] = []
        self.reached: list[int] = []  # at each row, or empty

    def add(self, row: Row, reached_ms: int | None) -> None:
        """`row` has no other reference."""
        self.rows.append(row)
        if reached_ms is not None:
            self.reached.append(reached_ms)

    def back_to(self, count: int) -> None:
        del self.rows[count:]
        del self.reached[count:]

    def flush(self, emit: Emit, emit_ns: int, metrics: MetricGroup) -> None:
        if self.rows:
            reached = np.array(self.reached, np.int64) if self.reached else None
            batch = Batch(self.writer.made(self.rows), emit_ns, reached)
            self.back_to(0)
            send(emit, self.name, batch, metrics)


class SideOutputs:
    """Named side outputs of a user's function; `emit` is `ctx.emit`.
    `reached_ms`: event time reached at the rows emitted now; None if batches do not carry event time per row."""

    def __init__(self, where: str, schemas: Mapping[str, pa.Schema | RowClass]) -> None:
        self._where = where
        self._by_name = {
            name: SideOutput(name, where, schema, "emit what side= declares, or correct side=")
            for name, schema in schemas.items()
        }
        self._all = tuple(self._by_name.values())
        self.reached_ms: int | None = None

    def emit(self, name: str, row: AnyRow) -> None:
        """Sends `row`, as it is now, to the side output `name`. Raises `InvalidJob` for an undeclared name."""
        try:
            output = self._by_name[name]
        except (KeyError, TypeError) as error:
            raise self._unknown(name) from error
        output.rows.append(row if references(row) == output.alone else output.taken(row))
        if self.reached_ms is not None:
            output.reached.append(self.reached_ms)

    def begin(self, reached_ms: int | None) -> None:
        """Starts a batch or watermark; drops rows of a failed batch."""
        self.reached_ms = reached_ms
        for output in self._all:
            output.back_to(0)

    def check_none(self, method: str) -> None:
        """Raises `InvalidJob` if `method`, which runs without a row, emitted rows."""
        for output in self._all:
            if output.rows:
                raise InvalidJob(
                    f"{self._where}: {method} emits into {output.name!r}, but rows go out only with a row or a timer: "
                    "emit it there, with the first one for instance"
                )

    def counts(self) -> list[int]:
        return [len(output.rows) for output in self._all]

    def back_to(self, counts: list[int]) -> None:
        for output, count in zip(self._all, counts, strict=True):
            output.back_to(count)

    def flush(self, emit: Emit, emit_ns: int, metrics: MetricGroup) -> None:
        for output in self._all:
            output.flush(emit, emit_ns, metrics)

    def _unknown(self, name: object) -> InvalidJob:
        if not self._by_name:
            return InvalidJob(
                f"{self._where}: ctx.emit({name!r}, …), but the step has no side outputs: declare them, as in "
                f"process(…, side={{{name!r}: schema}})"
            )
        meant = difflib.get_close_matches(name, self._by_name, 1) if isinstance(name, str) else []
        hint = f"did you mean {meant[0]!r}? Else use" if meant else "use"
        return InvalidJob(
            f"{self._where}: ctx.emit({name!r}, …), but its side outputs are "
            f"{', '.join(map(repr, self._by_name))}: {hint} one of them, or add {name!r} to side="
        )


class EmittedByCall:
    def __init__(self, sides: SideOutputs) -> None:
        self._sides = sides

    def begin(self) -> None:
        self._before = self._sides.counts()

    def put_back(self) -> None:
        self._sides.back_to(self._before)


def send(emit: Emit, name: str, batch: Batch, metrics: MetricGroup) -> None:
    """Sends rows to a side output; without a reader drops and counts the rows."""
    if not emit.to(name, batch):
        metrics.count(UNREAD_SIDE_ROWS, len(batch))


DEAD_LETTERS = "dead letters"


class DeadLetterOperator(Operator):
    """Separates bad records of a source from good rows.
    Both are in the same batch: positions count all records."""

    def __init__(self, name: str, error: str, good: Sequence[str], dead_letter: Mapping[str, str]) -> None:
        """`error`: null in good rows. `dead_letter`: columns of bad records, new name -> column."""
        self._error = error
        self._good = list(good)
        self._dead_letter = dict(dead_letter)

    def open(self, context: OperatorContext) -> None:
        self._metrics = context.metrics

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        errors = rows.column(self._error)
        if errors.null_count == rows.num_rows:
            emit(batch.having(rows.select(self._good)))
            return
        good = pc.is_null(errors)
        emit(batch.only(rows.filter(good).select(self._good), good))
        bad = pc.invert(good)
        of_bad = rows.filter(bad)
        columns = [of_bad.column(column) for column in self._dead_letter.values()]
        letters = pa.RecordBatch.from_arrays(columns, names=list(self._dead_letter))
        send(emit, DEAD_LETTERS, batch.only(letters, bad), self._metrics)


MAIN = "main"


def side_schemas(side: Mapping[str, SchemaLike] | None, on_error: OnError | Retry, where: str) -> dict[str, pa.Schema]:
    found: dict[str, pa.Schema] = {}
    if side is not None:
        if not isinstance(side, Mapping) or not side:
            raise InvalidJob(f'{where}: side={side!r}: give a schema by name, as in side={{"late": {{"at": int}}}}')
        for name, schema in side.items():
            _check_name(name, f"{where}: side output")
            if name == MAIN:
                raise InvalidJob(f"{where}: {MAIN!r} is the name of the main output: give the side output another name")
            if schema is None:
                raise InvalidJob(
                    f"{where}: side output {name!r} has no schema, and the rows of its first batch may be far away: "
                    f'say its columns, as in side={{{name!r}: {{"at": int}}}}'
                )
            found[name] = as_schema(schema, f"side output {name!r} of {where}")
    if isinstance(on_error, Retry):
        check_pauses(on_error, where)
        return found
    if on_error not in ("fail", "skip", "side"):
        raise InvalidJob(f'{where}: on_error={on_error!r}: use "fail", "skip", "side" or a Retry, such as Retry(3)')
    if on_error == "side":
        if ERRORS in found:
            raise InvalidJob(
                f'{where}: the side output {ERRORS!r} is that of on_error="side": choose another name for yours'
            )
        found[ERRORS] = ERROR_SCHEMA
    return found


def branch_names(into: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(into, str) or not isinstance(into, Sequence) or len(into) < 2:
        raise InvalidJob(f'{where}: into={into!r}: name two branches or more, as in into=("big", "small")')
    for name in into:
        _check_name(name, f"{where}: branch")
        if into.count(name) > 1:
            raise InvalidJob(f"{where}: branch {name!r} is named twice: name each once")
    return tuple(into)


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"{what} {name!r} has no name: use a text that is not empty")


Ints = npt.NDArray[np.int64]

log = logging.getLogger("barrier_runtime")


def warn_of_first_late(
    metrics: MetricGroup,
    counter: Counter,
    where: str,
    late: npt.NDArray[np.bool_],
    at: Callable[[], tuple[Ints, Ints]],
) -> None:
    """Logs the first row of the mask `late` with its watermark, unless `counter` has counted before.
    `at` returns event times and watermarks (ms) per row of the mask."""
    if late.any() and not metrics.counts.get(counter.name):
        times_ms, watermarks_ms = at()
        first = int(np.argmax(late))
        log.warning(
            "%s dropped a late row: its event time is %s, the watermark was %s already. Further late rows are counted "
            "(%s) and not logged. late=True returns late rows as a stream of their own; a larger max_out_of_orderness "
            "at the source waits longer for late rows",
            where,
            _in_utc(int(times_ms[first])),
            _in_utc(int(watermarks_ms[first])),
            counter.name,
        )


def _in_utc(ms: int) -> str:
    return "the end of all input" if ms == WATERMARK_MAX else f"{str(np.datetime64(ms, 'ms')).replace('T', ' ')} UTC"
