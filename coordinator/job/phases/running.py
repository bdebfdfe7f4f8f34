"""Running generation: checkpoints, commits, lost slots, and the job's end."""

from barrier_runtime.coordinator.checkpoints.checkpoint import AckEffect, Checkpoint, Triggering
from barrier_runtime.coordinator.checkpoints.failures import Cause
from barrier_runtime.coordinator.checkpoints.retention import Unsorted
from barrier_runtime.coordinator.job.effects import CloseLink, CopySavepoint, ReadManifest, ReadRecord
from barrier_runtime.coordinator.job.events import Listed
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.links import silence_of
from barrier_runtime.coordinator.job.phases import moving
from barrier_runtime.coordinator.job.phases.checkpointing import (
    announce,
    being_persisted,
    checkpoint_aborted,
    checkpoint_appended,
    decide,
    persist,
    trigger_if_due,
)
from barrier_runtime.coordinator.job.phases.moving import move_if_apart
from barrier_runtime.coordinator.job.phases.phase import Cancel, Decision, Fail, Phase, Restart
from barrier_runtime.coordinator.job.phases.retaining import abandon, let_go, list_objects, sweep, sweep_if_due
from barrier_runtime.coordinator.job.phases.stopping import (
    drain_on,
    end_if_done,
    follow_stop,
    request_for_rest,
    stop_anew,
)
from barrier_runtime.coordinator.job.slot import Arrival, Joined, RegisteredSlot, SlotState
from barrier_runtime.coordinator.job.stop import StopNow, StopWithCheckpoint
from barrier_runtime.coordinator.log.decision_log import Appended, complete_of
from barrier_runtime.coordinator.log.manifest import verified_manifest
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.status.status import SilentLink
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CommitFailing,
    CommitGlobally,
    Committed,
    Decline,
    EndSources,
    EventTimeReached,
    LowestEventTime,
    ManifestRef,
    SubtaskEnded,
    SubtaskFailed,
    ToCoordinator,
    Visible,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob


