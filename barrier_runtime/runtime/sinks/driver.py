"""The two-phase driver of one sink subtask: which transaction may be committed, when, and what a snapshot must list.

Pure: events and `now` (seconds, any steady clock) in, effects out. It never touches a sink; `sinks/operator` carries
the effects out, and a simulation can do the same with the very same class.

Life of one transaction (`_MOVES` below is this table)

| stage      | event                            | next       | effect                                       |
|------------|----------------------------------|------------|----------------------------------------------|
| OPEN       | barrier n                        | SEALING    | PreCommit(txn, n); the next one is OPEN      |
| SEALING    | its committable is durable       | SEALED     |                                              |
| SEALED     | decided, oldest, executor free       | COMMITTING | Commit (none for an empty transaction), or   |
|            |                                  |            | CommitTogether with those behind it          |
|            | … by a sink that commits only    | COMMITTED  | ReportCommitted when all ≤ n                 |
|            | globally                         |            |                                              |
| COMMITTING | the sink says done               | gone       | TransactionVisible(txn); ReportCommitted when all ≤ n   |
|            | … of a sink with global committer| COMMITTED  | ReportCommitted when all ≤ n                 |
| COMMITTED  | the global committer is through  | gone       | TransactionVisible(txn)                                 |
| COMMITTING | the sink raised                  | BACKOFF    | ReportFailing, RetryAt                       |
|            | … and it is not the oldest       | SEALED     |                                              |
| BACKOFF    | the time has come                | COMMITTING | Commit with the same committable             |

Laws
- `complete(n)` decides *every* transaction closed at or before n, also those of checkpoints that were aborted, declined
  or expired in this generation: their rows ride with n. So `abort(n)` drops nothing.
- Commits happen one at a time, oldest first; a failing one is tried for ever and holds back the later ones.
- `together`: all that may be committed when the executor gets free is committed at once, as one. If that fails the
  oldest is tried alone, so what cannot be committed never holds back what is older.
- A snapshot at n lists every transaction not known to be visible. Listing one that has become visible meanwhile is
  harmless (commit is idempotent); leaving one out would lose it. With a global committer that is all which it has not
  reported: it works from what the manifest lists.
- After a restore everything the manifest lists is decided and is committed before anything new (`recover`); what older
  generations left undecided is aborted by the sink in the same step.
- A decided checkpoint is never aborted and an aborted one never decided: either is a bug in the coordinator and raises.
"""

import enum
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from barrier_runtime.runtime.sinks.effects import (
    Commit,
    CommitTogether,
    Effect,
    PreCommit,
    Recover,
    ReportCommitted,
    ReportFailing,
    RetryAt,
    TransactionVisible,
)
from barrier_runtime.runtime.sinks.pending_set import PendingEntry
from barrier_runtime.state.errors import ProtocolViolation

