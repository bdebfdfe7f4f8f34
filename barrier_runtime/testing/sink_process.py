"""Generation of sink subtasks in a certification.

Work of the real `SinkOperator` runs step by step in one thread. Before every call into the sink the process may die or
stall.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.operators.base import Capture, CommitReport, Operator, OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.operators.stable import StableOperator
from barrier_runtime.runtime.operator_chain import OperatorChain
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.testing.crash_points import CrashPoints, ForwardingSink, Lines
from barrier_runtime.testing.judge import Broken, Written


class Watcher(Protocol):
    token: int
    parallelism: int
    lines: Lines

    def moment(self, what: str) -> None: ...

    def began(self, written: Written) -> None: ...

    def named(self, committable: bytes) -> str: ...

    def committed(self, committables: Sequence[bytes]) -> None:
        """Marks committables whose rows must be visible from now on."""


@dataclass(slots=True, eq=False)
class _Open:
    transaction: Any
    written: Written


class WatchedSink(ForwardingSink):
    def __init__(self, sink: TwoPhaseCommitSink, watcher: Watcher, subtask: int) -> None:
        super().__init__(sink)
        self._watcher = watcher
        self._subtask = subtask

    def _call(self, what: str) -> None:
        self._watcher.moment(f"subtask {self._subtask}: {what}")

    def open(self, context: SinkContext) -> None:
        self._call("open")
        with self._watcher.lines.watched():
            super().open(context)

    def begin_transaction(self) -> _Open:
        written = Written(self._watcher.token, self._subtask, self._watcher.parallelism)
        if not self.sink.after_decision:  # otherwise its transactions end after the rows' checkpoint
            self._watcher.began(written)
        return _Open(self.sink.begin_transaction(), written)

    def write(self, transaction: _Open, rows: pa.RecordBatch) -> None:
        self._call(f"write {rows.num_rows} rows")
        super().write(transaction.transaction, rows)

    def write_few(self, transaction: _Open, rows: FewRows) -> None:
        self._call(f"write {rows.count} rows as lists")
        super().write_few(transaction.transaction, rows)

    def stage_early(self, transaction: _Open) -> Callable[[], Any] | None:
        return self._watched(super().stage_early(transaction.transaction))

    def stage_now(self, transaction: _Open) -> Callable[[], Any] | None:
        return self._watched(super().stage_now(transaction.transaction))

    def _watched(self, work: Callable[[], Any] | None) -> Callable[[], Any] | None:
        if work is None:
            return None

        def staged() -> Any:
            self._call("stage early")
            return work()

        return staged

    def encode_early(self, transaction: _Open) -> Callable[[], None] | None:
        return super().encode_early(transaction.transaction)

    def pre_commit(self, transaction: _Open, checkpoint: int) -> bytes | None:
        self._call(f"pre_commit({checkpoint})")
        with self._watcher.lines.watched():
            transaction.written.committable = super().pre_commit(transaction.transaction, checkpoint)
        transaction.written.checkpoint = checkpoint
        return transaction.written.committable

    def kept(self, stored: Container[str]) -> Mapping[str, bytes]:
        kept = super().kept(stored)
        if kept:
            raise InvalidJob(
                "certify judges sinks that show the rows of a checkpoint when it is decided, and this one keeps rows "
                "for later ones: certify it without roll_bytes and roll_age"
            )
        return kept

    def commit(self, committable: bytes) -> None:
        self._call(f"commit of {self._watcher.named(committable)}")
        with self._watcher.lines.watched():
            super().commit(committable)
        if not self.global_committer:
            self._watcher.committed([committable])

    def commit_together(self, committables: Sequence[bytes]) -> None:
        self._call(f"commit of {' and '.join(map(self._watcher.named, committables))}")
        with self._watcher.lines.watched():
            super().commit_together(committables)
        if not self.global_committer:
            self._watcher.committed(committables)

    def abort(self, committable: bytes) -> None:
        self._call(f"abort of {self._watcher.named(committable)}")
        super().abort(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        self._call(f"commit_globally({checkpoint}) of {len(committables)} committables")
        with self._watcher.lines.watched():
            super().commit_globally(checkpoint, committables)
        self._watcher.committed(committables)

    def recover(self, decided: Sequence[bytes]) -> None:
        self._call(f"recover {len(decided)} committables")
        with self._watcher.lines.watched():
            super().recover(decided)
        if not self.global_committer:
            self._watcher.committed(decided)


SINK = "out"
_ATTEMPTS = 6
_LONGEST_WAIT_S = 0.5


@dataclass(frozen=True)
class Place:
    job: str
    sink: str
    lineage: str
    make_sink: Callable[[], TwoPhaseCommitSink]
    make_store: Callable[[str], ObjectStore]
    job_store: ObjectStore
    note: Callable[[str], None]
    began: Callable[[Written], None]
    committed: Callable[[Sequence[bytes]], None]


class _Executor:
    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append((work, done))

    def run_one(self) -> None:
        self.work_of_one()()

    def work_of_one(self) -> Callable[[], None]:
        """Runs the oldest waiting work; returns a function that reports the result."""
        if not self.waiting:
            return lambda: None
        work, done = self.waiting.popleft()
        try:
            result = work()
        except Exception as error:
            raised = error
            return lambda: done(None, raised)
        return lambda: done(result, None)


class _Reports:
    def __init__(self) -> None:
        self.committed_through = 0
        self.globally_through = 0
        self.error = ""

    def add(self, report: CommitReport) -> None:
        if report.error is not None:
            self.error = report.error
        elif report.globally:
            self.globally_through = max(self.globally_through, report.checkpoint)
        else:
            self.committed_through = max(self.committed_through, report.checkpoint)


class _Hand:
    def __init__(self, sink: WatchedSink) -> None:
        self.sink = sink
        self.executor = _Executor()
        self.reports = _Reports()
        self.later: deque[tuple[float, Callable[[], None]]] = deque()
        self.is_stored = sink.sink.after_decision
        self.chain = OperatorChain([], [])

    def open(self, context: OperatorContext) -> None:
        sink, stable = context.operator, f"{context.operator}-stable"
        operators: list[tuple[str, Operator]] = [(sink, SinkOperator(sink, lambda: self.sink))]
        if self.is_stored:
            operators.insert(0, (stable, StableOperator(stable)))
        for name, operator in operators:
            own = tuple(each for each in context.restored if each.operator == name)
            operator.open(dataclasses.replace(context, operator=name, restored=own))
        self.chain = OperatorChain(operators, [])

    @property
    def operator(self) -> Operator:
        return self.chain.operators[-1][1]

    def work(self) -> bool:
        """Runs a piece of waiting work, or passes decided rows to the sink. False: nothing to do."""
        if self.executor.waiting:
            self.executor.run_one()
            return True
        return self.chain.may_emit and self.chain.by_wall_clock()

    @property
    def has_written(self) -> bool:
        """Returns whether the target has all released rows; sinks without stored rows report commits."""
        return not (self.is_stored and self.later)

    def drop(self) -> None:
        for _, operator in self.chain.operators:
            operator.__dict__.clear()
        self.executor.waiting.clear()
        self.later.clear()


def _values(capture: Capture) -> dict[str, bytes]:
    values = capture.blocking() if capture.blocking is not None else {}
    return {**values, **dict(capture.parts() if capture.parts is not None else ())}


def _no_keyed_state() -> Any:
    raise AssertionError("a sink opens no keyed state")


class Process:
    """All subtasks of a generation. Every method may raise `Crash` or `Broken`."""

    def __init__(
        self,
        place: Place,
        token: int,
        parallelism: int,
        crash_points: CrashPoints,
        lines: Lines,
        at_call: Callable[[], None],
    ) -> None:
        self.place = place
        self.token = token
        self.parallelism = parallelism
        self.crash_points = crash_points
        self.lines = lines
        self._at_call = at_call
        self.hands: list[_Hand] = []
        self.sinks: list[WatchedSink] = []  # including sinks that failed to open
        self.last_checkpoint = 0
        self.is_zombie = False  # no further checkpoint is decided
        self.written: list[Written] = []
        self.names: dict[bytes, str] = {}

    def moment(self, what: str) -> None:
        if self.crash_points.reach("call"):
            self._at_call()
        self.place.note(f"generation {self.token}, {what}")

    def named(self, committable: bytes) -> str:
        return self.names.get(committable, "a committable of an earlier generation")

    def open_next(self, restored: tuple[OperatorSnapshot, ...]) -> None:
        """Opens the next subtask, which recovers decided transactions. Raises the sink's errors."""
        subtask = len(self.hands)
        sink = WatchedSink(self.place.make_sink(), self, subtask)
        self.sinks.append(sink)
        hand = _Hand(sink)
        hand.open(
            OperatorContext(
                job=self.place.job,
                token=self.token,
                operator=self.place.sink,
                subtask=subtask,
                parallelism=self.parallelism,
                max_parallelism=128,
                restored=restored,
                open_keyed=_no_keyed_state,
                executor=hand.executor,
                snapshot_executor=hand.executor,
                new_executor=lambda: hand.executor,
                new_awaited_executor=lambda: hand.executor,
                metrics=MetricGroup(),
                local_dir=Path("/nowhere"),
                make_store=self.place.make_store,
                job_store=self.place.job_store,
                call_later=lambda seconds, call: hand.later.append((seconds, call)),
                wake=lambda: None,
                lineage=self.place.lineage,
                report_commit=hand.reports.add,
            )
        )
        self.hands.append(hand)
        if hand.is_stored:
            self.began(Written(self.token, subtask, self.parallelism))

    def began(self, written: Written) -> None:
        self.written.append(written)
        self.place.began(written)

    def committed(self, committables: Sequence[bytes]) -> None:
        self.place.committed(committables)

    def write(self, subtask: int, rows: pa.RecordBatch | FewRows, ids: Sequence[int]) -> None:
        hand = self.hands[subtask]
        self.open_transaction(subtask).ids.extend(ids)  # before the call, which may be the last
        hand.chain.process(Batch(rows, 0), 0)
        while hand.work():
            pass

    def open_transaction(self, subtask: int) -> Written:
        return [each for each in self.written if each.subtask == subtask][-1]

    def capture(self, subtask: int, checkpoint: int) -> dict[str, Capture]:
        hand = self.hands[subtask]
        if hand.is_stored:
            self.open_transaction(subtask).checkpoint = checkpoint
            self.began(Written(self.token, subtask, self.parallelism))
        return hand.chain.capture(checkpoint)

    def seal(self, subtask: int, captures: Mapping[str, Capture]) -> list[OperatorSnapshot]:
        """Runs the blocking part of a snapshot. Raises the sink's errors."""
        snapshots = [
            OperatorSnapshot(name, subtask, self.parallelism, _values(capture)) for name, capture in captures.items()
        ]
        for each in self.written:
            if each.committable is not None:
                self.names.setdefault(each.committable, f"checkpoint {each.checkpoint}")
        return snapshots

    def work_of_one_each(self) -> list[Callable[[], None]]:
        return [hand.executor.work_of_one() for hand in self.hands]

    def settle(self, subtask: int, through: int, *, globally: bool = False) -> Iterator[None]:
        """Works until checkpoint `through` is committed."""
        hand = self.hands[subtask]
        for attempt in range(_ATTEMPTS):
            while hand.work():
                yield
            reached = hand.reports.globally_through if globally else hand.reports.committed_through
            if (reached >= through and hand.has_written) or self.is_zombie:
                return
            due = list(hand.later)
            hand.later.clear()
            if due and attempt:
                time.sleep(min(_LONGEST_WAIT_S, max(seconds for seconds, _ in due)))
            for _, call in due:
                call()
        raise Broken(
            "lost",
            f"subtask {subtask} cannot commit checkpoint {through}"
            f"{' globally' if globally else ''} after {_ATTEMPTS} attempts: {hand.reports.error or 'nothing is tried'}",
        )

    def drop(self, kill: Callable[[TwoPhaseCommitSink], None] | None) -> None:
        for sink in self.sinks:
            if kill is not None:
                kill(sink.sink)
            sink.__dict__.clear()
        for hand in self.hands:
            hand.drop()
        self.hands.clear()
        self.sinks.clear()

    def close(self) -> None:
        for hand in self.hands:
            for _, operator in hand.chain.operators:
                operator.close()
