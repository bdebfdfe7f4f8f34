"""Statistics of a job. They decide nothing."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from typing import Literal

import msgspec

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint, CheckpointPhase
from barrier_runtime.coordinator.checkpoints.commits import CommitTracker
from barrier_runtime.coordinator.log.decision_log import LogEntry, complete_of
from barrier_runtime.coordinator.log.record_builder import Identity
from barrier_runtime.coordinator.metric_table import LATE_LEFT_ROWS, LATE_RIGHT_ROWS, LATE_ROWS, Gauge
from barrier_runtime.coordinator.metric_table import Counter as CounterRow
from barrier_runtime.coordinator.status import history
from barrier_runtime.coordinator.status.generation_status import GenerationKind
from barrier_runtime.coordinator.status.health import StoreRetry
from barrier_runtime.coordinator.status.history import History, KnownSlot, RunOutcome
from barrier_runtime.coordinator.status.latency import LatencyHour
from barrier_runtime.coordinator.status.status import (
    CheckpointStatus,
    DurationCounts,
    FailureStatus,
    JobStatus,
    RecoveryStatus,
    SavepointStatus,
    SlotDuring,
    SubtaskPhases,
    TakeoverStatus,
)
from barrier_runtime.coordinator.status.store_use import StoreUseBetween
from barrier_runtime.coordinator.status.trend import Trend
from barrier_runtime.coordinator.wire.messages import Ack, SubtaskFailed
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.use import StoreCounts
from barrier_runtime.state.texts import counted

HISTORY = 100
SAVEPOINTS = 50
SUBTASKS = 16  # per checkpoint, in full; `subtask_durations` has the others
_MISSING = 64
_FAILURES = 20
_FAILURES_OF_A_GENERATION = 3  # further failures are mostly broken connections
LONGEST_ERROR = 4_000


class JobRecord:
    def __init__(
        self,
        slots_during: Callable[[int, int], tuple[SlotDuring, ...]],
        slots_metrics: Callable[[], Iterable[tuple[str, Mapping[str, float]]]],
    ) -> None:
        """`slots_metrics`: (process uuid, last metrics)."""
        self._slots_during = slots_during
        self._slots_metrics = slots_metrics
        self._store_use = StoreUseBetween()
        self.failures: deque[FailureStatus] = deque(maxlen=_FAILURES)
        self.takeovers: deque[TakeoverStatus] = deque(maxlen=HISTORY)
        self.times_taken_over = 0
        self.durations = DurationCounts()
        self.latency_hour = LatencyHour()
        self.trend = Trend()  # of this process alone
        self.triggered = 0
        self.completed = 0
        self.failed = 0
        self.generations = 0
        self.ignored: Counter[str] = Counter()
        self.last_completed: CheckpointStatus | None = None
        self.history: deque[CheckpointStatus] = deque(maxlen=HISTORY)
        self.recoveries: deque[RecoveryStatus] = deque(maxlen=HISTORY)
        self.savepoints: tuple[SavepointStatus, ...] = ()  # requested from predecessors
        self._remembered = 0  # last checkpoint completed before this process led
        self.absent_slots: tuple[int, ...] = ()  # not registered in time: the job failed
        self.fenced_by: str | None = None
        self.error: str | None = None
        self.store_retries: dict[str, StoreRetry] = {}
        self.revision = 0  # rises with each event that should be stored

    def remember(self, known: History | None, completes: tuple[LogEntry, ...]) -> None:
        """Continues with history and the log's later decisions (`completes`, newest first)."""
        known = known or History(job="", run_id="")
        self.triggered, self.completed, self.failed = known.triggered, known.completed, known.failed
        self.generations = known.generations
        self.last_completed = known.last_completed
        self.history = deque(known.history, HISTORY)
        self.recoveries = deque(known.recoveries, HISTORY)
        self.failures = deque(known.failures, _FAILURES)
        self.takeovers = deque(known.takeovers, HISTORY)
        self.times_taken_over, self.durations = known.taken_over, known.durations
        self.latency_hour.remember(known.latency_hour)
        self.savepoints = known.savepoints
        for entry in reversed(completes):
            self._completed_in_log(entry)
        self.triggered = max(self.triggered, self.completed + self.failed)
        self._remembered = 0 if self.last_completed is None else self.last_completed.checkpoint

    def history_of(self, job: str, run_id: str, slots: tuple[KnownSlot, ...], outcome: RunOutcome | None) -> History:
        return History(
            job=job,
            run_id=run_id,
            triggered=self.triggered,
            completed=self.completed,
            failed=self.failed,
            generations=self.generations,
            last_completed=self.last_completed,
            history=tuple(self.history),
            recoveries=tuple(self.recoveries),
            failures=tuple(self.failures),
            takeovers=tuple(self.takeovers),
            taken_over=self.times_taken_over,
            durations=self.durations,
            latency_hour=self.latency_hour.points(),
            slots=slots,
            outcome=outcome,
        )

    def _completed_in_log(self, entry: LogEntry) -> None:
        record = complete_of(entry)
        if self.last_completed is not None and record.checkpoint <= self.last_completed.checkpoint:
            return
        status = CheckpointStatus(
            checkpoint=record.checkpoint,
            token=record.token,
            outcome=CheckpointPhase.COMPLETE.value,
            reason="known from the log alone",
            triggered_ms=record.wall_ms,
            duration_ms=0,
        )
        self.completed += 1
        self.last_completed = status
        self.history.append(status)

    def checkpoint_ended(self, checkpoint: Checkpoint, reason: str, now_ms: int) -> None:
        self._store_use.tell_slots(self._slots_metrics())
        entry = msgspec.structs.replace(
            _entry(checkpoint, reason, now_ms, self._slots_during(checkpoint.triggered_ms, now_ms)),
            store=self._store_use.since_last(),
        )
        last = msgspec.structs.replace(entry, phases=b"")
        self.history.append(entry)
        self.forget_phases()
        self.revision += 1
        if checkpoint.phase is CheckpointPhase.COMPLETE:
            self.completed += 1
            self.durations = self.durations.with_one(entry.duration_ms)
            self.last_completed = last
        elif checkpoint.phase is not CheckpointPhase.SUBSUMED:
            self.failed += 1

    def completed_as(self, checkpoint: int) -> CheckpointStatus | None:
        complete = CheckpointPhase.COMPLETE.value
        known = (*self.history, *((self.last_completed,) if self.last_completed is not None else ()))
        return next((each for each in known if each.checkpoint == checkpoint and each.outcome == complete), None)

    def forget_phases(self) -> None:
        together = 0
        for index in range(len(self.history) - 1, -1, -1):
            entry = self.history[index]
            if not entry.phases:
                continue
            together += min(entry.parts, history.MOST)
            if together > history.MOST_TOGETHER:
                self.history[index] = msgspec.structs.replace(entry, phases=b"")

    def store_used(self, counts: StoreCounts) -> None:
        self._store_use.tell_own(counts)

    def store_retried(self, what: str, error: str, keeps_from: Literal["progress", "sweeping"]) -> None:
        before = self.store_retries.get(what)
        attempts = 1 if before is None else before.attempts + 1
        self.store_retries[what] = StoreRetry(what, error, attempts, keeps_from)

    def commits_seen(self, commits: CommitTracker, now_ms: int) -> None:
        for index in range(len(self.history) - 1, -1, -1):
            entry = self.history[index]
            if entry.outcome != CheckpointPhase.COMPLETE.value:
                continue
            if entry.commit_duration_ms is not None or entry.checkpoint <= self._remembered:
                return
            if commits.all_through(entry.checkpoint):
                decided_ms = entry.triggered_ms + entry.duration_ms
                took_ms = max(0, now_ms - decided_ms)
                done = msgspec.structs.replace(entry, commit_duration_ms=took_ms, slowest_commit=commits.last_through)
                self.history[index] = done
                if self.last_completed is not None and self.last_completed.checkpoint == done.checkpoint:
                    self.last_completed = msgspec.structs.replace(done, phases=b"")

    def recovery_began(self, token: int, reason: str, started_ms: int, kind: GenerationKind) -> None:
        self.generations += 1
        self.revision += 1
        self.recoveries.append(RecoveryStatus(token, reason, started_ms, None, None, None, kind))

    def subtask_failed(self, slot: int, failed: SubtaskFailed, now_ms: int) -> None:
        known = [each for each in self.failures if each.token == failed.token]
        if len(known) >= _FAILURES_OF_A_GENERATION or any(each.slot == slot for each in known):
            return
        subtask = "" if failed.subtask is None else str(failed.subtask)
        error = shortened(failed.error, LONGEST_ERROR)
        self.failures.append(
            FailureStatus(failed.token, now_ms, slot, subtask, failed.operator, error, failed.retryable)
        )
        self.revision += 1

    def taken_over(self, token: int, by: Identity, now_ms: int) -> None:
        mark = TakeoverStatus(token, by.leader, now_ms)
        if by.predecessor is not None:
            led_ms = self.takeovers[-1].at_ms if self.takeovers else 0  # some process led at least until then
            away_ms = max(0, now_ms - max(led_ms, by.predecessor.ended_ms))
            mark = msgspec.structs.replace(mark, ended=by.predecessor.ended, away_ms=away_ms)
        self.takeovers.append(mark)
        self.times_taken_over += 1
        self.revision += 1

    @property
    def restarts(self) -> int:
        return sum(each.kind == "recovery" for each in self.recoveries)

    def recovery_because(self, reason: str) -> None:
        if self.recoveries:
            self.recoveries[-1] = msgspec.structs.replace(self.recoveries[-1], reason=reason)

    def slots_ready(self, now_ms: int) -> None:
        if self.recoveries:
            self.recoveries[-1] = msgspec.structs.replace(self.recoveries[-1], slots_ready_ms=now_ms)

    def recovered(self, now_ms: int) -> None:
        if self.recoveries and self.recoveries[-1].running_ms is None:
            last = self.recoveries[-1]
            self.revision += 1
            self.recoveries[-1] = msgspec.structs.replace(last, running_ms=now_ms, duration_ms=now_ms - last.started_ms)


