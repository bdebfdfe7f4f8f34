"""Builds the `JobStatus` of a job."""

from dataclasses import astuple
from typing import Literal

from barrier_runtime.coordinator.checkpoints.slowness import SlowCommit, SlowUpload
from barrier_runtime.coordinator.job.effects import Outcome
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.rescaling import RescaleState, full_width
from barrier_runtime.coordinator.metric_table import RECORDS, WATERMARK_MS
from barrier_runtime.coordinator.options import effective
from barrier_runtime.coordinator.status import latency
from barrier_runtime.coordinator.status.health import Condition
from barrier_runtime.coordinator.status.shares import chain_statuses, source_statuses
from barrier_runtime.coordinator.status.statistics import LONGEST_ERROR, SAVEPOINTS, over_slots, shortened
from barrier_runtime.coordinator.status.status import (
    CheckpointsStatus,
    CommitsStatus,
    CommitTrouble,
    JobStatus,
    KillRequest,
    LeavingSlot,
    ProgramWanted,
    SavepointStatus,
    SlotStatus,
    SparesStatus,
    StandbysWanted,
)
from barrier_runtime.coordinator.status.summary import JobSummary, News
from barrier_runtime.coordinator.status.trend import STEP_MS
from barrier_runtime.coordinator.wire.preflight import Preflight, SlotFound, preflight

_WATERMARK_NONE = -(2**63)
_ENDED = "ended"  # state of a slot that left at the job's end


def job_status(
    job: Job,
    phase: str,
    outcome: Outcome | None,
    reason: str,
    condition: Condition,
    now_ms: int,
    *,
    brief: bool = False,
) -> JobStatus:
    """`brief`: without figures of slots, chains, sources and past checkpoints, most of a wide job's status."""
    slots = list(job.slots)
    shown = [] if brief else slots
    connected = () if brief else job.slots.connected
    chains = () if brief else job.spec.chains
    figures = [slot.metrics for slot in slots]
    watermark = over_slots(WATERMARK_MS, figures)
    restored = job.generation.restored
    histograms = [] if brief else [*job.slots.departed, *(slot.latency for slot in slots)]
    over = outcome in ("finished", "failed", "cancelled")
    reported = int(over_slots(RECORDS, figures) or 0)
    covered = _covered_records(job) if over else None
    return JobStatus(
        job=job.spec.job,
        run_id=job.spec.run_id,
        submitter=job.spec.submitter,
        phase=phase,
        outcome=outcome,
        condition=condition.state,
        condition_reason=condition.reason,
        condition_since_ms=condition.since_ms,
        reason=reason,
        error=job.record.error,
        fenced_by=job.record.fenced_by,
        token=job.log.token,
        generations=job.record.generations,
        leader=job.identity.leader,
        parallelism=job.spec.parallelism,
        max_parallelism=job.spec.max_parallelism,
        full_parallelism=full_width(job.spec),
        narrow_because=job.spec.narrow_because,
        slots=tuple(
            SlotStatus(
                slot=slot.index,
                uuid=slot.uuid,
                pid=slot.register.pid,
                host=slot.register.host,
                task_attempt=slot.register.task_attempt,
                state=_ENDED if over and slot.link is None else slot.state.value,
                heartbeat_age_ms=max(0, now_ms - slot.last_seen_ms),
                metrics=slot.metrics,
                differs=slot.differs,
                started_as=slot.started_under_other,
            )
            for slot in shown
        ),
        preflight=Preflight(complete=False) if brief else _preflight(job),
        missing_slots=job.slots.missing,
        carrier=job.spec.carrier,
        silent_links=job.links.silent(job.slots, now_ms) if job.leads else (),
        absences=job.slots.absences() if job.has_run else (),
        spares=spares_status(job, now_ms),
        absent_slots=job.record.absent_slots,
        checkpoints=_checkpoints(job, condition.slow_uploads, brief=brief),
        recoveries=tuple(job.record.recoveries),
        watermark_ms=None if watermark is None or not _WATERMARK_NONE < watermark < 2**63 - 1 else int(watermark),
        records=max(reported, covered or 0),
        records_after_checkpoint=_records_after(job, outcome, reported, covered),
        latency=latency.merged(each.newest for each in histograms),
        latency_last_minute=latency.last_minute(histograms, now_ms),
        commits=commits_status(job, condition.slow),
        rescales=job.rescales.statuses,
        standbys=standbys_wanted(job),
        leaving=leaving_slots(job),
        program=job.spec.program,
        program_wanted=program_wanted(job),
        kill=_kills(job),
        options=effective(job.spec),
        restored_checkpoint=0 if restored is None else restored.manifest.checkpoint,
        savepoints=savepoint_statuses(job),
        at_ms=now_ms,
        chains=chain_statuses(chains, {slot.index: slot.figures for slot in connected}),
        sources=source_statuses(chains, {slot.index: slot.sources for slot in connected}, now_ms),
        latency_hour={} if brief else job.record.latency_hour.points(now_ms),
        failures=tuple(job.record.failures),
        takeovers=tuple(job.record.takeovers),
        taken_over=job.record.times_taken_over,
        storage_trouble="; ".join(f"{retry.what}: {retry.error}" for retry in job.record.store_retries.values()),
        brief=brief,
    )


