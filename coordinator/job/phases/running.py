"""A generation runs: checkpoints, commits, lost slots, and the job's natural or wanted end."""

from collections.abc import Sequence

import msgspec

from barrier_runtime.coordinator.checkpoints.agreement import disagreement
from barrier_runtime.coordinator.checkpoints.checkpoint import AckEffect, Checkpoint, CheckpointPhase
from barrier_runtime.coordinator.checkpoints.failures import Cause, FailureVerdict
from barrier_runtime.coordinator.checkpoints.pending import PendingCheckpoints, Triggering
from barrier_runtime.coordinator.checkpoints.retention import Kept, Retention, kept_after_restore
from barrier_runtime.coordinator.job.checkpoint_ends import abandon, checkpoint_appended, under_way
from barrier_runtime.coordinator.job.decisions import Cancel, Decision, Fail, HandOver, Restart
from barrier_runtime.coordinator.job.effects import CloseLink, CopySavepoint, ListForSweep, ReadRecord, WriteManifest
from barrier_runtime.coordinator.job.events import Listed
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.fetching_ahead import Next
from barrier_runtime.coordinator.job.phases.phase import Phase
from barrier_runtime.coordinator.job.phases.stopping import end_if_done, follow_stop, needs_another, share_last
from barrier_runtime.coordinator.job.phases.why_not_moved import (
    undecided_because,
    why_not_loaded,
    why_not_started,
    why_unfit,
)
from barrier_runtime.coordinator.job.rescaling import Rescale, RescaleState
from barrier_runtime.coordinator.job.slots import Arrival, Joined, RegisteredSlot, SlotState
from barrier_runtime.coordinator.log.decided import packed
from barrier_runtime.coordinator.log.decision_log import Appended, LogEntry, complete_of
from barrier_runtime.coordinator.log.hashing import sha256_hex
from barrier_runtime.coordinator.log.kinds import with_kinds
from barrier_runtime.coordinator.log.manifest import (
    MANIFEST_VERSION,
    DecidedManifest,
    Manifest,
    encode_manifest,
    verified_manifest,
)
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.log.restore_choice import begin_at_zero
from barrier_runtime.coordinator.wire.carried import too_large_manifest
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CommitFailing,
    Committed,
    Decline,
    EndSources,
    EventTimeReached,
    LowestEventTime,
    ManifestRef,
    Prefetch,
    SubtaskEnded,
    SubtaskFailed,
    ToCoordinator,
    Trigger,
    Visible,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob

SWEEP_EVERY_MS = 60 * 60 * 1000


