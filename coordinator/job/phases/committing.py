"""Global commits and copies of savepoints, in a running job."""

from barrier_runtime.coordinator.job.effects import CopySavepoint, ReadManifest
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.slot import RegisteredSlot
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import verified_manifest
from barrier_runtime.coordinator.wire.messages import CommitGlobally, ManifestRef, Visible
from barrier_runtime.state.errors import Corrupt, InvalidJob


def after_commit(job: Job, now_ms: int) -> None:
    commit_globally(job, now_ms)
    job.record.commits_seen(job.commits, now_ms)
    copy_visible(job)


def send_visible(job: Job, slot: RegisteredSlot) -> None:
    """Repeats messages that the slot may have missed."""
    for sink, checkpoint in job.commits.visible():
        job.outbox.send(slot, Visible(job.led.token, checkpoint, sink))


def commit_globally(job: Job, now_ms: int) -> None:
    """Sends slot 0 due commits, each once per connection."""
    job.commits.look(job.last_completed, now_ms, at_once=_commits_at_once(job))
    slot, asked = job.slots.at(0), job.generation.asked
    if slot is None or slot.link is None:
        return
    for due in job.commits.due_globally():
        ask = (due.checkpoint, slot.link)
        if due.part is not None and asked.get(due.sink) != ask:
            asked[due.sink] = ask
            where = due.part if isinstance(due.part, ManifestRef) else None
            carried = due.part if isinstance(due.part, tuple) else ()
            job.outbox.send(slot, CommitGlobally(job.led.token, due.checkpoint, due.sink, carried, where))
        elif due.part is None and due.checkpoint == job.last_completed:
            _read_manifest(job)


def on_committers_manifest(job: Job, key: str, data: bytes | None, now_ms: int) -> None:
    """An unreadable manifest delays global commits until the next, which lists everything invisible."""
    entry = job.log.restore_point
    if entry is None or key != complete_of(entry).manifest:
        return
    if data is None:
        job.record.ignored[f"manifest {key} is missing from the store"] += 1
        return
    try:
        manifest = verified_manifest(key, data, complete_of(entry).sha256)
    except (Corrupt, InvalidJob) as error:
        job.record.ignored[str(error)] += 1
        return
    job.commits.decided(manifest.checkpoint, manifest.operators, job.decided_as(entry, manifest).ref)
    commit_globally(job, now_ms)


def _commits_at_once(job: Job) -> bool:
    """Returns whether a request waits for visible rows, so no commit is held back."""
    ends = job.stop is not None or job.generation.final is not None or job.all_ended or job.generation.drained
    return ends or job.rescales.open is not None or bool(job.savepoints.open)


def _read_manifest(job: Job) -> None:
    """A restarted coordinator lacks the manifest."""
    entry = job.log.restore_point
    if entry is not None and job.generation.wanted_manifest != complete_of(entry).manifest:
        job.generation.wanted_manifest = complete_of(entry).manifest
        job.outbox.put(ReadManifest(complete_of(entry)))


def copy_visible(job: Job) -> None:
    for due in job.savepoints.due(job.commits.all_through):
        job.outbox.put(CopySavepoint(due.url, due.copy))


def attach_to_last(job: Job) -> None:
    """The stop's checkpoint serves a savepoint requested later.

    Rows of a later checkpoint would be visible, but not covered.
    """
    decided = job.decided
    if job.stop_checkpoint is not None and decided is not None and decided.manifest.checkpoint >= job.stop_checkpoint:
        job.savepoints.completed(decided.manifest)
