"""Decision log of a job for the single writer. Sans-io, without a clock.

    propose → put → CREATED              → Appended
                  → UNKNOWN             → Repeat the same bytes at the same position (nothing else may happen meanwhile)
                  → EXISTS → read it: own put_id → Appended · other put_id → Foreign · gone → Repeat

`Foreign`: another writer owns the position. A leader is then fenced and stops; a process about to start a generation
reads the log again.
"""

from dataclasses import dataclass

from barrier_runtime.coordinator.log.laws import Before, broken_laws
from barrier_runtime.coordinator.log.manifest import is_discarded, kept_after, kept_by_complete, kept_by_fence
from barrier_runtime.coordinator.log.records import (
    FIRST_POSITION,
    NO_RECORD,
    Complete,
    Fence,
    Finish,
    Record,
    StopWish,
    base_after,
    base_of,
    decode_record,
    is_due,
    stamped,
)
from barrier_runtime.state.errors import Corrupt, ProtocolViolation
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.versioned import sha256_hex


@dataclass(frozen=True)
class LogEntry:
    position: int
    record: Record
    sha256: str


@dataclass(frozen=True)
class LogView:
    """All None or empty: no log, and only then no state."""

    head: LogEntry | None = None
    fence: LogEntry | None = None  # of the head's generation
    completes: tuple[LogEntry, ...] = ()  # newest first
    restored: LogEntry | None = None  # COMPLETE that the generation restored
    earlier_runs: tuple[LogEntry, ...] = ()  # last FENCE of each earlier run, newest first
    other_kept: tuple[LogEntry, ...] = ()  # kept decisions besides `completes`, if requested
    first_sha256: str = ""  # empty: not read
    visible: int = NO_RECORD  # position of the newest decision, if later records show that all rows are visible

    @property
    def kept(self) -> tuple[int, ...] | None:
        """Positions of the decisions that may be restored, the first to be dropped first; None as in `kept_after`."""
        if self.head is None or is_discarded(self.head.record):
            return ()
        listing = [entry for entry in (self.fence, *self.completes[:1]) if entry is not None]
        newest = max(listing, key=lambda entry: entry.position)
        return kept_after(newest.position, newest.record)

    @property
    def kept_entries(self) -> tuple[LogEntry, ...]:
        read = {entry.position: entry for entry in (*self.completes, *self.other_kept)}
        kept = sorted(read) if self.kept is None else self.kept
        return tuple(read[position] for position in kept if position in read)


@dataclass(frozen=True)
class Permit:
    """Proof of an append; required to announce and to delete.

    `completed`: the checkpoint that the generation's state is, or grew from; 0: none. Only `DecisionLog` makes permits.
    """

    token: int
    position: int
    completed: int


@dataclass(frozen=True)
class Appended:
    entry: LogEntry
    permit: Permit
    compacts: bool = False


@dataclass(frozen=True)
class Foreign:
    """Another writer's record at the position, or far beyond a compacted position."""

    entry: LogEntry


@dataclass(frozen=True)
class Repeat:
    position: int
    data: bytes


@dataclass(frozen=True)
class ReadBack:
    position: int


@dataclass(frozen=True)
class _InFlight:
    position: int
    record: Record
    data: bytes


