"""Driver of a sink's global committer, in subtask 0. Pure.

Only the newest request counts: a manifest lists everything not visible yet.

| state   | event                      | next    | effect                                    |
|---------|----------------------------|---------|-------------------------------------------|
| idle    | wanted n > done            | busy n  | CommitAll(n)                              |
| busy n  | wanted m > n               | busy n  | (m waits)                                 |
| busy n  | committed                  | idle    | ReportGlobally(n); CommitAll(m) if m waits |
| busy n  | failed                     | backoff | ReportFailing, RetryAt                    |
| backoff | the time has come          | busy m  | CommitAll(newest request)                 |
| any     | wanted n <= done           | same    | ReportGlobally(done)                      |
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from barrier_runtime.runtime.sinks.driver import Backoff, ReportFailing, RetryAt
from barrier_runtime.runtime.sinks.pending_set import PendingEntry, PendingSet, pending_sets
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot

ReadEntries: TypeAlias = Callable[[], tuple[PendingEntry, ...]]


@dataclass(frozen=True, slots=True)
class CommitAll:
    """Answered by `committed()` or `failed(error, now)`."""

    checkpoint: int
    read: ReadEntries


@dataclass(frozen=True, slots=True)
class ReportGlobally:
    checkpoint: int


GlobalEffect: TypeAlias = CommitAll | ReportGlobally | ReportFailing | RetryAt


def entries_of_all(sets: Iterable[PendingSet]) -> tuple[PendingEntry, ...]:
    return tuple(
        sorted((entry for each in sets for entry in each.entries), key=lambda entry: (entry.checkpoint, entry.subtask))
    )


def entries_read(read: Callable[[], Sequence[OperatorSnapshot]], where: str) -> tuple[PendingEntry, ...]:
    return entries_of_all(pending_sets(read(), where))


class GlobalCommitDriver:
    """`done`: everything up to this checkpoint was visible at the start."""

    def __init__(self, backoff: Backoff = Backoff(), done: int = 0) -> None:
        self._backoff = backoff
        self._done = done
        self._wish: CommitAll | None = None  # newest request that is not done
        self._under_way: CommitAll | None = None
        self._waits = False  # for the time of a RetryAt
        self._attempts = 0

    def wanted(self, checkpoint: int, read: ReadEntries) -> list[GlobalEffect]:
        if checkpoint <= self._done:
            return [ReportGlobally(self._done)]
        if self._wish is None or checkpoint > self._wish.checkpoint:
            self._wish = CommitAll(checkpoint, read)
        return self._start()

    def committed(self) -> list[GlobalEffect]:
        assert self._under_way is not None, "a global commit ended that was not begun"
        self._done = self._under_way.checkpoint
        if self._wish is not None and self._wish.checkpoint <= self._done:
            self._wish = None
        self._under_way = None
        self._attempts = 0
        return [ReportGlobally(self._done), *self._start()]

    def failed(self, error: str, now: float) -> list[GlobalEffect]:
        assert self._under_way is not None, "a global commit failed that was not begun"
        checkpoint = self._under_way.checkpoint
        self._under_way = None
        self._attempts += 1
        self._waits = True
        return [
            ReportFailing(checkpoint, self._attempts, error),
            RetryAt(now + self._backoff.delay(self._attempts)),
        ]

    def retry(self) -> list[GlobalEffect]:
        self._waits = False
        return self._start()

    def _start(self) -> list[GlobalEffect]:
        if self._under_way is not None or self._waits or self._wish is None:
            return []
        self._under_way = self._wish
        return [self._under_way]
