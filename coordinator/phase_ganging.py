"""A generation gathers: halt the survivors, wait for all slots, deploy, wait until all have restored, start.

Slots may come and go freely until Deploy is sent; after that any loss needs a new generation.
"""

from coordinator.decision_log import complete_of
from coordinator.job import DecidedManifest, Job
from coordinator.messages import Deploy, Restored, Start, SubtaskFailed, ToCoordinator
from coordinator.phase import Phase
from coordinator.phase_ended import Failing
from coordinator.phase_running import Running
from coordinator.phase_start import restart
from coordinator.restore_choice import check_manifest, snapshots_for_slot
from coordinator.retention import Retention, kept_after_restore
from coordinator.slots import Arrival, Joined, Slot, SlotState
from state.snapshot import OperatorSnapshot


class Ganging(Phase):
    judges_silence = True

    def __init__(self, decided: DecidedManifest | None, reason: str, deploy_from_ms: int) -> None:
        self._decided = decided
        self.reason = reason
        self._deploy_from_ms = deploy_from_ms
        self._deployed = False

    @property
    def name(self) -> str:  # type: ignore[override]
        return "restoring" if self._deployed else "ganging"

    def enter(self, job: Job, now_ms: int) -> Phase | None:
        job.ended.clear()
        job.pending = None
        job.final = None
        job.failures.new_generation()
        job.retention = self._retention(job)
        for slot in job.slots:
            job.greet(slot, job.token)
            job.halt(slot)
        self._ask_for_kills(job, now_ms)
        return self._deploy_if_complete(job, now_ms)

    def deadline(self, job: Job) -> int | None:
        if self._deployed:
            return None
        if not job.slots.missing:
            return self._deploy_from_ms
        graces = [lost_ms + job.spec.reconnect_grace_ms for _, lost_ms in job.slots.to_be_killed()]
        return min([self._deploy_from_ms + job.spec.gang_timeout_ms, *graces])

    def on_tick(self, job: Job, now_ms: int) -> Phase | None:
        for slot in job.slots.silent(now_ms, job.spec.slot_timeout_ms):
            job.slots.give_up(slot, f"it was silent for {now_ms - slot.last_seen_ms} ms")
            job.close(slot)
            if self._deployed:
                return restart(job, f"slot {slot.index} was silent for {job.spec.slot_timeout_ms} ms", now_ms)
        self._ask_for_kills(job, now_ms)
        if not self._deployed and job.slots.missing and now_ms >= self._deploy_from_ms + job.spec.gang_timeout_ms:
            job.absent_slots = job.slots.missing
            return Failing(self._why_incomplete(job))
        return self._deploy_if_complete(job, now_ms)

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Phase | None:
        slot = arrival.slot
        job.greet(slot, job.token)
        if self._deployed:
            what = "was replaced" if isinstance(arrival, Joined) else "lost its connection"
            return restart(job, f"slot {slot.index} {what} while the job was restoring", now_ms)
        job.halt(slot)
        return self._deploy_if_complete(job, now_ms)

    def on_slot_lost(self, job: Job, slot: Slot, now_ms: int) -> Phase | None:
        if self._deployed:
            return restart(
                job, f"slot {slot.index} ({slot.register.host}) was lost while the job was restoring", now_ms
            )
        return None

    def on_message(self, job: Job, slot: Slot, message: ToCoordinator, now_ms: int) -> Phase | None:
        if isinstance(message, SubtaskFailed):
            if message.retryable:
                return restart(job, f"slot {slot.index} could not start: {message.error}", now_ms)
            return Failing(message.error)
        if isinstance(message, Restored) and slot.state is SlotState.RESTORING:
            slot.state = SlotState.READY
            if job.slots.all_in(SlotState.READY):
                return self._start(job, now_ms)
        return None

    def _ask_for_kills(self, job: Job, now_ms: int) -> None:
        """Tasks of processes out of reach hold places. Asked only now that the FENCE has landed."""
        for slot, lost_ms in job.slots.to_be_killed():
            if now_ms - lost_ms >= job.spec.reconnect_grace_ms:
                job.emit(job.slots.want_killed(slot))

    def _deploy_if_complete(self, job: Job, now_ms: int) -> Phase | None:
        if self._deployed or job.slots.missing or now_ms < self._deploy_from_ms:
            return None
        self._deployed = True
        job.record.slots_ready(now_ms)
        snapshots: tuple[OperatorSnapshot, ...] = ()
        checkpoint = 0
        if self._decided is not None:
            entry = job.log.restore_point
            assert entry is not None, "a verified manifest without a decision"
            snapshots = check_manifest(job.spec, complete_of(entry), self._decided.manifest)
            checkpoint = self._decided.manifest.checkpoint
        peers = job.slots.peers()
        for slot in job.slots:
            own = snapshots_for_slot(snapshots, slot.index, job.spec.parallelism)
            slot.state, slot.deployed_token = SlotState.RESTORING, job.token
            job.send(slot, Deploy(job.token, checkpoint, peers, own, job.lineage))
        return None

    def _start(self, job: Job, now_ms: int) -> Phase:
        for slot in job.slots:
            slot.state = SlotState.RUNNING
        job.broadcast(Start(job.token))
        return Running(self.reason)

    def _retention(self, job: Job) -> Retention | None:
        """What was kept goes on being kept. None: older manifests have to be read first to know what that is."""
        retained = job.spec.checkpoints.retained
        restored = None if self._decided is None else job.kept(self._decided)
        if job.retention is not None:
            before = tuple(reversed(job.retention.kept))
            return Retention(retained, kept_after_restore(before, restored, retained))
        if retained == 1 or job.log.last_complete is None:
            job.unsorted.clear()
            return Retention(retained, kept_after_restore((), restored, retained))
        return None

    def _why_incomplete(self, job: Job) -> str:
        missing = job.slots.missing
        present = job.spec.parallelism - len(missing)
        return (
            f"job {job.spec.job} needs {job.spec.parallelism} slots; {present} of {job.spec.parallelism} registered "
            f"within {job.spec.gang_timeout_ms / 1000:g} s, missing: {', '.join(map(str, missing))}. Are there "
            f"{job.spec.parallelism} free cores? Give the job more cores, lower its parallelism, or raise "
            "gang_timeout_ms; and see the executors' logs for tasks that could not reach the coordinator"
        )
