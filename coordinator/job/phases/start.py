"""Way to leadership.

Loading ─ log ─► Resuming (same run, slots may be alive) ─ all running ─► LEAD is appended ─► Running
   ▲  │      └─► Fencing (a new generation) ─ FENCE is appended ─► WaitingForSlots
   └ Checking (once, with `preflight_ms`)
"""

from dataclasses import replace

from barrier_runtime.coordinator.job.effects import ReadLog, ReadManifest
from barrier_runtime.coordinator.job.facts import Job, Origin
from barrier_runtime.coordinator.job.phases.checkpointing import appended_late
from barrier_runtime.coordinator.job.phases.phase import (
    Attempts,
    BeginGeneration,
    Check,
    Decision,
    EndJob,
    Fail,
    FencedBy,
    Gather,
    LoadLog,
    Phase,
    Run,
    TakeOver,
)
from barrier_runtime.coordinator.job.slot import Arrival, RegisteredSlot, SlotState
from barrier_runtime.coordinator.log.decision_log import Appended, Foreign, LogView, complete_of
from barrier_runtime.coordinator.log.manifest import DecidedManifest, verified_manifest
from barrier_runtime.coordinator.log.records import Complete, Fence, Lead
from barrier_runtime.coordinator.log.restore_choice import (
    Lineage,
    begin_at_zero,
    check_manifest,
    continue_run,
    not_kept,
    outdated_after,
    start_run,
)
from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    CommitFailing,
    Committed,
    JobSpec,
    SubtaskEnded,
    SubtaskFailed,
    ToCoordinator,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.texts import counted

MAX_LOST_RACES = 100
_MAX_ABORTS = 16
_ANSWERS_MS = 5_000  # of slots that have registered; a slot gives up a silent peer after 4 s


class Loading(Phase):
    name = "loading"

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        restore = job.spec.restore
        job.outbox.put(
            ReadLog(
                completes=job.spec.checkpoints.retained + 1,
                restore=int(restore) if restore.isdigit() else None,
                run_id=job.spec.run_id,
            )
        )
        return None

    def on_log(self, job: Job, view: LogView, now_ms: int) -> Decision | None:
        job.load(view)
        head_fence = job.log.fence
        if head_fence is not None and head_fence.spec.run_id == job.spec.run_id:
            return self._same_run(job, now_ms)
        earlier = {entry.record.spec.run_id for entry in view.earlier_runs if isinstance(entry.record, Fence)}
        if head_fence is not None and (job.origin is Origin.ADOPTED or job.spec.run_id in earlier):
            return FencedBy(head_fence)
        if self._attempts.lost_races > MAX_LOST_RACES:
            return EndJob(
                "failed",
                f"job {job.spec.job}: other coordinators took the log's head "
                f"{counted(self._attempts.lost_races, 'time')} in a row: stop the other runs of this job, then start "
                "again",
            )
        if job.spec.preflight_ms and not self._attempts.checked:
            return Check(self._attempts)
        try:
            choice = start_run(job.spec, view)
        except InvalidJob as error:
            return EndJob("failed", str(error))
        if head_fence is not None and choice.entry is not None:
            job.know_outdated(outdated_after(head_fence.spec, job.spec))
        return BeginGeneration(
            choice, f"started by {job.spec.submitter}", now_ms, attempts=self._attempts, kind="start"
        )

    def _same_run(self, job: Job, now_ms: int) -> Decision:
        finish = job.log.finish
        if finish is not None:
            if finish.outcome == "failed":
                return EndJob("failed", finish.reason)
            return EndJob(finish.outcome, f"job {job.spec.job} had ended before: {finish.outcome}")
        job.resume_logged_stop(now_ms)
        return TakeOver(self._attempts)


class Checking(Phase):
    """Preflight before a FENCE ends an earlier run: docs/design/several-hosts.md."""

    name = "checking"

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._until_ms = 0

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        self._until_ms = now_ms + job.spec.preflight_ms
        for slot in job.slots.connected:
            job.acknowledge_registration(slot, 0)
        if job.compatibility.refused(job.spec.program):
            return self.on_incompatible(job, now_ms)
        return self._probe_if_complete(job, now_ms)

    def deadline(self, job: Job) -> int | None:
        return self._until_ms

    def on_tick(self, job: Job, now_ms: int) -> Decision | None:
        return self._decide(job) if now_ms >= self._until_ms else self._decide_if_answered(job)

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        job.acknowledge_registration(arrival.slot, 0)
        return self._probe_if_complete(job, now_ms)

    def on_incompatible(self, job: Job, now_ms: int) -> Decision | None:
        self._until_ms = min(self._until_ms, now_ms + _ANSWERS_MS)
        return self._probe_if_complete(job, now_ms)

    def on_probed(self, job: Job, now_ms: int) -> Decision | None:
        return self._decide_if_answered(job)

    def _probe_if_complete(self, job: Job, now_ms: int) -> Decision | None:
        if not self._missing(job):
            self._until_ms = min(self._until_ms, now_ms + _ANSWERS_MS)
            job.probe()
        return self._decide_if_answered(job)

    def _missing(self, job: Job) -> set[int]:
        return set(job.slots.missing) - {each.slot for each, _ in job.compatibility.refused_slots(job.spec.program)}

    def _decide_if_answered(self, job: Job) -> Decision | None:
        return None if self._missing(job) or job.unanswered else self._decide(job)

    def _decide(self, job: Job) -> Decision:
        refused = job.compatibility.refused(job.spec.program)
        if refused:
            return EndJob("failed", f"job {job.spec.job}: {refused}")
        return LoadLog(replace(self._attempts, checked=True))


