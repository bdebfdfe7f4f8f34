"""Checkpoint protocol of a job: events and the time in, effects out. No I/O, clocks or threads.

    protocol = JobProtocol(spec, identity, Origin.SUBMITTED)
    effects = protocol.handle(Begin(), now_ms)         # carry them out in order, report each answer as an event
    protocol.next_deadline()                           # and send Tick when this moment has come

Messages of other generations, replaced processes and old links are dropped; the present phase gets the rest.
"""

import msgspec

from barrier_runtime.coordinator.checkpoints.retention import SweepPlan
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.checkpoints.slowness import SlowCommit, SlowUpload
from barrier_runtime.coordinator.job.effects import CloseLink, Effect, Outcome, ReadRecord, SendTo
from barrier_runtime.coordinator.job.events import (
    AppendResult,
    Begin,
    Deleted,
    DeletedAll,
    Event,
    HistoryTrouble,
    Listed,
    LogRead,
    ManifestFailed,
    ManifestRead,
    ManifestWritten,
    ProgramLoaded,
    RecordRead,
    SavepointCopied,
    SavepointNotCopied,
    SlotLost,
    SlotMessage,
    SlotMessages,
    SlotRegistered,
    SlotsStarting,
    StoreAnswered,
    StoreRefused,
    StoreRetried,
    Tick,
    UserLeaving,
    UserRescale,
    UserSavepoint,
    UserStop,
    UserTrigger,
    may_change_progress,
)
from barrier_runtime.coordinator.job.facts import Job, NotLeading, Origin
from barrier_runtime.coordinator.job.health_facts import progress_facts
from barrier_runtime.coordinator.job.phases.ending import Ended
from barrier_runtime.coordinator.job.phases.phase import Attempts, Decision, EndJob, Phase
from barrier_runtime.coordinator.job.phases.start import Loading
from barrier_runtime.coordinator.job.rescaling import RescaleRequest, RescaleState, unlike
from barrier_runtime.coordinator.job.slot import Reconnected, Refused
from barrier_runtime.coordinator.job.status_view import (
    commits_status,
    job_status,
    job_summary,
    leaving_slots,
    program_wanted,
    savepoint_statuses,
    standbys_wanted,
)
from barrier_runtime.coordinator.job.transitions import next_phase
from barrier_runtime.coordinator.log.decision_log import Appended, Foreign, ReadBack, Repeat
from barrier_runtime.coordinator.log.record_builder import Identity
from barrier_runtime.coordinator.options import validated_spec
from barrier_runtime.coordinator.status.health import Condition, ProgressWatch, ended_in_words
from barrier_runtime.coordinator.status.history import History, KnownSlot, RunOutcome
from barrier_runtime.coordinator.status.status import JobStatus, StandbysWanted
from barrier_runtime.coordinator.status.summary import JobSummary
from barrier_runtime.coordinator.wire.messages import (
    Heard,
    Heartbeat,
    JobSpec,
    Probed,
    Register,
    Shutdown,
    SubtaskFailed,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob

STALL_MS = 1_000
_TURN_MS = 100  # messages within this time are judged by the same deadline, which saves work
POLL_MS = 5_000  # between reads of the next position by an idle leader


class JobProtocol:
    def __init__(self, spec: JobSpec, identity: Identity, origin: Origin = Origin.SUBMITTED) -> None:
        self._job = Job(validated_spec(spec), identity, origin)
        self._phase: Phase = Loading(Attempts())
        self._stood_still = False  # the last tick only reset waiting times
        self._forgave = False  # an event since the last tick reset waiting times
        self._watch = ProgressWatch()
        self._poll_ms, self._polling = 0, False
        self._deadline_ms: int | None = None
        self._event_ms: int | None = None  # of the last event, if the deadline does not reflect the event

    @property
    def spec(self) -> JobSpec:
        return self._job.spec

    @property
    def phase(self) -> str:
        return self._phase.name

    @property
    def outcome(self) -> Outcome | None:
        return self._phase.outcome if isinstance(self._phase, Ended) else None

    @property
    def reason(self) -> str:
        return self._phase.reason

    @property
    def condition(self) -> Condition:
        return self._watch.condition

    @property
    def slow_commits(self) -> tuple[SlowCommit, ...]:
        return self._watch.slow.known

    @property
    def slow_uploads(self) -> tuple[SlowUpload, ...]:
        return self._watch.slow_uploads.known

    def status(self, now_ms: int, *, brief: bool = False) -> JobStatus:
        self._look(now_ms)
        self._event_ms, phase = now_ms, self._phase
        return job_status(self._job, phase.name, self.outcome, phase.reason, self.condition, now_ms, brief=brief)

    def summary(self, now_ms: int) -> JobSummary:
        return job_summary(self._job, self._phase.name, self.outcome, self.condition, now_ms)

    @property
    def facts(self) -> Job:  # to read only
        return self._job

    @property
    def news(self) -> tuple[object, ...]:
        """Opaque version; changes when drivers should read the status."""
        condition, job = self._watch.condition, self._job
        wanted = (job.slots.kills if job.leads else (), standbys_wanted(job), program_wanted(job), leaving_slots(job))
        of_job = (job.log.token, self._phase.name, self.outcome)
        return (*of_job, condition.state, condition.reason, *wanted, job.rescales.open is None)

    @property
    def lead_position(self) -> int | None:
        """Position of the record of leadership; None: this process does not lead."""
        return self._job.led.permit.position if self._job.leads else None

    @property
    def has_led(self) -> bool:
        return self._job.leadership is not NotLeading.YET

    @property
    def token(self) -> int | None:
        return self._job.log.token

    def refuses(self, request: SavepointRequest) -> str:
        if self.outcome is not None:
            return self._has_ended("restore from its last checkpoint instead")
        return self._job.savepoints.refusal(request)

    def refuses_rescale(self, request: RescaleRequest) -> str:
        if self.outcome is not None:
            return self._has_ended("start it with another parallelism instead")
        if self._job.stop is not None:
            return f"job {self.spec.job} is being stopped: start it with another parallelism instead"
        return unlike(request.replacement, self.spec) or self._job.rescales.refusal(request, self.spec.max_parallelism)

    def _has_ended(self, instead: str) -> str:
        done = self.outcome in ("finished", "cancelled")
        return (
            f"job {self.spec.job} has ended ({ended_in_words(self.outcome or '')}): {instead if done else self.reason}"
        )

    @property
    def standbys(self) -> StandbysWanted | None:
        return standbys_wanted(self._job)

    @property
    def undecided(self) -> bool:
        return self._job.log.in_flight

    @property
    def next_position(self) -> int:
        return self._job.log.next_position

    @property
    def connected_slots(self) -> int:
        return len(self._job.slots.connected)

    @property
    def history_revision(self) -> object:
        """Opaque version; changes with each event that a successor should know."""
        return self._job.record.revision, self._job.commits.noted

    @property
    def known_slots(self) -> tuple[KnownSlot, ...]:
        return self._job.slots.known()

    def history(self, outcome: RunOutcome | None = None) -> History:
        job = self._job
        history = job.record.history_of(job.spec.job, job.spec.run_id, job.slots.known(), outcome)
        rescales = tuple(each for each in job.rescales.statuses if each.ended_ms is not None)
        savepoints = tuple(each for each in savepoint_statuses(job) if each.ended_ms is not None)
        return msgspec.structs.replace(history, rescales=rescales, savepoints=savepoints, commits=commits_status(job))

    def next_deadline(self) -> int | None:
        """Time of the next `Tick`; None: not before another event."""
        if self._event_ms is not None:
            self._deadline_ms, self._event_ms = self._deadline(), None
        return self._deadline_ms

    def _deadline(self) -> int | None:
        if self.outcome is not None:
            return None
        judged = self._job.slots.longest_unheard if self._phase.judges_silence else None
        silence = None if judged is None else judged.last_seen_ms + self._job.spec.slot_timeout_ms
        moments = [silence, self._phase.deadline(self._job), self._watch.next_ms, *([self._poll_ms] * self._may_poll)]
        return min((moment for moment in moments if moment is not None), default=None)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        job = self._job
        if not isinstance(event, SlotMessages) or (self._event_ms is not None and now_ms - self._event_ms > _TURN_MS):
            self.next_deadline()
        before = (self._phase, self._phase.name)
        try:
            if isinstance(event, SlotMessages):
                self._forgive_if_late(now_ms)
                for message in event.messages:
                    self._follow(self._on_message(message, now_ms), now_ms)
            else:
                self._follow(self._dispatch(event, now_ms), now_ms)
        except (Corrupt, InvalidJob) as error:
            self._follow(EndJob("failed", str(error)), now_ms)
        changes = may_change_progress(event, self.condition.state, slow_commits=self._watch.slow.any)
        if (self._phase, self._phase.name) != before or changes:
            self._look(now_ms)
        self._event_ms = now_ms
        return job.outbox.take()

    def _look(self, now_ms: int) -> None:
        self._watch.look(progress_facts(self._job, self._phase.name, self.outcome, self._phase.reason, now_ms), now_ms)

    def _follow(self, wanted: Decision | None, now_ms: int) -> None:
        while wanted is not None:
            self._phase = next_phase(self._job, self._phase, wanted, now_ms)
            wanted = self._phase.enter(self._job, now_ms)

    def _dispatch(self, event: Event, now_ms: int) -> Decision | None:
        job, phase = self._job, self._phase
        if isinstance(event, Tick):
            return self._on_tick(now_ms)
        self._forgive_if_late(now_ms)
        if isinstance(event, SlotRegistered):
            return self._on_registered(event.link, event.register, now_ms)
        if isinstance(event, SlotLost):
            slot = job.slots.lost(event.link, now_ms)
            if slot is None or job.slots.stands_by(slot):
                return None
            return phase.on_slot_lost(job, slot, now_ms)
        if isinstance(event, AppendResult):
            if event.use is not None:
                job.record.store_used(event.use)
            return self._on_log_step(job.log.on_put(event.position, event.outcome, event.overtaken), now_ms)
        if isinstance(event, RecordRead):
            self._polling, self._poll_ms = False, now_ms + POLL_MS
            return self._on_log_step(job.log.on_read_back(event.position, event.name, event.data), now_ms)
        if isinstance(event, UserStop):
            job.request_stop(event.mode, event.savepoint, now_ms)
            return phase.on_stop(job, now_ms)
        if isinstance(event, UserRescale):
            new = not self.refuses_rescale(event.request) and job.rescales.ask(event.request, job.spec, now_ms)
            return self._on_rescale(now_ms) if new else None
        if isinstance(event, UserLeaving):
            job.leaving.host(event.host, job.slots, now_ms)
            return phase.on_rescale(job, now_ms)
        if isinstance(event, ProgramLoaded):
            return self._on_program(event, now_ms)
        if isinstance(event, UserSavepoint):
            if job.savepoints.ask(event.request, job.stop_checkpoint or job.highest_checkpoint() + 1, now_ms):
                return phase.on_savepoint(job, now_ms)
            return None
        return self._on_answer(event, now_ms)

    def _on_program(self, event: ProgramLoaded, now_ms: int) -> Decision | None:
        job, rescale = self._job, self._job.rescales.open
        if rescale is None or rescale.state is not RescaleState.LOADING or rescale.request.id != event.id:
            return None
        wrong = event.error if event.spec is None else unlike(event.spec, job.spec)
        if event.spec is None or wrong:
            job.fail_rescale(wrong or "the driver could not load it", now_ms)
            return None
        job.rescales.loaded(event.id, event.spec)
        return self._on_rescale(now_ms)

    def _on_rescale(self, now_ms: int) -> Decision | None:
        """Slots are admitted in any phase, so the driver starts them."""
        if self._job.leads:
            self._job.rescales.end_fulfilled(now_ms)
            self._job.admit(f"job {self.spec.job} has no such slot")
        return self._phase.on_rescale(self._job, now_ms)

    def _on_tick(self, now_ms: int) -> Decision | None:
        """A first late tick only resets waiting times; the next does everything overdue."""
        self._forgave = False
        if self._is_late(now_ms) and not self._stood_still:
            self._stood_still = True
            self._job.slots.forgive(now_ms)
            return None
        self._stood_still = False
        if self._may_poll and now_ms >= self._poll_ms:
            self._polling = True
            self._job.outbox.put(ReadRecord(self._job.log.next_position))
        return self._phase.on_tick(self._job, now_ms)

    def _forgive_if_late(self, now_ms: int) -> None:
        if not self._forgave and self._is_late(now_ms):
            self._forgave = True
            self._job.slots.forgive(now_ms)

    def _is_late(self, now_ms: int) -> bool:
        """Returns whether this process stalled: messages may be unread, so no slot counts as silent."""
        return self._deadline_ms is not None and now_ms - self._deadline_ms > STALL_MS

    @property
    def _may_poll(self) -> bool:
        """Returns whether to poll: a deposed leader would wait for the successor's slots for ever."""
        return self._job.leads and not self._job.log.in_flight and not self._polling

    def _on_answer(self, event: Event, now_ms: int) -> Decision | None:
        job, phase = self._job, self._phase
        if isinstance(event, Begin):
            return phase.enter(job, now_ms)
        if isinstance(event, LogRead):
            job.know_description(event.view)
            job.remember(event, now_ms)
            return phase.on_log(job, event.view, now_ms)
        if isinstance(event, ManifestRead):
            return phase.on_manifest_read(job, event.key, event.data, now_ms)
        if isinstance(event, ManifestWritten):
            return phase.on_manifest_written(job, event.key, now_ms)
        if isinstance(event, ManifestFailed):
            return phase.on_manifest_failed(job, event.key, event.error, now_ms)
        if isinstance(event, Listed):
            return phase.on_listed(job, event, now_ms)
        if isinstance(event, DeletedAll):
            return phase.on_deleted_all(job, event.error, now_ms)
        if isinstance(event, SavepointCopied):
            job.savepoints.copied(event.id, event.checkpoint, event.bytes, now_ms)
            job.record.revision += 1
            return phase.on_savepoint(job, now_ms)
        if isinstance(event, SavepointNotCopied):
            job.savepoints.not_copied(event.id, event.checkpoint, event.error, now_ms)
            return phase.on_savepoint(job, now_ms)
        if isinstance(event, UserTrigger):
            return phase.on_trigger(job, now_ms)
        if isinstance(event, StoreRefused):
            return phase.on_refused(job, event.error, now_ms)
        if isinstance(event, Deleted) and event.error:  # the next sweep deletes the rest
            job.record.ignored["deletes that failed; the next sweep makes up for them"] += 1
        elif isinstance(event, HistoryTrouble):
            job.record.ignored[event.error] += 1
        elif isinstance(event, StoreRetried):
            job.record.store_retried(event.what, event.error, event.keeps_from)
        elif isinstance(event, StoreAnswered):
            job.record.store_retries.pop(event.what, None)
        elif isinstance(event, SlotsStarting):
            job.slots.room = event.room
        return None

    def _on_registered(self, link: int, register: Register, now_ms: int) -> Decision | None:
        job = self._job
        incompatible = job.compatibility.why_refused(register)
        if incompatible:
            job.record.ignored[incompatible] += 1
            job.outbox.put(SendTo(link, Shutdown("replaced", incompatible)))
            job.outbox.put(CloseLink(link))
            return self._phase.on_incompatible(job, now_ms)
        registration = job.slots.register(link, register, now_ms)
        if isinstance(registration, Refused):
            unneeded = registration.unneeded and register.token <= (job.log.token or 0)
            job.outbox.put(SendTo(link, Shutdown("left" if unneeded else "replaced", registration.reason)))
            job.outbox.put(CloseLink(link))
            return None
        registration.slot.differs = job.compatibility.differs(register)
        if isinstance(registration, Reconnected):
            if registration.old_link is not None:
                job.outbox.put(CloseLink(registration.old_link))
        elif registration.replaced is not None and registration.replaced.link is not None:
            reason = f"slot {register.slot} is held by task attempt {register.task_attempt} now"
            # Spark must not restart the task of a slot that moves, or that two Spark jobs carry after a return to more
            # slots: the processes would replace each other for ever.
            moved = job.slots.is_carried_twice(registration.replaced) or job.spec.at_least is not None
            job.outbox.put(SendTo(registration.replaced.link, Shutdown("left" if moved else "replaced", reason)))
            job.outbox.put(CloseLink(registration.replaced.link))
        if job.slots.stands_by(registration.slot):
            if self.outcome is None:
                job.acknowledge_registration(registration.slot, job.log.token or 0)
            if job.leads:
                job.cancel_generation_of(registration.slot)
            return self._phase.on_rescale(job, now_ms)
        job.reconcile_commits(registration.slot.register)
        return self._phase.on_slot(job, registration, now_ms)

    def _on_message(self, event: SlotMessage, now_ms: int) -> Decision | None:
        job, message = self._job, event.message
        slot = job.slots.by_link(event.link)
        if slot is None:
            job.record.ignored["message on a link that is no slot's"] += 1
            return None
        job.slots.heard(slot, now_ms)
        if isinstance(message, Heartbeat):
            job.slots.heartbeat(slot, message, now_ms)
            if message.latency:
                job.record.latency_hour.look([*job.slots.departed, *(each.latency for each in job.slots)], now_ms)
            job.note_figures(now_ms)
            job.outbox.send(slot, Heard())
            links = job.links.silent(job.slots, now_ms) if slot.unheard and job.leads else ()
            if links:
                return self._phase.on_silent_links(job, links, now_ms)
            return self._phase.on_rescale(job, now_ms) if job.may_move_with(slot, now_ms) else None
        if isinstance(message, Register | Probed):
            job.take_facts(slot, message)
            return self._phase.on_probed(job, now_ms)
        if message.token != (job.led.token if job.leads else self._phase.listens_to(job)):
            job.record.ignored[f"{type(message).__name__} of another generation"] += 1
            return None
        if isinstance(message, SubtaskFailed):
            job.record.subtask_failed(slot.index, message, now_ms)
        return self._phase.on_message(job, slot, message, now_ms)

    def _on_log_step(self, step: Appended | Foreign | Repeat | ReadBack | None, now_ms: int) -> Decision | None:
        job = self._job
        if isinstance(step, Appended):
            self._poll_ms = now_ms + POLL_MS
            after = self._phase.on_appended(job, step, now_ms)
            if job.leads:
                job.rescales.end_fulfilled(now_ms)
            if job.leads and after is None:
                job.delete(SweepPlan())  # deletions that waited
            return after
        if isinstance(step, Foreign):
            return self._phase.on_foreign(job, step, now_ms)
        if step is not None and self.outcome is None:
            job.carry_out(step)
        return None