class Running(Phase):
    name = "running"
    judges_silence = True

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._swept_ms: int | None = None
        self._told = 0  # the highest checkpoint id that any slot may have heard of from us, or before we led

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        job.generation.pending = PendingCheckpoints(
            job.spec.checkpoints, job.subtasks, job.led.token, job.highest_checkpoint() + 1, now_ms
        )
        self._told = job.highest_checkpoint()
        job.savepoints.generation_ended(job.generation.pending.next_id)
        job.stop_from = None
        job.restarts.running(now_ms)
        if job.rescales.running(now_ms):
            job.record.revision += 1
        if job.retreat is not None:
            job.retreat = None
            job.admit(f"job {job.spec.job} goes on with another program")
        job.record.recovered(now_ms)
        if job.retention is None:
            self._list(job)
        if any(slot.register.drained and slot.register.token == job.led.token for slot in job.slots):
            _go_on_draining(job)
        if job.decided is not None and job.decided.manifest.checkpoint == job.last_completed:
            job.commits.decided(job.decided.manifest.checkpoint, job.decided.manifest.operators, job.decided.ref)
        for slot in job.slots.connected:
            self._tell_visible(job, slot)
        return self._pump(job, now_ms)

    # ------------------------------------------------------------ time

    def deadline(self, job: Job) -> int | None:
        graces = [slot.lost_ms + job.spec.reconnect_grace_ms for slot in job.slots if slot.lost_ms is not None]
        held = self._holds_checkpoints(job)
        pending = self._pending(job).next_deadline(with_trigger=not job.commits.too_far_behind, held=held)
        rescale = job.rescales.open
        commit_ms = job.commits.next_due_ms(job.last_completed)
        others = (pending, commit_ms, None if rescale is None or self._decides_move(job) else rescale.deadline_ms)
        return min([*graces, *(moment for moment in others if moment is not None)], default=None)

    def on_tick(self, job: Job, now_ms: int) -> Decision | None:
        for slot in job.slots.silent(now_ms, job.spec.slot_timeout_ms):
            reason = f"slot {slot.index} ({slot.register.host} pid {slot.register.pid}) was silent for "
            reason += f"{now_ms - slot.last_seen_ms} ms"
            if slot.blocked:
                reason += f" (it had been blocked by {slot.blocked})"
            job.slots.give_up(slot, reason)
            job.outbox.close(slot)
            return Restart(reason)
        for slot in job.slots:
            if slot.lost_ms is not None and now_ms - slot.lost_ms >= job.spec.reconnect_grace_ms:
                return Restart(f"slot {slot.index} ({slot.register.host} pid {slot.register.pid}) lost contact")
        return self._pump(job, now_ms)

    # ------------------------------------------------------------ slots

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        slot = arrival.slot
        if isinstance(arrival, Joined):
            return Restart(arrival.death or f"slot {slot.index} was replaced by a new process")
        if slot.register.token != job.led.token or slot.register.phase not in ("running", "paused"):
            return Restart(f"slot {slot.index} came back without its state")
        stands = job.rescales.pausing or job.stop == "checkpoint"
        if slot.register.phase == "paused" and not stands:  # it did not hear that the job goes on
            return Restart(f"slot {slot.index} came back with its sources stopped", counted=False)
        if slot.register.highest_checkpoint > self._told:
            self._ask_the_log(job, slot, now_ms)
            return None
        slot.state = SlotState.RUNNING
        job.greet(slot, job.led.token)
        job.mark_ended(slot, slot.register.ended)
        for checkpoint in self._pending(job).open:
            if any(subtask.index == slot.index for subtask in checkpoint.missing):
                self._tell(job, (slot,), checkpoint)
        if job.generation.drained:
            job.outbox.send(slot, EndSources(job.led.token))
        self._tell_visible(job, slot)
        self._let_go(job)
        self._committed(job, now_ms)  # its Register may tell of the last commit, whose own message was lost
        return end_if_done(job) or self._pump(job, now_ms)

    def _ask_the_log(self, job: Job, slot: RegisteredSlot, now_ms: int) -> None:
        """It has heard of checkpoints of this generation that are not ours: somebody else led while this process stood
        still. Nothing is said to it: ids of ours may be ids of theirs. It comes again, and by then the log has told."""
        link = slot.link
        assert link is not None
        job.slots.lost(link, now_ms)
        job.outbox.put(CloseLink(link))
        job.outbox.put(ReadRecord(job.log.next_position))

    def on_slot_lost(self, job: Job, slot: RegisteredSlot, now_ms: int) -> Decision | None:
        return None  # it may only be the connection: `on_tick` ends the grace

    def on_message(self, job: Job, slot: RegisteredSlot, message: ToCoordinator, now_ms: int) -> Decision | None:
        if isinstance(message, Ack):
            return self._on_ack(job, slot, message, now_ms)
        if isinstance(message, Committed):
            held = job.held
            job.mark_committed(slot, message)
            if job.held != held:
                self._let_go(job)
            self._committed(job, now_ms)
            return end_if_done(job) or self._rescale(job, now_ms)
        if isinstance(message, CommitFailing):
            job.commits.failing(message, now_ms)
        elif isinstance(message, Decline):
            return self._on_decline(job, slot, message, now_ms)
        elif isinstance(message, SubtaskEnded):
            job.mark_ended(slot, (message.subtask,))
            return self._pump(job, now_ms)
        elif isinstance(message, EventTimeReached):
            reached = job.generation.event_times
            reached.told(slot.index, message.sources)
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
        result = self._pending(job).ack(ack, now_ms)
        if result.checkpoint is None and self._pending(job).is_aborted(ack.checkpoint):
            abandon(job, (ack,))
        if result.effect is AckEffect.LAST or ack.ended:
            return self._pump(job, now_ms)
        return None

    def _on_decline(self, job: Job, slot: RegisteredSlot, decline: Decline, now_ms: int) -> Decision | None:
        if decline.subtask.index != slot.index:
            job.record.ignored["decline for another slot's subtask"] += 1
            return None
        checkpoint = self._pending(job).decline(decline.checkpoint, decline.subtask, now_ms)
        if checkpoint is None:
            return None
        reason = f"subtask {decline.subtask} declined: {decline.reason}"
        exceeded = self._aborted(job, checkpoint, Cause.DECLINED, reason, now_ms)
        return self._failed_or_go_on(job, exceeded, now_ms, decline.unavailable)

    # ------------------------------------------------------------ checkpoints

    def on_trigger(self, job: Job, now_ms: int) -> Decision | None:
        if not self._holds_checkpoints(job):
            self._pending(job).request()
        return self._pump(job, now_ms)

    def on_manifest_written(self, job: Job, key: str, now_ms: int) -> Decision | None:
        checkpoint = self._persisting(job, key)
        written = job.generation.written
        if checkpoint is None or written is None:
            return None
        self._decide(job, checkpoint, written, now_ms)
        return None

    def on_manifest_read(self, job: Job, key: str, data: bytes | None, now_ms: int) -> Decision | None:
        """For the global committers of a job whose coordinator was restarted. Without it they wait for the next
        checkpoint, whose manifest lists everything that is not visible yet."""
        entry = job.log.restore_point
        if entry is None or key != complete_of(entry).manifest:
            return None
        if data is None:
            job.record.ignored[f"manifest {key} is missing from the store"] += 1
            return None
        try:
            manifest = verified_manifest(key, data, complete_of(entry).sha256)
        except (Corrupt, InvalidJob) as error:
            job.record.ignored[str(error)] += 1
            return None
        job.commits.decided(manifest.checkpoint, manifest.operators, job.decided_as(entry, manifest).ref)
        job.commit_globally(now_ms)
        return None

    def on_manifest_failed(self, job: Job, key: str, error: str, now_ms: int) -> Decision | None:
        checkpoint = self._persisting(job, key)
        if checkpoint is None:
            return None
        self._pending(job).abort(checkpoint, now_ms)
        return self._failed_or_go_on(job, self._aborted(job, checkpoint, Cause.NOT_STORED, error, now_ms), now_ms)

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        record = appended.entry.record
        job.lead(appended)
        if not isinstance(record, Complete):
            return self._pump(job, now_ms)
        job.outbox.complete(appended.permit)
        checkpoint_appended(job, record, now_ms)
        job.rescales.completed(record.checkpoint, now_ms)
        job.commit_globally(now_ms)
        self._copy_savepoints(job)
        self._sweep_if_due(job, now_ms)
        return end_if_done(job) or self._pump(job, now_ms)

    def on_listed(self, job: Job, listed: Listed, now_ms: int) -> Decision | None:
        if job.retention is None:
            job.retention = _retention_from(job, listed)
        if job.retention is not None and self._swept_ms is not None:
            plan = job.retention.sweep(job.paths, listed.objects, job.led.token, now_ms, under_way(job.generation))
            job.delete(plan)
        return None

    def on_rescale(self, job: Job, now_ms: int) -> Decision | None:
        return self._pump(job, now_ms)

    def on_savepoint(self, job: Job, now_ms: int) -> Decision | None:
        share_last(job)
        self._copy_savepoints(job)
        self._let_go(job)
        return end_if_done(job) or self._pump(job, now_ms)

    def on_stop(self, job: Job, now_ms: int) -> Decision | None:
        if job.stop == "now":
            return Cancel()
        return self._pump(job, now_ms)

    # ------------------------------------------------------------ inside

    def _pump(self, job: Job, now_ms: int) -> Decision | None:
        """Do all that is due: commit, expire, trigger, persist."""
        job.commit_globally(now_ms)
        pending = self._pending(job)
        exceeded = ""
        for checkpoint in pending.expire(now_ms):
            missing = ", ".join(map(str, checkpoint.missing)) or "none, its manifest was not stored in time"
            reason = f"no answer within {job.spec.checkpoints.timeout_ms} ms; missing subtasks: {missing}"
            exceeded = self._aborted(job, checkpoint, Cause.EXPIRED, reason, now_ms) or exceeded
        if exceeded:
            return Restart(exceeded)
        follow_stop(job, pending, now_ms)
        moves = self._rescale(job, now_ms)
        if moves is not None:
            return moves
        if job.generation.final is None and job.all_ended:
            pending.triggering = Triggering.ON_REQUEST
            if not any(checkpoint.final for checkpoint in pending.open):
                pending.request()
        if not self._holds_checkpoints(job):
            self._trigger_if_due(job, now_ms)
        ready = pending.ready()
        if ready is not None and not job.log.in_flight:
            return self._persist(job, ready, now_ms)
        return None

    def _trigger_if_due(self, job: Job, now_ms: int) -> None:
        pending = self._pending(job)
        if needs_another(job, pending) or job.savepoints.wants_checkpoint([each.id for each in pending.open]):
            pending.request()
        if pending.due(now_ms) and (pending.requested or not job.commits.too_far_behind):
            self._trigger(job, now_ms)

    def _trigger(self, job: Job, now_ms: int) -> None:
        checkpoint = self._pending(job).trigger(now_ms)
        checkpoint.final = job.all_ended
        options = job.spec.checkpoints
        if job.stop is None and not job.savepoints.waiting and not job.rescales.replaces:
            # What a job stops with, a savepoint, and what another program takes over, has no rows in flight: any
            # successor can restore it.
            checkpoint.overtakes_timers = not options.unaligned
            if options.unaligned:
                checkpoint.aligned_timeout_ms = options.aligned_timeout_ms
        job.record.triggered += 1
        job.rescales.triggered(checkpoint.id, now_ms)
        self._tell(job, job.slots.connected, checkpoint)

    def _tell(self, job: Job, slots: Sequence[RegisteredSlot], checkpoint: Checkpoint) -> None:
        for slot in slots:
            stops = job.stop_from is not None and checkpoint.id >= job.stop_from
            job.outbox.send(slot, _trigger(checkpoint, stops, stops or job.rescales.pauses(checkpoint.id)))
            self._told = max(self._told, checkpoint.id)

    def _persist(self, job: Job, checkpoint: Checkpoint, now_ms: int) -> Decision | None:
        manifest = _manifest(job, checkpoint, now_ms)
        data = encode_manifest(manifest)
        key, inline = job.paths.manifest(checkpoint.id, job.led.token), packed(data)
        reason = too_large_manifest(len(data), manifest.operators) or disagreement(manifest.operators)
        if reason:
            self._pending(job).abort(checkpoint, now_ms)
            return self._failed_or_go_on(job, self._aborted(job, checkpoint, Cause.NOT_STORED, reason, now_ms), now_ms)
        inside = job.paths.log_record(job.log.next_position) if inline else ""
        written = DecidedManifest(key, sha256_hex(data), manifest, inside)
        if job.retention is not None:
            gone = job.retention.condemned(job.kept(written).files)
            if gone:
                self._pending(job).abort(checkpoint, now_ms)
                reason = f"it refers to {len(gone)} files that were already deleted, e.g. {gone[0]}"
                return self._failed_or_go_on(
                    job, self._aborted(job, checkpoint, Cause.GENERATION_ENDED, reason, now_ms), now_ms
                )
        checkpoint.move(CheckpointPhase.PERSISTING, now_ms)
        job.generation.written = written
        if inline:
            self._decide(job, checkpoint, written, now_ms, inline)
        else:
            job.outbox.put(WriteManifest(key, data))
        return None

    def _decide(
        self, job: Job, checkpoint: Checkpoint, written: DecidedManifest, now_ms: int, inline: bytes = b""
    ) -> None:
        checkpoint.move(CheckpointPhase.DECIDING, now_ms)
        ref = ManifestRef(written.key, written.sha256)
        job.append(job.records.complete(job.log, checkpoint.id, job.led.lineage, ref, now_ms, inline))

    def _aborted(self, job: Job, checkpoint: Checkpoint, cause: Cause, reason: str, now_ms: int) -> str:
        """A checkpoint ended without a decision. Returns why the generation must end, or ""."""
        job.record.checkpoint_ended(checkpoint, reason, now_ms)
        job.abort_checkpoint(checkpoint, reason)
        if job.rescales.pauses(checkpoint.id):
            job.fail_rescale(f"the checkpoint to move with, {checkpoint.id}, failed: {reason}", now_ms)
        abandon(job, checkpoint.acks.values())
        if self._swept_ms is not None:  # before the first decision nothing tells what is old
            self._sweep_if_due(job, now_ms)
        self._let_go(job)
        if job.generation.failures.failed(checkpoint.id, cause) is FailureVerdict.TOLERATED:
            return ""
        return (
            f"checkpoint {checkpoint.id} failed ({reason}); tolerable_failures = "
            f"{job.spec.checkpoints.tolerable_failures} is exceeded"
        )

    def _let_go(self, job: Job) -> None:
        """Of what waits to be deleted, that which nobody can need any more."""
        if job.retention is not None:
            open_ids = [checkpoint.id for checkpoint in self._pending(job).open]
            job.delete(job.retention.resolved(open_ids, job.held))

    def _failed_or_go_on(self, job: Job, exceeded: str, now_ms: int, unavailable: bool = False) -> Decision | None:
        return Restart(exceeded, unavailable) if exceeded else self._pump(job, now_ms)

    # ------------------------------------------------------------ another number of slots

    def _rescale(self, job: Job, now_ms: int) -> Decision | None:
        """Do what is due of it."""
        rescale = job.rescales.before_moving
        if rescale is None:
            return None
        if job.stop is not None or job.generation.final is not None or job.all_ended:
            ends = "it is being stopped" if job.stop is not None else "it has read all of its input"
            job.fail_rescale(f"job {job.spec.job} ends: {ends}", now_ms)
            return None
        if rescale.state is RescaleState.LOADING:
            if rescale.deadline_ms is not None and now_ms >= rescale.deadline_ms:
                job.fail_rescale(why_not_loaded(rescale), now_ms)
            return None
        missing = job.slots.missing_standbys(now_ms)
        late = rescale.deadline_ms is not None and now_ms >= rescale.deadline_ms
        if rescale.state is RescaleState.STARTING:
            unfit = why_unfit(job, rescale, job.decided)
            broken = next((slot.register.broken for slot in job.slots.standbys if slot.register.broken), "")
            if unfit or broken:
                job.fail_rescale(unfit or f"a new slot cannot run the program: {broken}", now_ms)
            elif not missing and self._knows_what_moves(job) and self._fetched(job, rescale, late):
                job.rescales.stop_with(self._pending(job).request())
            elif late:
                wanted = rescale.ahead.checkpoint
                slow = sorted(slot.index for slot in self._preparing(job) if slot.prefetched < wanted)
                job.fail_rescale(why_not_started(rescale, missing, slow), now_ms)
        elif rescale.state is RescaleState.STOPPING:
            if late and not self._decides_move(job):
                self._give_up_move(job, rescale, now_ms)
        elif rescale.state is RescaleState.COMMITTING:
            self._ask_to_fetch(job, rescale)  # what is new in the last checkpoint, while sinks commit it
            if job.commits.all_through(job.last_completed):
                return self._move(job, rescale, missing, now_ms)
            if late:
                behind = ", ".join(job.commits.behind(job.last_completed))
                return self._stay(job, f"sinks did not commit within {rescale.request.timeout_ms} ms: {behind}", now_ms)
        return None

    def _decides_move(self, job: Job) -> bool:
        """Whether COMPLETE of the checkpoint to move with is on its way to the log."""
        return any(
            job.rescales.pauses(each.id) and each.phase is CheckpointPhase.DECIDING for each in self._pending(job).open
        )

    def _give_up_move(self, job: Job, rescale: Rescale, now_ms: int) -> None:
        """Sources stand longer than was allowed for the checkpoint to move with: they read on, in this generation."""
        for checkpoint in self._pending(job).open:
            if rescale.pauses(checkpoint.id):
                self._pending(job).abort(checkpoint, now_ms)
                reason = f"it was not decided within {rescale.request.timeout_ms} ms, {undecided_because(checkpoint)}"
                self._aborted(job, checkpoint, Cause.MOVE_ABORTED, f"{reason}: give a longer timeout", now_ms)

    def _knows_what_moves(self, job: Job) -> bool:
        """Whether another program fits, and what is to be fetched, is said of a checkpoint. A coordinator that was
        started again has none at hand until it decides one."""
        if job.decided is not None or job.last_completed == 0:
            return True
        if not self._pending(job).open:
            self._pending(job).request()
        return False

    def _fetched(self, job: Job, rescale: Rescale, late: bool) -> bool:
        """Whether the slots have fetched so much that the sources may stop."""
        self._ask_to_fetch(job, rescale)
        if job.decided is None:
            return True
        fetched = min(slot.prefetched for slot in self._preparing(job))
        due = rescale.ahead.next(fetched, job.decided.manifest.checkpoint, late)
        if due is Next.CHECKPOINT:
            rescale.ahead.taken(self._pending(job).request())
        return due is Next.STOP

    def _preparing(self, job: Job) -> list[RegisteredSlot]:
        """New slots fetch what they get, as do those that stay; those of now come to rest, also those that leave."""
        return [*job.slots.standbys, *job.slots]

    def _ask_to_fetch(self, job: Job, rescale: Rescale) -> None:
        decided, after = job.decided, rescale.after
        if decided is None:
            return
        order = Prefetch(decided.manifest.checkpoint, decided.ref, after.parallelism, after.max_parallelism)
        for slot in self._preparing(job):
            if slot.connected and slot.is_to_prefetch(rescale.request.id, order.checkpoint):
                job.outbox.send(slot, order)

    def _move(self, job: Job, rescale: Rescale, missing: tuple[int, ...], now_ms: int) -> Decision:
        if missing:
            return self._stay(job, f"new slots were lost: {', '.join(map(str, missing))}", now_ms)
        unfit = why_unfit(job, rescale, job.decided)
        if unfit:
            return self._stay(job, unfit, now_ms)
        job.rescales.move(now_ms)
        added = "" if job.decided is None else begin_at_zero(rescale.after, job.decided.manifest)
        return HandOver(rescale.after, f"{rescale.what}; {added}" if added else rescale.what, rescale.request.replaces)

    def _stay(self, job: Job, error: str, now_ms: int) -> Decision:
        """The sources have stopped for good in this generation: the next one, of the same slots, reads on."""
        job.fail_rescale(error, now_ms)
        return Restart(f"the job goes on as it was: {error}", counted=False)

    def _holds_checkpoints(self, job: Job) -> bool:
        rescale = job.rescales.open
        return rescale is not None and rescale.holds_checkpoints(job.last_completed)

    def _committed(self, job: Job, now_ms: int) -> None:
        """More may be visible than was."""
        job.commit_globally(now_ms)
        job.record.commits_seen(job.commits, now_ms)
        self._copy_savepoints(job)

    def _copy_savepoints(self, job: Job) -> None:
        for due in job.savepoints.due(job.commits.all_through):
            job.outbox.put(CopySavepoint(due.url, due.copy))

    def _tell_visible(self, job: Job, slot: RegisteredSlot) -> None:
        """It may have been said while this slot did not hear."""
        for sink, checkpoint in job.commits.visible():
            job.outbox.send(slot, Visible(job.led.token, checkpoint, sink))

    def _sweep_if_due(self, job: Job, now_ms: int) -> None:
        if self._swept_ms is None or now_ms - self._swept_ms >= SWEEP_EVERY_MS:
            self._swept_ms = now_ms
            self._list(job)

    def _list(self, job: Job) -> None:
        kept = () if job.retention is not None else _kept_at_start(job)
        job.outbox.put(ListForSweep(tuple(complete_of(entry) for entry in kept)))

    def _pending(self, job: Job) -> PendingCheckpoints:
        pending = job.generation.pending
        assert pending is not None, "a running job without its checkpoints"
        return pending

    def _persisting(self, job: Job, key: str) -> Checkpoint | None:
        written = job.generation.written
        if written is None or written.key != key:
            return None
        checkpoint = self._pending(job).get(written.manifest.checkpoint)
        return checkpoint if checkpoint is not None and checkpoint.phase is CheckpointPhase.PERSISTING else None


