"""build/run/summary.json: a run's summary. Counts come from the log, which survives every kill."""

from collections.abc import Iterable, Mapping

import msgspec

from barrier_runtime.coordinator.log.records import Complete, Fence, decode_record
from barrier_runtime.coordinator.status.status import LatencyStatus
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from examples.run_check import Verdict
from examples.run_observer import Observer


class Percentiles(msgspec.Struct):
    """Percentiles in milliseconds."""

    p50: float
    p99: float
    max: float


class Summary(msgspec.Struct):
    records: int  # of the input, each counted once
    windows: int
    checkpoints_completed: int
    generations: int
    slot_kills: int
    coordinator_kills: int
    server_kills: int  # of sources and targets
    recovery_ms: list[float]  # per kill: of a slot until all run again, else until the next completed checkpoint
    lost: int
    duplicated: int
    mismatched: int
    processed_latency_ms: Percentiles  # of the slower sink
    visible_latency_ms: Percentiles
    checkpoint_ms: Percentiles
    matches_batch: bool


def decisions(checkpoints: str, job: str) -> tuple[int, int]:
    """(completed checkpoints, generations) of a job, from the decision log."""
    store, paths = open_store(checkpoints), Paths(job)
    records = [decode_record(info.key, store.get(info.key)) for info in store.list(paths.log_prefix)]
    return sum(isinstance(r, Complete) for r in records), sum(isinstance(r, Fence) for r in records)


def worst_latency(latencies: Mapping[str, LatencyStatus], kind: str) -> Percentiles:
    """Highest value of each figure over the sinks' latencies of a kind ("processed" or "visible")."""
    of_kind = [latency for name, latency in latencies.items() if name.endswith(f":{kind}")]
    if not of_kind:
        return Percentiles(0.0, 0.0, 0.0)
    return Percentiles(
        max(each.p50 for each in of_kind), max(each.p99 for each in of_kind), max(each.max for each in of_kind)
    )


def percentiles(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    if not ordered:
        return Percentiles(0.0, 0.0, 0.0)
    return Percentiles(
        ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], ordered[-1]
    )


def summarise(job: str, checkpoints: str, input_records: int, verdict: Verdict, observer: Observer) -> Summary:
    completed, generations = decisions(checkpoints, job)
    return Summary(
        records=input_records,
        windows=verdict.windows,
        checkpoints_completed=completed,
        generations=generations,
        slot_kills=observer.slot_kills,
        coordinator_kills=observer.coordinator_kills,
        server_kills=observer.server_kills,
        recovery_ms=[round(ms, 1) for ms in observer.recovery_ms],
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        mismatched=verdict.mismatched,
        processed_latency_ms=worst_latency(observer.latency, "processed"),
        visible_latency_ms=worst_latency(observer.latency, "visible"),
        checkpoint_ms=percentiles(observer.checkpoint_ms.values()),
        matches_batch=verdict.good,
    )
