"""The sink under test as certification watches it: every call is noted, and is a moment at which its process may end.

It also knows which calls returned: from then on a reader must see the rows.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.testing.judge import Written
from barrier_runtime.testing.kill_lines import Lines


class Watcher(Protocol):
    """Who is told of the calls: the process that the sink is in."""

    token: int
    parallelism: int
    lines: Lines

    def moment(self, what: str) -> None: ...

    def began(self, written: Written) -> None: ...

    def named(self, committable: bytes) -> str: ...

    def committed(self, committables: Sequence[bytes]) -> None:
        """From now on they must be seen."""


class _Open:
    """A transaction of the sink under test and what is known of it."""

    __slots__ = ("transaction", "written")

    def __init__(self, transaction: Any, written: Written) -> None:
        self.transaction = transaction
        self.written = written


class WatchedSink(TwoPhaseCommitSink):
    """Passes every call on; a moment before each, a note of each."""

    def __init__(self, sink: TwoPhaseCommitSink, watcher: Watcher, subtask: int) -> None:
        self.sink = sink
        self.guarantee = sink.guarantee
        self.global_committer = sink.global_committer
        self.commits_together = sink.commits_together
        self.keeps_rows = sink.keeps_rows
        self._watcher = watcher
        self._subtask = subtask

    def _call(self, what: str) -> None:
        self._watcher.moment(f"subtask {self._subtask}: {what}")

    def open(self, context: SinkContext) -> None:
        self._call("open")
        with self._watcher.lines.watched():
            self.sink.open(context)

    def begin_transaction(self) -> _Open:
        written = Written(self._watcher.token, self._subtask, self._watcher.parallelism)
        self._watcher.began(written)
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

    def encode_early(self, transaction: _Open) -> Callable[[], None] | None:
        return self.sink.encode_early(transaction.transaction)

    def pre_commit(self, transaction: _Open, checkpoint: int) -> bytes | None:
        self._call(f"pre_commit({checkpoint})")
        with self._watcher.lines.watched():
            transaction.written.committable = self.sink.pre_commit(transaction.transaction, checkpoint)
        transaction.written.checkpoint = checkpoint
        return transaction.written.committable

    def kept(self, stored: Container[str]) -> Mapping[str, bytes]:
        kept = self.sink.kept(stored)
        if kept:
            raise InvalidJob(
                "certify judges sinks that show the rows of a checkpoint when it is decided, and this one keeps rows "
                "for later ones: certify it without roll_bytes and roll_age"
            )
        return kept

    def kept_names(self) -> frozenset[str]:
        return self.sink.kept_names()

    def end_of_input(self) -> None:
        self.sink.end_of_input()

    def commit(self, committable: bytes) -> None:
        self._call(f"commit of {self._watcher.named(committable)}")
        with self._watcher.lines.watched():
            self.sink.commit(committable)
        if not self.global_committer:
            self._watcher.committed([committable])

    def commit_together(self, committables: Sequence[bytes]) -> None:
        self._call(f"commit of {' and '.join(map(self._watcher.named, committables))}")
        with self._watcher.lines.watched():
            self.sink.commit_together(committables)
        if not self.global_committer:
            self._watcher.committed(committables)

    def abort(self, committable: bytes) -> None:
        self._call(f"abort of {self._watcher.named(committable)}")
        self.sink.abort(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        self._call(f"commit_globally({checkpoint}) of {len(committables)} committables")
        with self._watcher.lines.watched():
            self.sink.commit_globally(checkpoint, committables)
        self._watcher.committed(committables)

    def recover(self, decided: Sequence[bytes]) -> None:
        self._call(f"recover {len(decided)} committables")
        with self._watcher.lines.watched():
            self.sink.recover(decided)
        if not self.global_committer:
            self._watcher.committed(decided)

    def close(self) -> None:
        self.sink.close()
