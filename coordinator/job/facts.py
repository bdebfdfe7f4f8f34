"""All facts of one running job in one place, and the few steps that every phase needs. Decides nothing by itself.

The phases (`phases/`) hold the decisions; `JobProtocol` brings events to the present phase.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint
from barrier_runtime.coordinator.checkpoints.commits import CommitTracker, FailingCommit
from barrier_runtime.coordinator.checkpoints.failures import FailureCounter, RestartPolicy
from barrier_runtime.coordinator.checkpoints.retention import Kept, Retention, SweepPlan
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest, Savepoints, SavepointState
from barrier_runtime.coordinator.job.effects import Append, ReadManifest, ReadRecord
from barrier_runtime.coordinator.job.events import LogRead
from barrier_runtime.coordinator.job.generation import Generation
from barrier_runtime.coordinator.job.outbox import Outbox
from barrier_runtime.coordinator.job.rescaling import Rescales
from barrier_runtime.coordinator.job.slots import RegisteredSlot, SlotState, SlotTable
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
from barrier_runtime.coordinator.log.manifest import DecidedManifest, Manifest, own_files
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import Fence, Finish, Record, StopWish
from barrier_runtime.coordinator.status.history import decode_history
from barrier_runtime.coordinator.status.past_run import with_last_savepoint
from barrier_runtime.coordinator.status.statistics import JobRecord
from barrier_runtime.coordinator.status.status import CommitsStatus
from barrier_runtime.coordinator.wire.messages import (
    GLOBAL_COMMITTER,
    AbortCheckpoint,
    CancelGeneration,
    CommitGlobally,
    Committed,
    JobSpec,
    ManifestRef,
    Registered,
    Shutdown,
    SubtaskFailed,
    SubtaskId,
    Visible,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation
from barrier_runtime.state.store.paths import Paths

StopMode = Literal["checkpoint", "drain", "now"]


class Origin(enum.Enum):
    SUBMITTED = "submitted"  # the driver asks for this run
    ADOPTED = "adopted"  # found in the log when one of its slots connected


@dataclass(frozen=True)
class Leadership:
    """That this process leads a generation, by its newest record."""

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
        self.subtasks = _subtasks(spec)
        self.slots = SlotTable(spec.job, spec.parallelism, self.heartbeat_ms, spec.program)
        self.slots.admit_any(spec.max_parallelism)  # until this process leads, and so knows which there are
        self.commits = CommitTracker(spec)
        self.restarts = RestartPolicy(spec.restart, f"{spec.job}/{spec.run_id}")
        self.record = JobRecord(self.slots.during, self.slots.metrics)
        self.outbox = Outbox(self.slots)
        self.view = LogView()
        self.log = DecisionLog(spec.job, self.view)
        self.records = RecordBuilder(spec, identity, lambda: self.stop_wish)
        self.leadership: Leadership | None = None
        self.has_led = False
        self.generation = Generation(FailureCounter(spec.checkpoints.tolerable_failures))
        self.decided: DecidedManifest | None = None  # the newest one that was written or verified by this process
        self.retention: Retention | None = None  # None: what is kept is not known (yet): delete nothing
        self.unsorted: list[Kept] = []  # decided while `retention` was not known yet
        self.stop: StopMode | None = None
        self.stop_from: int | None = None  # the first checkpoint id that counts for the stop
        self.savepoints = Savepoints(_sinks(spec))
        self.stop_savepoint: SavepointRequest | None = None  # that the job stops with
        self.rescales = Rescales()
        self.starting = 0  # slots that have their cores, as was told last
        self.retreat: JobSpec | None = None  # of the program before this one, which has not run yet
        self.reported_failure: SubtaskFailed | None = None  # heard before we led; a slot says it once per connection
        self._deletable = SweepPlan()
        self._append_attempts = 0
        self._greeted: dict[tuple[str, int], str] = {}  # program and slot -> uuid + link that got its Registered

    # ------------------------------------------------------------ leading

    @property
    def leads(self) -> bool:
        return self.leadership is not None

    @property
    def led(self) -> Leadership:
        """Of the generation that this process leads; for phases in which it does."""
        if self.leadership is None:
            raise ProtocolViolation(f"job {self.spec.job}: done without leading: file a bug")
        return self.leadership

    def lead(self, appended: Appended) -> None:
        """A record of ours is appended: this process leads generation `appended.permit.token`."""
        fence = self.log.fence
        assert fence is not None
        self.leadership = Leadership(appended.permit, fence.lineage)
        if not self.has_led:  # before, a predecessor might have rescaled the job after we read the log
            self.has_led = True
            self.rescales.know_description(self.spec)
            self.admit(f"job {self.spec.job} has no such slot")

    def begin_generation(self, appended: Appended, restored: DecidedManifest | None) -> None:
        """A FENCE of ours is appended."""
        self.lead(appended)
        self.decided = restored
        self.generation = Generation(FailureCounter(self.spec.checkpoints.tolerable_failures), restored)

    @property
    def held(self) -> frozenset[int]:
        """Completed checkpoints whose files somebody has still to read."""
        return self.commits.held | self.savepoints.held

    def delete(self, plan: SweepPlan) -> None:
        """Only the leader may delete, and only while nothing is undecided (I9): until then it is put off."""
        self._deletable = self._deletable.and_then(plan)
        if not self._deletable.keys or self.log.in_flight:
            return
        plan, self._deletable = self._deletable, SweepPlan()
        self.outbox.delete(self.led.permit, plan)

    # ------------------------------------------------------------ the number of slots, and their program

    def know_description(self, view: LogView) -> None:
        """The log says how many slots of which program this run has by now."""
        fence = None if view.fence is None else view.fence.record
        if not isinstance(fence, Fence) or fence.spec.run_id != self.spec.run_id:
            return
        if (fence.spec.program, fence.spec.parallelism) != (self.spec.program, self.spec.parallelism):
            self.go_on_as(fence.spec)
            self.slots.admit_any(self.spec.max_parallelism)
            for slot in self.slots:  # it came before the log was read
                self.commits.reconcile(slot.index, slot.register.committed)

    def remember(self, read: LogRead, now_ms: int) -> None:
        """What was before: figures, and the slots of this run. Damage is reported and costs only them."""
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
        # One that this run was to stop with is taken anew, unless it has ended with it.
        others = tuple(each for each in self.record.savepoints if not (each.stops and same_run))
        head = read.view.head
        if head is not None and isinstance(head.record, Finish):
            others = with_last_savepoint(others, head.record)
        self.record.savepoints = others
        if known is not None and same_run:
            self.commits.remember(_failing_commits(known.commits))
            for slot in known.slots:
                self.slots.expect(slot, now_ms + self.spec.slot_timeout_ms)

    def go_on_as(self, spec: JobSpec, *, keep: bool = False) -> None:
        """The newest FENCE says so: slots that the job has no more leave, standbys become its slots. What sinks have
        committed is not known of the new ones. `keep`: slots of the program before stand by, should this one not
        start."""
        before, self.spec = self.spec, spec
        self.retreat = before if keep else None
        self.subtasks = _subtasks(spec)
        self.commits = CommitTracker(spec)
        self.savepoints.of_sinks(_sinks(spec))
        self.records.rescaled(spec)
        left = self.slots.resize(spec.parallelism, spec.program, keep=keep)
        self.dismiss(left, f"job {spec.job} {_goes_on(before, spec)}")

    def know_outdated(self, fingerprints: tuple[str, ...]) -> None:
        """Programs that earlier runs have replaced."""
        self.spec = msgspec.structs.replace(self.spec, outdated=fingerprints)
        self.records.rescaled(self.spec)

    def admit(self, reason: str) -> None:
        """Slots of the job may come, and those of a rescale that is under way, in whatever phase it was asked for. All
        others have no place: `reason`."""
        rescale = self.rescales.before_moving
        spec = self.spec if rescale is None else rescale.after
        self.dismiss(self.slots.admit(spec.parallelism, spec.program), reason)

    def dismiss(self, slots: Iterable[RegisteredSlot], reason: str) -> None:
        """The job has no place for these; their tasks end well."""
        for slot in slots:
            self.outbox.send(slot, Shutdown("left", reason))
            self.outbox.close(slot)

    def fail_rescale(self, error: str, now_ms: int) -> None:
        """The job goes on with the slots that it has."""
        if self.rescales.before_moving is not None:
            self.rescales.fail(error, now_ms)
            self.record.revision += 1
            if self.leads:  # before, the log may say that those of other programs are the job's
                self.admit(f"job {self.spec.job} was not rescaled: {error}")

    # ------------------------------------------------------------ the log

    def load(self, view: LogView) -> None:
        self.view = view
        self.log = DecisionLog(self.spec.job, view)

    def append(self, record: Record) -> None:
        self._append_attempts = 0
        self.carry_out(self.log.propose(record))

    def carry_out(self, step: Repeat | ReadBack) -> None:
        if isinstance(step, Repeat):
            self._append_attempts += 1
            self.outbox.put(Append(step.position, step.data, self._append_attempts))
        else:
            self.outbox.put(ReadRecord(step.position))

    # ------------------------------------------------------------ the stop

    def want_stop(self, mode: StopMode, savepoint: SavepointRequest | None, now_ms: int) -> None:
        if self.stop is None or mode == "now":  # of draining and stopping, that which has begun
            self.stop = mode
        if savepoint is not None:
            self.stop_savepoint = savepoint
            self.savepoints.ask(savepoint, self.highest_checkpoint() + 1, now_ms)

    def want_what_is_logged(self, now_ms: int) -> None:
        """A predecessor was to stop this run with a savepoint."""
        wish = self.log.stop
        if wish is not None and self.stop != "now":
            self.stop = wish.mode
            request = SavepointRequest(wish.savepoint, wish.url, stops=True)
            self.want_stop(wish.mode, self.stop_savepoint or request, now_ms)

    @property
    def stop_wish(self) -> StopWish | None:
        """What records say of the stop."""
        wanted, mode = self.stop_savepoint, self.stop
        entry = None if wanted is None else self.savepoints.entry(wanted.id)
        if wanted is None or mode is None or mode == "now" or entry is None or entry.state is SavepointState.FAILED:
            return None
        done = entry.state is SavepointState.DONE
        return StopWish(
            mode=mode,
            savepoint=wanted.id,
            url=wanted.url,
            checkpoint=(entry.covered_by or 0) if done else 0,
            bytes=entry.bytes if done else 0,
        )

    @property
    def stop_is_logged(self) -> bool:
        """What of it has to outlive this process."""
        wish, logged = self.stop_wish, self.log.stop
        return wish is None or (logged is not None and logged.savepoint == wish.savepoint)

    # ------------------------------------------------------------ slots

    @property
    def last_completed(self) -> int:
        """The checkpoint whose transactions every sink may commit."""
        return self.log.completed

    @property
    def heartbeat_ms(self) -> int:
        return max(50, min(1_000, self.spec.slot_timeout_ms // 5))

    def greet(self, slot: RegisteredSlot, token: int) -> None:
        """Answer its Register, once per connection."""
        mark, place = f"{slot.uuid} {slot.link}", (slot.register.program, slot.index)
        if self._greeted.get(place) != mark:
            self._greeted[place] = mark
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
        """Whether all input has been read."""
        return len(self.generation.ended) == len(self.subtasks)

    def mark_ended(self, slot: RegisteredSlot, subtasks: Iterable[SubtaskId]) -> None:
        """A slot speaks for its own subtasks only."""
        own = (subtask for subtask in subtasks if subtask in self.subtasks and subtask.index == slot.index)
        self.generation.ended.update(own)

    def mark_committed(self, slot: RegisteredSlot, message: Committed) -> None:
        """A slot speaks for its own sinks only; slot 0 for the global committers, too."""
        by_global = message.subtask == GLOBAL_COMMITTER and slot.index == 0
        if message.subtask != slot.index and not by_global:
            self.record.ignored["commit of another slot's sink"] += 1
            return
        self.commits.committed(message)
        if by_global and self.leads:
            self.outbox.broadcast(Visible(self.led.token, message.checkpoint, message.operator))

    @property
    def _commits_at_once(self) -> bool:
        """Whether something waits for all to be visible, so that no commit is held back."""
        ends = self.stop is not None or self.generation.final is not None or self.all_ended or self.generation.drained
        return ends or self.rescales.open is not None or bool(self.savepoints.open)

    def commit_globally(self, now_ms: int) -> None:
        """Tell slot 0 what its global committers may do now; each thing once per connection. Only while running."""
        self.commits.look(self.last_completed, now_ms, at_once=self._commits_at_once)
        slot, asked = self.slots.at(0), self.generation.asked
        if slot is None or slot.link is None:
            return
        for due in self.commits.due_globally():
            ask = (due.checkpoint, slot.link)
            if due.part is not None and asked.get(due.sink) != ask:
                asked[due.sink] = ask
                where = due.part if isinstance(due.part, ManifestRef) else None
                carried = due.part if isinstance(due.part, tuple) else ()
                self.outbox.send(slot, CommitGlobally(self.led.token, due.checkpoint, due.sink, carried, where))
            elif due.part is None and due.checkpoint == self.last_completed:
                self._read_for_global_committers()

    def _read_for_global_committers(self) -> None:
        """A restarted coordinator does not have the manifest at hand."""
        entry = self.log.restore_point
        if entry is not None and self.generation.wanted_manifest != complete_of(entry).manifest:
            self.generation.wanted_manifest = complete_of(entry).manifest
            self.outbox.put(ReadManifest(complete_of(entry)))

    def highest_checkpoint(self) -> int:
        """The highest checkpoint id anyone has seen."""
        seen = [slot.register.highest_checkpoint for slot in self.slots]
        pending = self.generation.pending
        triggered = 0 if pending is None else pending.next_id - 1
        return max([self.log.checkpoint_floor, triggered, *seen])

    def kept(self, decided: DecidedManifest) -> Kept:
        files = own_files(decided.manifest, self.paths.data_prefix)
        return Kept(decided.manifest.checkpoint, decided.key, files, bool(decided.inside))

    def decided_as(self, entry: LogEntry, manifest: Manifest) -> DecidedManifest:
        """The manifest of the decision in `entry`."""
        record = complete_of(entry)
        inside = self.paths.log_record(entry.position) if record.inline else ""
        return DecidedManifest(record.manifest, record.sha256, manifest, inside)


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
    return f"goes on with {spec.parallelism} slots"


def _subtasks(spec: JobSpec) -> frozenset[SubtaskId]:
    return frozenset(SubtaskId(chain.chain, index) for chain in spec.chains for index in range(spec.parallelism))
