"""Half of `for_each_batch` in the slots: stages rows and requests calls (see `batch_function/queue`).

A checkpoint is visible only after the program has noted the function's success, so a job ends only after the last batch
was delivered. A slow or failing function delays later batches, which wait in storage; if too many wait, the stream
waits. The function stays in the program (`batch_function/caller`).
"""

import threading
import time
from collections.abc import Sequence

import pyarrow as pa

from barrier_runtime.connectors.batch_function.queue import BatchQueue, parquet
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.decided_batch import BatchingSink, DecidedBatch
from barrier_runtime.state.errors import InvalidJob, Unavailable

_MOST_DECIDED = 16  # batches that wait for the function; at this number the stream waits
_FIRST_LOOK_S = 0.02
_LONGEST_LOOK_S = 1.0
_TELL_AFTER_S = 10.0  # then the job's status reports the wait, and the commit is retried


class BatchFunctionSink(BatchingSink):
    """Sink of `stream.for_each_batch`. `function`: name for messages."""

    def __init__(self, function: str = "", *, max_bytes_in_memory: int = 32 << 20) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        self.function = function

    def __repr__(self) -> str:
        return f"for_each_batch({self.function})"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self.most_decided = _MOST_DECIDED
        self._closing = threading.Event()
        self._queue = BatchQueue(context.job_store, context.job, context.sink)
        if context.subtask == 0:
            self._queue.clean_up(context.lineage)

    def check_schema(self, schema: pa.Schema) -> None:
        try:
            parquet(schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidJob(
                f"{self._where}: Parquet cannot hold these columns ({error}): cast them or leave them out with select()"
            ) from error

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return parquet(batches)

    def deliver_batch(self, batch: DecidedBatch) -> None:
        if not self._queue.is_done(batch):
            self._queue.ask(batch)
            self.wait_until_done(batch)
        self._queue.withdraw(batch)

    def wait_until_done(self, batch: DecidedBatch) -> None:
        """Waits for the program's note. Raises `Unavailable` after some seconds without success."""
        look_s, until_s = _FIRST_LOOK_S, time.monotonic() + _TELL_AFTER_S
        while not self._queue.is_done(batch):
            if self._closing.wait(look_s) or time.monotonic() > until_s:
                raise Unavailable(
                    f"{self._where}: {self.function or 'the function'} of for_each_batch has not returned for "
                    f"checkpoint {batch.checkpoint} ({batch.rows} rows) yet: see the log of the program that started "
                    "the job"
                )
            look_s = min(look_s * 1.5, _LONGEST_LOOK_S)

    def close(self) -> None:
        if hasattr(self, "_closing"):
            self._closing.set()
