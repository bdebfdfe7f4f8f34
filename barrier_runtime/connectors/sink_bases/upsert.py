"""Idempotent upserts: rows are written by key as they arrive, and again after a restart.

Nothing is staged or undone, so the target may show rows of a checkpoint that is never decided. This is harmless only if
the replay writes *the same* values under *the same* keys: after the job has caught up, the target is as without a
failure. Only the user can declare this (`deterministic=True`); `docs/upserts.md` shows the effect of a wrong
declaration. With `after_decision=True` a `stable` step before the sink makes replays equal: docs/design/stable-rows.md.
"""

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from barrier_runtime.connectors.sink_bases.direct import DirectSink
from barrier_runtime.state.errors import InvalidJob


class UpsertSink(DirectSink):
    """Base of sinks that overwrite by key; subclasses define `upsert`.

    Without an argument the sink is at-least-once. Either argument makes the sink exactly-once:

    - `deterministic` declares that equal input always makes equal rows, in the same order per key: nothing in the rows
      comes from the clock, chance, or a look-up elsewhere.
    - `after_decision` needs no declaration: the runtime stores the rows with each checkpoint and passes them to the
      sink after its decision (`Stream.stable`), with equal values after a restart. Rows arrive up to a checkpoint
      interval later.
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

        Runs off the event loop, one call at a time. A call that raises is repeated.
        """
        raise NotImplementedError

    def write_out(self, batches: Sequence[pa.RecordBatch]) -> None:
        for rows in pa.Table.from_batches(batches).combine_chunks().to_batches():
            self.upsert(rows)
