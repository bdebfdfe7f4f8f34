"""Half of `for_each_batch` in the program that started the job: calls the user's function.

| batch                     | event                                     | then                                         |
|---------------------------|-------------------------------------------|----------------------------------------------|
| asked                     | it is the oldest of its lineage           | call the function with its rows              |
| asked                     | the function returned                     | note it: the next one's turn                 |
| asked                     | the function raised                       | call it again later, with the same rows      |
| asked                     | … as often as `attempts` says             | `BatchFunctionFailed`: the job is stopped    |
| asked, but noted          | (a sink that was late asked again)        | nothing: the sink withdraws it               |
| asked, its rows are gone  | it was withdrawn meanwhile                | nothing                                      |
| asked, its rows are gone  | it is asked all the same                  | as if the function had raised                |

If the program dies after the function has returned and before the success is noted, the function is called again with
the same rows and the same number. A target that stores `checkpoint.application` and `checkpoint.number` together with
the rows writes them once.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from barrier_runtime.connectors.batch_function.queue import BatchQueue
from barrier_runtime.connectors.sink_bases.decided_batch import DecidedBatch
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound

log = logging.getLogger("barrier_runtime.job")


@dataclass(frozen=True)
class BatchCheckpoint:
    """Identity of a batch, equal whenever the rows are repeated.

    Numbers only rise within an `application`, with gaps: a checkpoint without rows makes no batch.
    """

    job: str
    sink: str
    lineage: str
    number: int
    rows: int

    @property
    def application(self) -> str:
        """Identity of the writer, for targets that remember a number per writer, such as Delta's `txnAppId`."""
        return f"{self.job}/{self.sink}/{self.lineage}"

    @property
    def token(self) -> str:
        """Idempotency key of the batch, for targets that take a text."""
        return f"{self.application}/{self.number}"


BatchFunction: TypeAlias = Callable[[Any, BatchCheckpoint], Any]
MakeFrame: TypeAlias = Callable[[BatchQueue, DecidedBatch], Any]


@dataclass(frozen=True)
class BatchCall:
    """Function of a `for_each_batch` in a plan; never sent to the slots."""

    function: BatchFunction
    attempts: int


class BatchFunctionFailed(InvalidJob):
    """Raised when the function of `for_each_batch` has failed in all attempts."""


def arrow_table(queue: BatchQueue, batch: DecidedBatch) -> Any:
    """Returns the function's argument for a run without Spark."""
    return queue.read(batch)


class BatchCaller:
    """Calls the function for the decided batches of a queue.

    `attempts`: number of failures of a batch that end the job. `failures`: number of failures of the next batch so far.
    """

    def __init__(self, queue: BatchQueue, function: BatchFunction, attempts: int, make_frame: MakeFrame) -> None:
        self._queue = queue
        self._function = function
        self._attempts = attempts
        self._make_frame = make_frame
        self.failures = 0

    def turn(self) -> bool:
        """Calls the function for the waiting batches in order, until a call fails.
        Returns True if there were any.

        Raises errors of the store, and `BatchFunctionFailed`.
        """
        worked = False
        for batch in self._queue.asked():
            if self._queue.is_done(batch):
                continue
            worked = True
            if not self._called(batch):
                break
        return worked

    def _called(self, batch: DecidedBatch) -> bool:
        checkpoint = BatchCheckpoint(batch.job, batch.sink, batch.lineage, batch.checkpoint, batch.rows)
        try:
            self._function(self._make_frame(self._queue, batch), checkpoint)
        except Exception as error:
            if isinstance(error, ObjectNotFound) and not self._queue.is_asked(batch):
                return True
            self._failed(checkpoint, error)
            return False
        self.failures = 0
        self._queue.note(batch)
        return True

    def _failed(self, checkpoint: BatchCheckpoint, error: Exception) -> None:
        self.failures += 1
        said = (
            f"for_each_batch {checkpoint.sink!r} of job {checkpoint.job!r}: {function_name(self._function)} raised "
            f"{type(error).__name__} for checkpoint {checkpoint.number} ({checkpoint.rows} rows): {error}"
        )
        if self.failures >= self._attempts:
            raise BatchFunctionFailed(
                f"{said}\n  That was attempt {self.failures} of {self._attempts}. Nothing is lost: fix the function "
                "or its target and start the job again; it is called with the same rows and the same checkpoint"
            ) from error
        log.warning("%s; attempt %d of %d, it is called again", said, self.failures, self._attempts)
