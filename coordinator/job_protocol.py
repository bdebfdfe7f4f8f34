"""The checkpoint protocol of one job: events and the time in, effects out. No socket, clock, thread or store in here.

    protocol = JobProtocol(spec, identity, Origin.SUBMITTED)
    effects = protocol.handle(Begin(), now_ms)         # carry them out in order, report each answer as an event
    protocol.next_deadline()                           # and send Tick when this moment has come

The facts live in `Job`, the decisions in the phases (`phase_*.py`); this file only brings events to the present phase
and keeps out what must not reach it: messages of another generation, of a process that lost its place, of an old link.
"""

from coordinator.decision_log import Foreign, Landed, ReadBack, Repeat
from coordinator.effects import CloseLink, Effect, Outcome, SendTo
from coordinator.events import (
    AppendResult,
    Begin,
    DeletedAll,
    Event,
    Listed,
    LogRead,
    ManifestFailed,
    ManifestRead,
    ManifestWritten,
    RecordRead,
    SlotLost,
    SlotMessage,
    SlotRegistered,
    StoreRefused,
    Tick,
    UserStop,
    UserTrigger,
)
from coordinator.job import Identity, Job, Origin
from coordinator.job_status import job_status
from coordinator.messages import Heard, Heartbeat, JobSpec, Register, Shutdown
from coordinator.options import validated_spec
from coordinator.phase import Phase
from coordinator.phase_ended import Ended, failed
from coordinator.phase_start import Loading
from coordinator.slots import Reconnected, Refused
from coordinator.status import JobStatus
from state.errors import Corrupt

STALL_MS = 1_000


class JobProtocol:
    def __init__(self, spec: JobSpec, identity: Identity, origin: Origin = Origin.SUBMITTED) -> None:
        """Raises `InvalidJob` when the spec is not sound."""
        self._job = Job(validated_spec(spec), identity, origin)
        self._phase: Phase = Loading()
        self._stood_still = False  # the last tick only forgave

    # ------------------------------------------------------------ what the edge asks

    @property
    def spec(self) -> JobSpec:
        return self._job.spec

    @property
    def phase(self) -> str:
        return self._phase.name

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; None while it lives."""
        return self._phase.outcome if isinstance(self._phase, Ended) else None

    @property
    def reason(self) -> str:
        return self._phase.reason

    def status(self, now_ms: int) -> JobStatus:
        return job_status(self._job, self._phase.name, self.outcome, self._phase.reason, now_ms)

    def next_deadline(self) -> int | None:
        """When the next `Tick` is due, on the clock of `now_ms`; None: not before another event."""
        if self.outcome is not None:
            return None
        silences = [slot.last_seen_ms + self._job.spec.slot_timeout_ms for slot in self._job.slots.connected]
        phase = self._phase.deadline(self._job)
        return min([*silences, *([] if phase is None else [phase])], default=None)

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        job = self._job
        job.effects = []
        try:
            self._enter(self._dispatch(event, now_ms), now_ms)
        except Corrupt as error:
            self._enter(failed(job, str(error)), now_ms)
        effects, job.effects = job.effects, []
        return effects

    def _enter(self, following: Phase | None, now_ms: int) -> None:
        while following is not None:
            self._phase = following
            following = self._phase.enter(self._job, now_ms)

    def _dispatch(self, event: Event, now_ms: int) -> Phase | None:
        job, phase = self._job, self._phase
        if isinstance(event, SlotMessage):
            return self._on_message(event, now_ms)
        if isinstance(event, Tick):
            return self._on_tick(now_ms)
        if isinstance(event, SlotRegistered):
            return self._on_registered(event.link, event.register, now_ms)
        if isinstance(event, SlotLost):
            slot = job.slots.lost(event.link, now_ms)
            return None if slot is None else phase.on_slot_lost(job, slot, now_ms)
        if isinstance(event, AppendResult):
            return self._on_log_step(job.log.on_put(event.position, event.outcome), now_ms)
        if isinstance(event, RecordRead):
            return self._on_log_step(job.log.on_read_back(event.position, event.name, event.data), now_ms)
        if isinstance(event, UserStop):
            job.stop = event.mode
            return phase.on_stop(job, now_ms)
        return self._on_answer(event, now_ms)

    def _on_tick(self, now_ms: int) -> Phase | None:
        """A tick that comes far too late means that this process stood still: what slots sent in between is not read
        yet, so nobody is judged by its silence before that. The tick after it does all that is overdue."""
        deadline = self.next_deadline()
        if deadline is not None and now_ms - deadline > STALL_MS and not self._stood_still:
            self._stood_still = True
            self._job.slots.forgive(now_ms)
            return None
        self._stood_still = False
        return self._phase.on_tick(self._job, now_ms)

    def _on_answer(self, event: Event, now_ms: int) -> Phase | None:
        job, phase = self._job, self._phase
        if isinstance(event, Begin):
            return phase
        if isinstance(event, LogRead):
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
        if isinstance(event, UserTrigger):
            return phase.on_trigger(job, now_ms)
        if isinstance(event, StoreRefused):
            return phase.on_refused(job, event.error, now_ms)
        return None

    # ------------------------------------------------------------ slots

    def _on_registered(self, link: int, register: Register, now_ms: int) -> Phase | None:
        job = self._job
        registration = job.slots.register(link, register, now_ms)
        if isinstance(registration, Refused):
            job.emit(SendTo(link, Shutdown("replaced", registration.reason)))
            job.emit(CloseLink(link))
            return None
        if isinstance(registration, Reconnected):
            if registration.old_link is not None:
                job.emit(CloseLink(registration.old_link))
        elif registration.replaced is not None and registration.replaced.link is not None:
            reason = f"slot {register.slot} is held by task attempt {register.task_attempt} now"
            job.emit(SendTo(registration.replaced.link, Shutdown("replaced", reason)))
            job.emit(CloseLink(registration.replaced.link))
        job.commits.reconcile(register.slot, register.committed)
        return self._phase.on_slot(job, registration, now_ms)

    def _on_message(self, event: SlotMessage, now_ms: int) -> Phase | None:
        job, message = self._job, event.message
        slot = job.slots.by_link(event.link)
        if slot is None:
            job.record.ignored["message on a link that is no slot's"] += 1
            return None
        job.slots.heard(slot, now_ms)
        if isinstance(message, Heartbeat):
            job.slots.heartbeat(slot, message)
            job.send(slot, Heard())
            return None
        if isinstance(message, Register):
            job.record.ignored["second Register on one link"] += 1
            return None
        if message.token != (job.token if job.leads else self._phase.listens_to(job)):
            job.record.ignored[f"{type(message).__name__} of another generation"] += 1
            return None
        return self._phase.on_message(job, slot, message, now_ms)

    # ------------------------------------------------------------ the log

    def _on_log_step(self, step: Landed | Foreign | Repeat | ReadBack | None, now_ms: int) -> Phase | None:
        job = self._job
        if isinstance(step, Landed):
            after = self._phase.on_landed(job, step, now_ms)
            if job.leads and after is None:
                job.delete(())  # what had to wait for this answer
            return after
        if isinstance(step, Foreign):
            return self._phase.on_foreign(job, step, now_ms)
        if step is not None and self.outcome is None:
            job.carry_out(step)
        return None
