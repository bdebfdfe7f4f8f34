"""A miniature job around a sink: positions, checkpoints, a decision log and generations, run by hand in one thread.

All parts of the sink are real (operator, driver, encoders, store). The harness acts as the slot and the coordinator:
it crashes at a place chosen by the test, restores the last *decided* checkpoint with a higher token, and continues.
"""

import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import CommitReport, OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.state.snapshots.snapshot import OWN, FileRef, OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectStore, PutOutcome

SCHEMA = pa.schema([("n", pa.int64())])
Store = TypeVar("Store", bound=ObjectStore)
NOW_NS = 100_000_000  # for latencies


class Crash(BaseException):
    """Death of the process; no `except Exception` catches it."""


class CrashingStore:
    """Passes every call on, and crashes before or after the write chosen by the test."""

    def __init__(self, store: ObjectStore, crash_at: int | None = None) -> None:
        self._store = store
        self._moments = 0  # two per write: before and after
        self._crash_at = crash_at

    @property
    def url(self) -> str:
        return self._store.url

    def _moment(self) -> None:
        if self._moments == self._crash_at:
            raise Crash
        self._moments += 1

    def put(self, key: str, data: bytes) -> None:
        self._moment()
        self._store.put(key, data)
        self._moment()

    def put_file(self, key: str, path: Path) -> None:
        self._moment()
        self._store.put_file(key, path)
        self._moment()

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        self._moment()
        outcome = self._store.put_if_absent(key, data)
        self._moment()
        return outcome

    def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._moment()
            self._store.delete([key])
        self._moment()

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        self._moment()
        self._store.publish(staged, final, sha256)
        self._moment()

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._store.get(key, offset, size)

    def get_file(self, key: str, path: Path) -> None:
        self._store.get_file(key, path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix)


