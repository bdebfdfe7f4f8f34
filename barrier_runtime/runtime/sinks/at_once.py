"""Writing at once: rows leave as they arrive, a write at a time.
Design: docs/design/writing-at-once.md.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from barrier_runtime.connectors.sink import Acknowledgement, TwoPhaseCommitSink
from barrier_runtime.coordinator.metric_table import EARLY_STAGING_FAILED, VISIBLE
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.metrics import EmitTimes
from barrier_runtime.runtime.sinks.driver import Backoff
from barrier_runtime.state.outside_errors import must_be_mended


class SinkTransaction:
    """Rows of a transaction of this incarnation, until they are visible."""

    __slots__ = ("began_ms", "checkpoint", "committable", "emitted", "sealed", "transaction")

    def __init__(self, transaction: Any, began_ms: int) -> None:
        self.transaction = transaction
        self.began_ms = began_ms
        self.emitted = EmitTimes()
        self.checkpoint = 0
        self.sealed = False  # set last by the sealing thread, when `committable` is final
        self.committable: bytes | None = None


_MOST_QUEUED = 2  # one running and one waiting, beside the gathering rows
_RETRIES = Backoff(first=0.1, most=5.0)


class _Write:
    __slots__ = ("acknowledgement", "times", "work")

    def __init__(self, work: Callable[[], Any], times: EmitTimes) -> None:
        self.work = work
        self.times = times
        self.acknowledgement: Acknowledgement | None = None


class AtOnce:
    """Writer of a sink. All methods run on the loop."""

    def __init__(self, sink: TwoPhaseCommitSink, context: OperatorContext) -> None:
        self._sink = sink
        self._context = context
        self._writer = context.new_awaited_executor()
        self._listener = context.new_executor()
        self._open: SinkTransaction | None = None
        self._queued: deque[_Write] = deque()
        self._sent: deque[_Write] = deque()
        self._heard = 0  # number of the first of `_sent` that the listener waits for; 0: idle
        self._attempts = 0
        self._pausing = False
        self._closed = False
        self.failed: Exception | None = None  # error that a person must mend

    @property
    def has_room(self) -> bool:
        """Returns True also after a failure: the next rows raise the error."""
        return len(self._queued) < _MOST_QUEUED or self.failed is not None

    def wrote(self, staged: SinkTransaction) -> None:
        self._open = staged
        work = self._sink.stage_early(staged.transaction)
        if work is not None:
            self._queue(staged, work)
        elif not self._queued and not self._pausing:
            self._write_rest()

    def barrier(self) -> None:
        self._write_rest()
        self._open = None

    def close(self) -> None:
        self._closed = True

    def _write_rest(self) -> None:
        if self._open is not None:
            work = self._sink.stage_now(self._open.transaction)
            if work is not None:
                self._queue(self._open, work)

    def _queue(self, staged: SinkTransaction, work: Callable[[], Any]) -> None:
        times, staged.emitted = staged.emitted, EmitTimes()
        self._queued.append(_Write(work, times))
        if len(self._queued) == 1:
            self._write()

    def _write(self) -> None:
        if not self._closed:
            self._writer.submit(self._queued[0].work, self._written)

    def _written(self, acknowledgement: Acknowledgement | None, error: BaseException | None) -> None:
        if self._closed:
            return
        if error is not None:
            self._write_failed(error)
            return
        self._attempts = 0
        write = self._queued.popleft()
        write.acknowledgement = acknowledgement
        self._sent.append(write)
        self._listen()
        self._context.wake()
        if self._queued:
            self._write()
        elif self._sink.pause_s:
            self._pausing = True
            self._context.call_later(self._sink.pause_s, self._pause_over)
        else:
            self._write_rest()

    def _pause_over(self) -> None:
        self._pausing = False
        if not self._closed and not self._queued:
            self._write_rest()

    def _write_failed(self, error: BaseException) -> None:
        self._context.metrics.count(EARLY_STAGING_FAILED)
        if self._must_end(error):
            return
        self._attempts += 1
        self._context.call_later(_RETRIES.delay(self._attempts), self._write)

    def _must_end(self, error: BaseException) -> bool:
        if isinstance(error, Exception) and must_be_mended(error):
            self.failed = error
            self._context.wake()
            return True
        return False

    def _listen(self) -> None:
        """Waits for the newest acknowledgement, which covers earlier writes."""
        while self._sent and self._sent[0].acknowledgement is None:
            self._show(self._sent.popleft())
        if self._sent and not self._heard:
            waits = [(number, write.acknowledgement) for number, write in enumerate(self._sent, 1)]
            self._heard, wait = [(number, wait) for number, wait in waits if wait is not None][-1]
            self._listener.submit(wait, self._acknowledged)

    def _acknowledged(self, _: Any, error: BaseException | None) -> None:
        heard, self._heard = self._heard, 0
        if self._closed or (error is not None and self._must_end(error)):
            return
        if error is None:
            for _write in range(heard):
                self._show(self._sent.popleft())
        self._listen()

    def _show(self, write: _Write) -> None:
        for emit_ns, rows in write.times.pairs():
            self._context.metrics.latency(VISIBLE, emit_ns, rows)
