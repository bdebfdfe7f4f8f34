"""End of a checkpoint in any phase: decided, or aborted without a decision."""

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint
from barrier_runtime.coordinator.checkpoints.failures import Cause, FailureVerdict
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.phases.retaining import abandon, keep, let_go, sweep_if_due
from barrier_runtime.coordinator.log.decision_log import Appended
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.wire.messages import Ack


def checkpoint_appended(job: Job, record: Complete, now_ms: int) -> None:
    """Records a decision: subsumes older checkpoints, and releases superfluous files."""
    generation, aborted = job.generation, list[Ack]()
    pending = generation.pending
    checkpoint = None if pending is None else pending.get(record.checkpoint)
    if pending is not None and checkpoint is not None:
        subsumed = pending.complete(checkpoint, now_ms)
        for older in subsumed:
            job.record.checkpoint_ended(older, f"checkpoint {record.checkpoint} completed first", now_ms)
            aborted.extend(older.acks.values())
        job.record.checkpoint_ended(checkpoint, "", now_ms)
        if checkpoint.all_ended or checkpoint.final:
            generation.final = checkpoint.id
    generation.failures.completed(record.checkpoint)
    job.commits.completed(record.checkpoint, now_ms)
    job.restarts.checkpoint_completed()
    before = job.decided
    job.decided, generation.written = generation.written, None
    if pending is not None:
        known = frozenset[str]() if before is None else job.kept(before).files
        new = frozenset[str]() if job.decided is None else job.kept(job.decided).files - known
        generation.appended.append((new | {record.manifest}, pending.next_id - 1))
    if job.decided is not None:
        job.savepoints.completed(job.decided.manifest)
        job.commits.decided(job.decided.manifest.checkpoint, job.decided.manifest.operators, job.decided.ref)
    job.record.commits_seen(job.commits, now_ms)
    if pending is not None and job.decided is not None:
        keep(job, job.kept(job.decided), pending)
    abandon(job, aborted)


def appended_late(job: Job, appended: Appended, now_ms: int) -> None:
    """Records an append of an ended phase; a decision counts, and the next restore begins there."""
    job.lead(appended)
    if isinstance(appended.entry.record, Complete):
        checkpoint_appended(job, appended.entry.record, now_ms)


def checkpoint_aborted(job: Job, checkpoint: Checkpoint, cause: Cause, reason: str, now_ms: int) -> str:
    """Ends a checkpoint without a decision. Returns why the generation must end, or ""."""
    job.record.checkpoint_ended(checkpoint, reason, now_ms)
    job.abort_checkpoint(checkpoint, reason)
    if job.rescales.pauses(checkpoint.id):
        job.fail_rescale(f"the checkpoint to move with, {checkpoint.id}, failed: {reason}", now_ms)
    job.generation.ended_before = -1  # rows that await a decision need another checkpoint
    abandon(job, checkpoint.acks.values())
    if job.generation.swept_ms is not None:  # before the first decision the age of files is unknown
        sweep_if_due(job, now_ms)
    let_go(job)
    if job.generation.failures.failed(checkpoint.id, cause) is FailureVerdict.TOLERATED:
        return ""
    return (
        f"checkpoint {checkpoint.id} failed ({reason}); tolerable_failures = "
        f"{job.spec.checkpoints.tolerable_failures} is exceeded"
    )