class Running(Phase):
    name = "running"
    judges_silence = True

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        job.has_run, job.missed_ms = True, 0
        pending = job.begin_checkpoints(now_ms)
        job.savepoints.generation_ended(pending.next_id)
        stop_anew(job)
        job.restarts.running(now_ms)
        if job.rescales.running(now_ms):
            job.record.revision += 1
        if job.rescales.fallback_spec is not None:
            job.rescales.fallback_spec = None
            job.admit(f"job {job.spec.job} goes on with another program")
        job.record.recovered(now_ms)
        job.slots.stay()
        if isinstance(job.retention, Unsorted):
            list_objects(job)
        if any(slot.register.drained and slot.register.token == job.led.token for slot in job.slots):
            drain_on(job)
        if job.decided is not None and job.decided.manifest.checkpoint == job.last_completed:
            job.commits.decided(job.decided.manifest.checkpoint, job.decided.manifest.operators, job.decided.ref)
        for slot in job.slots.connected:
            send_visible(job, slot)
        return self._pump(job, now_ms)

    def deadline(self, job: Job) -> int | None:
        graces = [slot.lost_ms + job.spec.reconnect_grace_ms for slot in job.slots.cut_off if slot.lost_ms is not None]
        pending = job.generation.checkpoints
        checkpoint_ms = pending.next_deadline(
            with_trigger=not job.commits.too_far_behind, held=moving.holds_checkpoints(job)
        )
        others = (checkpoint_ms, job.commits.next_due_ms(job.last_completed), moving.deadline_ms(job))
        return min([*graces, *(moment for moment in others if moment is not None)], default=None)

    def on_tick(self, job: Job, now_ms: int) -> Decision | None:
        job.close_silent_beside(now_ms)
        for slot in job.slots.silent(now_ms, job.spec.slot_timeout_ms):
            reason = f"slot {slot.index} ({slot.register.host} pid {slot.register.pid}) was silent for "
            reason += f"{now_ms - slot.last_seen_ms} ms"
            if slot.blocked:
                reason += f" (it had been blocked by {slot.blocked})"
            job.slots.give_up(slot, reason)
            job.outbox.close(slot)
            return Restart(reason)
        for slot in job.slots.cut_off:
            if slot.lost_ms is not None and now_ms - slot.lost_ms >= job.spec.reconnect_grace_ms:
                return Restart(f"slot {slot.index} ({slot.register.host} pid {slot.register.pid}) lost contact")
        return self._pump(job, now_ms)

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        slot = arrival.slot
        if isinstance(arrival, Joined):
            return Restart(arrival.death or f"slot {slot.index} was replaced by a new process")
        if slot.register.token != job.led.token or slot.register.phase not in ("running", "paused"):
            return Restart(f"slot {slot.index} came back without its state")
        stands = job.rescales.pausing or isinstance(job.stop, StopWithCheckpoint)
        if slot.register.phase == "paused" and not stands:  # the slot missed that the job continues
            return Restart(f"slot {slot.index} came back with its sources stopped", counted=False)
        if slot.register.highest_checkpoint > job.generation.highest_announced:
            self._read_log_again(job, slot, now_ms)
            return None
        slot.state = SlotState.RUNNING
        job.acknowledge_registration(slot, job.led.token)
        job.probe_again()
        job.mark_ended(slot, slot.register.ended)
        for checkpoint in job.generation.checkpoints.open:
            if any(subtask.index == slot.index for subtask in checkpoint.missing):
                announce(job, (slot,), checkpoint)
        if job.generation.drained:
            job.outbox.send(slot, EndSources(job.led.token))
        send_visible(job, slot)
        let_go(job)
        after_commit(job, now_ms)  # Register may report the last commit, whose message was lost
        return end_if_done(job) or self._pump(job, now_ms)

    def _read_log_again(self, job: Job, slot: RegisteredSlot, now_ms: int) -> None:
        """While this process stalled, another leader announced checkpoints, perhaps with the same ids. The
        slot gets no answer before reconnecting.
        """
        link = slot.link
        assert link is not None
        job.slots.lost(link, now_ms)
        job.outbox.put(CloseLink(link))
        job.outbox.put(ReadRecord(job.log.next_position))

    def on_slot_lost(self, job: Job, slot: RegisteredSlot, now_ms: int) -> Decision | None:
        return None  # the process may be alive: `on_tick` ends the grace period

    def on_silent_links(self, job: Job, links: tuple[SilentLink, ...], now_ms: int) -> Decision | None:
        move_if_apart(job, links, now_ms)
        return Restart(silence_of(links), unavailable=True)

    def on_message(self, job: Job, slot: RegisteredSlot, message: ToCoordinator, now_ms: int) -> Decision | None:
        if isinstance(message, Ack):
            return self._on_ack(job, slot, message, now_ms)
        if isinstance(message, Committed):
            if not job.mark_committed(slot, message):
                return None
            let_go(job)
            after_commit(job, now_ms)
            return end_if_done(job) or moving.follow_rescale(job, now_ms)
        if isinstance(message, CommitFailing):
            job.commits.failing(message, now_ms)
        elif isinstance(message, Decline):
            return self._on_decline(job, slot, message, now_ms)
        elif isinstance(message, SubtaskEnded):
            job.mark_ended(slot, (message.subtask,))
            return self._pump(job, now_ms)
        elif isinstance(message, EventTimeReached):
            reached = job.generation.event_times
            reached.reported(slot.index, message.sources)
            job.outbox.send(slot, LowestEventTime(message.token, reached.lowest_ms(job.spec.parallelism)))
        elif isinstance(message, SubtaskFailed):
            if message.retryable:
                return Restart(message.error, message.unavailable)
            return Fail(message.error)
        return None

    def _on_ack(self, job: Job, slot: RegisteredSlot, ack: Ack, now_ms: int) -> Decision | None:
        if ack.subtask.index != slot.index:
            job.record.ignored["ack for another slot's subtask"] += 1
            return None
        if ack.ended:
            job.mark_ended(slot, (ack.subtask,))
        result = job.generation.checkpoints.ack(ack, now_ms)
        if result.checkpoint is None and job.generation.checkpoints.is_aborted(ack.checkpoint):
            abandon(job, (ack,))
        if result.effect is AckEffect.LAST or ack.ended:
            return self._pump(job, now_ms)
        return None

    def _on_decline(self, job: Job, slot: RegisteredSlot, decline: Decline, now_ms: int) -> Decision | None:
        if decline.subtask.index != slot.index:
            job.record.ignored["decline for another slot's subtask"] += 1
            return None
        checkpoint = job.generation.checkpoints.decline(decline.checkpoint, decline.subtask, now_ms)
        if checkpoint is None:
            return None
        reason = f"subtask {decline.subtask} declined: {decline.reason}"
        exceeded = checkpoint_aborted(job, checkpoint, Cause.DECLINED, reason, now_ms)
        return Restart(exceeded, decline.unavailable) if exceeded else self._pump(job, now_ms)

    def on_trigger(self, job: Job, now_ms: int) -> Decision | None:
        if not moving.holds_checkpoints(job):
            job.generation.checkpoints.request()
        return self._pump(job, now_ms)

    def on_manifest_written(self, job: Job, key: str, now_ms: int) -> Decision | None:
        found = being_persisted(job, key)
        if found is not None:
            decide(job, *found, now_ms)
        return None

    def on_manifest_read(self, job: Job, key: str, data: bytes | None, now_ms: int) -> Decision | None:
        on_committers_manifest(job, key, data, now_ms)
        return None

    def on_manifest_failed(self, job: Job, key: str, error: str, now_ms: int) -> Decision | None:
        found = being_persisted(job, key)
        return None if found is None else self._give_up(job, found[0], Cause.NOT_STORED, error, now_ms)

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        record = appended.entry.record
        job.lead(appended)
        if not isinstance(record, Complete):
            return self._pump(job, now_ms)
        job.outbox.complete(appended.permit)
        checkpoint_appended(job, record, now_ms)
        job.rescales.completed(record.checkpoint, now_ms)
        commit_globally(job, now_ms)
        copy_visible(job)
        sweep_if_due(job, now_ms)
        return end_if_done(job) or self._pump(job, now_ms)

    def on_listed(self, job: Job, listed: Listed, now_ms: int) -> Decision | None:
        sweep(job, listed, now_ms)
        return None

    def on_rescale(self, job: Job, now_ms: int) -> Decision | None:
        return self._pump(job, now_ms)

    def on_savepoint(self, job: Job, now_ms: int) -> Decision | None:
        attach_to_last(job)
        copy_visible(job)
        let_go(job)
        return end_if_done(job) or self._pump(job, now_ms)

    def on_stop(self, job: Job, now_ms: int) -> Decision | None:
        if isinstance(job.stop, StopNow):
            return Cancel()
        return self._pump(job, now_ms)

    def _pump(self, job: Job, now_ms: int) -> Decision | None:
        commit_globally(job, now_ms)
        pending = job.generation.checkpoints
        exceeded = ""
        for checkpoint in pending.expire(now_ms):
            missing = ", ".join(map(str, checkpoint.missing)) or "none, its manifest was not stored in time"
            reason = f"no answer within {job.spec.checkpoints.timeout_ms} ms; missing subtasks: {missing}"
            exceeded = checkpoint_aborted(job, checkpoint, Cause.EXPIRED, reason, now_ms) or exceeded
        if exceeded:
            return Restart(exceeded)
        follow_stop(job, pending, now_ms)
        moving.request_full_width(job, now_ms)
        moving.request_departure(job, now_ms)
        moves = moving.follow_rescale(job, now_ms)
        if moves is not None:
            return moves
        if job.generation.final is None and job.all_ended:
            pending.triggering = Triggering.ON_REQUEST
            if not any(checkpoint.final for checkpoint in pending.open):
                pending.request()
        request_for_rest(job, pending)
        if not moving.holds_checkpoints(job):
            trigger_if_due(job, now_ms)
        ready = pending.ready()
        if ready is None or job.log.in_flight:
            return None
        refused = persist(job, ready, now_ms)
        return None if refused is None else self._give_up(job, ready, *refused, now_ms)

    def _give_up(self, job: Job, checkpoint: Checkpoint, cause: Cause, reason: str, now_ms: int) -> Decision | None:
        job.generation.checkpoints.abort(checkpoint, now_ms)
        exceeded = checkpoint_aborted(job, checkpoint, cause, reason, now_ms)
        return Restart(exceeded) if exceeded else self._pump(job, now_ms)


# Global commits and copies of savepoints, in a running job.


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
