"""Sinks that write rows as they arrive: at least once, or upserts by key. Nothing is staged or undone."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pyarrow as pa

from barrier_runtime.connectors.sink import Acknowledgement, SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases.row_buffer import InOrder, RowBuffer
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.state.errors import InvalidJob

Rows = RowBuffer[None]


class DirectSink(TwoPhaseCommitSink):
    """Writes rows at once; subclasses define `write_out`, and perhaps `acknowledgement`.

    A checkpoint is acknowledged when the target has every row before the barrier.
    """

    writes_at_once = True
    _schema_checked = False
    write_bytes: ClassVar[int] = 256 << 10  # waiting Arrow bytes that are written at once

    def check_schema(self, schema: pa.Schema) -> None:
        """Raises `InvalidJob` for columns that the target cannot take; on the loop, at the first rows."""

    def check_rows(self, schema: pa.Schema) -> None:
        """Checks each batch, on the loop."""
        if not self._schema_checked:
            self.check_schema(schema)
            self._schema_checked = True

    def write_out(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Hands rows to the target, in order; off the loop, one call at a time, repeated if it raises."""
        raise NotImplementedError

    def acknowledgement(self) -> Acknowledgement | None:
        """Returns a call that waits until the target has all rows of `write_out`; None: the target has them."""
        return None

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = context.where
        self._buffers = InOrder()

    def begin_transaction(self) -> Rows:
        return self._buffers.begin()

    def write(self, transaction: Rows, rows: pa.RecordBatch) -> None:
        self.check_rows(rows.schema)
        transaction.write(rows)

    def write_few(self, transaction: Rows, rows: FewRows) -> None:
        self.check_rows(rows.schema)
        transaction.write_few(rows)

    def stage_early(self, transaction: Rows) -> Callable[[], Acknowledgement | None] | None:
        return None if transaction.bytes_in_current < self.write_bytes else self.stage_now(transaction)

    def stage_now(self, transaction: Rows) -> Callable[[], Acknowledgement | None] | None:
        if not transaction.fill_up():
            return None

        def write() -> Acknowledgement | None:
            self._buffers.stage(transaction, self.write_out, closed=False)
            return self.acknowledgement()

        return write

    def pre_commit(self, transaction: Rows, checkpoint: int) -> None:
        self._buffers.stage(transaction, self.write_out, closed=True)

    def commit(self, committable: bytes) -> None:
        """Never called."""

    def abort(self, committable: bytes) -> None:
        """Does nothing: written rows stay."""


class UpsertSink(DirectSink):
    """Base of sinks that overwrite by key; subclasses define `upsert`.

    The target may show rows of a checkpoint that is never decided (docs/upserts.md). The sink is at-least-once, or
    exactly-once with either argument:

    - `deterministic` declares that equal input makes equal rows, in the same order per key: nothing comes from the
      clock, chance, or a look-up elsewhere.
    - `after_decision`: the runtime stores the rows with each checkpoint and passes them on after the decision. Rows
      arrive up to a checkpoint interval later.
    """

    required_methods: ClassVar[tuple[str, ...]] = ("upsert",)

    def __init__(self, *, deterministic: bool = False, after_decision: bool = False) -> None:
        if deterministic and after_decision:
            raise InvalidJob(
                f"{type(self).__name__}: deterministic=True and after_decision=True: leave out one: "
                "keep after_decision if a replay may make other rows, deterministic if rows are to be visible at once"
            )
        self.deterministic = deterministic
        self.after_decision = after_decision
        self.guarantee = "exactly_once" if deterministic or after_decision else "at_least_once"

    def upsert(self, rows: pa.RecordBatch) -> None:
        """Writes every row under its key, in order, and returns when the target cannot lose the rows.

        Runs off the loop, one call at a time; repeated if it raises.
        """
        raise NotImplementedError

    def write_out(self, batches: Sequence[pa.RecordBatch]) -> None:
        for rows in pa.Table.from_batches(batches).combine_chunks().to_batches():
            self.upsert(rows)
