"""Checkpoints of a job: trigger, manifest, decision, abort."""

from collections.abc import Sequence

import msgspec

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint, CheckpointPhase, disagreement
from barrier_runtime.coordinator.checkpoints.failures import Cause, FailureVerdict
from barrier_runtime.coordinator.checkpoints.retention import Retention
from barrier_runtime.coordinator.job.effects import WriteManifest
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.phases.retaining import abandon, keep, let_go, sweep_if_due
from barrier_runtime.coordinator.job.phases.stopping import needs_another
from barrier_runtime.coordinator.job.slot import RegisteredSlot
from barrier_runtime.coordinator.log.decision_log import Appended
from barrier_runtime.coordinator.log.kinds import with_kinds
from barrier_runtime.coordinator.log.manifest import (
    MANIFEST_VERSION,
    DecidedManifest,
    Manifest,
    encode_manifest,
    packed,
)
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.wire.codec import too_large_manifest
from barrier_runtime.coordinator.wire.messages import Ack, ManifestRef, Trigger
from barrier_runtime.state.texts import counted
from barrier_runtime.state.versioned import sha256_hex


def trigger_if_due(job: Job, now_ms: int) -> None:
    pending = job.generation.checkpoints
    if needs_another(job, pending) or job.savepoints.wants_checkpoint([each.id for each in pending.open]):
        pending.request()
    if pending.due(now_ms) and (pending.requested or not job.commits.too_far_behind):
        _trigger(job, now_ms)


def _trigger(job: Job, now_ms: int) -> None:
    checkpoint = job.generation.checkpoints.trigger(now_ms)
    checkpoint.final = job.all_ended
    job.generation.ended_before = len(job.generation.ended)
    options = job.spec.checkpoints
    if job.stop is None and not job.savepoints.waiting and not job.rescales.replaces:
        # Checkpoints of a stop, a savepoint or a replace have no rows in flight: any successor can restore them.
        checkpoint.overtakes_timers = not options.unaligned
        if options.unaligned:
            checkpoint.aligned_timeout_ms = options.aligned_timeout_ms
    job.record.triggered += 1
    job.rescales.triggered(checkpoint.id, now_ms)
    announce(job, job.slots.connected, checkpoint)


def announce(job: Job, slots: Sequence[RegisteredSlot], checkpoint: Checkpoint) -> None:
    stops = job.stop_checkpoint is not None and checkpoint.id >= job.stop_checkpoint
    trigger = Trigger(
        checkpoint.token,
        checkpoint.id,
        checkpoint.triggered_ms,
        checkpoint.aligned_timeout_ms,
        stops,
        stops or job.rescales.pauses(checkpoint.id),
        checkpoint.overtakes_timers,
    )
    for slot in slots:
        job.outbox.send(slot, trigger)
    if slots:
        job.generation.highest_announced = max(job.generation.highest_announced, checkpoint.id)


def persist(job: Job, checkpoint: Checkpoint, now_ms: int) -> tuple[Cause, str] | None:
    """Returns why the checkpoint must not be decided."""
    manifest = _manifest(job, checkpoint, now_ms)
    data = encode_manifest(manifest)
    key, inline = job.paths.manifest(checkpoint.id, job.led.token), packed(data)
    reason = too_large_manifest(len(data), manifest.operators) or disagreement(manifest.operators)
    if reason:
        return Cause.NOT_STORED, reason
    inside = job.paths.log_record(job.log.next_position) if inline else ""
    written = DecidedManifest(key, sha256_hex(data), manifest, inside)
    if isinstance(job.retention, Retention):
        gone = job.retention.condemned(job.kept(written).files)
        if gone:
            reason = f"it refers to {counted(len(gone), 'file')} already deleted, e.g. {gone[0]}"
            return Cause.GENERATION_ENDED, reason
    checkpoint.move(CheckpointPhase.PERSISTING, now_ms)
    job.generation.written = written
    if inline:
        decide(job, checkpoint, written, now_ms, inline)
    else:
        job.outbox.put(WriteManifest(key, data))
    return None


def decide(job: Job, checkpoint: Checkpoint, written: DecidedManifest, now_ms: int, inline: bytes = b"") -> None:
    checkpoint.move(CheckpointPhase.DECIDING, now_ms)
    ref = ManifestRef(written.key, written.sha256)
    committed = job.commits.committed_by_all(job.log.completed)
    job.append(job.records.complete(job.log, checkpoint.id, job.led.lineage, ref, now_ms, inline, committed))


def being_persisted(job: Job, key: str) -> tuple[Checkpoint, DecidedManifest] | None:
    written = job.generation.written
    if written is None or written.key != key:
        return None
    checkpoint = job.generation.checkpoints.get(written.manifest.checkpoint)
    if checkpoint is None or checkpoint.phase is not CheckpointPhase.PERSISTING:
        return None
    return checkpoint, written


def _manifest(job: Job, checkpoint: Checkpoint, now_ms: int) -> Manifest:
    acks = [checkpoint.acks[subtask] for subtask in sorted(checkpoint.acks)]
    return Manifest(
        version=MANIFEST_VERSION,
        job=job.spec.job,
        lineage=job.led.lineage,
        checkpoint=checkpoint.id,
        token=job.led.token,
        created_wall_ms=now_ms,
        parallelism=job.spec.parallelism,
        max_parallelism=job.spec.max_parallelism,
        operators=tuple(with_kinds(job.spec.chains, (snapshot for ack in acks for snapshot in ack.operators))),
        ended=tuple(ack.subtask for ack in acks if ack.ended),
        parent_position=job.log.next_position - 1,
        parent_sha256=job.log.head_sha256,
        options=job.spec.checkpoints,
        drained=job.spec.run_id if job.generation.drained else msgspec.UNSET,
    )


def checkpoint_appended(job: Job, record: Complete, now_ms: int) -> None:
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
    """A decision of an ended phase counts: the next restore begins there."""
    job.lead(appended)
    if isinstance(appended.entry.record, Complete):
        checkpoint_appended(job, appended.entry.record, now_ms)


def checkpoint_aborted(job: Job, checkpoint: Checkpoint, cause: Cause, reason: str, now_ms: int) -> str:
    """Returns why the generation must end, or ""."""
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
