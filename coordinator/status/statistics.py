"""What has happened to a job, for people: counters, the last checkpoints, the recoveries. Decides nothing.

It outlives the coordinator in the job's history (`history`). The log knows better: a decision that the history lacks is
counted from there.
"""

from collections import Counter, deque
from typing import Literal

import msgspec

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint, CheckpointPhase
from barrier_runtime.coordinator.checkpoints.commits import CommitTracker
from barrier_runtime.coordinator.log.decision_log import LogEntry, complete_of
from barrier_runtime.coordinator.status.health import StoreRetry
from barrier_runtime.coordinator.status.history import History, KnownSlot, RunOutcome
from barrier_runtime.coordinator.status.status import CheckpointStatus, RecoveryStatus

HISTORY = 100


class JobRecord:
    def __init__(self) -> None:
        self.triggered = 0
        self.completed = 0
        self.failed = 0
        self.generations = 0
        self.ignored: Counter[str] = Counter()
        self.last_completed: CheckpointStatus | None = None
        self.history: deque[CheckpointStatus] = deque(maxlen=HISTORY)
        self.recoveries: deque[RecoveryStatus] = deque(maxlen=HISTORY)
        self._remembered = 0  # the last checkpoint that completed before this process led
        self.absent_slots: tuple[int, ...] = ()  # did not come in time, and the job failed for that
        self.fenced_by: str | None = None
        self.error: str | None = None
        self.store_retries: dict[str, StoreRetry] = {}  # store calls that failed and are being repeated
        self.revision = 0  # rises when something happened that is worth remembering

    def remember(self, known: History | None, completes: tuple[LogEntry, ...]) -> None:
        """Go on from what was stored, and from what the log says beyond it (`completes`, newest first)."""
        known = known or History(job="", run_id="")
        self.triggered, self.completed, self.failed = known.triggered, known.completed, known.failed
        self.generations = known.generations
        self.last_completed = known.last_completed
        self.history = deque(known.history, HISTORY)
        self.recoveries = deque(known.recoveries, HISTORY)
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
        entry = _entry(checkpoint, reason, now_ms)
        self.history.append(entry)
        self.revision += 1
        if checkpoint.phase is CheckpointPhase.COMPLETE:
            self.completed += 1
            self.last_completed = entry
        elif checkpoint.phase is not CheckpointPhase.SUBSUMED:
            self.failed += 1

    def store_retried(self, what: str, error: str, keeps_from: Literal["progress", "sweeping"]) -> None:
        before = self.store_retries.get(what)
        attempts = 1 if before is None else before.attempts + 1
        self.store_retries[what] = StoreRetry(what, error, attempts, keeps_from)

    def commits_seen(self, commits: CommitTracker, now_ms: int) -> None:
        """Note when the sinks had caught up with a completed checkpoint."""
        for index in range(len(self.history) - 1, -1, -1):
            entry = self.history[index]
            if entry.outcome != CheckpointPhase.COMPLETE.value:
                continue
            if entry.commit_duration_ms is not None or entry.checkpoint <= self._remembered:
                return
            if commits.all_through(entry.checkpoint):
                decided_ms = entry.triggered_ms + entry.duration_ms
                done = msgspec.structs.replace(entry, commit_duration_ms=max(0, now_ms - decided_ms))
                self.history[index] = done
                if self.last_completed is not None and self.last_completed.checkpoint == done.checkpoint:
                    self.last_completed = done

    def recovery_began(self, token: int, reason: str, started_ms: int) -> None:
        self.generations += 1
        self.revision += 1
        self.recoveries.append(RecoveryStatus(token, reason, started_ms, None, None, None))

    def recovery_because(self, reason: str) -> None:
        """More became known of why the present generation was needed."""
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


def _entry(checkpoint: Checkpoint, reason: str, now_ms: int) -> CheckpointStatus:
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
    )
