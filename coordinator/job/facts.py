"""Facts of a running job, and steps that several phases need."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint, PendingCheckpoints
from barrier_runtime.coordinator.checkpoints.commits import CommitTracker, FailingCommit
from barrier_runtime.coordinator.checkpoints.failures import FailureCounter, RestartPolicy
from barrier_runtime.coordinator.checkpoints.retention import Kept, Retention, SweepPlan, Unsorted
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest, Savepoints
from barrier_runtime.coordinator.job.effects import Append, Compact, ReadRecord
from barrier_runtime.coordinator.job.events import LogRead
from barrier_runtime.coordinator.job.generation import Generation
from barrier_runtime.coordinator.job.links import Links
from barrier_runtime.coordinator.job.outbox import Outbox
from barrier_runtime.coordinator.job.rescaling import Rescales
from barrier_runtime.coordinator.job.slot import Leaving, RegisteredSlot, SlotState
from barrier_runtime.coordinator.job.slots import SlotTable
from barrier_runtime.coordinator.job.stop import Stop, StopMode, StopNow, StopWithCheckpoint, record_of, requested
from barrier_runtime.coordinator.log.decision_log import (
    Appended,
    DecisionLog,
    LogEntry,
    LogView,
    Permit,
    ReadBack,
    Repeat,
    complete_of,
)
from barrier_runtime.coordinator.log.manifest import DecidedManifest, Manifest
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import Fence, Finish, Record, StopWish
from barrier_runtime.coordinator.status.history import decode_history, with_last_savepoint
from barrier_runtime.coordinator.status.statistics import JobRecord
from barrier_runtime.coordinator.status.status import CommitsStatus
from barrier_runtime.coordinator.status.trend import TrendPoint, trend_point
from barrier_runtime.coordinator.wire.messages import (
    GLOBAL_COMMITTER,
    STABLE_KIND,
    AbortCheckpoint,
    CancelGeneration,
    Committed,
    JobSpec,
    Probe,
    Probed,
    Register,
    Registered,
    Shutdown,
    SubtaskId,
    Visible,
)
from barrier_runtime.coordinator.wire.versions import Compatibility
from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.texts import counted


class Origin(enum.Enum):
    SUBMITTED = "submitted"
    ADOPTED = "adopted"  # found in the log when a slot connected


class NotLeading(enum.Enum):
    YET = "this process has not led the job yet"
    ANY_MORE = "the job has ended here, or another process leads it"


@dataclass(frozen=True)
class Leadership:
    permit: Permit
    lineage: str

    @property
    def token(self) -> int:
        return self.permit.token


class Job:
    def __init__(self, spec: JobSpec, identity: Identity, origin: Origin) -> None:
        self.spec = spec
        self.identity = identity
        self.origin = origin
        self.paths = Paths(spec.job)
        self.slots = SlotTable(spec, self.heartbeat_ms)
        self.slots.admit_any(spec.max_parallelism)  # until this process leads
        self.compatibility = Compatibility(identity.versions)
        self.links = Links(self.heartbeat_ms, spec.slot_timeout_ms)
        self.leaving = Leaving()
        self.commits = CommitTracker(spec)
        self.savepoints = Savepoints(_sinks(spec))
        self.rescales = Rescales()
        self.restarts = RestartPolicy(spec.restart, f"{spec.job}/{spec.run_id}")
        self.record = JobRecord(self.slots.during, self.slots.metrics)
        self.outbox = Outbox(self.slots)
        self.log = DecisionLog(spec.job, LogView())
        self.records = RecordBuilder(spec, identity, lambda: self.stop_record)
        self.leadership: Leadership | NotLeading = NotLeading.YET
        self.generation = Generation(FailureCounter(spec.checkpoints.tolerable_failures))
        self.stop: Stop | None = None
        self.decided: DecidedManifest | None = None  # newest that this process wrote or verified
        self.retention: Retention | Unsorted = Unsorted()
        self.has_run = False  # all slots of this run were registered once
        self.probing = False  # some slot has not answered the probe
        self.missed_ms = 0  # time with missing slots, summed over generations
        self._subtasks = _subtasks(spec)
        self._deletable = SweepPlan()
        self._append_attempts = 0

    @property
    def leads(self) -> bool:
        return isinstance(self.leadership, Leadership)

    @property
    def led(self) -> Leadership:
        if not isinstance(self.leadership, Leadership):
            raise ProtocolViolation(f"job {self.spec.job}: done without leading: file a bug")
        return self.leadership

    def probe(self) -> None:
        peers, self.probing = self.slots.peers(), True
        for slot in self.slots.connected:
            if slot.probed is not None and slot.probed.unreached:  # the peers may be other processes now
                slot.probed = None
            if _is_unanswered(slot):
                self.outbox.send(slot, Probe(peers))

    @property
    def unanswered(self) -> bool:
        """Returns whether a slot that can answer a probe has not done so."""
        return any(map(_is_unanswered, self.slots))

    def probe_again(self) -> None:
        """Repeats the probe: lost links lose probes and answers."""
        if self.probing and not self.slots.missing:
            self.probe()

    def take_facts(self, slot: RegisteredSlot, message: Register | Probed) -> None:
        if isinstance(message, Probed):
            slot.probed = message
            self.probing = self.probing and self.unanswered
        else:
            self.record.ignored["second Register on one link"] += 1

    def lead(self, appended: Appended) -> None:
        fence = self.log.fence
        assert fence is not None
        before, self.leadership = self.leadership, Leadership(appended.permit, fence.lineage)
        if appended.compacts:
            self.outbox.put(Compact(self.log.base, frozenset(self.log.kept), self.log.first_sha256))
        if before is NotLeading.YET:  # a predecessor might have rescaled since this process read the log
            self.rescales.know_description(self.spec)
            self.admit(f"job {self.spec.job} has no such slot")

    def lead_no_more(self) -> None:
        if self.leads:
            self.leadership = NotLeading.ANY_MORE

    def begin_generation(self, appended: Appended, restored: DecidedManifest | None) -> None:
        self.lead(appended)
        self.decided = restored
        self.generation = Generation(FailureCounter(self.spec.checkpoints.tolerable_failures), restored)

    @property
    def held(self) -> frozenset[int]:
        """Completed checkpoints that global committers or savepoints still read."""
        return self.commits.held | self.savepoints.held

    def delete(self, plan: SweepPlan) -> None:
        """Deletes once no append is undecided (I9)."""
        self._deletable = self._deletable.and_then(plan)
        if not self._deletable.keys or self.log.in_flight:
            return
        plan, self._deletable = self._deletable, SweepPlan()
        self.outbox.delete(self.led.permit, plan)

    def know_description(self, view: LogView) -> None:
        fence = None if view.fence is None else view.fence.record
        if not isinstance(fence, Fence) or fence.spec.run_id != self.spec.run_id:
            return
        if _slots_of(fence.spec) != _slots_of(self.spec):
            self.go_on_as(fence.spec)
            self.slots.admit_any(self.spec.max_parallelism)
            for slot in self.slots:  # registered before the log was read
                self.reconcile_commits(slot.register)
        elif fence.spec.outdated != self.spec.outdated:  # the submitted description has none
            self.know_outdated(fence.spec.outdated)

    def remember(self, read: LogRead, now_ms: int) -> None:
        """Damage of the history is only reported."""
        known, trouble = None, read.history_trouble
        if read.history is not None:
            try:
                known = decode_history(self.paths.history, read.history)
            except (Corrupt, InvalidJob) as error:
                trouble = str(error)
        if trouble:
            self.record.ignored[trouble] += 1
        self.record.remember(known, read.view.completes)
        same_run = known is not None and known.run_id == self.spec.run_id
        self.rescales.remember(() if known is None else known.rescales, same_run=same_run)
        # Without this run's stops, which the log requests anew; with the savepoint in FINISH that ended a run.
        others = tuple(each for each in self.record.savepoints if not (each.stops and same_run))
        head = read.view.head
        if head is not None and isinstance(head.record, Finish):
            others = with_last_savepoint(others, head.record)
        self.record.savepoints = others
        self.savepoints.remember(frozenset(each.id for each in others if same_run and not each.error))
        if known is not None and same_run:
            self.commits.remember(_failing_commits(known.commits))
            for slot in known.slots:
                self.slots.expect(slot, now_ms, now_ms + self.spec.slot_timeout_ms)
        if _has_run(self.spec.run_id, read.view):
            self.slots.unknown_until_ms = now_ms + self.spec.slot_timeout_ms

    def go_on_as(self, spec: JobSpec, *, keep: bool = False) -> None:
        """`keep`: slots of the previous program stand by in case the start fails."""
        before, self.spec = self.spec, spec
        self.rescales.fallback_spec = before if keep else None
        self._subtasks = _subtasks(spec)
        self.commits = CommitTracker(spec)
        self.savepoints.of_sinks(_sinks(spec))
        self.records.rescaled(spec)
        left = self.slots.resize(spec.parallelism, spec.program, keep=keep)
        self.dismiss(left, f"job {spec.job} {_goes_on(before, spec)}")

    def may_move_with(self, slot: RegisteredSlot, now_ms: int) -> bool:
        """Returns whether a heartbeat may matter to a move, or `slot` is a spare that may have been silent."""
        if slot.notices:
            self.leaving.look(self.slots, now_ms)
        waits = self.rescales.open is not None or bool(self.slots.successors)
        return waits or bool(slot.notices) or (bool(self.slots.missing) and self.slots.stands_by(slot))

    def give_to_successors(self, now_ms: int) -> None:
        left = self.slots.promote(only_ready_at=now_ms)
        for slot in left:
            if slot.is_silent(now_ms, 3 * self.heartbeat_ms):  # a process that hangs would keep the core
                self.outbox.put(self.slots.want_killed(slot))
        self.dismiss(left, f"job {self.spec.job} goes on with another process")

    def close_silent_beside(self, now_ms: int) -> None:
        """A process that wakes up connects again."""
        for slot in self.slots.silent_beside(now_ms, self.spec.slot_timeout_ms):
            self.outbox.close(slot)

    def know_outdated(self, fingerprints: tuple[str, ...]) -> None:
        self.spec = msgspec.structs.replace(self.spec, outdated=fingerprints)
        self.records.rescaled(self.spec)

    def admit(self, reason: str) -> None:
        """Admits slots of the job and of an open rescale; dismisses others."""
        rescale = self.rescales.before_moving
        spec = self.spec if rescale is None else rescale.after
        self.dismiss(self.slots.admit(spec.parallelism, spec.program), reason)

    def dismiss(self, slots: Iterable[RegisteredSlot], reason: str) -> None:
        """The slots' tasks end with success."""
        for slot in slots:
            self.outbox.send(slot, Shutdown("left", reason))
            self.outbox.close(slot)

    def fail_rescale(self, error: str, now_ms: int) -> None:
        if self.rescales.before_moving is not None:
            self.rescales.fail(error, now_ms)
            self.leaving.failed(now_ms)
            self.record.revision += 1
            if self.leads:  # without leadership, slots of other programs may be the job's
                self.admit(f"job {self.spec.job} was not rescaled: {error}")

    def load(self, view: LogView) -> None:
        self.log = DecisionLog(self.spec.job, view)
        self.has_run = self.has_run or _has_run(self.spec.run_id, view)

    def append(self, record: Record) -> None:
        self._append_attempts = 0
        self.carry_out(self.log.propose(record))

    def carry_out(self, step: Repeat | ReadBack) -> None:
        if isinstance(step, Repeat):
            self._append_attempts += 1
            self.outbox.put(Append(step.position, step.data, self._append_attempts))
        else:
            self.outbox.put(ReadRecord(step.position))

    def note_figures(self, now_ms: int) -> None:
        def facts() -> TrendPoint:
            connected = self.slots.connected
            reports = {slot.index: slot.figures for slot in connected}
            return trend_point(self.spec.chains, reports, (slot.sources for slot in connected), now_ms)

        self.record.trend.look(facts, now_ms)

    def request_stop(self, mode: StopMode, savepoint: SavepointRequest | None, now_ms: int) -> None:
        self.stop = requested(self.stop, mode, savepoint)
        if savepoint is not None:
            self.savepoints.ask(savepoint, self.highest_checkpoint() + 1, now_ms)

    def resume_logged_stop(self, now_ms: int) -> None:
        logged, stop = self.log.stop, self.stop
        if logged is None or isinstance(stop, StopNow):
            return
        savepoint = None if stop is None else stop.savepoint
        self.stop = None
        self.request_stop(logged.mode, savepoint or SavepointRequest(logged.savepoint, logged.url, stops=True), now_ms)

    @property
    def stop_checkpoint(self) -> int | None:
        """First checkpoint that counts for the stop; None: no such checkpoint, or not requested yet."""
        return self.stop.checkpoint if isinstance(self.stop, StopWithCheckpoint) else None

    @property
    def stop_reached(self) -> bool:
        return self.stop_checkpoint is not None and self.last_completed >= self.stop_checkpoint

    @property
    def stop_record(self) -> StopWish | None:
        return record_of(self.stop, self.savepoints)

    @property
    def stop_is_logged(self) -> bool:
        wanted, logged = self.stop_record, self.log.stop
        return wanted is None or (logged is not None and logged.savepoint == wanted.savepoint)

    @property
    def last_completed(self) -> int:
        return self.log.completed

    @property
    def heartbeat_ms(self) -> int:
        return max(50, min(1_000, self.spec.slot_timeout_ms // 5))

    def acknowledge_registration(self, slot: RegisteredSlot, token: int) -> None:
        if self.slots.is_first_answer(slot):
            self.outbox.send(slot, Registered(token, self.last_completed, self.heartbeat_ms))

    def cancel_generation_of(self, slot: RegisteredSlot) -> None:
        if slot.deployed_token or slot.register.phase != "idle":
            self.outbox.send(slot, CancelGeneration(self.led.token, self.last_completed))
        if slot.connected:
            slot.state = SlotState.REGISTERED

    def abort_checkpoint(self, checkpoint: Checkpoint, reason: str) -> None:
        self.outbox.broadcast(AbortCheckpoint(self.led.token, checkpoint.id, reason))

    @property
    def all_ended(self) -> bool:
        return len(self.generation.ended) == len(self._subtasks)

    @property
    def awaits_decisions(self) -> bool:
        """Returns whether sources have ended, but `stable` steps need checkpoints for last rows."""
        if self.all_ended or not any(STABLE_KIND in chain.kinds.values() for chain in self.spec.chains):
            return False
        sources = {chain.chain for chain in self.spec.chains if chain.is_source}
        return all(subtask in self.generation.ended for subtask in self._subtasks if subtask.chain in sources)

    def begin_checkpoints(self, now_ms: int) -> PendingCheckpoints:
        highest = self.highest_checkpoint()
        return self.generation.run(
            PendingCheckpoints(self.spec.checkpoints, self._subtasks, self.led.token, highest + 1, now_ms)
        )

    def mark_ended(self, slot: RegisteredSlot, subtasks: Iterable[SubtaskId]) -> None:
        own = (subtask for subtask in subtasks if subtask in self._subtasks and subtask.index == slot.index)
        self.generation.ended.update(own)

    def mark_committed(self, slot: RegisteredSlot, message: Committed) -> bool:
        """As `CommitTracker.committed`. Global commits count only from slot 0."""
        by_global = message.subtask == GLOBAL_COMMITTER and slot.index == 0
        if message.subtask != slot.index and not by_global:
            self.record.ignored["commit of another slot's sink"] += 1
            return False
        rose = self.commits.committed(message)
        if by_global and self.leads:
            self.outbox.broadcast(Visible(self.led.token, message.checkpoint, message.operator))
        return rose

    def reconcile_commits(self, register: Register) -> None:
        """Ignores reports made under another number of slots."""
        if register.parallelism in (0, self.spec.parallelism):
            self.commits.reconcile(register.slot, register.committed)

    def highest_checkpoint(self) -> int:
        seen = [slot.register.highest_checkpoint for slot in self.slots]
        pending = self.generation.pending
        triggered = 0 if pending is None else pending.next_id - 1
        return max([self.log.checkpoint_floor, triggered, *seen])

    def kept(self, decided: DecidedManifest) -> Kept:
        files = decided.own_files(self.paths.data_prefix)
        return Kept(decided.manifest.checkpoint, decided.key, files, bool(decided.inside))

    def decided_as(self, entry: LogEntry, manifest: Manifest) -> DecidedManifest:
        record = complete_of(entry)
        inside = self.paths.log_record(entry.position) if record.inline else ""
        return DecidedManifest(record.manifest, record.sha256, manifest, inside)


def _has_run(run_id: str, view: LogView) -> bool:
    fence = None if view.fence is None else view.fence.record
    if not isinstance(fence, Fence) or fence.spec.run_id != run_id or not view.completes:
        return False
    return view.completes[0].record.token > fence.prior_run


def _failing_commits(stored: CommitsStatus) -> tuple[FailingCommit, ...]:
    return tuple(
        FailingCommit(each.sink, each.checkpoint, each.attempts, each.error, each.since_ms, each.since_ms)
        for each in stored.troubles
    )


def _sinks(spec: JobSpec) -> frozenset[str]:
    return frozenset(sink for chain in spec.chains for sink in chain.sinks)


def _goes_on(before: JobSpec, spec: JobSpec) -> str:
    if before.program != spec.program:
        return "goes on with another program"
    return f"goes on with {counted(spec.parallelism, 'slot')}"


def _is_unanswered(slot: RegisteredSlot) -> bool:
    return slot.register.facts is not None and slot.probed is None


def _slots_of(spec: JobSpec) -> tuple[str, int, int]:
    return spec.program, spec.parallelism, spec.full_parallelism


def _subtasks(spec: JobSpec) -> frozenset[SubtaskId]:
    return frozenset(SubtaskId(chain.chain, index) for chain in spec.chains for index in range(spec.parallelism))