def _kills(job: Job) -> tuple[KillRequest, ...]:
    return tuple(KillRequest(*astuple(kill)) for kill in job.slots.kills if job.leads)


def news_version(job: Job, phase: str, outcome: str | None, condition: str, reason: str) -> str:
    """As `news_of` of the status, without the status."""
    moving = any(each.ended_ms is None for each in job.rescales.statuses)
    wanted = standbys_wanted(job), program_wanted(job)
    of_job = (job.identity.leader, job.log.token, phase, outcome)
    return News(*of_job, condition, reason, _kills(job), *wanted, moving, leaving_slots(job)).version


def job_summary(job: Job, phase: str, outcome: Outcome | None, condition: Condition, now_ms: int) -> JobSummary:
    record, last = job.record, job.record.last_completed
    trend = record.trend.newest if outcome is None else None
    fresh = trend if trend is not None and 0 <= now_ms - trend.at_ms <= 2 * STEP_MS else None
    began = record.recoveries[-1].running_ms if record.recoveries and phase == "running" else None
    return JobSummary(
        job=job.spec.job,
        run_id=job.spec.run_id,
        phase=phase,
        outcome=outcome,
        condition=condition.state,
        condition_reason=condition.reason,
        parallelism=job.spec.parallelism,
        running_since_ms=began or 0,
        ended_ms=condition.since_ms if outcome else 0,
        rows_per_s=None if fresh is None else fresh.rows_per_s,
        lag_ms=None if fresh is None else fresh.lag_ms,
        latency_ms=None if outcome else record.latency_hour.worst_p99(now_ms),
        checkpoint=0 if last is None else last.checkpoint,
        checkpoint_ended_ms=0 if last is None else last.triggered_ms + last.duration_ms,
        restarts=record.restarts,
        program=job.spec.fingerprint[:8],
        replaced=bool(job.spec.program),
        at_ms=now_ms,
    )


def _covered_records(job: Job) -> int | None:
    """Returns the records up to the checkpoint that this run's state is, or grew from; None: unknown."""
    log = job.log
    fence, finish = log.fence, log.finish
    if fence is None or fence.spec.run_id != job.spec.run_id:  # the run has not begun
        return None
    if log.in_flight or (finish is not None and finish.discarded):
        return None
    if not log.completed:
        return 0
    if fence.restored_checkpoint == log.completed and job.spec.allow_non_restored:
        return None  # dropped sources may have counted
    known = job.record.completed_as(log.completed)
    return None if known is None else known.records


def _records_after(job: Job, outcome: Outcome | None, reported: int, covered: int | None) -> int | None:
    """Minimum number of records that an ended run has read after the last checkpoint; None: unknown.

    Reports of slots may be older than the checkpoint, so a report of no records proves nothing.
    """
    if outcome == "finished":
        return 0
    if covered is None:
        return None
    restored, last = job.generation.restored, job.stop_checkpoint
    read_on = restored is not None and last is not None and restored.manifest.checkpoint >= last
    if outcome == "cancelled" and job.stop_reached and not read_on:  # sources paused at that checkpoint
        return 0
    return reported - covered if reported > covered else None


