"""Begin of a generation.

Slots may come and go until Deploy is sent; after that any loss needs a new generation. Limits of the wait:
docs/design/several-hosts.md.
"""

from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.phases.moving import move_if_apart, why_not_run
from barrier_runtime.coordinator.job.phases.phase import Decision, Fail, HandOver, Phase, Restart, Run
from barrier_runtime.coordinator.job.phases.retaining import restored_retention
from barrier_runtime.coordinator.job.rescaling import full_width, narrowed
from barrier_runtime.coordinator.job.slot import Arrival, Joined, RegisteredSlot, SlotState
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import DecidedManifest
from barrier_runtime.coordinator.log.restore_choice import check_manifest, snapshots_for_slot
from barrier_runtime.coordinator.status.health import missing_slots
from barrier_runtime.coordinator.status.status import SilentLink
from barrier_runtime.coordinator.wire.codec import MAX_CARRIED_BYTES, encoded_size
from barrier_runtime.coordinator.wire.messages import (
    CommitFailing,
    Committed,
    Deploy,
    ManifestRef,
    Restored,
    Start,
    SubtaskFailed,
    ToCoordinator,
    Waiting,
    sink_key,
)
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.texts import counted

_STARTS = 5  # times the wait for cores: on a busy machine processes start slowly


class WaitingForSlots(Phase):
    judges_silence = True

    def __init__(self, reason: str, deploy_from_ms: int) -> None:
        self.reason = reason
        self._deploy_from_ms = deploy_from_ms
        self._deployed = False
        self._looked_for_spares = False
        self._waiting_since_ms: int | None = None  # for an unavailable server
        self._give_back_ms: int | None = None  # when a replacing program must be running

    @property
    def name(self) -> str:  # type: ignore[override]
        return "restoring" if self._deployed else "waiting"

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        job.retention = restored_retention(job)
        for slot in job.slots:
            job.acknowledge_registration(slot, job.led.token)
            job.cancel_generation_of(slot)
        self._ask_for_kills(job, now_ms)
        return self.on_incompatible(job, now_ms) or self._deploy_if_complete(job, now_ms)

    def on_incompatible(self, job: Job, now_ms: int) -> Decision | None:
        """A first start would wait in vain."""
        refused = job.compatibility.refused(job.spec.program)
        return Fail(f"job {job.spec.job}: {refused}") if refused and _is_first_start(job) else None

    def deadline(self, job: Job) -> int | None:
        if self._deployed:
            limits = (self._impatient_ms(job), self._give_back_ms)
            return min((limit for limit in limits if limit is not None), default=None)
        if not job.slots.missing:
            return self._deploy_from_ms
        moments = [heard_ms + job.spec.slot_timeout_ms for _, heard_ms in job.slots.to_be_killed()]
        spares_ms = None if self._looked_for_spares else max(self._deploy_from_ms, job.slots.expected_until_ms)
        others = (self._complete_until_ms(job), self._narrow_ms(job), spares_ms)
        return min([*moments, *(moment for moment in others if moment is not None)], default=None)

    def on_tick(self, job: Job, now_ms: int) -> Decision | None:
        job.close_silent_beside(now_ms)
        for slot in job.slots.silent(now_ms, job.spec.slot_timeout_ms):
            job.slots.give_up(slot, f"it was silent for {now_ms - slot.last_seen_ms} ms")
            job.outbox.close(slot)
            if self._deployed:
                return Restart(f"slot {slot.index} was silent for {job.spec.slot_timeout_ms} ms")
        if (impatient := self._if_impatient(job, now_ms)) is not None:
            return impatient
        if self._give_back_ms is not None and now_ms >= self._give_back_ms:
            return Restart(why_not_run(job))
        self._ask_for_kills(job, now_ms)
        narrow_ms = self._narrow_ms(job)
        if narrow_ms is not None and now_ms >= narrow_ms:
            return self._go_on_with_present(job, now_ms)
        until_ms = self._complete_until_ms(job)
        if not self._deployed and job.slots.missing and until_ms is not None and now_ms >= until_ms:
            job.record.absent_slots = job.slots.missing
            return Fail(self._why_incomplete(job, now_ms))
        return self._deploy_if_complete(job, now_ms)

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        slot = arrival.slot
        job.acknowledge_registration(slot, job.led.token)
        if self._deployed:
            what = "was replaced" if isinstance(arrival, Joined) else "lost its connection"
            return Restart(f"slot {slot.index} {what} while the job was restoring")
        if isinstance(arrival, Joined) and arrival.death:
            self.reason = f"{self.reason}; {arrival.death}"
            job.record.recovery_because(self.reason)
        job.cancel_generation_of(slot)
        return self._deploy_if_complete(job, now_ms)

    def on_rescale(self, job: Job, now_ms: int) -> Decision | None:
        return self._deploy_if_complete(job, now_ms)  # a spare may have registered

    def on_slot_lost(self, job: Job, slot: RegisteredSlot, now_ms: int) -> Decision | None:
        if self._deployed:
            return Restart(f"slot {slot.index} ({slot.register.host}) was lost while the job was restoring")
        return None

    def on_silent_links(self, job: Job, links: tuple[SilentLink, ...], now_ms: int) -> Decision | None:
        if self._deployed:
            move_if_apart(job, links, now_ms)
        return None

    def on_message(self, job: Job, slot: RegisteredSlot, message: ToCoordinator, now_ms: int) -> Decision | None:
        if isinstance(message, SubtaskFailed):
            if message.retryable:
                reason = f"slot {slot.index} could not start: {message.error}"
                return Restart(reason, message.unavailable)
            return Fail(message.error)
        if isinstance(message, Waiting) and slot.state is SlotState.RESTORING:
            job.generation.waiting[sink_key(message.operator, slot.index)] = message
            if self._waiting_since_ms is None:
                self._waiting_since_ms = now_ms
            return self._if_impatient(job, now_ms)
        if isinstance(message, Restored) and slot.state is SlotState.RESTORING:
            slot.state = SlotState.READY
            self._opened(job, slot)
            if job.slots.all_in(SlotState.READY):
                return self._start(job)
        elif isinstance(message, Committed):  # recovered when the sink opened
            job.mark_committed(slot, message)
        elif isinstance(message, CommitFailing):
            job.commits.failing(message, now_ms)
        return None

    def _opened(self, job: Job, slot: RegisteredSlot) -> None:
        waiting = job.generation.waiting
        for key, each in list(waiting.items()):
            if key == sink_key(each.operator, slot.index):
                del waiting[key]
        if not waiting:
            self._waiting_since_ms = None

    def _impatient_ms(self, job: Job) -> int | None:
        wait_limit_ms = job.restarts.wait_limit_ms
        return (
            None if self._waiting_since_ms is None or wait_limit_ms is None else self._waiting_since_ms + wait_limit_ms
        )

    def _if_impatient(self, job: Job, now_ms: int) -> Fail | None:
        impatient_ms = self._impatient_ms(job)
        if impatient_ms is None or now_ms < impatient_ms:
            return None
        waiting = next(iter(job.generation.waiting.values()))
        return Fail(f"{waiting.error}\njob {job.spec.job}: {job.restarts.impatient()}")

    def _ask_for_kills(self, job: Job, now_ms: int) -> None:
        for slot, heard_ms in job.slots.to_be_killed():
            if now_ms - heard_ms >= job.spec.slot_timeout_ms:
                job.outbox.put(job.slots.want_killed(slot))

    def _deploy_if_complete(self, job: Job, now_ms: int) -> Decision | None:
        if self._deployed or now_ms < self._deploy_from_ms:
            return None
        if job.slots.missing and not _is_first_start(job):
            self._take_successors(job, now_ms)
            self._take_spares(job, now_ms)
        self._looked_for_spares = now_ms >= job.slots.expected_until_ms
        if job.slots.missing:
            return None
        if _is_first_start(job) or job.probing:
            job.probe()
        self._deployed = job.has_run = True
        job.missed_ms += now_ms - self._deploy_from_ms
        if job.rescales.fallback_spec is not None and job.rescales.open is not None:
            self._give_back_ms = now_ms + job.rescales.open.request.timeout_ms
        job.record.slots_ready(now_ms)
        snapshots: tuple[OperatorSnapshot, ...] = ()
        checkpoint, reopened = 0, False
        restored = job.generation.restored
        if restored is not None:
            entry = job.log.restore_point
            assert entry is not None, "a verified manifest without a decision"
            snapshots = check_manifest(job.spec, complete_of(entry), restored.manifest, settled=True)
            checkpoint = restored.manifest.checkpoint
            drained_by = restored.manifest.drained_by
            job.generation.drained = drained_by == job.spec.run_id
            reopened = drained_by not in ("", job.spec.run_id)
        peers, settled = job.slots.peers(), checkpoint > 0 and job.commits.all_through(checkpoint)
        for slot in job.slots:
            own = snapshots_for_slot(snapshots, slot.index, job.spec.parallelism)
            where = _where(own, restored)
            slot.state, slot.deployed_token = SlotState.RESTORING, job.led.token
            carried = own if where is None else ()
            deploy = Deploy(
                job.led.token,
                checkpoint,
                peers,
                carried,
                job.led.lineage,
                settled,
                where,
                job.generation.drained,
                reopened,
                job.log.first_sha256,
                -1 if slot.started_as == slot.index else slot.index,
            )
            job.outbox.send(slot, deploy)
        return None

    def _take_successors(self, job: Job, now_ms: int) -> None:
        """Of slots that were lost, or successors that became ready, after the log had the generation."""
        before = {slot.uuid for slot in job.slots}
        job.give_to_successors(now_ms)
        for slot in job.slots:
            if slot.uuid not in before:
                _joins(job, slot)

    def _take_spares(self, job: Job, now_ms: int) -> None:
        leaving = {slot.register.host for slot in job.slots if job.leaving.of(slot) is not None}
        taken, superfluous = job.slots.take_spares(now_ms, leaving)
        job.dismiss(superfluous, f"job {job.spec.job} goes on with another process")
        for spare in taken:
            _joins(job, spare)
            self.reason = f"{self.reason}; a spare took the place of slot {spare.index}"
            job.record.recovery_because(self.reason)
        if taken:
            self._ask_for_kills(job, now_ms)

    def _start(self, job: Job) -> Decision:
        for slot in job.slots:
            slot.state = SlotState.RUNNING
        job.outbox.broadcast(Start(job.led.token))
        return Run(self.reason)

    def _complete_until_ms(self, job: Job) -> int | None:
        """Limit for all slots to register; None: no limit."""
        waits_ms = job.spec.resource_wait_timeout_ms * (_STARTS if _all_have_cores(job) else 1)
        if _is_first_start(job):
            return self._deploy_from_ms + waits_ms
        limit_ms = job.restarts.wait_limit_ms
        return None if limit_ms is None else self._deploy_from_ms + max(waits_ms, limit_ms)

    def _narrow_ms(self, job: Job) -> int | None:
        """When the job continues with the present slots; None: not without more slots."""
        if self._deployed or _is_first_start(job) or narrowed(job.spec, len(job.slots.connected)) is None:
            return None
        after_ms = job.spec.degrade_after_ms
        rest_ms = max(after_ms // 4, after_ms - job.missed_ms)  # a slot that just died may come back soon
        return max(self._deploy_from_ms + rest_ms, job.slots.forgiven_ms + after_ms)

    def _go_on_with_present(self, job: Job, now_ms: int) -> Decision:
        absences = job.slots.absences()
        fewer = narrowed(job.spec, len(job.slots.connected), absences)
        assert fewer is not None, "due without a job of fewer slots"
        missed = missing_slots(absences, job.slots.room.held_by, now_ms)
        reason = f"goes on with {fewer.parallelism} of {full_width(fewer)} slots: {missed}"
        job.rescales.fail(f"the job {reason}", now_ms)
        job.missed_ms = 0
        return HandOver(fewer, reason, visible=False)

    def _why_incomplete(self, job: Job, now_ms: int) -> str:
        if not _is_first_start(job):
            missed = missing_slots(job.slots.absences(), job.slots.room.held_by, now_ms, job.slots.room.failing)
            return f"job {job.spec.job}: {missed}. {job.restarts.impatient_for_slots()}"
        missing, needed, waits_ms = job.slots.missing, job.spec.parallelism, job.spec.resource_wait_timeout_ms
        slots = counted(needed, "slot")
        begins = f"job {job.spec.job} needs {slots}; {needed - len(missing)} of {needed} registered within "
        which = f"missing: {', '.join(map(str, missing))}"
        if job.slots.room.failing:
            return f"{begins}{waits_ms / 1000:g} s, {which}: {job.slots.room.failing}"
        if job.spec.carrier == "processes":
            return (
                f"{begins}{waits_ms / 1000:g} s, {which}. Start them with `barrier-runtime slot`, see the messages of "
                "their processes, lower the parallelism, or raise resource_wait_timeout"
            )
        if _all_have_cores(job):
            return (
                f"{begins}{waits_ms * _STARTS / 1000:g} s, {which}. All have their cores, so their processes start too "
                "slowly or cannot reach the coordinator: see the executors' logs, and whether the machines are "
                "overloaded, or raise resource_wait_timeout, a fifth of this time"
            )
        return (
            f"{begins}{waits_ms / 1000:g} s, {which}. Are there {needed + job.spec.spare_slots} free cores? Give the "
            "job more cores, lower its parallelism, or raise resource_wait_timeout; and see the executors' logs for "
            "tasks that could not reach the coordinator"
        )


def _joins(job: Job, slot: RegisteredSlot) -> None:
    """`slot` stood by until now."""
    job.acknowledge_registration(slot, job.led.token)
    slot.state = SlotState.REGISTERED


def _is_first_start(job: Job) -> bool:
    """Returns whether the job, or a replacing program, has never run."""
    return not job.has_run or job.rescales.fallback_spec is not None


def _all_have_cores(job: Job) -> bool:
    return job.slots.room.starting >= job.spec.parallelism


def _where(snapshots: tuple[OperatorSnapshot, ...], restored: DecidedManifest | None) -> ManifestRef | None:
    return None if restored is None or encoded_size(snapshots) <= MAX_CARRIED_BYTES else restored.ref
