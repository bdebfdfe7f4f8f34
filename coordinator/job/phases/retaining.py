"""Deletions of a leader."""

from collections.abc import Iterable, Iterator

from barrier_runtime.coordinator.checkpoints.checkpoint import PendingCheckpoints
from barrier_runtime.coordinator.checkpoints.retention import (
    Kept,
    Retention,
    UnderWay,
    Unsorted,
    kept_after_restore,
)
from barrier_runtime.coordinator.job.effects import ListForSweep
from barrier_runtime.coordinator.job.events import Listed
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.generation import Generation
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import verified_manifest
from barrier_runtime.coordinator.wire.messages import Ack
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import FileRef

SWEEP_EVERY_MS = 60 * 60 * 1000


def restored_retention(job: Job) -> Retention | Unsorted:
    """Retention of a new generation. `Unsorted`: older manifests must be read first."""
    retained = job.spec.checkpoints.retained
    restored = None if job.generation.restored is None else job.kept(job.generation.restored)
    if isinstance(job.retention, Retention):
        return job.retention.after_restore(restored, job.held)
    if len(job.log.kept) == (restored is not None):  # only the restored checkpoint is kept
        retention = Retention(retained, kept_after_restore((), restored, retained))
        retention.hold(job.retention.decided, job.held)
        return retention
    return job.retention


def keep(job: Job, kept: Kept, pending: PendingCheckpoints) -> None:
    if isinstance(job.retention, Unsorted):
        job.retention.add(kept, job.spec.checkpoints.retained)
    else:
        open_ids = [other.id for other in pending.open]
        job.delete(job.retention.completed(kept, open_ids, pending.next_id - 1, job.held))


def let_go(job: Job) -> None:
    if isinstance(job.retention, Retention):
        open_ids = [checkpoint.id for checkpoint in job.generation.checkpoints.open]
        job.delete(job.retention.resolved(open_ids, job.held))


def sweep_if_due(job: Job, now_ms: int) -> None:
    swept_ms = job.generation.swept_ms
    if swept_ms is None or now_ms - swept_ms >= SWEEP_EVERY_MS:
        job.generation.swept_ms = now_ms
        list_objects(job)


def list_objects(job: Job) -> None:
    kept = job.log.kept_at_start(job.spec.checkpoints.retained) if isinstance(job.retention, Unsorted) else ()
    job.outbox.put(ListForSweep(tuple(complete_of(entry) for entry in kept)))


def sweep(job: Job, listed: Listed, now_ms: int) -> None:
    if isinstance(job.retention, Unsorted):
        job.retention = _retention_from(job, job.retention, listed) or job.retention
    if isinstance(job.retention, Retention) and job.generation.swept_ms is not None:
        job.delete(job.retention.sweep(job.paths, listed.objects, job.led.token, now_ms, under_way(job.generation)))


def under_way(generation: Generation) -> UnderWay:
    checkpoints = () if generation.pending is None else generation.pending.open
    named = {file.key for each in checkpoints for ack in each.acks.values() for file in _files_in(ack)}
    if generation.written is not None:
        named.add(generation.written.key)
    first = min((each.id for each in checkpoints), default=None)
    behind = (key for keys, triggered in generation.appended if first is None or triggered < first for key in keys)
    return UnderWay(frozenset(key for key in named if key is not None), frozenset(behind))


def abandon(job: Job, acks: Iterable[Ack]) -> None:
    """Deletes uploads; with unknown kept checkpoints, a later sweep deletes."""
    if isinstance(job.retention, Unsorted) or not job.leads:
        return
    prefix = job.paths.data_token_prefix(job.led.token)
    files = {file.key for ack in acks for file in _files_in(ack)}
    own = [key for key in files if key is not None and key.startswith(prefix)]
    if own:
        job.delete(job.retention.abandoned(own, under_way(job.generation)))


def _files_in(ack: Ack) -> Iterator[FileRef]:
    return (file for snapshot in ack.operators for file in snapshot.files)


def _retention_from(job: Job, unsorted: Unsorted, listed: Listed) -> Retention | None:
    found = dict(listed.manifests)
    kept: list[Kept] = []
    for entry in reversed(job.log.kept_at_start(job.spec.checkpoints.retained)):
        record = complete_of(entry)
        data = found.get(record.manifest)
        if data is None:
            continue
        try:
            manifest = verified_manifest(record.manifest, data, record.sha256)
        except (Corrupt, InvalidJob) as error:
            job.record.ignored[f"retention is off: {error}"] += 1
            return None
        kept.append(job.kept(job.decided_as(entry, manifest)))
    generation = job.generation
    restored = None if generation.restored is None else job.kept(generation.restored)
    earlier = [decided for decided in unsorted.decided if not _of_this_generation(job, decided)]
    retained = job.spec.checkpoints.retained
    retention = Retention(retained, kept_after_restore((*reversed(earlier), *kept), restored, retained))
    retention.hold(earlier, job.held)
    pending = generation.checkpoints
    open_ids, triggered = [checkpoint.id for checkpoint in pending.open], pending.next_id - 1
    for decided in unsorted.decided[len(earlier) :]:
        job.delete(retention.completed(decided, open_ids, triggered, job.held))
    return retention


def _of_this_generation(job: Job, kept: Kept) -> bool:
    checkpoint = job.paths.checkpoint_of(kept.manifest_key)
    return checkpoint is not None and checkpoint[1] == job.led.token
