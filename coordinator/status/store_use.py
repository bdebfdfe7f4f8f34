"""Requests to the job's object store per checkpoint, and their price on S3. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from barrier_runtime.coordinator.metric_table import (
    STORE_READS,
    STORE_RECEIVED_BYTES,
    STORE_SENT_BYTES,
    STORE_WRITES,
)
from barrier_runtime.coordinator.status.status import CheckpointStatus, JobStatus, StoreUseStatus
from barrier_runtime.state.store.use import StoreCounts

_METRICS = (STORE_WRITES.name, STORE_READS.name, STORE_SENT_BYTES.name, STORE_RECEIVED_BYTES.name)
_NONE = (0, 0, 0, 0)
_DAY_MS = 86_400_000
_FEW = 3  # checkpoints with figures, too few for a rate
OWN = ""  # the coordinator


class StoreUseBetween:
    """A process's first report counts nothing: the process may have worked for another coordinator."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[int, ...]] = {}
        self._gone: dict[str, tuple[int, ...]] = {OWN: _NONE}

    def tell_slots(self, slots: Iterable[tuple[str, Mapping[str, float]]]) -> None:
        """`slots`: (process uuid, metrics)."""
        own = self._reported.get(OWN)
        self._reported = {} if own is None else {OWN: own}
        for uuid, metrics in slots:
            if STORE_WRITES.name in metrics:
                self._reported[uuid] = tuple(int(metrics.get(name, 0.0)) for name in _METRICS)

    def tell_own(self, counts: StoreCounts) -> None:
        self._reported[OWN] = (counts.writes, counts.reads, counts.sent_bytes, counts.received_bytes)

    def since_last(self) -> StoreUseStatus | None:
        """Requests since the last call; None without any report."""
        if not self._reported:
            return None
        sums = [0, 0, 0, 0]
        for process, reported in self._reported.items():
            before = self._gone.get(process, reported)
            for index, now in enumerate(reported):
                sums[index] += max(0, now - before[index])
        self._gone = {OWN: _NONE, **self._reported}
        return StoreUseStatus(*sums)


@dataclass(frozen=True)
class Prices:
    """US dollars for a million requests."""

    writes: float
    reads: float

    def of(self, use: StoreUseStatus) -> float:
        return (use.writes * self.writes + use.reads * self.reads) / 1_000_000


@dataclass(frozen=True)
class StoreRate:
    """Mean over the last checkpoints. Costs in US dollars."""

    checkpoints: int
    writes: float  # per checkpoint; also the next three
    reads: float
    sent_bytes: float
    received_bytes: float
    cost: float
    cost_per_day: float


def prices_of(status: JobStatus) -> Prices:
    writes, reads = (status.options.get(f"store_{kind}_price") for kind in ("write", "read"))
    return Prices(float(writes or 0), float(reads or 0))


def store_rate(history: Sequence[CheckpointStatus], prices: Prices) -> StoreRate | None:
    known = [each for each in history if each.store is not None]
    first = next((each for each in history if each.store is not None), None)
    if first is None or len(known) <= _FEW:
        return None
    # figures of the first checkpoint precede the span
    uses = [each.store for each in known[1:] if each.store is not None]
    span_ms = max(1, known[-1].triggered_ms + known[-1].duration_ms - first.triggered_ms - first.duration_ms)
    count = len(uses)
    cost = sum(map(prices.of, uses))
    return StoreRate(
        count,
        sum(use.writes for use in uses) / count,
        sum(use.reads for use in uses) / count,
        sum(use.sent_bytes for use in uses) / count,
        sum(use.received_bytes for use in uses) / count,
        cost / count,
        cost * _DAY_MS / span_ms,
    )
