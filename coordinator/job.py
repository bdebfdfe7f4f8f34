"""All facts of one running job in one place, and the few moves that every phase needs. Decides nothing by itself.

The phases (`phase_*.py`) hold the decisions; `JobProtocol` brings events to the present phase. Effects are collected in
`effects` in the order in which they must happen.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coordinator.checkpoint import Checkpoint
from coordinator.commits import CommitTracker
from coordinator.decision_log import DecisionLog, Landed, LogView, Permit, ReadBack, Repeat, complete_of
from coordinator.effects import Append, CloseLink, Delete, Effect, ReadManifest, ReadRecord, SendTo
from coordinator.events import StoreRetried
from coordinator.failures import FailureCounter, RestartPolicy
from coordinator.job_record import JobRecord
from coordinator.log_records import NO_RECORD, Complete, Fence, Finish, Lead, Record
from coordinator.manifest import Manifest, own_files
from coordinator.messages import (
    GLOBAL_COMMITTER,
    AbortCheckpoint,
    CommitGlobally,
    Committed,
    Halt,
    JobSpec,
    Registered,
    SubtaskFailed,
    SubtaskId,
    ToSlot,
    Visible,
)
from coordinator.pending_checkpoints import PendingCheckpoints
from coordinator.progress import StoreRetry
from coordinator.restore_choice import Lineage, RestoreFrom
from coordinator.retention import Kept, Retention
from coordinator.slots import Slot, SlotState, SlotTable
from state.errors import ProtocolViolation
from state.paths import Paths

StopMode = Literal["checkpoint", "now"]


class Origin(enum.Enum):
    SUBMITTED = "submitted"  # the driver asks for this run
    ADOPTED = "adopted"  # found in the log when one of its slots connected


@dataclass(frozen=True)
class Identity:
    """Who this coordinator is. `leader` is unique to this process start."""

    leader: str
    host: str


@dataclass(frozen=True)
class DecidedManifest:
    """A manifest whose bytes hashed to what its COMPLETE record says."""

    key: str
    sha256: str
    manifest: Manifest


class Job:
    def __init__(self, spec: JobSpec, identity: Identity, origin: Origin) -> None:
        self.spec = spec
        self.identity = identity
        self.origin = origin
        self.paths = Paths(spec.job)
        self.slots = SlotTable(spec.job, spec.parallelism)
        self.commits = CommitTracker(spec)
        self.failures = FailureCounter(spec.checkpoints.tolerable_failures)
        self.restarts = RestartPolicy(spec.restart, f"{spec.job}/{spec.run_id}")
        self.record = JobRecord()
        self.subtasks = frozenset(
            SubtaskId(chain.chain, index) for chain in spec.chains for index in range(spec.parallelism)
        )
        self.view = LogView()
        self.log = DecisionLog(spec.job, self.view)
        self.token = 0  # of the generation this process leads; meaningless while `leads` is False
        self.leads = False
        self.permit: Permit | None = None  # of the newest landed record
        self.lineage = ""
        self.pending: PendingCheckpoints | None = None
        self.retention: Retention | None = None  # None: what is kept is not known (yet): delete nothing
        self.unsorted: list[Kept] = []  # decided while `retention` was not known yet
        self.decided: DecidedManifest | None = None  # the newest one that was written or verified by this process
        self.restored: DecidedManifest | None = None  # what the present generation started from
        self.written: DecidedManifest | None = None  # written, its decision is under way
        self.ended: set[SubtaskId] = set()
        self.stop: StopMode | None = None
        self.stop_from: int | None = None  # the first checkpoint id that counts for the stop
        self.final: int | None = None  # a completed checkpoint taken after all input ended
        self.absent_slots: tuple[int, ...] = ()  # did not come in time, and the job failed for that
        self.fenced_by: str | None = None
        self.error: str | None = None
        self.store_retries: dict[str, StoreRetry] = {}  # store calls that failed and are being repeated
        self.effects: list[Effect] = []
        self._deletable: tuple[str, ...] = ()
        self._put_ids = 0
        self._append_attempts = 0
        self._greeted: dict[int, str] = {}  # slot index -> uuid + link that got its Registered
        self._told: dict[str, tuple[int, int | None]] = {}  # sink -> what its global committer was asked, on which link
        self.reported_failure: SubtaskFailed | None = None  # heard before we led; a slot says it once per connection
        self.wanted_manifest: str | None = None  # key of the one that is read for the global committers

    # ------------------------------------------------------------ effects

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, slot: Slot, message: ToSlot) -> None:
        if slot.link is not None:
            self.emit(SendTo(slot.link, message))

    def broadcast(self, message: ToSlot) -> None:
        for slot in self.slots.connected:
            self.send(slot, message)

    def close(self, slot: Slot) -> None:
        link = self.slots.disconnect(slot)
        if link is not None:
            self.emit(CloseLink(link))

    def delete(self, keys: tuple[str, ...]) -> None:
        """Only who leads may delete, and only while nothing is undecided (I9): until then it is put off."""
        self._deletable += keys
        if not self._deletable or self.log.in_flight:
            return
        if self.permit is None or not self.leads:
            raise ProtocolViolation(f"job {self.spec.job}: delete without a permit: file a bug")
        keys, self._deletable = self._deletable, ()
        self.emit(Delete(self.permit, keys))

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
            self.emit(Append(step.position, step.data, self._append_attempts))
        else:
            self.emit(ReadRecord(step.position))

    def fence_record(self, choice: RestoreFrom, reason: str, floor: int, now_ms: int) -> Fence:
        put_id = self._put_id()
        previous = self.log.fence
        if choice.lineage is Lineage.SAME and previous is not None:
            lineage = previous.lineage
        elif choice.lineage is Lineage.INHERIT and choice.entry is not None:
            lineage = complete_of(choice.entry).lineage
        else:
            lineage = put_id
        if previous is None:
            prior_run = NO_RECORD
        elif previous.spec.run_id == self.spec.run_id:
            prior_run = previous.prior_run
        else:
            prior_run = previous.token
        return Fence(
            put_id=put_id,
            parent_sha256=self.log.head_sha256,
            token=self.log.next_position,
            writer=self._writer(),
            wall_ms=now_ms,
            prior_complete=self.log.prior_complete,
            reason=reason,
            restored_checkpoint=choice.checkpoint,
            restored_position=NO_RECORD if choice.entry is None else choice.entry.position,
            lineage=lineage,
            prior_run=prior_run,
            checkpoint_floor=max(floor, self.log.checkpoint_floor),
            spec=self.spec,
        )

    def lead_record(self, now_ms: int) -> Lead:
        return Lead(
            put_id=self._put_id(),
            parent_sha256=self.log.head_sha256,
            token=self._log_token(),
            writer=self._writer(),
            wall_ms=now_ms,
            prior_complete=self.log.prior_complete,
            leader=self.identity.leader,
        )

    def complete_record(self, checkpoint: int, manifest: DecidedManifest, now_ms: int) -> Complete:
        return Complete(
            put_id=self._put_id(),
            parent_sha256=self.log.head_sha256,
            token=self.token,
            writer=self._writer(),
            wall_ms=now_ms,
            prior_complete=self.log.prior_complete,
            checkpoint=checkpoint,
            lineage=self.lineage,
            manifest=manifest.key,
            sha256=manifest.sha256,
        )

    def finish_record(
        self, outcome: Literal["finished", "cancelled", "failed"], discarded: bool, now_ms: int, reason: str = ""
    ) -> Finish:
        return Finish(
            put_id=self._put_id(),
            parent_sha256=self.log.head_sha256,
            token=self._log_token(),
            writer=self._writer(),
            wall_ms=now_ms,
            prior_complete=self.log.prior_complete,
            outcome=outcome,
            reason=reason,
            discarded=discarded,
        )

    def leading(self, landed: Landed) -> None:
        """A FENCE or LEAD of ours landed: this process leads generation `permit.token`."""
        self._told.clear()  # a new generation knows of nothing
        self.leads = True
        self.token = landed.permit.token
        self.permit = landed.permit
        fence = self.log.fence
        assert fence is not None
        self.lineage = fence.lineage

    def _log_token(self) -> int:
        token = self.log.token
        if token is None:
            raise ProtocolViolation(f"job {self.spec.job}: LEAD for a log without a FENCE: file a bug")
        return token

    def _put_id(self) -> str:
        self._put_ids += 1
        return f"{self.identity.leader}-{self._put_ids}"

    def _writer(self) -> str:
        return f"{self.identity.host} for {self.spec.submitter}"

    def store_retried(self, event: StoreRetried) -> None:
        before = self.store_retries.get(event.what)
        attempts = 1 if before is None else before.attempts + 1
        self.store_retries[event.what] = StoreRetry(event.what, event.error, attempts, event.keeps_from)

    # ------------------------------------------------------------ slots

    @property
    def last_completed(self) -> int:
        """The checkpoint whose transactions every sink may commit."""
        entry = self.log.restore_point
        return 0 if entry is None else complete_of(entry).checkpoint

    @property
    def heartbeat_ms(self) -> int:
        return max(50, min(1_000, self.spec.slot_timeout_ms // 5))

    def greet(self, slot: Slot, token: int) -> None:
        """Answer its Register, once per connection."""
        mark = f"{slot.uuid} {slot.link}"
        if self._greeted.get(slot.index) != mark:
            self._greeted[slot.index] = mark
            self.send(slot, Registered(token, self.last_completed, self.heartbeat_ms))

    def halt(self, slot: Slot) -> None:
        if slot.deployed_token or slot.register.phase != "idle":
            self.send(slot, Halt(self.token, self.last_completed))
        if slot.connected:
            slot.state = SlotState.REGISTERED

    def abort_checkpoint(self, checkpoint: Checkpoint, reason: str) -> None:
        self.broadcast(AbortCheckpoint(self.token, checkpoint.id, reason))

    def mark_ended(self, slot: Slot, subtasks: Iterable[SubtaskId]) -> None:
        """A slot speaks for its own subtasks only."""
        self.ended.update(subtask for subtask in subtasks if subtask in self.subtasks and subtask.index == slot.index)

    def mark_committed(self, slot: Slot, message: Committed) -> None:
        """A slot speaks for its own sinks only; slot 0 for the global committers, too."""
        by_global = message.subtask == GLOBAL_COMMITTER and slot.index == 0
        if message.subtask != slot.index and not by_global:
            self.record.ignored["commit of another slot's sink"] += 1
            return
        self.commits.committed(message)
        if by_global:
            self.broadcast(Visible(self.token, message.checkpoint, message.operator))

    def commit_globally(self) -> None:
        """Tell slot 0 what its global committers may do now; each thing once per connection. Only while running."""
        slot = self.slots.at(0)
        if slot is None or slot.link is None:
            return
        for due in self.commits.due_globally():
            ask = (due.checkpoint, slot.link)
            if due.snapshots is not None and self._told.get(due.sink) != ask:
                self._told[due.sink] = ask
                self.send(slot, CommitGlobally(self.token, due.checkpoint, due.sink, due.snapshots))
            elif due.snapshots is None and due.checkpoint == self.last_completed:
                self._read_for_global_committers()

    def _read_for_global_committers(self) -> None:
        """A restarted coordinator does not have the manifest at hand."""
        entry = self.log.restore_point
        if entry is not None and self.wanted_manifest != complete_of(entry).manifest:
            self.wanted_manifest = complete_of(entry).manifest
            self.emit(ReadManifest(self.wanted_manifest))

    def highest_checkpoint(self) -> int:
        """The highest checkpoint id anyone has seen."""
        seen = [slot.register.highest_checkpoint for slot in self.slots]
        pending = self.pending.next_id - 1 if self.pending is not None else 0
        return max([self.log.checkpoint_floor, pending, *seen])

    def kept(self, decided: DecidedManifest) -> Kept:
        return Kept(decided.manifest.checkpoint, decided.key, own_files(decided.manifest, self.paths.data_prefix))
