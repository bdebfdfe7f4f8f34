"""Idempotent upserts: rows are written by key as they arrive, and again after a restart.

Nothing is staged or undone, so the target may show rows of a checkpoint that is never decided. This is harmless only if
the replay writes *the same* values under *the same* keys: after the job has caught up, the target is as without a
failure. Only the user can declare this: without `deterministic=True` the sink is at-least-once. `docs/upserts.md` shows
the effect of a wrong declaration.
"""

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from barrier_runtime.connectors.sink_bases.direct import DirectSink


class UpsertSink(DirectSink):
    """Base of sinks that overwrite by key; subclasses define `upsert`.

    `deterministic` declares that equal input always makes equal rows, in the same order per key: nothing in the rows
    comes from the clock, chance, or a look-up elsewhere.
    """

    required_methods: ClassVar[tuple[str, ...]] = ("upsert",)

    def __init__(self, *, deterministic: bool = False) -> None:
        self.deterministic = deterministic
        self.guarantee = "exactly_once" if deterministic else "at_least_once"

    def upsert(self, rows: pa.RecordBatch) -> None:
        """Writes every row under its key, in order, and returns when the target cannot lose the rows.

        Runs off the event loop, one call at a time. A call that raises is repeated.
        """
        raise NotImplementedError

    def write_out(self, batches: Sequence[pa.RecordBatch]) -> None:
        for rows in pa.Table.from_batches(batches).combine_chunks().to_batches():
            self.upsert(rows)
