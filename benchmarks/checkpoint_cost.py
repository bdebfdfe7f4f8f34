"""Cost of this runtime's checkpoints.

Measured are lost throughput (by interval, keys and parallelism), and bytes, requests, phases and latency by size of
state and rate of change.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.runner import run
from benchmarks.spec import CheckpointCost, CheckpointSize, RunSpec, Storage
from benchmarks.throughput import throughput_of_all
from benchmarks.workloads import WIDE_BYTES

NEVER_MS = 86_400_000


def throughput_specs(
    intervals_ms: Sequence[int], keys: Sequence[int], parallelisms: Sequence[int], rows: int, rounds: int, folder: str
) -> Iterator[RunSpec]:
    """Runs for the cost by interval; interval 0: only the last checkpoint.

    Intervals take turns, so each interval has a neighbour without checkpoints. Every second round has the reverse
    order, because the machine's speed changes over time."""
    for number in range(rounds):
        for size in keys:
            for parallelism in parallelisms:
                for interval_ms in intervals_ms if number % 2 == 0 else intervals_ms[::-1]:
                    yield RunSpec(
                        engine="ours",
                        workload="keyed-count",
                        measure="throughput",
                        source="parquet",
                        sink="discard",
                        rows=rows,
                        keys=size,
                        parallelism=parallelism,
                        interval_ms=interval_ms or NEVER_MS,
                        round=number,
                        folder=folder,
                    )


def size_specs(
    keys: Sequence[int],
    shares: Sequence[float],
    storages: Sequence[Storage],
    seconds: float,
    warm_up_s: float,
    rounds: int,
    folder: str,
) -> Iterator[RunSpec]:
    """Runs for the cost by size; `shares` of the keys change per second."""
    for number in range(rounds):
        for storage in storages:
            for size in keys:
                for share in shares:
                    yield RunSpec(
                        engine="ours",
                        workload="wide-state",
                        measure="latency",
                        source="generator",
                        sink="measure",
                        rate=max(1.0, size * share),
                        keys=size,
                        preload=size,
                        storage=storage,
                        seconds=seconds,
                        warm_up_s=warm_up_s,
                        round=number,
                        folder=folder,
                    )


def cost(spec: RunSpec, inputs: Path, progress: Progress) -> CheckpointCost | None:
    """None if the run failed or was too short for a figure; the progress bar shows the reason."""
    result = throughput_of_all(spec, inputs)
    if result.rows_per_s_steady is None:
        progress.note(f"failed: {spec.name}: {result.error or 'too few rows'}")
        return None
    return CheckpointCost(
        interval_ms=0 if spec.interval_ms == NEVER_MS else spec.interval_ms,
        keys=spec.keys,
        parallelism=spec.parallelism,
        round=spec.round,
        rows_per_s=result.rows_per_s_steady,
        checkpoints=result.checkpoints,
    )


def size(spec: RunSpec) -> CheckpointSize:
    result = run(spec, None)
    times = result.checkpoint_times_s
    every_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else spec.interval_ms / 1000
    changed = changed_bytes(spec.keys, spec.rate * every_s)
    uploaded = result.checkpoints.mean_bytes if result.checkpoints is not None else None
    return CheckpointSize(
        keys=spec.keys,
        changed=spec.rate,
        changed_bytes=round(changed),
        interval_ms=spec.interval_ms,
        storage=spec.storage,
        round=spec.round,
        uploaded_by_changed=round(uploaded / changed, 2) if uploaded is not None else None,
        checkpoints=result.checkpoints,
        processed=result.processed,
        gap_ms=result.gap_ms,
        checkpoint_gap_ms=result.checkpoint_gap_ms,
        error=result.error,
    )


def changed_bytes(keys: int, rows: float) -> float:
    """Bytes of the keys that `rows` rows change. Keys are drawn at random, so some keys get two rows."""
    return float(WIDE_BYTES * keys * (1 - (1 - 1 / keys) ** rows))
