"""Status from log and history, of a run that has ended or has another leader. Pure."""

from typing import Literal

import msgspec

from barrier_runtime.coordinator.log.decision_log import LogView
from barrier_runtime.coordinator.log.records import Fence, Finish
from barrier_runtime.coordinator.options import effective
from barrier_runtime.coordinator.status.health import ENDS
from barrier_runtime.coordinator.status.history import History
from barrier_runtime.coordinator.status.shares import chain_statuses
from barrier_runtime.coordinator.status.status import CheckpointsStatus, JobStatus, SavepointStatus
from barrier_runtime.coordinator.wire.messages import JobSpec

STANDBY = "STANDBY"
"""Condition of a job that another daemon leads, as shown by a standby daemon."""

Past = Literal["finished", "failed", "cancelled", "fenced"]


def past_status(view: LogView, history: History | None, run_id: str | None) -> JobStatus | None:
    """`run_id` None: the last run. Returns None if no end is recorded."""
    if view.head is None or view.fence is None or not isinstance(view.fence.record, Fence):
        return None
    fence = view.fence.record
    if run_id is not None and run_id != fence.spec.run_id:
        for entry in view.earlier_runs:
            earlier = entry.record
            if isinstance(earlier, Fence) and earlier.spec.run_id == run_id:
                by = f"generation {fence.token} of {fence.spec.submitter}"
                reason = f"job {earlier.spec.job} was taken over by {by}"
                return _status(earlier.spec, earlier.token, "fenced", reason, None, by)
        return None
    head = view.head.record
    if isinstance(head, Finish):
        reason = head.reason or f"job {fence.spec.job} had ended: {head.outcome}"
        ended_as = _status(fence.spec, fence.token, head.outcome, reason, history)
        commits = ended_as.commits
        if head.outcome == "finished":  # all rows are visible, although the figures may be older
            commits = msgspec.structs.replace(commits, troubles=())
        savepoints = with_last_savepoint(ended_as.savepoints, head)
        return msgspec.structs.replace(ended_as, savepoints=savepoints, commits=commits)
    ended = None if history is None else history.outcome
    if ended is None or ended.run_id != fence.spec.run_id or view.head.position > ended.position:
        return None
    return _status(fence.spec, fence.token, ended.outcome, ended.reason, history)


def with_last_savepoint(known: tuple[SavepointStatus, ...], finish: Finish) -> tuple[SavepointStatus, ...]:
    """Adds FINISH's savepoint, which the history may lack after a coordinator's death."""
    stop = finish.stops_with
    if stop is None:
        return known
    last = SavepointStatus(
        id=stop.savepoint,
        url=stop.url,
        state="done",
        checkpoint=stop.checkpoint,
        asked_ms=next((each.asked_ms for each in known if each.id == stop.savepoint), finish.wall_ms),
        ended_ms=finish.wall_ms,
        bytes=stop.bytes,
        stops=True,
    )
    return (*(each for each in known if each.id != last.id), last)


def led_elsewhere(view: LogView, history: History | None, reason: str) -> JobStatus | None:
    """Status stored by a run's leader; None: missing, or the run has ended."""
    if view.head is None or view.fence is None or not isinstance(view.fence.record, Fence):
        return None
    if isinstance(view.head.record, Finish):
        return None
    fence = view.fence.record
    ended = _status(fence.spec, fence.token, "finished", "", history)
    return msgspec.structs.replace(
        ended,
        phase=STANDBY.lower(),
        outcome=None,
        condition=STANDBY,
        condition_reason=reason,
        reason=reason,
    )


def _status(
    spec: JobSpec, token: int, outcome: Past, reason: str, history: History | None, fenced_by: str | None = None
) -> JobStatus:
    known = history or History(job=spec.job, run_id=spec.run_id)
    return JobStatus(
        job=spec.job,
        run_id=spec.run_id,
        submitter=spec.submitter,
        phase=outcome,
        outcome=outcome,
        condition=ENDS[outcome],
        condition_reason=f"by {fenced_by}" if fenced_by else reason,
        reason=reason,
        error=reason if outcome in ("failed", "fenced") else None,
        fenced_by=fenced_by,
        token=token,
        generations=known.generations,
        leader="",
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        slots=(),
        missing_slots=(),
        checkpoints=CheckpointsStatus(
            triggered=known.triggered,
            completed=known.completed,
            failed=known.failed,
            last_completed=known.last_completed,
            history=known.history,
            durations=known.durations,
        ),
        recoveries=known.recoveries,
        failures=known.failures,
        takeovers=known.takeovers,
        taken_over=known.taken_over,
        rescales=known.rescales,
        savepoints=known.savepoints,
        latency_hour=known.latency_hour,
        chains=chain_statuses(spec.chains, {}),
        watermark_ms=None,
        records=0,
        records_after_checkpoint=0 if outcome == "finished" else None,
        latency={},
        commits=known.commits,
        kill=(),
        options=effective(spec),
        restored_checkpoint=0,
    )
