"""The Spark job that carries the slots: one plain `mapPartitions` stage, submitted again when Spark gives it up.

Spark replaces a single dead task by itself; this file only starts the stage, kills the task of a slot that the
coordinator gave up, and submits a new job when the whole one failed while the coordinator still wants slots.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from barrier_runtime.spark.task import SlotSettings, expected, run_slot

_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 30.0
_QUIET_S = 60.0  # a job that lived this long resets the back-off


class SlotTasks:
    """`wanted()`: does the coordinator still run the job? Asked before a failed Spark job is submitted again."""

    def __init__(self, spark: Any, settings: SlotSettings, parallelism: int, wanted: Callable[[], bool]) -> None:
        self._spark = spark
        self._settings = settings
        self._parallelism = parallelism
        self._wanted = wanted
        self._group = f"barrier-runtime-{settings.run_id}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="barrier-spark-job", daemon=True)
        self.last_failure = ""
        self.submissions = 0

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def kill_task(self, task_attempt: int, reason: str) -> bool:
        """Ask Spark to kill one slot's task; it starts a replacement. False when it runs no such task."""
        return bool(self._spark.sparkContext._jsc.sc().killTaskAttempt(task_attempt, True, reason))

    def join(self, timeout_s: float) -> bool:
        """Wait for the slots to leave by themselves. True when they have."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End the Spark job whatever its slots do."""
        self._stopping.set()
        self._spark.sparkContext.cancelJobGroup(self._group)
        self._thread.join(30)

    def _supervise(self) -> None:
        delay = _FIRST_DELAY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._submit()
                return
            except Exception as error:  # Spark's own, of many kinds: all mean that the job is gone
                self.last_failure = str(error)[:4000]
            if time.monotonic() - began > _QUIET_S:
                delay = _FIRST_DELAY_S
            if self._stopping.wait(delay) or not self._wanted():
                return
            delay = min(delay * 2, _MAX_DELAY_S)

    def _submit(self) -> None:
        """Runs until every slot has left."""
        self.submissions += 1
        context = self._spark.sparkContext
        context.setLocalProperty("spark.jobGroup.id", self._group)
        context.setLocalProperty("spark.job.description", f"barrier-runtime {self._settings.graph.name}")
        context.setLocalProperty("spark.job.interruptOnCancel", "true")
        slots = context.parallelize(range(self._parallelism), self._parallelism)
        slots.mapPartitions(_slot_partition(self._settings)).collect()


def _last_words(slot: int, error: Exception, verbose: bool) -> str:
    if expected(error) and not verbose:
        return f"barrier-runtime: slot {slot} begins again: {error}"
    return f"barrier-runtime: slot {slot} failed:\n{''.join(traceback.format_exception(error))}"


def _slot_partition(settings: SlotSettings) -> Callable[[Any], Any]:
    def partition(indices: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for slot in indices:
            try:
                yield run_slot(slot, context.taskAttemptId(), settings)
            except Exception as error:
                # Spark's own report is silenced in our sessions (see `session`), and it will start the task again.
                print(_last_words(slot, error, settings.verbose), file=sys.stderr, flush=True)
                raise

    return partition