def _go_on_draining(job: Job) -> None:
    """The coordinator before us was asked to drain the job, and some of its sources have ended by that."""
    if job.stop != "now":
        job.stop = "drain"


def _trigger(checkpoint: Checkpoint, stop: bool, pause: bool) -> Trigger:
    return Trigger(
        checkpoint.token,
        checkpoint.id,
        checkpoint.triggered_ms,
        checkpoint.aligned_timeout_ms,
        stop,
        pause,
        checkpoint.overtakes_timers,
    )


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


def _kept_at_start(job: Job) -> tuple[LogEntry, ...]:
    """The decisions that were kept when this process read the log, the first one to be dropped first."""
    return job.view.kept_entries[-job.spec.checkpoints.retained :]


def _retention_from(job: Job, listed: Listed) -> Retention | None:
    """What is kept, from the manifests the log names. One unreadable one: nothing is deleted (S10)."""
    found = dict(listed.manifests)
    kept: list[Kept] = []
    for entry in reversed(_kept_at_start(job)):
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
    earlier = [decided for decided in job.unsorted if not _of_this_generation(job, decided)]
    retained = job.spec.checkpoints.retained
    retention = Retention(retained, kept_after_restore((*reversed(earlier), *kept), restored, retained))
    assert generation.pending is not None
    open_ids, triggered = [checkpoint.id for checkpoint in generation.pending.open], generation.pending.next_id - 1
    for decided in job.unsorted[len(earlier) :]:
        job.delete(retention.completed(decided, open_ids, triggered, job.held))
    job.unsorted.clear()
    return retention


def _of_this_generation(job: Job, kept: Kept) -> bool:
    checkpoint = job.paths.checkpoint_of(kept.manifest_key)
    return checkpoint is not None and checkpoint[1] == job.led.token
