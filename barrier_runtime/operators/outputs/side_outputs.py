"""Rows that a step gives beside its main output: collected while a batch is processed, sent on when it ends.

A row counts as it was when it was emitted, and has the event time that was reached then, as yielded rows have. Between
two calls of an operator nothing is kept here, so no snapshot holds any of it.

Bad records of a source on a side output of their own, good rows on the main output.

A source that hands on what it cannot decode gives both in one batch, so that positions count all of them; here, right
behind it, they part.
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
    """Rows of one side output, of one declared schema."""

    __slots__ = ("alone", "name", "reached", "rows", "taken", "writer")

    def __init__(self, name: str, where: str, schema: pa.Schema, remedy: str) -> None:
        """`remedy`: what to do about a row that does not fit."""
        self.name = name
        self.writer = RowWriter(f"side output {name!r} of {where}", schema, remedy)
        self.taken = self.writer.taken
        self.alone = min(ALONE_ARGUMENT, self.writer.alone)  # too low only means more copies
        self.rows: list[Row] = []
        self.reached: list[int] = []  # at each row, or nothing

    def add(self, row: Row, reached_ms: int | None) -> None:
        """A row that nobody else holds."""
        self.rows.append(row)
        if reached_ms is not None:
            self.reached.append(reached_ms)

    def back_to(self, count: int) -> None:
        """Only the first `count` rows stay."""
        del self.rows[count:]
        del self.reached[count:]

    def flush(self, emit: Emit, emit_ns: int, metrics: MetricGroup) -> None:
        """Raises `InvalidJob` for a row that does not fit the schema."""
        if self.rows:
            reached = np.array(self.reached, np.int64) if self.reached else None
            batch = Batch(self.writer.made(self.rows), emit_ns, reached)
            self.back_to(0)
            send(emit, self.name, batch, metrics)


class SideOutputs:
    """The side outputs that a user's function names. `emit` is its `ctx.emit`. `reached_ms`: the event time reached at
    what is emitted now; None where that is not told row by row."""

    def __init__(self, where: str, schemas: Mapping[str, pa.Schema]) -> None:
        self._where = where
        self._by_name = {
            name: SideOutput(name, where, schema, "emit what side= declares, or correct side=")
            for name, schema in schemas.items()
        }
        self._all = tuple(self._by_name.values())
        self.reached_ms: int | None = None

    def emit(self, name: str, row: Row) -> None:
        """Give `row` to the side output `name` as it is now. Raises `InvalidJob` for a name that is not declared."""
        try:
            output = self._by_name[name]
        except (KeyError, TypeError) as error:
            raise self._unknown(name) from error
        output.rows.append(row if references(row) == output.alone else output.taken(row))
        if self.reached_ms is not None:
            output.reached.append(self.reached_ms)

    def begin(self, reached_ms: int | None) -> None:
        """A batch or a watermark comes. What one that failed has left is dropped."""
        self.reached_ms = reached_ms
        for output in self._all:
            output.back_to(0)

    def check_none(self, method: str) -> None:
        """After `method`, a function of the user's that runs for no row: what it emitted would be dropped."""
        for output in self._all:
            if output.rows:
                raise InvalidJob(
                    f"{self._where}: {method} emits into {output.name!r}, but rows go out only with a row or a timer: "
                    "emit it there, with the first one for instance"
                )

    def counts(self) -> list[int]:
        return [len(output.rows) for output in self._all]

    def back_to(self, counts: list[int]) -> None:
        """What came since `counts()` said this is dropped."""
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
    """What the call at hand emits, to be dropped if it is repeated (`state/values/undo`)."""

    def __init__(self, sides: SideOutputs) -> None:
        self._sides = sides

    def begin(self) -> None:
        self._before = self._sides.counts()

    def put_back(self) -> None:
        self._sides.back_to(self._before)


def send(emit: Emit, name: str, batch: Batch, metrics: MetricGroup) -> None:
    """Into the side output `name`. Rows that nobody reads are dropped and counted."""
    if not emit.to(name, batch):
        metrics.count(UNREAD_SIDE_ROWS, len(batch))


DEAD_LETTERS = "dead letters"  # tag of the side output


class DeadLetterOperator(Operator):
    def __init__(self, name: str, error: str, good: Sequence[str], dead_letter: Mapping[str, str]) -> None:
        """`error`: the column that is null in good rows. `good`: columns of these. `dead_letter`: of the others, new
        name to column."""
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
