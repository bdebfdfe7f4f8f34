"""Idempotent upserts: rows are written by key as they arrive, and again after a restart.

Nothing is staged or undone, so the target may show rows of a checkpoint that is never decided. This is harmless only if
the replay writes *the same* values under *the same* keys: after the job has caught up, the target is as without a
failure. Only the user can declare this: without `deterministic=True` the sink is at-least-once. `docs/upserts.md` shows
the effect of a wrong declaration.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases.row_buffer import InOrder, RowBuffer
from barrier_runtime.data.few_rows import FewRows

Upserts = RowBuffer[bool]


class UpsertSink(TwoPhaseCommitSink):
    """Base of sinks that overwrite by key; subclasses define `upsert`.

    `deterministic` declares that equal input always makes equal rows, in the same order per key: nothing in the rows
    comes from the clock, chance, or a look-up elsewhere.
    """

    required_methods: ClassVar[tuple[str, ...]] = ("upsert",)
    write_bytes: ClassVar[int] = 256 << 10  # Arrow bytes of rows that are written at once; the rest waits for a barrier

    def __init__(self, *, deterministic: bool = False) -> None:
        self.deterministic = deterministic
        self.guarantee = "exactly_once" if deterministic else "at_least_once"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raises `InvalidJob` for columns that the target cannot take.

        Runs on the event loop, at the first rows.
        """

    def upsert(self, rows: pa.RecordBatch) -> None:
        """Writes every row under its key, in order, and returns when the target cannot lose the rows.

        Runs off the event loop, one call at a time. A call that raises is repeated.
        """
        raise NotImplementedError

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = context.where
        self._schema_checked = False
        self._buffers: InOrder[bool] = InOrder()

    def begin_transaction(self) -> Upserts:
        return self._buffers.begin()

    def write(self, transaction: Upserts, rows: pa.RecordBatch) -> None:
        if not self._schema_checked:
            self.check_schema(rows.schema)
            self._schema_checked = True
        transaction.write(rows)

    def write_few(self, transaction: Upserts, rows: FewRows) -> None:
        if not self._schema_checked:
            self.check_schema(rows.schema)
            self._schema_checked = True
        transaction.write_few(rows)

    def stage_early(self, transaction: Upserts) -> Callable[[], None] | None:
        if transaction.bytes_in_current < self.write_bytes:
            return None
        transaction.fill_up()

        def write() -> None:
            self._buffers.stage(transaction, self._upsert, closed=False)

        return write

    def pre_commit(self, transaction: Upserts, checkpoint: int) -> None:
        self._buffers.stage(transaction, self._upsert, closed=True)

    def commit(self, committable: bytes) -> None:
        """Never called: pre-commit returns no committable."""

    def abort(self, committable: bytes) -> None:
        """Does nothing: written rows cannot be undone."""

    def _upsert(self, batches: Sequence[pa.RecordBatch]) -> bool:
        for rows in pa.Table.from_batches(batches).combine_chunks().to_batches():
            self.upsert(rows)
        return True
