"""Rows of side outputs, collected while a batch is processed and sent at its end.

A row keeps its content and the event time reached when it was emitted, like a yielded row. Between two calls of an
operator nothing is kept here, so snapshots hold no such rows.

`DeadLetterOperator` separates bad records of a source from good rows. Such a source passes both in the same batch, so
that positions count all records; this operator directly follows the source.
"""

import difflib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.coordinator.metric_table import UNREAD_SIDE_ROWS
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import ALONE_ARGUMENT, Row, RowWriter, references
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.state.errors import InvalidJob


class SideOutput:
    """Rows of a side output with its declared schema."""

    __slots__ = ("alone", "name", "reached", "rows", "taken", "writer")

    def __init__(self, name: str, where: str, schema: pa.Schema, remedy: str) -> None:
        """`remedy`: advice for a row that does not fit the schema."""
        self.name = name
        self.writer = RowWriter(f"side output {name!r} of {where}", schema, remedy)
        self.taken = self.writer.taken
        self.alone = min(ALONE_ARGUMENT, self.writer.alone)  # a low value only means more copies
        self.rows: list[Row] = []
        self.reached: list[int] = []  # at each row, or empty

    def add(self, row: Row, reached_ms: int | None) -> None:
        """Adds a row that has no other reference."""
        self.rows.append(row)
        if reached_ms is not None:
            self.reached.append(reached_ms)

    def back_to(self, count: int) -> None:
        """Keeps only the first `count` rows."""
        del self.rows[count:]
        del self.reached[count:]

    def flush(self, emit: Emit, emit_ns: int, metrics: MetricGroup) -> None:
        """Emits the rows. Raises `InvalidJob` for a row that does not fit the schema."""
        if self.rows:
            reached = np.array(self.reached, np.int64) if self.reached else None
            batch = Batch(self.writer.made(self.rows), emit_ns, reached)
            self.back_to(0)
            send(emit, self.name, batch, metrics)


class SideOutputs:
    """Named side outputs of a user's function; `emit` is `ctx.emit`.
    `reached_ms`: event time reached at the rows emitted now; None if batches do not carry event time per row."""

    def __init__(self, where: str, schemas: Mapping[str, pa.Schema]) -> None:
        self._where = where
        self._by_name = {
            name: SideOutput(name, where, schema, "emit what side= declares, or correct side=")
            for name, schema in schemas.items()
        }
        self._all = tuple(self._by_name.values())
        self.reached_ms: int | None = None

    def emit(self, name: str, row: Row) -> None:
        """Sends `row`, as it is now, to the side output `name`. Raises `InvalidJob` for an undeclared name."""
        try:
            output = self._by_name[name]
        except (KeyError, TypeError) as error:
            raise self._unknown(name) from error
        output.rows.append(row if references(row) == output.alone else output.taken(row))
        if self.reached_ms is not None:
            output.reached.append(self.reached_ms)

    def begin(self, reached_ms: int | None) -> None:
        """Starts a batch or watermark; drops rows that a failed batch left."""
        self.reached_ms = reached_ms
        for output in self._all:
            output.back_to(0)

    def check_none(self, method: str) -> None:
        """Raises `InvalidJob` if `method`, which runs without a row, emitted rows: they would be dropped."""
        for output in self._all:
            if output.rows:
                raise InvalidJob(
                    f"{self._where}: {method} emits into {output.name!r}, but rows go out only with a row or a timer: "
                    "emit it there, with the first one for instance"
                )

    def counts(self) -> list[int]:
        return [len(output.rows) for output in self._all]

    def back_to(self, counts: list[int]) -> None:
        """Drops the rows added since `counts()` returned `counts`."""
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
    """Rows emitted by the current call, dropped before a repetition (`state/values/undo`)."""

    def __init__(self, sides: SideOutputs) -> None:
        self._sides = sides

    def begin(self) -> None:
        self._before = self._sides.counts()

    def put_back(self) -> None:
        self._sides.back_to(self._before)


def send(emit: Emit, name: str, batch: Batch, metrics: MetricGroup) -> None:
    """Sends to the side output `name`. Rows without readers are dropped and counted."""
    if not emit.to(name, batch):
        metrics.count(UNREAD_SIDE_ROWS, len(batch))


DEAD_LETTERS = "dead letters"  # tag of the side output


class DeadLetterOperator(Operator):
    def __init__(self, name: str, error: str, good: Sequence[str], dead_letter: Mapping[str, str]) -> None:
        """`error`: the column that is null in good rows. `good`: columns of good rows. `dead_letter`: columns of bad
        records, new name -> column."""
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