class Resuming(Phase):
    """Waits for all running slots after a restart of the coordinator, then appends LEAD."""

    name = "resuming"

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._deadline_ms = 0

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        self._deadline_ms = now_ms + job.spec.resume_timeout_ms
        failure = job.generation.reported_failure
        if failure is not None and failure.token == job.log.token:
            return self._after_failure(job, failure, now_ms)
        for slot in job.slots.connected:
            after = self._consider(job, slot, now_ms)
            if after is not None:
                return after
        return self._lead_if_complete(job, now_ms)

    def deadline(self, job: Job) -> int | None:
        return None if job.log.in_flight else self._deadline_ms

    def on_tick(self, job: Job, now_ms: int) -> Decision | None:
        if job.log.in_flight or now_ms < self._deadline_ms:
            return None
        missing = ", ".join(map(str, job.slots.missing))
        return self._new_generation(job, f"the coordinator restarted and slots {missing} did not come back", now_ms)

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        if job.log.in_flight:
            return None  # considered when LEAD is appended
        return self._consider(job, arrival.slot, now_ms) or self._lead_if_complete(job, now_ms)

    def listens_to(self, job: Job) -> int | None:
        return job.log.token

    def on_message(self, job: Job, slot: RegisteredSlot, message: ToCoordinator, now_ms: int) -> Decision | None:
        """Accepts facts, but no acks: those checkpoints will be aborted."""
        if isinstance(message, Committed):
            job.mark_committed(slot, message)
        elif isinstance(message, CommitFailing):
            job.commits.failing(message, now_ms)
        elif isinstance(message, SubtaskEnded):
            job.mark_ended(slot, (message.subtask,))
        elif isinstance(message, SubtaskFailed):
            job.generation.reported_failure = message
            return None if job.log.in_flight else self._after_failure(job, message, now_ms)
        return None

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        if not isinstance(appended.entry.record, Lead):
            return None
        job.lead(appended)
        job.record.taken_over(job.led.token, job.identity, now_ms)
        failure = job.generation.reported_failure
        if failure is not None and failure.token == job.led.token:
            return self._after_failure(job, failure, now_ms)
        for slot in job.slots.connected:
            if not self._alive(job, slot):
                return self._new_generation(job, self._dead_reason(slot), now_ms)
        if job.slots.missing:
            return self._new_generation(job, "a slot was lost while the coordinator restarted", now_ms)
        job.outbox.complete(appended.permit)  # the predecessor may have decided a checkpoint after Registered
        highest = job.highest_checkpoint()
        for checkpoint in range(max(job.last_completed + 1, highest - _MAX_ABORTS + 1), highest + 1):
            job.outbox.broadcast(AbortCheckpoint(job.led.token, checkpoint, "the coordinator restarted"))
        for slot in job.slots:
            job.acknowledge_registration(slot, job.led.token)  # of slots that connected during the append
            slot.state = SlotState.RUNNING
            job.mark_ended(slot, slot.register.ended)
        job.probe()  # the answers died with the predecessor
        return Run("the coordinator restarted, all slots had survived")

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Decision | None:
        record = foreign.entry.record
        if isinstance(record, Fence) and record.spec.run_id != job.spec.run_id:
            return FencedBy(record)
        return LoadLog(self._attempts.lost_another())

    def _consider(self, job: Job, slot: RegisteredSlot, now_ms: int) -> Decision | None:
        if not self._alive(job, slot):
            return self._new_generation(job, self._dead_reason(slot), now_ms)
        job.acknowledge_registration(slot, job.log.token or 0)
        return None

    def _alive(self, job: Job, slot: RegisteredSlot) -> bool:
        register = slot.register
        seat = slot.started_as if register.seat < 0 else register.seat
        return register.token == job.log.token and register.phase == "running" and seat == slot.index

    def _dead_reason(self, slot: RegisteredSlot) -> str:
        return f"the coordinator restarted and slot {slot.index} came without its state"

    def _lead_if_complete(self, job: Job, now_ms: int) -> Decision | None:
        if not job.slots.missing:
            job.append(job.records.lead(job.log, now_ms))
        return None

    def _after_failure(self, job: Job, failure: SubtaskFailed, now_ms: int) -> Decision:
        return self._new_generation(job, failure.error, now_ms) if failure.retryable else Fail(failure.error)

    def _new_generation(self, job: Job, reason: str, now_ms: int) -> Decision:
        return BeginGeneration(continue_run(job.log), reason, now_ms, attempts=self._attempts)


