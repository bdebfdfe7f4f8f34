"""Two-phase commit driver of a sink subtask: decides commits, their order, and contents of snapshots.

Pure: events and `now` (seconds, any steady clock) in, effects out. Life of a transaction (the table `_MOVES`):

| stage      | event                           | next       | effect                                       |
|------------|---------------------------------|------------|----------------------------------------------|
| OPEN       | barrier n                       | SEALING    | PreCommit; the next transaction is OPEN      |
| SEALING    | its committable is durable      | SEALED     |                                              |
| SEALED     | decided, oldest, executor free  | COMMITTING | Commit (none if empty), or CommitTogether    |
|            | … sink commits only globally    | COMMITTED  | ReportCommitted when all ≤ n                 |
| COMMITTING | the sink committed              | gone       | TransactionVisible; ReportCommitted when all ≤ n |
|            | … with a global committer       | COMMITTED  | ReportCommitted when all ≤ n                 |
| COMMITTED  | the global committer committed  | gone       | TransactionVisible                           |
| COMMITTING | the sink raised                 | BACKOFF    | ReportFailing, RetryAt                       |
|            | … and it is not the oldest      | SEALED     |                                              |
| BACKOFF    | the retry is due                | COMMITTING | Commit with the same committable             |

Laws

- `complete(n)` decides *every* transaction closed at or before barrier n, also those of failed checkpoints. So
  `abort(n)` drops nothing.
- Commits happen one at a time, oldest first; with `together`, all that may be committed at once. After a failure the
  oldest transaction is retried alone, for ever, and holds back later commits, never an older transaction.
- A snapshot at n lists every transaction that is not known to be visible. Listing a visible transaction is harmless
  (commit is idempotent); omitting an invisible transaction would lose its rows.
- After a restore every transaction in the manifest is decided, and is committed before anything new (`recover`). In the
  same step the sink aborts transactions that older generations left undecided.
- Deciding an aborted checkpoint, or aborting a decided checkpoint, raises `ProtocolViolation`.
"""

import enum
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from barrier_runtime.runtime.sinks.pending_set import PendingEntry
from barrier_runtime.state.errors import ProtocolViolation


@dataclass(frozen=True, slots=True)
class PreCommit:
    """Answered by `precommitted(checkpoint, committable)`."""

    txn: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Answered by `committed` or `commit_failed`."""

    checkpoint: int
    committable: bytes


@dataclass(frozen=True, slots=True)
class CommitTogether:
    """Oldest first; answered like `Commit`."""

    checkpoint: int
    committables: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Recover:
    """Commits, then aborts transactions that older generations left undecided. Answered like `Commit`."""

    checkpoint: int
    committables: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TransactionVisible:
    txn: int


@dataclass(frozen=True, slots=True)
class ReportCommitted:
    checkpoint: int


@dataclass(frozen=True, slots=True)
class ReportFailing:
    checkpoint: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Requests a call of `retry()` at `at` (seconds, on the clock of `now`)."""

    at: float


Effect: TypeAlias = (
    PreCommit | Commit | CommitTogether | Recover | TransactionVisible | ReportCommitted | ReportFailing | RetryAt
)


RECOVERY_TXN = 0  # the recovered transactions; those of this incarnation count from 1


class Stage(enum.Enum):
    OPEN = "open"
    SEALING = "sealing"
    SEALED = "sealed"
    COMMITTING = "committing"
    BACKOFF = "backoff"
    COMMITTED = "committed"
    VISIBLE = "visible"


class Move(enum.Enum):
    BARRIER = "barrier"
    PRECOMMITTED = "precommitted"
    COMMIT = "commit"
    COMMITTED = "committed"
    COMMITTED_PART = "committed its part"
    COMMITTED_GLOBALLY = "committed globally"
    COMMIT_FAILED = "commit failed"
    PUT_BACK = "put back behind one that failed"
    NOTHING_TO_COMMIT = "without a commit of its own"


_MOVES: dict[tuple[Stage, Move], Stage] = {
    (Stage.OPEN, Move.BARRIER): Stage.SEALING,
    (Stage.SEALING, Move.PRECOMMITTED): Stage.SEALED,
    (Stage.SEALED, Move.COMMIT): Stage.COMMITTING,
    (Stage.COMMITTING, Move.COMMITTED): Stage.VISIBLE,
    (Stage.COMMITTING, Move.COMMITTED_PART): Stage.COMMITTED,
    (Stage.SEALED, Move.NOTHING_TO_COMMIT): Stage.COMMITTED,
    (Stage.COMMITTED, Move.COMMITTED_GLOBALLY): Stage.VISIBLE,
    (Stage.COMMITTING, Move.COMMIT_FAILED): Stage.BACKOFF,
    (Stage.COMMITTING, Move.PUT_BACK): Stage.SEALED,
    (Stage.BACKOFF, Move.COMMIT): Stage.COMMITTING,
}


