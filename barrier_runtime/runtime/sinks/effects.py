"""What `SinkDriver` wants done, and what is to be answered. `sinks/operator` carries it out."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class PreCommit:
    """Make transaction `txn` durable and answer with `precommitted(checkpoint, committable)`."""

    txn: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Make it visible; answer `committed(checkpoint)` or `commit_failed(checkpoint, error, now)`."""

    checkpoint: int
    committable: bytes


@dataclass(frozen=True, slots=True)
class CommitTogether:
    """Make all of these visible, oldest first; answer as to a `Commit`, for `checkpoint`, the last one's."""

    checkpoint: int
    committables: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Recover:
    """Commit all of these, then drop what older generations left undecided; answer as to a `Commit`."""

    checkpoint: int
    committables: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TransactionVisible:
    """Transaction `txn` can be seen by readers from now on."""

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
    """Call `retry(now)` when `now >= at` (seconds on the clock of `now`)."""

    at: float


Effect: TypeAlias = (
    PreCommit | Commit | CommitTogether | Recover | TransactionVisible | ReportCommitted | ReportFailing | RetryAt
)