class DecisionLog:
    def __init__(self, job: str, view: LogView) -> None:
        self._job = job
        self._head = view.head
        self._fence = view.fence
        self._last_complete = view.completes[0] if view.completes else None
        self._restored = view.restored
        self._kept_at_start = view.kept_entries
        self._kept = tuple(entry.position for entry in self._kept_at_start) if view.kept is None else view.kept
        self._first_sha256 = view.first_sha256
        self._visible = view.visible
        self._decisions = {_checkpoint_of(each): each.position for each in (*self._kept_at_start, *view.completes)}
        self._in_flight: _InFlight | None = None
        self._asked_back = False

    @property
    def next_position(self) -> int:
        return FIRST_POSITION if self._head is None else self._head.position + 1

    @property
    def first_sha256(self) -> str:
        """Hash that identifies the log; empty if unread."""
        return self._first_sha256

    @property
    def head_sha256(self) -> str:
        return "" if self._head is None else self._head.sha256

    @property
    def token(self) -> int | None:
        return None if self._fence is None else self._fence.position

    @property
    def fence(self) -> Fence | None:
        return None if self._fence is None else _as_fence(self._job, self._fence)

    @property
    def last_complete(self) -> LogEntry | None:
        """Newest decision, even if the generation restored another."""
        return self._last_complete

    @property
    def restore_point(self) -> LogEntry | None:
        """Decision that the generation's state is, or grew from."""
        last, fence = self._last_complete, self._fence
        if last is not None and fence is not None and last.position > fence.position:
            return last
        return self._restored

    @property
    def is_visible(self) -> bool:
        """Returns whether all rows of the restore point are known to be visible."""
        return self.restore_point is not None and self.restore_point.position == self._visible

    def note_visible(self) -> None:
        """All rows of the restore point are visible."""
        self._visible = NO_RECORD if self.restore_point is None else self.restore_point.position

    @property
    def completed(self) -> int:
        """Checkpoint whose transactions every sink may commit; 0: none."""
        return 0 if self.restore_point is None else _checkpoint_of(self.restore_point)

    @property
    def finish(self) -> Finish | None:
        return self._head.record if self._head is not None and isinstance(self._head.record, Finish) else None

    @property
    def stop(self) -> StopWish | None:
        return None if self._head is None else self._head.record.stops_with

    @property
    def in_flight(self) -> bool:
        return self._in_flight is not None

    @property
    def prior_complete(self) -> int:
        """Back link of the next record. Discarded checkpoints stay out of reach."""
        if self._last_complete is None or (self._head is not None and is_discarded(self._head.record)):
            return NO_RECORD
        return self._last_complete.position

    @property
    def kept(self) -> tuple[int, ...]:
        return self._kept

    def kept_at_start(self, retained: int) -> tuple[LogEntry, ...]:
        return self._kept_at_start[-retained:]

    def kept_by_fence(self, restored: int, retained: int) -> tuple[int, ...]:
        return kept_by_fence(self._kept, restored, retained)

    def kept_by_complete(self, retained: int) -> tuple[int, ...]:
        return kept_by_complete(self._kept, retained)

    @property
    def base(self) -> int:
        """Lowest position in reach; lower records may have been deleted."""
        return base_of(None if self._head is None else self._head.record)

    def next_base(self, committed: int) -> int:
        if not is_due(self.base, self.next_position):
            return self.base
        positions = [position for checkpoint, position in self._decisions.items() if checkpoint <= committed]
        return base_after(self.base, self.next_position, max(positions, default=NO_RECORD))

    @property
    def checkpoint_floor(self) -> int:
        """Highest checkpoint id that may have been used, as far as the log shows."""
        floors = [0]
        if self._last_complete is not None:
            floors.append(_checkpoint_of(self._last_complete))
        fence = self.fence
        if fence is not None:
            floors.append(fence.checkpoint_floor)
        return max(floors)

    def propose(self, record: Record) -> Repeat:
        if self._in_flight is not None:
            raise ProtocolViolation(
                f"job {self._job}: append of {type(record).__name__} while position {self._in_flight.position} is "
                "undecided: file a bug"
            )
        position = self.next_position
        self._check(position, record)
        for law in broken_laws(self._before(position), record):
            raise ProtocolViolation(
                f"job {self._job}: {type(record).__name__} at log position {position} needs {law.expected}, and has "
                f"{law.found}: file a bug"
            )
        record, data = stamped(record)
        self._in_flight = _InFlight(position, record, data)
        return Repeat(position, data)

    def on_put(
        self, position: int, outcome: PutOutcome, overtaken: LogEntry | None = None
    ) -> Appended | Foreign | Repeat | ReadBack | None:
        """Returns the next action. None: that put was resolved before.

        `overtaken`: a record far beyond proves that the position had been compacted.
        """
        flight = self._in_flight
        if flight is None or flight.position != position:
            return None
        if overtaken is not None:
            self._in_flight = None
            return Foreign(overtaken)
        if outcome is PutOutcome.CREATED:
            return self._appended(flight)
        if outcome is PutOutcome.EXISTS:
            self._asked_back = True
            return ReadBack(position)
        return Repeat(flight.position, flight.data)

    def on_read_back(self, position: int, name: str, data: bytes | None) -> Appended | Foreign | Repeat | None:
        """Without a put in flight, the next position's record is foreign: an idle leader is deposed."""
        flight = self._in_flight
        if flight is None:
            if data is None or position != self.next_position:
                return None
            record = decode_record(name, data)
            self._check_foreign(position, record)
            return Foreign(LogEntry(position, record, sha256_hex(data)))
        if flight.position != position:
            return None
        if data is None:  # An answer to an earlier read of the next position says nothing about a put in flight.
            repeat = Repeat(flight.position, flight.data) if self._asked_back else None
            self._asked_back = False
            return repeat
        self._asked_back = False
        record = decode_record(name, data)
        if record.put_id == flight.record.put_id:
            if data != flight.data:
                raise Corrupt(
                    f"log record {name} carries our put_id but other bytes: expected sha256 {sha256_hex(flight.data)}, "
                    f"found {sha256_hex(data)}: restore it from a backup of the store"
                )
            return self._appended(flight)
        self._in_flight = None
        self._check_foreign(position, record)
        return Foreign(LogEntry(position, record, sha256_hex(data)))

    def accept(self, foreign: Foreign) -> None:
        """Makes a faster predecessor's record the head. Not for the leader."""
        if foreign.entry.position != self.next_position or self._in_flight is not None:
            raise ProtocolViolation(
                f"job {self._job}: log record {foreign.entry.position} is not the next one: file a bug"
            )
        self._head = foreign.entry
        if isinstance(foreign.entry.record, Complete):
            self._last_complete = foreign.entry

    def _appended(self, flight: _InFlight) -> Appended:
        entry, base = LogEntry(flight.position, flight.record, sha256_hex(flight.data)), self.base
        if entry.position == FIRST_POSITION:
            self._first_sha256 = entry.sha256
        if isinstance(flight.record, Fence):
            wanted = flight.record.restored_position
            self._restored = self._known(wanted) if wanted != NO_RECORD else None
            self._fence = entry
        elif isinstance(flight.record, Complete):
            self._last_complete = entry
            self._decisions[flight.record.checkpoint] = entry.position
        self._head = entry
        if self.base > base:
            self._decisions = {each: at for each, at in self._decisions.items() if at >= self.base}
        kept = kept_after(entry.position, entry.record)
        self._kept = self._kept if kept is None else kept
        self._in_flight = None
        token = self.token
        assert token is not None, "a record was appended to a log without a FENCE"
        return Appended(entry, Permit(token, entry.position, self.completed), self.base > base)

    def choose_restore(self, entry: LogEntry | None) -> None:
        """The next FENCE restores `entry`, which may be old (a replay)."""
        self._chosen = entry

    _chosen: LogEntry | None = None

    def _known(self, position: int) -> LogEntry:
        for entry in (self._last_complete, self._restored, self._chosen):
            if entry is not None and entry.position == position:
                return entry
        raise ProtocolViolation(
            f"job {self._job}: FENCE restores log position {position}, which was never read: file a bug"
        )

    def _before(self, position: int) -> Before:
        return Before(
            job=self._job,
            position=position,
            token=self.token,
            prior_complete=self.prior_complete,
            fence=self.fence,
            fence_known=True,
            finish=self.finish,
            checkpoint_floor=self.checkpoint_floor,
            kept=frozenset(self._kept),
            base=self.base,
            checkpoint_at=self._checkpoint_at,
        )

    def _checkpoint_at(self, position: int) -> int | None:
        known = (self._last_complete, self._restored, self._chosen, *self._kept_at_start)
        return next((_checkpoint_of(each) for each in known if each is not None and each.position == position), None)

    def _check(self, position: int, record: Record) -> None:
        token = self.token
        if isinstance(record, Fence):
            legal = record.token == position
        else:
            legal = token is not None and record.token == token
        if not legal:
            raise ProtocolViolation(
                f"job {self._job}: {type(record).__name__} with token {record.token} at log position {position} after "
                f"generation {token}: tokens are positions and never decrease: file a bug"
            )
        self._check_parent(position, record)

    def _check_foreign(self, position: int, record: Record) -> None:
        """Parent first: a removed record is damage, and no bug of the other writer."""
        self._check_parent(position, record)
        self._check(position, record)

    def _check_parent(self, position: int, record: Record) -> None:
        if record.parent_sha256 != self.head_sha256:
            raise Corrupt(
                f"job {self._job}: log record {position} follows a predecessor with sha256 {record.parent_sha256!r}, "
                f"but position {position - 1} has {self.head_sha256!r}: the log was changed by hand, or a record is "
                "gone; restore it from a backup of the store"
            )


def _as_fence(job: str, entry: LogEntry) -> Fence:
    if not isinstance(entry.record, Fence):
        raise ProtocolViolation(
            f"job {job}: log position {entry.position} is taken for a FENCE and is none: file a bug"
        )
    return entry.record


def _checkpoint_of(entry: LogEntry) -> int:
    return complete_of(entry).checkpoint


def complete_of(entry: LogEntry) -> Complete:
    if not isinstance(entry.record, Complete):
        raise ProtocolViolation(f"log position {entry.position} is taken for a COMPLETE and is none: file a bug")
    return entry.record
