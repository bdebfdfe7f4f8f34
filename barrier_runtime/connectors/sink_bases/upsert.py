"""Idempotent upserts: rows are written under their keys as they come, and written again after a restart.

Nothing is staged and nothing is taken back, so the target may show rows of a checkpoint that is never decided. That is
harmless only if the replay writes *the same* values under *the same* keys: then everything is overwritten by what was
there, and once the job has caught up, the target is what it would be without a failure. Only the user can know whether
that holds, so it must be declared: without `deterministic=True` the sink is at-least-once. What a wrong declaration
does: `docs/upserts.md`.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases.row_buffer import InOrder, RowBuffer
from barrier_runtime.data.few_rows import FewRows

Upserts = RowBuffer[bool]


class UpsertSink(TwoPhaseCommitSink):
    """Subclasses write `upsert`. `deterministic`: the same input always makes the same rows, in the same order per key:
    nothing in them comes from the clock, chance, or a look-up elsewhere."""

    required_methods: ClassVar[tuple[str, ...]] = ("upsert",)
    write_bytes: ClassVar[int] = 256 << 10  # Arrow bytes of rows that are written at once; the rest waits for a barrier

    def __init__(self, *, deterministic: bool = False) -> None:
        self.deterministic = deterministic
        self.guarantee = "exactly_once" if deterministic else "at_least_once"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `InvalidJob` for columns that the target cannot take. Called with the first rows, on the loop."""

    def upsert(self, rows: pa.RecordBatch) -> None:
        """Write every row under its key, in order, and return when the target will not lose them. Off the loop, one
        call at a time. What raises is tried again."""
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
        """Never called: pre-commit has nothing to hand over."""

    def abort(self, committable: bytes) -> None:
        """Nothing can be taken back."""

    def _upsert(self, batches: Sequence[pa.RecordBatch]) -> bool:
        for rows in pa.Table.from_batches(batches).combine_chunks().to_batches():
            self.upsert(rows)
        return True
