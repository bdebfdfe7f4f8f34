"""Stamps of measuring sinks, and figures from them: percentiles, gaps, a timeline, rates held.

A stamp is a pair (intended emission, arrival) of wall-clock nanoseconds; each output row has a stamp. Latency counts
from the *intended* emission: a row that a stalled engine read late has waited since the row was due (no coordinated
omission). Pure except for `read_stamps`. Files: `rows-*.npy` (ours: two rows of int64), `rows-*.bin` (others:
little-endian pairs).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from benchmarks.spec import Checkpoint, CheckpointFigures, Moment, Percentiles

Ints = npt.NDArray[np.int64]
_LOWEST_US, _HIGHEST_US, _DIGITS = 1, 3_600_000_000, 3
_MAY_GROW = 0.05  # seconds of latency per second that count as noise and not as a growing backlog
_MAY_LAG_S = 5.0
_AROUND_NS = 500_000_000  # a gap this close to a checkpoint is attributed to the checkpoint


@dataclass(frozen=True)
class Stamps:
    """An entry per row, in order of arrival."""

    intended: Ints
    arrived: Ints

    def due_in(self, first_ns: float, last_ns: float) -> "Stamps":
        """Rows that were due in [first_ns, last_ns)."""
        chosen = (self.intended >= first_ns) & (self.intended < last_ns)
        return Stamps(self.intended[chosen], self.arrived[chosen])

    @property
    def latency_ns(self) -> Ints:
        return self.arrived - self.intended


def read_stamps(folder: Path) -> Stamps:
    pairs = [np.load(file, allow_pickle=False) for file in folder.glob("rows-*.npy")]
    for file in folder.glob("rows-*.bin"):
        flat = np.fromfile(file, "<i8")
        pairs.append(flat[: len(flat) // 2 * 2].reshape(-1, 2).T)
    intended, arrived = np.concatenate([np.empty((2, 0), np.int64), *pairs], axis=1)
    order = np.argsort(arrived, kind="stable")
    return Stamps(intended[order], arrived[order])


def histogram(latency_ns: Ints) -> HdrHistogram:
    """Histogram in microseconds; below 1 µs (two clocks read out of order) counts as 1 µs."""
    made = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
    values, counts = np.unique(np.clip(latency_ns // 1000, _LOWEST_US, _HIGHEST_US), return_counts=True)
    for value, count in zip(values, counts, strict=True):
        made.record_value(int(value), int(count))
    return made


def percentiles(latency_ns: Ints) -> Percentiles | None:
    """None without rows."""
    return of_histogram(histogram(latency_ns)) if len(latency_ns) else None


def of_histogram(counted: HdrHistogram) -> Percentiles:
    def at(percentile: float) -> float:
        return float(counted.get_value_at_percentile(percentile)) / 1000

    return Percentiles(
        count=int(counted.get_total_count()),
        p50=at(50),
        p90=at(90),
        p99=at(99),
        p999=at(99.9),
        max=counted.get_max_value() / 1000,
        histogram=counted.encode().decode("ascii"),
    )


def distribution(encoded: Iterable[str]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(Milliseconds, share of rows at or below) over all of the histograms, for a cumulative plot."""
    total = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
    for text in encoded:
        total.decode_and_add(text.encode("ascii"))
    steps = [(step.value_iterated_to, step.total_count_to_this_value) for step in total.get_recorded_iterator()]
    values, counts = np.array(steps, np.float64).T
    return values / 1000, counts / total.get_total_count()


def timeline(stamps: Stamps, first_ns: int, step_ns: int = 100_000_000) -> list[Moment]:
    """A moment per step in which rows were due."""
    step = (stamps.intended - first_ns) // step_ns
    order = np.argsort(step, kind="stable")
    latency_ms = stamps.latency_ns[order] / 1e6
    steps, begins = np.unique(step[order], return_index=True)
    parts = np.split(latency_ms, begins[1:]) if len(steps) else []
    return [
        Moment(round(float(at) * step_ns / 1e9, 3), round(float(np.median(part)), 3), round(float(part.max()), 3))
        for at, part in zip(steps, parts, strict=True)
    ]


def held(stamps: Stamps, first_ns: int, last_ns: int) -> bool:
    """Whether the engine kept up with rows due in [first_ns, last_ns).

    The backlog did not grow, and rows due near the end came out in time."""
    steps = timeline(stamps.due_in(first_ns, last_ns), first_ns, 1_000_000_000)
    seconds = (last_ns - first_ns) / 1e9
    if len(steps) < 2 or steps[-1].at_s < seconds - max(2.0, seconds / 4):
        return False
    third = max(1, len(steps) // 3)
    before = float(np.median([step.p50 for step in steps[:third]]))
    after = float(np.median([step.p50 for step in steps[-third:]]))
    apart_s = max(1.0, seconds * 2 / 3)
    return (after - before) / 1000 / apart_s <= _MAY_GROW and after / 1000 <= _MAY_LAG_S


def gaps_ms(
    stamps: Stamps, first_ns: int, last_ns: int, checkpoints: Sequence[Checkpoint]
) -> tuple[float, float | None]:
    """(Longest time without output in [first_ns, last_ns), the longest that touches a checkpoint).

    The second is None without checkpoints. Begin and end count as outputs, so silence next to them is included."""
    within = stamps.arrived[(stamps.arrived >= first_ns) & (stamps.arrived < last_ns)]
    edges = np.concatenate([[first_ns], within, [last_ns]])
    lengths = np.diff(edges)
    longest = float(lengths.max() / 1e6)
    around = None
    for checkpoint in checkpoints:
        from_ns = checkpoint.at_ns
        to_ns = from_ns + int(checkpoint.duration_ms * 1e6) + _AROUND_NS
        touched = lengths[(edges[1:] >= from_ns) & (edges[:-1] <= to_ns)]
        if len(touched):
            around = max(around or 0.0, float(touched.max() / 1e6))
    return longest, around


def checkpoint_figures(checkpoints: Sequence[Checkpoint], requests: float | None = None) -> CheckpointFigures | None:
    """None without checkpoints."""
    if not checkpoints:
        return None
    durations = [checkpoint.duration_ms for checkpoint in checkpoints]
    names = dict.fromkeys(name for checkpoint in checkpoints for name in checkpoint.phases)
    sizes = [checkpoint.bytes for checkpoint in checkpoints if checkpoint.bytes is not None]
    full = [checkpoint.full_bytes for checkpoint in checkpoints if checkpoint.full_bytes is not None]
    return CheckpointFigures(
        count=len(checkpoints),
        p50_ms=float(np.median(durations)),
        max_ms=max(durations),
        phases={
            name: float(np.median([checkpoint.phases[name] for checkpoint in checkpoints if name in checkpoint.phases]))
            for name in names
        },
        bytes=int(np.median(sizes)) if sizes else None,
        mean_bytes=round(float(np.mean(sizes))) if sizes else None,
        full_bytes=int(np.median(full)) if full else None,
        requests=requests,
    )
