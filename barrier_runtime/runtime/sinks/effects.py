"""Effects of `SinkDriver` and the expected answers. `sinks/operator` applies the effects."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class PreCommit:
    """Makes transaction `txn` durable; the answer is `precommitted(checkpoint, committable)`."""

    txn: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Makes a transaction visible.

    The answer is `committed(checkpoint)` or `commit_failed(checkpoint, error, now)`.
    """

    checkpoint: int
    committable: bytes


@dataclass(frozen=True, slots=True)
class CommitTogether:
    """Makes transactions visible, oldest first; answered like `Commit`, for the last `checkpoint`."""

    checkpoint: int
    committables: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Recover:
    """Commits the transactions, then drops transactions that older generations left undecided.

    Answered like `Commit`.
    """

    checkpoint: int
    committables: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TransactionVisible:
    """Announces that readers can see transaction `txn`."""

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
