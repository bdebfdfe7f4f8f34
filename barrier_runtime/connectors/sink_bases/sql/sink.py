"""Exactly-once rows in a SQL table: inserted or upserted by key, one transaction per commit.

Subtask 0 raises the mark, if the mark is as known, and writes the decided rows of all subtasks, in one transaction.
Design: docs/design/sql-sinks.md.

| the process dies or stalls …           | its successor                                                      |
|----------------------------------------|--------------------------------------------------------------------|
| before the decision                    | deletes the rows                                                   |
| after it, before the transaction       | writes the rows                                                    |
| inside the transaction                 | waits until the server has ended it, then finds the mark unchanged |
| in the commit, with an unknown result  | finds the mark raised, or not                                      |
| after it, before the rows were deleted | finds the mark raised, and deletes the rows                        |

A zombie writes only decided rows, and finds the mark of its successor.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.job_log import decided_checkpoints
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.sql.columns import Fitted, fitted
from barrier_runtime.connectors.sink_bases.sql.dialect import MOST_ROWS, DeliveryMark, Dialect, SqlSession
from barrier_runtime.connectors.sink_bases.write_ahead import BatchingSink, DecidedBatch
from barrier_runtime.data.schemas import key_columns
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound
from barrier_runtime.state.texts import counted

Step = TypeVar("Step")


class CommitGroups:
    """Chooses how many decided checkpoints a sink commits together: at most `most_bytes`, at least one.

    A failure halves the group, so that the failing checkpoint does not hold back older checkpoints.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._most: int | None = None

    @property
    def limited(self) -> bool:
        """Returns whether steps of a failed group are not committed yet."""
        return self._most is not None

    def failed(self, steps: int, error: BarrierRuntimeError) -> None:
        """Halves the next group. Raises `error` for a single step, and if the target may be unavailable."""
        if steps == 1:
            raise error
        self._most = steps // 2
        if isinstance(error, Unavailable):
            raise error

    def commit(
        self, steps: Sequence[Step], size: Callable[[Step], int], commit: Callable[[Sequence[Step]], None]
    ) -> None:
        done = 0
        while done < len(steps):
            group = steps[done : done + self._fitting(steps[done:], size)]
            try:
                commit(group)
            except BarrierRuntimeError as error:
                self.failed(len(group), error)
            else:
                done += len(group)
                if self._most is not None:
                    self._most *= 2
        self._most = None

    def _fitting(self, steps: Sequence[Step], size: Callable[[Step], int]) -> int:
        total = 0
        for count, step in enumerate(steps[: self._most]):
            total += size(step)
            if count and total > self.most_bytes:
                return count
        return len(steps[: self._most])


Mode = Literal["insert", "upsert"]


