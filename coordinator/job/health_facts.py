"""Facts for `status/health`."""

from barrier_runtime.coordinator.checkpoints.checkpoint import CheckpointPhase
from barrier_runtime.coordinator.checkpoints.slowness import REPORT_AFTER_MS, CheckpointUploads, SubtaskUpload
from barrier_runtime.coordinator.job.effects import Outcome
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.links import silence_of
from barrier_runtime.coordinator.job.rescaling import shown
from barrier_runtime.coordinator.job.slot import RegisteredSlot, SlotState
from barrier_runtime.coordinator.job.status_view import leaving_slots
from barrier_runtime.coordinator.job.stop import Drain
from barrier_runtime.coordinator.status.health import (
    Away,
    BlockedSlot,
    Facts,
    OpenCheckpoint,
    StoreWait,
    in_seconds,
    leaving_in_words,
    some_of,
)
from barrier_runtime.coordinator.wire.messages import SubtaskId

_LONGEST_REASON = 400


def progress_facts(job: Job, phase: str, outcome: Outcome | None, reason: str, now_ms: int) -> Facts:
    return Facts(
        phase=phase,
        timeout_ms=job.spec.progress_timeout_ms,
        outcome=outcome,
        ended_because=_one_line(_ended_because(job, outcome, reason)),
        activity=_activity(job, phase, _one_line(reason)),
        completed=job.last_completed,
        expects_checkpoint=_expects_checkpoint(job),
        checkpoint=_open_checkpoint(job),
        last_failure=_last_failure(job),
        store=tuple(retry for retry in job.record.store_retries.values() if retry.keeps_from == "progress"),
        undecided=_undecided(job),
        appending=_appending(job, phase),
        failing=job.commits.troubles,
        behind=_behind(job),
        held_back=job.commits.too_far_behind,
        uncommitted=job.commits.uncommitted(),
        uploaded=_uploaded(job),
        interval_ms=job.spec.checkpoints.interval_ms,
        narrow=shown(job.spec),
        leaving=leaving_in_words(leaving_slots(job)),
        blocked=tuple(
            BlockedSlot(slot.index, slot.blocked, slot.blocked_reported_ms, slot.blocked_reading, slot.blocked_starved)
            for slot in job.slots.connected
            if slot.blocked
        ),
        absences=job.slots.absences() if phase == "waiting" and job.has_run else (),
        silence=silence_of(job.links.silent(job.slots, now_ms)) if job.leads else "",
        held_by=job.slots.room.held_by,
        start_error=job.slots.room.failing,
        waiting=tuple(Away(key, each.error, each.attempts) for key, each in sorted(job.generation.waiting.items())),
    )


def _ended_because(job: Job, outcome: Outcome | None, reason: str) -> str:
    return f"by {job.record.fenced_by}" if outcome == "fenced" and job.record.fenced_by else reason


def _activity(job: Job, phase: str, reason: str) -> str:
    because = f" ({reason})" if reason else ""
    missing = ", ".join(map(str, job.slots.missing))
    of = f"of {job.spec.parallelism}"
    if phase == "loading":
        return "reads the decision log"
    if phase == "checking":
        waits = f"slots {missing} {of} to register" if missing else "answers of all slots about their hosts"
        return f"waits for {waits} before it takes the job over"
    if phase == "resuming":
        return "takes over the running slots" if job.log.in_flight else f"waits for slots {missing} {of} to come back"
    if phase == "fencing":
        return f"begins a generation{because}"
    if phase == "waiting":
        if not missing:
            return f"pauses before the restart{because}"
        failing = f": {job.slots.room.failing}" if job.slots.room.failing else ""
        return f"waits for slots {missing} {of} to register{failing}{because}"
    if phase == "restoring":
        restoring = [slot for slot in job.slots if slot.state is SlotState.RESTORING]
        slow = ", ".join(str(slot.index) for slot in restoring)
        hanging = some_of([text for slot in restoring for text in what_opens(slot)], "; ")
        what = f": {hanging}" if hanging else ""
        return f"waits for slots {slow} {of} to restore checkpoint {job.last_completed}{what}{because}"
    return "appends the last record" if phase in ("finishing", "failing") else ""


def what_opens(slot: RegisteredSlot) -> list[str]:
    return [
        f"slot {slot.index} has been opening {name} for {in_seconds(round(seconds * 1000))}"
        for name, seconds in sorted(slot.opening.items())
        if seconds * 1000 >= REPORT_AFTER_MS
    ]


def _expects_checkpoint(job: Job) -> bool:
    draining = isinstance(job.stop, Drain) and not job.all_ended
    return job.generation.final is None and not job.stop_reached and not draining


def _open_checkpoint(job: Job) -> OpenCheckpoint | None:
    pending = job.generation.pending
    under_way = () if pending is None else pending.open
    oldest = min(under_way, key=lambda checkpoint: checkpoint.id, default=None)
    if oldest is None:
        return None
    return OpenCheckpoint(
        oldest.id, oldest.triggered_ms, lambda: tuple(_named(job, subtask) for subtask in oldest.missing)
    )


def _named(job: Job, subtask: SubtaskId) -> str:
    return f"{subtask} ({', '.join(job.spec.chains[subtask.chain].operators)})"


def _undecided(job: Job) -> StoreWait | None:
    pending, written = job.generation.pending, job.generation.written
    for checkpoint in () if pending is None else pending.open:
        if checkpoint.phase is CheckpointPhase.PERSISTING and written is not None:
            return StoreWait(checkpoint.id, written.key, checkpoint.entered_ms(CheckpointPhase.PERSISTING) or 0)
        if checkpoint.phase is CheckpointPhase.DECIDING:
            key = job.paths.log_record(job.log.next_position)
            return StoreWait(checkpoint.id, key, checkpoint.entered_ms(CheckpointPhase.DECIDING) or 0)
    return None


def _appending(job: Job, phase: str) -> str:
    if phase == "loading" or not job.log.in_flight:
        return ""
    return job.paths.log_record(job.log.next_position)


def _behind(job: Job) -> tuple[tuple[str, int], ...]:
    """Late sinks. Restored checkpoints were committed at opening."""
    restored, completed = job.generation.restored, job.last_completed
    if completed <= (0 if restored is None else restored.manifest.checkpoint):
        return ()
    through = job.commits.through
    return tuple((sink, through[sink]) for sink in job.commits.behind(completed))


def _uploaded(job: Job) -> CheckpointUploads | None:
    """Uploads of this generation: after a restart the store may be fast again."""
    last = job.record.last_completed
    if last is None or last.token != job.log.token or not last.subtasks:
        return None
    uploads = [
        SubtaskUpload(each.chain, each.subtask, each.slowest, max(each.precommit_ms, each.upload_ms))
        for each in last.subtasks
    ]
    return CheckpointUploads(last.checkpoint, last.triggered_ms, tuple(uploads))


def _last_failure(job: Job) -> str:
    for entry in reversed(job.record.history):
        if entry.outcome == CheckpointPhase.COMPLETE.value:
            return ""
        if entry.outcome != CheckpointPhase.SUBSUMED.value:
            return _one_line(f"checkpoint {entry.checkpoint} {entry.outcome}: {entry.reason}")
    return ""


def _one_line(text: str) -> str:
    """A traceback ends with the error."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else f"… {line[-_LONGEST_REASON:]}"
