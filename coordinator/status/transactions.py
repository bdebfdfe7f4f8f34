"""Open, pre-committed, and decided but invisible transactions of each sink. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from barrier_runtime.coordinator.metric_table import (
    TRANSACTION_OLDEST_MS,
    TRANSACTION_OPENED_MS,
    TRANSACTION_TIMEOUT_MS,
    TRANSACTIONS_UNDECIDED,
)
from barrier_runtime.coordinator.status.status import JobStatus

DANGER = 0.5  # of the target's time: a person should look
OWN_METRICS = frozenset(
    each.name for each in (TRANSACTION_OLDEST_MS, TRANSACTION_OPENED_MS, TRANSACTION_TIMEOUT_MS, TRANSACTIONS_UNDECIDED)
)
"""Names of operators' metrics that only this module shows."""


@dataclass(frozen=True)
class SinkTransactions:
    """None: unknown."""

    sink: str  # "<operator>/<subtask>", or "<operator>/global"
    through: int  # visible up to this checkpoint
    open_ms: int | None  # age of the transaction that takes rows
    undecided: int | None  # pre-committed, undecided
    pending: int  # completed, invisible checkpoints
    oldest_ms: int | None  # oldest closed and invisible transaction
    timeout_ms: int | None  # the target's memory; 0: unlimited
    safe_until_ms: int | None  # when the target may forget the oldest; None: never
    attempts: int = 0  # of a failing commit
    error: str = ""
    failing_since_ms: int = 0  # 0: unknown
    slow_since_ms: int = 0  # 0: commits keep up with checkpoints

    @property
    def spent(self) -> float:
        return (self.oldest_ms or 0) / self.timeout_ms if self.timeout_ms else 0.0

    @property
    def in_danger(self) -> bool:
        return self.spent >= DANGER


def of_sinks(status: JobStatus, now_ms: int) -> list[SinkTransactions]:
    completes = [each for each in status.checkpoints.history if each.outcome == "complete"]
    troubles = {each.sink: each for each in status.commits.troubles}
    figures = {str(slot.slot): slot.metrics for slot in status.slots}
    slow = {each.sink: each.since_ms for each in status.commits.slow}
    ended = status.outcome is not None
    found = []
    for sink, through in sorted(status.commits.through.items()):
        operator, _, subtask = sink.rpartition("/")
        known = figures.get(subtask, {})

        def figure(name: str, known: dict[str, float] = known, operator: str = operator) -> int | None:
            value = known.get(f"{operator}.{name}")
            return None if value is None or ended else int(value)

        behind = [each.triggered_ms + each.duration_ms for each in completes if each.checkpoint > through]
        began_ms = [] if ended else [*behind, *filter(None, [figure(TRANSACTION_OLDEST_MS.name)])]
        opened_ms, timeout_ms = figure(TRANSACTION_OPENED_MS.name), figure(TRANSACTION_TIMEOUT_MS.name)
        oldest_ms = min(began_ms, default=None)
        trouble = troubles.get(sink)
        found.append(
            SinkTransactions(
                sink,
                through,
                None if opened_ms is None else max(0, now_ms - opened_ms),
                figure(TRANSACTIONS_UNDECIDED.name),
                len(behind),
                None if oldest_ms is None else max(0, now_ms - oldest_ms),
                timeout_ms,
                None if oldest_ms is None or not timeout_ms else oldest_ms + timeout_ms,
                0 if trouble is None else trouble.attempts,
                "" if trouble is None else trouble.error,
                0 if trouble is None else trouble.since_ms,
                slow.get(operator, 0) if behind else 0,
            )
        )
    return found


def most_spent(sinks: Sequence[SinkTransactions]) -> SinkTransactions | None:
    worst = max(sinks, key=lambda each: each.spent, default=None)
    return worst if worst is not None and worst.in_danger else None