def _preflight(job: Job) -> Preflight:
    found = [SlotFound(each.register, each.clock_ms, each.probed) for each in job.slots]
    return preflight(found, job.spec.parallelism, job.compatibility.refused_slots(job.spec.program))


def commits_status(job: Job, slow: tuple[SlowCommit, ...] = ()) -> CommitsStatus:
    return CommitsStatus(
        through=job.commits.through,
        troubles=tuple(
            CommitTrouble(
                each.sink, each.checkpoint, each.attempts, shortened(each.error, LONGEST_ERROR), each.since_ms
            )
            for each in job.commits.troubles
        ),
        slow=slow,
    )


def savepoint_statuses(job: Job) -> tuple[SavepointStatus, ...]:
    """Savepoints, oldest first, with those of predecessors."""
    own = [
        SavepointStatus(
            id=entry.request.id,
            url=entry.request.url,
            state=entry.state.value,
            checkpoint=entry.covered_by,
            asked_ms=entry.asked_ms,
            ended_ms=entry.ended_ms,
            bytes=entry.bytes,
            stops=entry.request.stops,
            error=entry.error,
        )
        for entry in job.savepoints.entries
    ]
    ids = {each.id for each in own}
    return (*(each for each in job.record.savepoints if each.id not in ids), *own)[-SAVEPOINTS:]


def standbys_wanted(job: Job) -> StandbysWanted | None:
    """Slots that the driver has to start.

    A restarted coordinator makes a new request: standbys may have been dismissed.
    """
    rescale = job.rescales.open
    if rescale is None or not job.leads or rescale.state is RescaleState.LOADING:
        return None
    after = rescale.after
    first = 0 if after.program != job.spec.program else job.spec.parallelism
    if first >= after.parallelism:
        return None
    return StandbysWanted(f"{job.identity.leader}/{rescale.request.id}", first, after.parallelism - 1, after.program)


def leaving_slots(job: Job) -> tuple[LeavingSlot, ...]:
    if not job.leads or not job.leaving.any:
        return ()
    open, found = job.rescales.open, []
    successors = {slot.index: slot for slot in job.slots.successors}
    for slot in job.slots:
        notice, successor = job.leaving.of(slot), successors.get(slot.index)
        if notice is None:
            continue
        moving = open is not None and slot.index in open.request.leaves
        asked: Literal["asked", "ended"] = "ended" if notice.ended else "asked"
        state = "moving" if moving else asked if successor is None else "registered"
        to_host = "" if successor is None else successor.register.host
        at = slot.register
        other = slot.started_under_other
        found.append(LeavingSlot(slot.index, at.host, at.task_attempt, notice.since_ms, state, to_host, other))
    return tuple(found)


def spares_status(job: Job, now_ms: int) -> SparesStatus:
    """The driver starts spares once all slots have their cores."""
    wanted = job.spec.spare_slots
    if not wanted:
        return SparesStatus()
    gone = job.slots.gone() if job.leads and job.has_run else ()
    return SparesStatus(wanted, len(job.slots.ready_spares(now_ms)), gone)


def program_wanted(job: Job) -> ProgramWanted | None:
    rescale = job.rescales.open
    if rescale is None or not job.leads or rescale.state is not RescaleState.LOADING:
        return None
    id = rescale.request.id
    return ProgramWanted(f"{job.identity.leader}/{id}", id, rescale.request.flow)


def _checkpoints(job: Job, slow_uploads: tuple[SlowUpload, ...] = (), *, brief: bool = False) -> CheckpointsStatus:
    pending = job.generation.pending
    under_way = () if pending is None else pending.open
    oldest = min(under_way, key=lambda checkpoint: checkpoint.id, default=None)
    ignored = dict(job.record.ignored)
    if pending is not None:
        for reason, count in pending.ignored.items():
            ignored[reason] = ignored.get(reason, 0) + count
    return CheckpointsStatus(
        triggered=job.record.triggered,
        completed=job.record.completed,
        failed=job.record.failed,
        in_progress=tuple(sorted(checkpoint.id for checkpoint in under_way)),
        waiting_for=() if oldest is None else tuple(map(str, oldest.missing)),
        ignored=ignored,
        last_completed=job.record.last_completed,
        history=() if brief else tuple(job.record.history),
        durations=job.record.durations,
        slow_uploads=slow_uploads,
    )
