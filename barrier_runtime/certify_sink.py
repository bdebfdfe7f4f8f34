"""The sink under test as certification watches it: every call is noted, and is a moment at which its process may end.

It also knows which calls returned: from then on a reader must see the rows.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrier_runtime.certify_judge import Written
from barrier_runtime.sinks.base import SinkContext, TwoPhaseCommitSink

if TYPE_CHECKING:
    from barrier_runtime.certify_process import Process


class _Open:
    """A transaction of the sink under test and what is known of it."""

    __slots__ = ("transaction", "written")

    def __init__(self, transaction: Any, written: Written) -> None:
        self.transaction = transaction
        self.written = written


class WatchedSink(TwoPhaseCommitSink):
    """Passes every call on; a moment before each, a note of each."""

    def __init__(self, sink: TwoPhaseCommitSink, process: "Process", subtask: int) -> None:
        self.sink = sink
        self.guarantee = sink.guarantee
        self.global_committer = sink.global_committer
        self.commits_together = sink.commits_together
        self._process = process
        self._subtask = subtask

    def _call(self, what: str) -> None:
        self._process.moment(f"subtask {self._subtask}: {what}")

    def open(self, context: SinkContext) -> None:
        self._call("open")
        with self._process.lines.watched():
            self.sink.open(context)

    def begin_transaction(self) -> _Open:
        written = Written(self._process.token, self._subtask, self._process.parallelism)
        self._process.began(written)
        return _Open(self.sink.begin_transaction(), written)

    def write(self, transaction: _Open, rows: pa.RecordBatch) -> None:
        self._call(f"write {rows.num_rows} rows")
        self.sink.write(transaction.transaction, rows)

    def stage_early(self, transaction: _Open) -> Callable[[], None] | None:
        work = self.sink.stage_early(transaction.transaction)
        if work is None:
            return None

        def staged() -> None:
            self._call("stage early")
            work()

        return staged

    def pre_commit(self, transaction: _Open, checkpoint: int) -> bytes | None:
        self._call(f"pre_commit({checkpoint})")
        with self._process.lines.watched():
            transaction.written.committable = self.sink.pre_commit(transaction.transaction, checkpoint)
        transaction.written.checkpoint = checkpoint
        return transaction.written.committable

    def commit(self, committable: bytes) -> None:
        self._call(f"commit of {self._process.named(committable)}")
        with self._process.lines.watched():
            self.sink.commit(committable)
        if not self.global_committer:
            self._process.place.committed([committable])

    def commit_together(self, committables: Sequence[bytes]) -> None:
        self._call(f"commit of {' and '.join(map(self._process.named, committables))}")
        with self._process.lines.watched():
            self.sink.commit_together(committables)
        if not self.global_committer:
            self._process.place.committed(committables)

    def abort(self, committable: bytes) -> None:
        self._call(f"abort of {self._process.named(committable)}")
        self.sink.abort(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        self._call(f"commit_globally({checkpoint}) of {len(committables)} committables")
        with self._process.lines.watched():
            self.sink.commit_globally(checkpoint, committables)
        self._process.place.committed(committables)

    def recover(self, decided: Sequence[bytes]) -> None:
        self._call(f"recover {len(decided)} committables")
        with self._process.lines.watched():
            self.sink.recover(decided)
        if not self.global_committer:
            self._process.place.committed(decided)

    def close(self) -> None:
        self.sink.close()
