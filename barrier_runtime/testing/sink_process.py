"""One generation of sink subtasks as certification runs it: the real `SinkOperator` around the sink under test, its
work done by hand and in one thread, with a *moment* before every call into the sink at which the process can be ended
or held up.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import CommitReport, Emit, OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.testing.judge import Broken, Written
from barrier_runtime.testing.kill_lines import Lines
from barrier_runtime.testing.watched_sink import WatchedSink

SINK = "out"
_ATTEMPTS = 6  # of a call that raises, before it counts as failed for ever
_LONGEST_WAIT_S = 0.5


class CrashPoints:
    """Counts the crash points of one process and does `act` at one of them (None: at none)."""

    def __init__(self, at: int | None = None, act: Callable[[], None] | None = None) -> None:
        self.passed = 0
        self._at = at
        self._act = act

    def next(self) -> None:
        self.passed += 1
        if self.passed - 1 == self._at and self._act is not None:
            self._act()


@dataclass(frozen=True)
class Place:
    """What a process has from the environment around it."""

    job: str
    lineage: str
    make_sink: Callable[[], TwoPhaseCommitSink]
    make_store: Callable[[str], ObjectStore]
    job_store: ObjectStore
    note: Callable[[str], None]  # a step, for the report
    began: Callable[[Written], None]
    committed: Callable[[Sequence[bytes]], None]  # from now on these must be seen


class _Executor:
    """Does one piece of blocking work at a time, when told."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append((work, done))

    def run_one(self) -> None:
        self.work_of_one()()

    def work_of_one(self) -> Callable[[], None]:
        """Do the oldest piece of work, if there is one; what is returned tells the operator of the outcome."""
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
    """What one subtask told the coordinator."""

    def __init__(self) -> None:
        self.committed_through = 0
        self.globally_through = 0
        self.error = ""  # of the last commit that failed

    def add(self, report: CommitReport) -> None:
        if report.error is not None:
            self.error = report.error
        elif report.globally:
            self.globally_through = max(self.globally_through, report.checkpoint)
        else:
            self.committed_through = max(self.committed_through, report.checkpoint)


class _Hand:
    """One opened subtask."""

    def __init__(self, operator: SinkOperator, sink: WatchedSink, executor: _Executor) -> None:
        self.operator = operator
        self.sink = sink
        self.executor = executor
        self.reports = _Reports()
        self.later: deque[tuple[float, Callable[[], None]]] = deque()


def _no_keyed_state() -> Any:
    raise AssertionError("a sink opens no keyed state")


class Process:
    """All subtasks of one generation. Every method may raise `Crash` (at the chosen moment) or `Broken`."""

    def __init__(self, place: Place, token: int, parallelism: int, crash_points: CrashPoints, lines: Lines) -> None:
        self.place = place
        self.token = token
        self.parallelism = parallelism
        self.crash_points = crash_points
        self.lines = lines
        self.hands: list[_Hand] = []
        self.sinks: list[WatchedSink] = []  # also such as could not be opened
        self.last_checkpoint = 0
        self.is_zombie = False  # a newer generation is there: nothing of this one is decided any more
        self.written: list[Written] = []
        self.names: dict[bytes, str] = {}

    def moment(self, what: str) -> None:
        self.crash_points.next()
        self.place.note(f"generation {self.token}, {what}")

    def named(self, committable: bytes) -> str:
        return self.names.get(committable, "a committable of an earlier generation")

    def open_next(self, restored: tuple[OperatorSnapshot, ...]) -> None:
        """Open one subtask more; it recovers what `restored` decided. Raises what the sink raises."""
        subtask = len(self.hands)
        sink = WatchedSink(self.place.make_sink(), self, subtask)
        self.sinks.append(sink)
        hand = _Hand(SinkOperator(SINK, lambda: sink), sink, _Executor())
        hand.operator.open(
            OperatorContext(
                job=self.place.job,
                token=self.token,
                operator=SINK,
                subtask=subtask,
                parallelism=self.parallelism,
                max_parallelism=128,
                restored=restored,
                open_keyed=_no_keyed_state,
                executor=hand.executor,
                snapshot_executor=hand.executor,
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

    def began(self, written: Written) -> None:
        self.written.append(written)
        self.place.began(written)

    def committed(self, committables: Sequence[bytes]) -> None:
        self.place.committed(committables)

    def write(self, subtask: int, rows: pa.RecordBatch, ids: Sequence[int]) -> None:
        hand = self.hands[subtask]
        self.open_transaction(subtask).ids.extend(ids)  # before the call: it may be the last one
        hand.operator.process(Batch(rows, 0), Emit(lambda batch: None))
        while hand.executor.waiting:
            hand.executor.run_one()

    def open_transaction(self, subtask: int) -> Written:
        return [each for each in self.written if each.subtask == subtask][-1]

    def seal(self, subtask: int, blocking: Callable[[], dict[str, bytes]]) -> OperatorSnapshot:
        """The blocking part of a snapshot: pre-commit. Raises what the sink raises."""
        snapshot = OperatorSnapshot(SINK, subtask, self.parallelism, blocking())
        for each in self.written:
            if each.committable is not None:
                self.names.setdefault(each.committable, f"checkpoint {each.checkpoint}")
        return snapshot

    def work_of_one_each(self) -> list[Callable[[], None]]:
        return [hand.executor.work_of_one() for hand in self.hands]

    def settle(self, subtask: int, through: int, *, globally: bool = False) -> Iterator[None]:
        """Do the subtask's waiting work, a step each, until it is through with checkpoint `through`."""
        hand = self.hands[subtask]
        for attempt in range(_ATTEMPTS):
            while hand.executor.waiting:
                hand.executor.run_one()
                yield
            reached = hand.reports.globally_through if globally else hand.reports.committed_through
            if reached >= through or self.is_zombie:
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
        """The process is gone: nothing of it is called any more, and its memory is free."""
        for sink in self.sinks:
            if kill is not None:
                kill(sink.sink)
            sink.__dict__.clear()
        for hand in self.hands:
            hand.operator.__dict__.clear()
            hand.executor.waiting.clear()
            hand.later.clear()
        self.hands.clear()
        self.sinks.clear()

    def close(self) -> None:
        for hand in self.hands:
            hand.operator.close()