class HandExecutor:
    """Runs submitted work on the test's command, so commits can be late."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._waiting.append((work, done))

    def run(self) -> int:
        ran = 0
        while self._waiting:
            work, done = self._waiting.pop(0)
            ran += 1
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)
        return ran


class Reports(list[CommitReport]):
    @property
    def committed_checkpoints(self) -> list[int]:
        return [each.checkpoint for each in self if each.error is None and not each.globally]

    @property
    def committed_globally_through(self) -> int:
        return max((each.checkpoint for each in self if each.error is None and each.globally), default=0)

    @property
    def failing(self) -> list[tuple[int, int, str]]:
        return [(each.checkpoint, each.attempts, each.error) for each in self if each.error is not None]


def no_keyed_state() -> Any:
    raise AssertionError("a sink opens no keyed state")


class Subtask:
    """An opened sink subtask, driven by hand."""

    def __init__(
        self,
        make_sink: Callable[[], TwoPhaseCommitSink],
        store: ObjectStore,
        token: int = 1,
        restored: tuple[OperatorSnapshot, ...] = (),
        subtask: int = 0,
        parallelism: int = 1,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.executor = HandExecutor()
        self.snapshot_executor = HandExecutor()
        self.writer = HandExecutor()  # of sinks that write at once
        self.listener = HandExecutor()  # of their acknowledgements
        self.woken = 0
        self.reports = Reports()
        self.metrics = MetricGroup(lambda: NOW_NS)
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.manifests: dict[int, OperatorSnapshot] = {}
        self.objects: dict[str, bytes] = {}  # large values stored by decided checkpoints, by key
        self.on_stored: dict[int, Callable[[dict[str, FileRef]], None]] = {}
        self.subtask = subtask
        self.parallelism = parallelism
        self.operator = SinkOperator("out", make_sink)
        self.operator.open(
            OperatorContext(
                job="job",
                token=token,
                operator="out",
                subtask=subtask,
                parallelism=parallelism,
                max_parallelism=128,
                restored=restored,
                open_keyed=no_keyed_state,
                executor=self.executor,
                snapshot_executor=self.snapshot_executor,
                new_executor=lambda: self.listener,
                new_awaited_executor=lambda: self.writer,
                metrics=self.metrics,
                local_dir=Path("/nowhere"),
                make_store=lambda url: store,
                job_store=store,
                lineage="lineage",
                wall_ms=wall_ms,
                call_later=lambda seconds, call: self.later.append((seconds, call)),
                wake=self._wake,
                report_commit=self.reports.append,
            )
        )

    def write(self, numbers: Iterable[int], emit_ns: int = 0) -> None:
        self.operator.process(
            Batch(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA), emit_ns), lambda batch: None
        )

    def barrier(self, checkpoint: int) -> Callable[[], OperatorSnapshot]:
        """Runs the synchronous part; calling the result runs the rest."""
        capture = self.operator.snapshot(checkpoint)

        def finish() -> OperatorSnapshot:
            assert capture.blocking is not None
            self.snapshot_executor.run()
            found = capture.blocking()
            assert not found.keys() & capture.stored.keys()
            stored = {name: self.objects[ref.key] for name, ref in capture.stored.items()}
            values = {**capture.values, **found, **stored}
            if capture.on_stored is not None:
                self.on_stored[checkpoint] = capture.on_stored
            self.manifests[checkpoint] = OperatorSnapshot("out", self.subtask, self.parallelism, values)
            return self.manifests[checkpoint]

        return finish

    def _manifest(self, checkpoint: int) -> tuple[OperatorSnapshot, ...]:
        return (self.manifests[checkpoint],)

    def settle(self) -> None:
        """Runs the executor, and acts as the coordinator of a job with only this sink subtask."""
        self.executor.run()
        while self.operator._sink.global_committer and self.parallelism == 1 and self._committed() > self._visible():
            through = self._committed()
            self.operator.on_commit_globally(through, partial(self._manifest, through))
            self.executor.run()
            if self._visible() < through:
                return  # failed: retried when time has passed
            self.operator.on_visible(through)

    def _wake(self) -> None:
        self.woken += 1

    def _committed(self) -> int:
        return max((each for each in self.reports.committed_checkpoints if each in self.manifests), default=0)

    def _visible(self) -> int:
        return self.reports.committed_globally_through

    def decided(self, checkpoint: int) -> None:
        """Notifies as the slot does: values that only one subtask restores count as large."""
        values = self.manifests[checkpoint].values if checkpoint in self.manifests else {}
        large = {name: value for name, value in values.items() if name.startswith(OWN)}
        self.objects.update({f"{checkpoint}/{name}": value for name, value in large.items()})
        refs = {name: FileRef(name, len(value), "", f"{checkpoint}/{name}") for name, value in large.items()}
        if checkpoint in self.on_stored:
            self.on_stored.pop(checkpoint)(refs)
        self.operator.on_complete(checkpoint)

    def complete(self, checkpoint: int) -> None:
        self.decided(checkpoint)
        self.settle()

    def pass_time(self) -> None:
        """Makes all delayed calls due now."""
        due, self.later = self.later, []
        for _, call in due:
            call()
        self.settle()


@dataclass
class Job:
    """Passes numbers 0 … `rows` - 1 through a sink subtask; a checkpoint follows every `rows_per_checkpoint` rows."""

    make_sink: Callable[[], TwoPhaseCommitSink]
    rows: int = 6
    rows_per_checkpoint: int = 2
    token: int = 0
    decided: list[tuple[int, int, OperatorSnapshot]] = field(default_factory=list)  # checkpoint, position, snapshot
    next_checkpoint: int = 1
    late_commits: bool = False
    ends: bool = False  # the input ends after the last row, with a final checkpoint

    def run(self, store: ObjectStore) -> None:
        self.token += 1
        position, restored = 0, ()
        if self.decided:
            _, position, snapshot = self.decided[-1]
            restored = (snapshot,)
        subtask = Subtask(self.make_sink, store, self.token, restored)
        if self.decided:
            subtask.manifests[self.decided[-1][0]] = self.decided[-1][2]
        while position < self.rows:
            end = min(self.rows, position + self.rows_per_checkpoint)
            for number in range(position, end):
                subtask.write([number])
            position = end
            checkpoint, self.next_checkpoint = self.next_checkpoint, self.next_checkpoint + 1
            self.decided.append((checkpoint, position, subtask.barrier(checkpoint)()))
            subtask.decided(checkpoint)
            if not self.late_commits:
                subtask.settle()
        if self.ends:
            subtask.operator.on_end(lambda batch: None)
            checkpoint, self.next_checkpoint = self.next_checkpoint, self.next_checkpoint + 1
            self.decided.append((checkpoint, position, subtask.barrier(checkpoint)()))
        if self.decided:
            subtask.operator.on_complete(self.decided[-1][0])  # also if no row followed a restore
        subtask.settle()


def numbers_in(store: ObjectStore) -> list[int]:
    """Returns the numbers in all visible files, in the order of file names."""
    return [number for key in visible_in(store) for number in numbers_of(key, store.get(key))]


def numbers_in_commit_log(store: ObjectStore, records: int | None = None) -> list[int]:
    """Returns the numbers that a reader of the commit log sees, in order; of the first `records` records, or of all."""
    log = read_commit_log(store, "job", "out")
    names = [file.name for record in log[:records] for file in record.files]
    return [number for name in names for number in numbers_of(name, store.get(name))]


def visible_in(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.list("") if not info.key.startswith(("_", ".")))


def numbers_of(name: str, data: bytes) -> list[int]:
    if name.endswith(".parquet"):
        return [int(n) for n in pq.read_table(io.BytesIO(data)).column("n").to_pylist()]
    if name.endswith(".jsonl"):
        return [json.loads(line)["n"] for line in data.splitlines()]
    return [int(n) for n in pyarrow.csv.read_csv(io.BytesIO(data)).column("n").to_pylist()]


def staged_in(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("_staging/")]


def crashed_everywhere(
    make_store: Callable[[], Store],
    make_sink: Callable[[], TwoPhaseCommitSink],
    crashing: Callable[[Store, int], ObjectStore],
    left_in: Callable[[Store], list[str]],
    late_commits: bool,
) -> int:
    """Runs a job of four rows that dies at every place of `crashing`, and reruns the job. Returns the number of
    places.
    """
    for crash_at in itertools.count():
        store, job, crashed = make_store(), Job(make_sink, rows=4, late_commits=late_commits), False
        try:
            job.run(crashing(store, crash_at))
        except Crash:
            crashed = True
            seen = numbers_in(store)
            assert seen == list(range(len(seen))), f"crash at {crash_at}"
            logged = numbers_in_commit_log(store)
            assert logged == seen[: len(logged)], f"crash at {crash_at}"
            job.run(store)
        assert numbers_in(store) == [0, 1, 2, 3], f"crash at {crash_at}"
        assert numbers_in_commit_log(store) == [0, 1, 2, 3], f"crash at {crash_at}"
        assert left_in(store) == [], f"crash at {crash_at}"
        if not crashed:
            return crash_at
    raise AssertionError("a job has an end")