@dataclass(frozen=True, slots=True)
class Transaction:
    number: int
    checkpoint: int
    stage: Stage
    entries: tuple[PendingEntry, ...] = ()  # empty: nothing was written
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between attempts to commit, doubling from `first` to `most`."""

    first: float = 0.1
    most: float = 30.0

    def delay(self, attempts: int) -> float:
        return min(self.most, self.first * 2.0 ** min(attempts - 1, 30))


class SinkDriver:
    """`name` is for messages. `part_of_whole`: a global committer makes transactions visible.

    `together`: the sink can commit several at once. `only_globally`: a subtask only recovers.
    """

    def __init__(
        self,
        name: str,
        subtask: int,
        backoff: Backoff = Backoff(),
        *,
        part_of_whole: bool = False,
        together: bool = False,
        only_globally: bool = False,
    ) -> None:
        self._name = name
        self._subtask = subtask
        self._backoff = backoff
        self._part_of_whole = part_of_whole
        self._together = together
        self._only_globally = only_globally
        self._committed: deque[Transaction] = deque()  # stage COMMITTED, oldest first: older than `_pending`
        self._visible_through = 0
        self._pending: deque[Transaction] = deque()  # closed and not committed, oldest first
        self._open_txn = 1
        self._last_barrier = 0
        self._decided_through = 0
        self._to_report: deque[int] = deque()
        self._committed_through = 0
        self._aborted: set[int] = set()
        self._history: deque[str] = deque(maxlen=16)

    @property
    def open_txn(self) -> int:
        return self._open_txn

    @property
    def pending(self) -> tuple[Transaction, ...]:
        return (*self._committed, *self._pending)

    @property
    def committed_through(self) -> int:
        return self._committed_through

    @property
    def decided(self) -> int:
        return sum(
            len(transaction.entries) or transaction.stage is Stage.SEALING
            for transaction in self._pending
            if transaction.checkpoint <= self._decided_through
        )

    @property
    def undecided(self) -> int:
        return sum(transaction.checkpoint > self._decided_through for transaction in self._pending)

    @property
    def awaits_pre_commit(self) -> bool:
        return any(t.stage is Stage.SEALING and t.checkpoint <= self._decided_through for t in self._pending)

    def recover(self, checkpoint: int, entries: Sequence[PendingEntry]) -> list[Effect]:
        """Call before any other event. `checkpoint`: restored; 0: started empty.

        `entries`: pending entries that this subtask takes over.
        """
        self._note(f"recover({checkpoint}, {len(entries)} entries)")
        if self._last_barrier or self.pending:
            raise self._violation("recover must come before the first barrier")
        self._last_barrier = self._decided_through = checkpoint
        self._to_report.append(checkpoint)
        self._pending.append(Transaction(RECOVERY_TXN, checkpoint, Stage.SEALED, tuple(entries)))
        return self._advance()

    def barrier(self, checkpoint: int) -> list[Effect]:
        self._note(f"barrier({checkpoint})")
        if checkpoint <= self._last_barrier:
            raise self._violation(f"barrier {checkpoint} after {self._last_barrier}: checkpoint ids only rise")
        self._last_barrier = checkpoint
        txn = self._open_txn
        self._open_txn += 1
        self._pending.append(Transaction(txn, checkpoint, self._moved(Stage.OPEN, Move.BARRIER)))
        return [PreCommit(txn, checkpoint)]

    def precommitted(self, checkpoint: int, committable: bytes | None) -> list[Effect]:
        """Notes that the transaction of `checkpoint` is durable; `committable` None: no rows."""
        self._note(f"precommitted({checkpoint})")
        for index, transaction in enumerate(self._pending):
            if transaction.number != RECOVERY_TXN and transaction.checkpoint == checkpoint:
                entries = () if committable is None else (PendingEntry(checkpoint, self._subtask, committable),)
                stage = self._moved(transaction.stage, Move.PRECOMMITTED)
                self._pending[index] = replace(transaction, stage=stage, entries=entries)
                return self._advance()
        raise self._violation(f"a committable for checkpoint {checkpoint}, of which no transaction is pending")

    def complete(self, checkpoint: int) -> list[Effect]:
        """Decides `checkpoint`. A repeated call only repeats the report."""
        self._note(f"complete({checkpoint})")
        if checkpoint in self._aborted:
            raise self._violation(f"checkpoint {checkpoint} was aborted and is now reported as decided")
        if checkpoint > self._last_barrier and self._open_txn > 1:
            raise self._violation(f"checkpoint {checkpoint} is decided, but its barrier never came here")
        if checkpoint <= self._committed_through:
            return [ReportCommitted(checkpoint)]
        if checkpoint > self._decided_through:
            self._decided_through = checkpoint
            self._aborted = {each for each in self._aborted if each > checkpoint}
            self._to_report.append(checkpoint)
        return self._advance()

    def abort(self, checkpoint: int) -> list[Effect]:
        self._note(f"abort({checkpoint})")
        if checkpoint == self._decided_through and checkpoint > 0:
            raise self._violation(f"checkpoint {checkpoint} is decided and is now reported as aborted")
        if checkpoint > self._decided_through:
            self._aborted.add(checkpoint)
        return []

    def committed(self, checkpoint: int) -> list[Effect]:
        self._note(f"committed({checkpoint})")
        effects: list[Effect] = []
        for transaction in self._under_way(checkpoint, self._move_when_done()):
            effects += self._committed_one(transaction)
        return effects + self._advance()

    def visible(self, checkpoint: int) -> list[Effect]:
        """Notes that the global committer made everything up to `checkpoint` visible. Repeatable."""
        self._note(f"visible({checkpoint})")
        self._visible_through = max(self._visible_through, checkpoint)
        effects: list[Effect] = []
        while self._committed and self._committed[0].checkpoint <= checkpoint:
            self._moved(self._committed[0].stage, Move.COMMITTED_GLOBALLY)
            effects.append(TransactionVisible(self._committed.popleft().number))
        return effects

    def commit_failed(self, checkpoint: int, error: str, now: float) -> list[Effect]:
        self._note(f"commit_failed({checkpoint}, {error})")
        oldest, *others = self._under_way(checkpoint, Move.COMMIT_FAILED)
        attempts = oldest.attempts + 1
        self._pending[0] = replace(oldest, stage=Stage.BACKOFF, attempts=attempts)
        for index, transaction in enumerate(others, start=1):
            self._pending[index] = replace(transaction, stage=self._moved(transaction.stage, Move.PUT_BACK))
        return [ReportFailing(oldest.checkpoint, attempts, error), RetryAt(now + self._backoff.delay(attempts))]

    def retry(self) -> list[Effect]:
        self._note("retry()")
        if self._pending and self._pending[0].stage is Stage.BACKOFF:
            return self._start(1)
        return []

    def _advance(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._pending:
            oldest = self._pending[0]
            if oldest.stage is not Stage.SEALED or oldest.checkpoint > self._decided_through:
                break
            if self._only_globally and oldest.entries and oldest.number != RECOVERY_TXN:
                self._moved(oldest.stage, Move.NOTHING_TO_COMMIT)
                effects += self._committed_one(oldest)
                continue
            if oldest.entries or oldest.number == RECOVERY_TXN:  # never skipped, because a recovery also drops orphans
                effects += self._reports()
                return effects + self._start(self._ready())
            self._pending.popleft()
            effects.append(TransactionVisible(oldest.number))
        return effects + self._reports()

    def _move_when_done(self) -> Move:
        return Move.COMMITTED_PART if self._part_of_whole else Move.COMMITTED

    def _committed_one(self, transaction: Transaction) -> list[Effect]:
        self._pending.popleft()
        if self._part_of_whole and transaction.checkpoint > self._visible_through:
            self._committed.append(replace(transaction, stage=Stage.COMMITTED))
            return []
        return [TransactionVisible(transaction.number)]

    def _ready(self) -> int:
        """Number of the oldest transactions to commit at once; the last of these is not empty."""
        ready = 1
        if self._together and self._pending[0].number != RECOVERY_TXN:
            for index, transaction in enumerate(self._pending):
                if transaction.stage is not Stage.SEALED or transaction.checkpoint > self._decided_through:
                    break
                if transaction.entries:
                    ready = index + 1
        return ready

    def _start(self, count: int) -> list[Effect]:
        oldest = list(itertools.islice(self._pending, count))
        started = [replace(each, stage=self._moved(each.stage, Move.COMMIT)) for each in oldest]
        for index, transaction in enumerate(started):
            self._pending[index] = transaction
        checkpoint = started[-1].checkpoint
        committables = tuple(entry.committable for transaction in started for entry in transaction.entries)
        if started[0].number == RECOVERY_TXN:
            return [Recover(checkpoint, committables)]
        return [Commit(checkpoint, *committables)] if count == 1 else [CommitTogether(checkpoint, committables)]

    def _reports(self) -> list[Effect]:
        visible_through = 0
        while self._to_report and not (self._pending and self._pending[0].checkpoint <= self._to_report[0]):
            visible_through = self._to_report.popleft()
        if visible_through <= self._committed_through:
            return []
        self._committed_through = visible_through
        return [ReportCommitted(visible_through)]

    def _under_way(self, checkpoint: int, move: Move) -> list[Transaction]:
        under_way = list(itertools.takewhile(lambda each: each.stage is Stage.COMMITTING, self._pending))
        if not under_way or under_way[-1].checkpoint != checkpoint:
            raise self._violation(f"an answer for the commit of checkpoint {checkpoint}, which is not under way")
        for transaction in under_way:
            self._moved(transaction.stage, move)
        return under_way

    def _moved(self, stage: Stage, move: Move) -> Stage:
        try:
            return _MOVES[stage, move]
        except KeyError:
            raise self._violation(f"{move.value} is not possible for a transaction that is {stage.value}") from None

    def _note(self, event: str) -> None:
        self._history.append(event)

    def _violation(self, what: str) -> ProtocolViolation:
        return ProtocolViolation(
            f"{self._name}: {what}. Recent events: {', '.join(self._history)}. "
            "This is a bug in barrier-runtime: report it with this message"
        )
