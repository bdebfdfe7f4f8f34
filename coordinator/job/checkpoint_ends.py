"""What follows when a checkpoint ends, in whichever phase the job learns of it: the book-keeping of a decision, and
what may be deleted of one that ended undecided."""

from collections.abc import Iterable, Iterator

from barrier_runtime.coordinator.checkpoints.retention import UnderWay
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.generation import Generation
from barrier_runtime.coordinator.log.decision_log import Appended
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.wire.messages import Ack
from barrier_runtime.state.snapshots.snapshot import FileRef

_UNSORTED_BOUND = 1_000  # decided while deleting is off; what is forgotten is left to the sweep of a later generation


def checkpoint_appended(job: Job, record: Complete, now_ms: int) -> None:
    """Book-keeping of a decision: subsume, remember, let go of what nobody needs any more."""
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
        kept = job.kept(job.decided)
        if job.retention is None:
            job.unsorted.append(kept)
            del job.unsorted[: -max(_UNSORTED_BOUND, job.spec.checkpoints.retained)]
        else:
            open_ids = [other.id for other in pending.open]
            job.delete(job.retention.completed(kept, open_ids, pending.next_id - 1, job.held))
    abandon(job, aborted)


def appended_late(job: Job, appended: Appended, now_ms: int) -> None:
    """What a phase that has ended had under way is in the log. A decision counts: whoever restores goes on from it."""
    job.lead(appended)
    if isinstance(appended.entry.record, Complete):
        checkpoint_appended(job, appended.entry.record, now_ms)


def under_way(generation: Generation) -> UnderWay:
    """What the open checkpoints of the present generation may need."""
    checkpoints = () if generation.pending is None else generation.pending.open
    named = {file.key for each in checkpoints for ack in each.acks.values() for file in _files_in(ack)}
    if generation.written is not None:
        named.add(generation.written.key)
    first = min((each.id for each in checkpoints), default=None)
    behind = (key for keys, triggered in generation.appended if first is None or triggered < first for key in keys)
    return UnderWay(frozenset(key for key in named if key is not None), frozenset(behind))


def abandon(job: Job, acks: Iterable[Ack]) -> None:
    """`acks` are of a checkpoint that ended undecided: what they say was uploaded for it goes. While it is not known
    yet what is kept, nothing does, and the sweep finds it later."""
    if job.retention is None or not job.leads:
        return
    prefix = job.paths.data_token_prefix(job.led.token)
    files = {file.key for ack in acks for file in _files_in(ack)}
    own = [key for key in files if key is not None and key.startswith(prefix)]
    if own:
        job.delete(job.retention.abandoned(own, under_way(job.generation)))


def _files_in(ack: Ack) -> Iterator[FileRef]:
    return (file for snapshot in ack.operators for file in snapshot.files)