class Fencing(Phase):
    name = "fencing"

    def __init__(self, wanted: BeginGeneration) -> None:
        self._choice = wanted.choice
        self.reason = wanted.reason
        self._began_ms = wanted.began_ms
        self._wait_ms = wanted.wait_ms
        self._attempts = wanted.attempts
        self._kind = wanted.kind
        self._spec, self._keep, self._visible = wanted.spec, wanted.keep, wanted.visible
        self._verified: DecidedManifest | None = None

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        if job.generation.pending is not None:
            for checkpoint in job.generation.pending.abort_all(now_ms):
                job.record.checkpoint_ended(checkpoint, self.reason, now_ms)
            job.fail_rescale(f"the job had to begin a new generation: {self.reason}", now_ms)
        return None if job.log.in_flight else self._choose(job, now_ms)

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        record = appended.entry.record
        if isinstance(record, Complete):
            appended_late(job, appended, now_ms)
            return self._choose(job, now_ms)
        if not isinstance(record, Fence):
            return self._choose(job, now_ms)
        job.begin_generation(appended, self._verified)
        if self._spec is not None:
            self._move(job, self._spec, now_ms)
        job.give_to_successors(now_ms)
        if self._choice is not None and self._choice.settled:
            job.log.note_visible()
            job.commits.settled(self._choice.checkpoint)
        job.record.recovery_began(job.led.token, self.reason, self._began_ms, self._kind)
        return Gather(self.reason, now_ms + self._wait_ms)

    def _move(self, job: Job, spec: JobSpec, now_ms: int) -> None:
        for slot in job.slots:  # before any slot leaves, so no other slot misses the connections
            job.cancel_generation_of(slot)
        if job.rescales.fallback_spec is not None:
            job.rescales.fail(self.reason, now_ms)
            job.record.revision += 1
        job.fail_rescale(f"the job {self.reason}", now_ms)  # requested since the decision for this generation
        job.go_on_as(spec, keep=self._keep)
        if self._visible:
            job.log.note_visible()
            job.commits.settled(job.log.completed)

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Decision | None:
        record = foreign.entry.record
        if job.leads:
            return FencedBy(record)
        return LoadLog(self._attempts.lost_another())

    def on_manifest_read(self, job: Job, key: str, data: bytes | None, now_ms: int) -> Decision | None:
        choice = self._choice
        if choice is None or choice.entry is None or complete_of(choice.entry).manifest != key:
            return None
        if job.log.in_flight:
            return None  # second answer: the previous phase requested the manifest, too
        record = complete_of(choice.entry)
        if data is None:
            return self._missing(job, key, record, now_ms)
        try:
            manifest = verified_manifest(key, data, record.sha256)
        except (Corrupt, InvalidJob) as error:
            return EndJob("failed", str(error))
        return self._fence(job, job.decided_as(choice.entry, manifest), now_ms)

    def _missing(self, job: Job, key: str, record: Complete, now_ms: int) -> Decision | None:
        """Rereads the log: another leader may have dropped the checkpoint."""
        error = (
            f"manifest {key} of checkpoint {record.checkpoint} (sha256 {record.sha256}) is missing from the store: "
            "restore it from a backup; an older checkpoint is never taken by itself"
        )
        if self._choice is not None and self._choice.lineage is Lineage.NEW:  # requested by number
            error = not_kept(job.spec.job, record.checkpoint)
        if job.leads:
            return Fail(error)
        if self._attempts.missed == key:
            return EndJob("failed", error)
        return LoadLog(self._attempts.lost_another(missed=key))

    def _choose(self, job: Job, now_ms: int) -> Decision | None:
        choice = self._choice = self._choice or continue_run(job.log)
        if choice.entry is None:
            return self._fence(job, None, now_ms)
        record = complete_of(choice.entry)
        known = job.decided
        if known is not None and (known.key, known.sha256) == (record.manifest, record.sha256):
            return self._fence(job, known, now_ms)
        job.outbox.put(ReadManifest(record))
        return None

    def _fence(self, job: Job, verified: DecidedManifest | None, now_ms: int) -> Decision | None:
        choice = self._choice
        assert choice is not None, "a FENCE without a choice of what to restore"
        if verified is not None and choice.entry is not None:
            try:
                record = complete_of(choice.entry)
                moves = self._spec is not None and self._visible
                visible = choice.settled or moves or job.commits.all_through(record.checkpoint)
                check_manifest(self._spec or job.spec, record, verified.manifest, settled=visible)
            except (Corrupt, InvalidJob) as error:
                return EndJob("failed", str(error))
            added = begin_at_zero(job.spec, verified.manifest) if choice.lineage is not Lineage.SAME else ""
            self.reason += f"; {added}" if added and added not in self.reason else ""
        self._verified = verified
        job.log.choose_restore(choice.entry)
        job.append(job.records.fence(job.log, choice, self.reason, job.highest_checkpoint(), now_ms, self._spec))
        return None
