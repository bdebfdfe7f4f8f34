"""The target of the simulated job's second sink: an external transactional store with its own faults.

`LedgerSink` keeps the two-phase contract without a global committer: each subtask's transactions become visible
separately, several together when commits are behind. The ledger survives every process. Commits may fail before or
after they took effect, hang, and be repeated by zombies; of several commits together, only the first may take effect.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.state.errors import ProtocolViolation, Unavailable


class Weather(Protocol):
    """Faults between the calling process and the target: latency, failures, the end of the process."""

    def request(self, what: str) -> str:
        """Returns "ok", "fail before" or "fail after"; blocks for as long as the request travels."""
        ...


class _Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    transaction: str
    token: int
    subtask: int


@dataclass
class Ledger:
    """Rows by transaction. The first commit of a transaction calls `on_visible(handle, rows)`."""

    on_visible: Callable[[bytes, list[Any]], None]
    row_of: Callable[[dict[str, Any]], Any]  # converts a row for the checkers
    staged: dict[str, list[Any]] = field(default_factory=dict)
    visible: dict[str, list[Any]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    repeated: int = 0

    def commit(self, handle: bytes) -> None:
        transaction = msgspec.json.decode(handle, type=_Handle).transaction
        if transaction in self.visible:
            self.repeated += 1
            return
        if transaction in self.aborted:
            raise ProtocolViolation(f"transaction {transaction} is committed after it was aborted")
        self.visible[transaction] = self.staged.pop(transaction)
        self.on_visible(handle, self.visible[transaction])

    def abort(self, transaction: str) -> None:
        if transaction in self.visible:
            raise ProtocolViolation(f"transaction {transaction} is aborted after it was committed")
        self.staged.pop(transaction, None)
        self.aborted.add(transaction)


class LedgerSink(TwoPhaseCommitSink):
    commits_together = True

    def __init__(self, ledger: Ledger, weather: Callable[[], Weather]) -> None:
        self._ledger = ledger
        self._weather = weather

    def __deepcopy__(self, memo: dict[int, object]) -> "LedgerSink":
        return LedgerSink(self._ledger, self._weather)

    def open(self, context: SinkContext) -> None:
        self._context = context

    def begin_transaction(self) -> list[pa.RecordBatch]:
        return []

    def write(self, transaction: list[pa.RecordBatch], rows: pa.RecordBatch) -> None:
        transaction.append(rows)

    def pre_commit(self, transaction: list[pa.RecordBatch], checkpoint: int) -> bytes | None:
        if not transaction:
            return None
        rows = [self._ledger.row_of(row) for batch in transaction for row in batch.to_pylist()]
        name = f"{self._context.token}-{self._context.subtask}-{checkpoint}-{self._context.new_id()}"
        self._perform("pre-commit", lambda: self._ledger.staged.__setitem__(name, rows))
        return msgspec.json.encode(_Handle(1, name, self._context.token, self._context.subtask))

    def commit(self, committable: bytes) -> None:
        self._perform("commit", lambda: self._ledger.commit(committable))

    def commit_together(self, committables: Sequence[bytes]) -> None:
        self._perform("commit", lambda: self._ledger.commit(committables[0]))
        self._perform("commit of the rest", lambda: [self._ledger.commit(each) for each in committables[1:]])

    def abort(self, committable: bytes) -> None:
        name = msgspec.json.decode(committable, type=_Handle).transaction
        self._perform("abort", lambda: self._ledger.abort(name))

    def recover(self, decided: Sequence[bytes]) -> None:
        for committable in decided:
            self.commit(committable)
        self._perform("sweep", self._sweep)

    def _sweep(self) -> None:
        """Aborts undecided transactions of older generations, of the subtasks that this subtask recovers."""
        context = self._context
        for name in sorted(self._ledger.staged):
            token, subtask = (int(part) for part in name.split("-")[:2])
            if token < context.token and subtask % context.parallelism == context.subtask:
                self._ledger.abort(name)

    def _perform(self, what: str, effect: Callable[[], object]) -> None:
        fate = self._weather().request(f"ledger {what}")
        if fate == "fail before":
            raise Unavailable(f"the ledger does not answer ({what}): try again")
        effect()
        if fate == "fail after":
            raise Unavailable(f"the ledger's answer was lost ({what}): try again")