RECOVERY_TXN = 0  # number of the recovered transactions; transactions of this incarnation count from 1


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
    """One closed transaction, or (number 0) all transactions taken over from the restored checkpoint."""

    number: int
    checkpoint: int
    stage: Stage
    entries: tuple[PendingEntry, ...] = ()  # empty when nothing was written
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between attempts to commit: doubling from `first` to `most`."""

    first: float = 0.1
    most: float = 30.0

    def delay(self, attempts: int) -> float:
        return min(self.most, self.first * 2.0 ** min(attempts - 1, 30))


class SinkDriver:
    """See the table above. `name` (job, sink, subtask) is only for messages. `part_of_whole`: a global committer makes
    visible what all subtasks have committed. `together`: the sink can commit several transactions as one.
    `only_globally`: the sink has nothing to do for a part but to recover it."""

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
        self._committed: deque[Transaction] = deque()  # stage COMMITTED, oldest first: older than what is pending
        self._visible_through = 0  # as the global committer reported
        self._pending: deque[Transaction] = deque()  # closed and not committed, oldest first
        self._open_txn = 1
        self._last_barrier = 0
        self._decided_through = 0
        self._to_report: deque[int] = deque()  # decided checkpoints whose commit has not been reported
        self._committed_through = 0
        self._aborted: set[int] = set()  # undecided and given up, above decided_through
        self._history: deque[str] = deque(maxlen=16)

    # ------------------------------------------------------------ facts

    @property
    def open_txn(self) -> int:
        return self._open_txn

    @property
    def pending(self) -> tuple[Transaction, ...]:
        """Closed and not visible, oldest first."""
        return (*self._committed, *self._pending)

    @property
    def committed_through(self) -> int:
        """Every transaction of every checkpoint up to this one is committed (visible, without a global committer)."""
        return self._committed_through

    @property
    def decided(self) -> int:
        """Transactions with rows that are decided and not committed. What is not sealed yet may have some."""
        return sum(
            len(transaction.entries) or transaction.stage is Stage.SEALING
            for transaction in self._pending
            if transaction.checkpoint <= self._decided_through
        )

    @property
    def undecided(self) -> int:
        """Transactions that a barrier has closed and no decision covers."""
        return sum(transaction.checkpoint > self._decided_through for transaction in self._pending)

    @property
    def awaits_pre_commit(self) -> bool:
        """A decision waits for a committable that is not here yet."""
        return any(t.stage is Stage.SEALING and t.checkpoint <= self._decided_through for t in self._pending)

    # ------------------------------------------------------------ events

    def recover(self, checkpoint: int, entries: Sequence[PendingEntry]) -> list[Effect]:
        """First event after a restore of `checkpoint` (0: started empty). `entries`: what this subtask takes over."""
        self._note(f"recover({checkpoint}, {len(entries)} entries)")
        if self._last_barrier or self.pending:
            raise self._violation("recover must come before the first barrier")
        self._last_barrier = self._decided_through = checkpoint
        self._to_report.append(checkpoint)
        self._pending.append(Transaction(RECOVERY_TXN, checkpoint, Stage.SEALED, tuple(entries)))
        return self._advance()

    def barrier(self, checkpoint: int) -> list[Effect]:
        """The open transaction ends here; a new one begins."""
        self._note(f"barrier({checkpoint})")
        if checkpoint <= self._last_barrier:
            raise self._violation(f"barrier {checkpoint} after {self._last_barrier}: checkpoint ids only rise")
        self._last_barrier = checkpoint
        txn = self._open_txn
        self._open_txn += 1
        self._pending.append(Transaction(txn, checkpoint, self._moved(Stage.OPEN, Move.BARRIER)))
        return [PreCommit(txn, checkpoint)]

    def precommitted(self, checkpoint: int, committable: bytes | None) -> list[Effect]:
        """The transaction closed by `checkpoint` is durable; None: it held nothing."""
        self._note(f"precommitted({checkpoint})")
        for index, transaction in enumerate(self._pending):
            if transaction.number != RECOVERY_TXN and transaction.checkpoint == checkpoint:
                entries = () if committable is None else (PendingEntry(checkpoint, self._subtask, committable),)
                stage = self._moved(transaction.stage, Move.PRECOMMITTED)
                self._pending[index] = replace(transaction, stage=stage, entries=entries)
                return self._advance()
        raise self._violation(f"a committable for checkpoint {checkpoint}, of which no transaction is pending")

    def complete(self, checkpoint: int) -> list[Effect]:
        """`checkpoint` is decided: commit everything closed by it or earlier. Repeats only repeat the report."""
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
        """`checkpoint` will never be decided. Its rows stay pending and ride with the next one that is."""
        self._note(f"abort({checkpoint})")
        if checkpoint == self._decided_through and checkpoint > 0:
            raise self._violation(f"checkpoint {checkpoint} is decided and is now reported as aborted")
        if checkpoint > self._decided_through:
            self._aborted.add(checkpoint)
        return []

    def committed(self, checkpoint: int) -> list[Effect]:
        """The commit under way succeeded (or found that it had been done already)."""
        self._note(f"committed({checkpoint})")
        effects: list[Effect] = []
        for transaction in self._under_way(checkpoint, self._move_when_done()):
            effects += self._committed_one(transaction)
        return effects + self._advance()

    def visible(self, checkpoint: int) -> list[Effect]:
        """The global committer has made everything up to `checkpoint` visible. May be repeated."""
        self._note(f"visible({checkpoint})")
        self._visible_through = max(self._visible_through, checkpoint)
        effects: list[Effect] = []
        while self._committed and self._committed[0].checkpoint <= checkpoint:
            self._moved(self._committed[0].stage, Move.COMMITTED_GLOBALLY)
            effects.append(TransactionVisible(self._committed.popleft().number))
        return effects

    def commit_failed(self, checkpoint: int, error: str, now: float) -> list[Effect]:
        """The commit under way raised. The oldest stays the oldest and is tried again, for ever."""
        self._note(f"commit_failed({checkpoint}, {error})")
        oldest, *others = self._under_way(checkpoint, Move.COMMIT_FAILED)
        attempts = oldest.attempts + 1
        self._pending[0] = replace(oldest, stage=Stage.BACKOFF, attempts=attempts)
        for index, transaction in enumerate(others, start=1):
            self._pending[index] = replace(transaction, stage=self._moved(transaction.stage, Move.PUT_BACK))
        return [ReportFailing(oldest.checkpoint, attempts, error), RetryAt(now + self._backoff.delay(attempts))]

    def retry(self) -> list[Effect]:
        """The time of `RetryAt` has come. Without effect when nothing waits for it."""
        self._note("retry()")
        if self._pending and self._pending[0].stage is Stage.BACKOFF:
            return self._start(1)
        return []

    # ------------------------------------------------------------ inside

    def _advance(self) -> list[Effect]:
        """Start the next commit if it may start, skip what is empty, report what has become visible as a whole."""
        effects: list[Effect] = []
        while self._pending:
            oldest = self._pending[0]
            if oldest.stage is not Stage.SEALED or oldest.checkpoint > self._decided_through:
                break
            if self._only_globally and oldest.entries and oldest.number != RECOVERY_TXN:
                self._moved(oldest.stage, Move.NOTHING_TO_COMMIT)
                effects += self._committed_one(oldest)
                continue
            if oldest.entries or oldest.number == RECOVERY_TXN:  # recovery also drops orphans: never skipped
                effects += self._reports()
                return effects + self._start(self._ready())
            self._pending.popleft()
            effects.append(TransactionVisible(oldest.number))
        return effects + self._reports()

    def _move_when_done(self) -> Move:
        return Move.COMMITTED_PART if self._part_of_whole else Move.COMMITTED

    def _committed_one(self, transaction: Transaction) -> list[Effect]:
        """The oldest is committed."""
        self._pending.popleft()
        if self._part_of_whole and transaction.checkpoint > self._visible_through:
            self._committed.append(replace(transaction, stage=Stage.COMMITTED))
            return []
        return [TransactionVisible(transaction.number)]

    def _ready(self) -> int:
        """How many may be committed at once, the oldest among them. No empty one is the last."""
        ready = 1
        if self._together and self._pending[0].number != RECOVERY_TXN:
            for index, transaction in enumerate(self._pending):
                if transaction.stage is not Stage.SEALED or transaction.checkpoint > self._decided_through:
                    break
                if transaction.entries:
                    ready = index + 1
        return ready

    def _start(self, count: int) -> list[Effect]:
        """With the `count` oldest."""
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
        """The newest decided checkpoint below which nothing is pending, if it was not reported yet."""
        visible_through = 0
        while self._to_report and not (self._pending and self._pending[0].checkpoint <= self._to_report[0]):
            visible_through = self._to_report.popleft()
        if visible_through <= self._committed_through:
            return []
        self._committed_through = visible_through
        return [ReportCommitted(visible_through)]

    def _under_way(self, checkpoint: int, move: Move) -> list[Transaction]:
        """Those that are being committed, of which `checkpoint` closed the last one."""
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