def shortened(text: str, most: int) -> str:
    """Keeps both ends: a traceback begins with the call and ends with the error."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half:,} characters are left out) …\n{text[-half:]}"


def _entry(checkpoint: Checkpoint, reason: str, now_ms: int, slots: tuple[SlotDuring, ...]) -> CheckpointStatus:
    acks = list(checkpoint.acks.values())
    snapshots = [snapshot for ack in acks for snapshot in ack.operators]
    keyed = [snapshot.keyed for snapshot in snapshots if snapshot.keyed is not None]
    in_flight_bytes = sum(each.file.size for snapshot in snapshots for each in snapshot.in_flight)
    acked, deciding = checkpoint.entered_ms(CheckpointPhase.PERSISTING), checkpoint.entered_ms(CheckpointPhase.DECIDING)
    return CheckpointStatus(
        checkpoint=checkpoint.id,
        token=checkpoint.token,
        outcome=checkpoint.phase.value,
        reason=reason,
        triggered_ms=checkpoint.triggered_ms,
        duration_ms=now_ms - checkpoint.triggered_ms,
        ack_duration_ms=None if acked is None else acked - checkpoint.triggered_ms,
        persist_duration_ms=None if acked is None or deciding is None else deciding - acked,
        decide_duration_ms=None if deciding is None else now_ms - deciding,
        start_delay_ms=max((ack.times.start_delay_ms for ack in acks), default=0.0),
        alignment_ms=max((ack.times.alignment_ms for ack in acks), default=0.0),
        sync_ms=max((ack.times.sync_ms for ack in acks), default=0.0),
        async_ms=max((ack.times.async_ms for ack in acks), default=0.0),
        new_bytes=sum(snapshot.new_bytes for snapshot in keyed) + in_flight_bytes,
        full_bytes=sum(snapshot.full_bytes for snapshot in keyed),
        in_flight_bytes=in_flight_bytes,
        parts=len(acks),
        subtasks=_slowest(checkpoint),
        phases=history.packed(checkpoint.acks, checkpoint.acked_ms, checkpoint.triggered_ms),
        missing=tuple(map(str, checkpoint.missing[:_MISSING])),
        slots=slots,
        state_bytes=_state_bytes(snapshots),
        chain_rows=_chain_rows(acks),
        records=sum(ack.times.read for ack in acks),
        median_ack_ms=_median_ack_ms(checkpoint),
    )


def _slowest(checkpoint: Checkpoint) -> tuple[SubtaskPhases, ...]:
    slowest = nlargest(SUBTASKS, checkpoint.acked_ms.items(), key=lambda acked: acked[1])
    return tuple(_phases(checkpoint.acks[subtask], acked_ms - checkpoint.triggered_ms) for subtask, acked_ms in slowest)


def _phases(ack: Ack, ack_ms: int) -> SubtaskPhases:
    times = ack.times
    keyed = [snapshot.keyed for snapshot in ack.operators if snapshot.keyed is not None]
    in_flight_bytes = sum(each.file.size for snapshot in ack.operators for each in snapshot.in_flight)
    return SubtaskPhases(
        chain=ack.subtask.chain,
        subtask=ack.subtask.index,
        ack_ms=ack_ms,
        start_delay_ms=round(times.start_delay_ms, 1),
        alignment_ms=round(times.alignment_ms, 1),
        sync_ms=round(times.sync_ms, 1),
        async_ms=round(times.async_ms, 1),
        precommit_ms=times.precommit_ms,
        upload_ms=times.upload_ms,
        slowest=times.slowest,
        new_bytes=history.new_bytes(ack),
        full_bytes=sum(each.full_bytes for each in keyed),
        in_flight_bytes=in_flight_bytes,
        rows=times.rows,
        busy_ms=times.busy_ms,
        blocked_ms=times.blocked_ms,
        held_ms=times.held_ms,
        step_ms=times.step_ms,
        step_chain=times.step_chain,
        step_reading=times.step_reading,
        starved_ms=times.starved_ms,
    )


def _state_bytes(snapshots: Iterable[OperatorSnapshot]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for snapshot in snapshots:
        if snapshot.keyed is not None:
            sizes[snapshot.operator] += snapshot.keyed.full_bytes
    return dict(sizes)


def _chain_rows(acks: Iterable[Ack]) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for ack in acks:
        rows[str(ack.subtask.chain)] += ack.times.rows
    return dict(rows)


def _median_ack_ms(checkpoint: Checkpoint) -> int | None:
    acked = sorted(checkpoint.acked_ms.values())
    return acked[len(acked) // 2] - checkpoint.triggered_ms if acked else None


_MERGES: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


def totals(of_slots: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for metrics in of_slots:
        for key, figure in metrics.items():
            found[key] = found.get(key, 0.0) + figure
    return found


def over_slots(metric: CounterRow | Gauge, of_slots: Iterable[Mapping[str, float]]) -> float | None:
    """Merges an operator's figure also over operators; None without reports."""
    found: list[float] = []
    for metrics in of_slots:
        if metric.of == "operator":
            found += [value for key, value in metrics.items() if key.endswith(metric.key())]
        elif metric.name in metrics:
            found.append(metrics[metric.name])
    return _MERGES[metric.over_slots](found) if found else None


def rows_by_step(status: JobStatus, *counters: CounterRow) -> dict[str, int]:
    names = {each.name for each in counters}
    found: dict[str, float] = {}
    for key, rows in totals(slot.metrics for slot in status.slots).items():
        step, _, metric = key.rpartition(".")
        if metric in names and rows:
            found[step] = found.get(step, 0.0) + rows
    return {step: int(rows) for step, rows in sorted(found.items())}


def late_rows(status: JobStatus) -> dict[str, int]:
    return rows_by_step(status, LATE_ROWS, LATE_LEFT_ROWS, LATE_RIGHT_ROWS)


def late_rows_in_words(status: JobStatus) -> str:
    dropped = late_rows(status)
    steps = ", ".join(f"{counted(rows, 'row')} too late for {step!r}" for step, rows in dropped.items())
    return f"{steps} dropped" if steps else ""


def repeated_in_words(status: JobStatus) -> str:
    rows = status.records_after_checkpoint
    were = "was" if rows == 1 else "were"
    return f"at least {rows:,} of the records {were} read after the last checkpoint" if rows else ""