class SqlSink(BatchingSink):
    """Sink of a table; `mode="upsert"` replaces rows with equal `key` columns."""

    def __init__(
        self, dialect: Dialect, table: str, *, mode: Mode, key: str | Sequence[str], max_bytes_in_memory: int
    ) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        name = type(self).__name__
        if mode not in ("insert", "upsert"):
            raise InvalidJob(f"{name}: mode={mode!r}: mode is 'insert' or 'upsert'")
        self.key = key_columns(key, f"{name}: key")
        self.last_row_wins = bool(self.key)
        if (mode == "upsert") != bool(self.key):
            raise InvalidJob(
                f"{name}: mode={mode!r} with key={key!r}: mode='upsert' needs the columns of the key, "
                "key=['id'], and mode='insert' has none"
            )
        if not 1 <= max_bytes_in_memory <= 256 << 20:
            raise InvalidJob(f"{name}: max_bytes_in_memory={max_bytes_in_memory!r}: use up to 256 MiB")
        self._dialect = dialect
        self.table = table
        self.mode = mode

    def __repr__(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.key else "insert"
        return f"{type(self).__name__}({self.shown_table} at {self._dialect.place}, {how})"

    @property
    def shown_table(self) -> str:
        """Name of the table."""
        return self.table

    def settings(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "mode": self.mode,
            "key": list(self.key),
            "max_bytes_in_memory": self.max_bytes_in_memory,
        }

    def target(self) -> str:
        return f"table {self.shown_table}"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        dialect = self._dialect
        self._fits: tuple[Fitted, ...] = ()
        self._marks: dict[DeliveryMark, int] = {}  # a missing mark may lack a row in the database
        self._groups = CommitGroups(MOST_ROWS)
        self._session = SqlSession(dialect, self._where)
        self._target: Any = self._session.run(
            "opening the sink", lambda connection: dialect.read_target(connection, self.table, self.key, self._where)
        )
        self._session.run(
            "making the bookkeeping's tables", lambda connection: dialect.make_marks(connection, self._where)
        )

    def close(self) -> None:
        if hasattr(self, "_session"):
            self._session.close()

    def check_schema(self, schema: pa.Schema) -> None:
        dialect, target = self._dialect, self._target
        self._fits = fitted(schema, target.columns, dialect.column_table, target.shown, self._where, self.key)
        dialect.check_columns(target, self.key, schema.names, self._where)

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        together = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return [self._dialect.checked(batch, self._fits, self._target, self._where) for batch in together]

    def deliver_batches(self, batches: Sequence[DecidedBatch]) -> None:
        for lineage in dict.fromkeys(batch.lineage for batch in batches):
            mark = DeliveryMark(self._context.job, self._context.sink, lineage)
            self._deliver_lineage(mark, [batch for batch in batches if batch.lineage == lineage])

    def _deliver_lineage(self, mark: DeliveryMark, batches: Sequence[DecidedBatch]) -> None:
        due = self._due(mark, batches)
        if not due:
            return
        if not self._groups.limited and _rows_of(due) <= MOST_ROWS:
            try:
                self._deliver(mark, due)
            except BarrierRuntimeError as error:  # only the log lists the decisions between which to halve
                self._groups.failed(len(self._steps(mark, due)), error)
            else:
                return
        self._groups.commit(
            self._steps(mark, due),
            _rows_of,
            lambda steps: self._deliver(mark, [batch for step in steps for batch in step]),
        )

    def _due(self, mark: DeliveryMark, batches: Sequence[DecidedBatch]) -> list[DecidedBatch]:
        known = self._marks.get(mark, 0)
        return [batch for batch in batches if batch.checkpoint > known]

    def _steps(self, mark: DeliveryMark, due: Sequence[DecidedBatch]) -> list[list[DecidedBatch]]:
        """Groups batches that must appear together, oldest first; a group ends with a decided checkpoint.

        An aborted checkpoint has rows of some subtasks only, and appears with the next decided checkpoint. Batches of
        an older lineage are one group.
        """
        if len(due) == 1 or mark.lineage != self._context.lineage:
            return [list(due)]
        steps: list[list[DecidedBatch]] = []
        shown = 0
        for decided in [*decided_checkpoints(self._context, due[0].checkpoint - 1), due[-1].checkpoint]:
            step = [batch for batch in due if shown < batch.checkpoint <= decided]
            if step:
                steps.append(step)
            shown = max(shown, decided)
        return steps

    def _deliver(self, mark: DeliveryMark, batches: Sequence[DecidedBatch]) -> None:
        checkpoint = batches[-1].checkpoint
        what = f"committing checkpoint {checkpoint}"
        while due := self._due(mark, batches):
            try:
                if mark not in self._marks:
                    self._look_up(mark, what, make=True)
                elif self._written(mark, due, what):
                    self._marks[mark] = checkpoint
                else:
                    self._look_up(mark, what)
            except ObjectNotFound as error:
                # A successor may have written the rows and deleted the objects.
                self._look_up(mark, what)
                if self._marks[mark] < checkpoint:
                    raise Corrupt(
                        f"{self._where}: of the {counted(_rows_of(due), 'row')} that checkpoints up to {checkpoint} "
                        f"decided some are gone, and table {self._target.shown} does not have them ({error}). Were "
                        "they aborted, moved or deleted? Restore the object from a backup; the commit is tried again"
                    ) from error

    def _written(self, mark: DeliveryMark, due: Sequence[DecidedBatch], what: str) -> bool:
        raising = {**mark.names, "known": self._marks[mark], "checkpoint": due[-1].checkpoint}
        objects = [staged for batch in due for staged in batch.objects]
        return self._session.run(
            what,
            lambda connection: self._dialect.deliver(
                connection, self._target, self.key, raising, objects, self._read_all(objects)
            ),
        )

    def _look_up(self, mark: DeliveryMark, what: str, *, make: bool = False) -> None:
        ask = self._dialect.mark_made if make else self._dialect.mark_read
        try:
            found = self._session.run(what, lambda connection: ask(connection, mark))
        except Unavailable:
            self._marks.pop(mark, None)  # the row may be missing
            raise
        self._marks[mark] = max(found, self._marks.get(mark, 0))


def _rows_of(batches: Sequence[DecidedBatch]) -> int:
    return sum(batch.rows for batch in batches)
