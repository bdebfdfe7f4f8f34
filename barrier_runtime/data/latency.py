"""Latency histograms: how a sink's two latencies are recorded, sent with heartbeats, merged and read.

HdrHistogram (microseconds, 1 µs to 1 h, 3 significant digits), so that percentiles of several slots can be merged
without loss. `EmitTimes` is what a transaction remembers of its rows until they are visible: a bounded list of
(intended emission time, rows), because one entry per row would cost more than the rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hdrh.histogram import HdrHistogram

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds. All zero when nothing was recorded."""

    count: int
    p50: float
    p99: float
    p999: float
    max: float


class LatencyRecorder:
    """Counts rows by latency. One writer; not shared between threads."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)

    def record(self, latency_ns: int, rows: int = 1) -> None:
        """`rows` rows took `latency_ns`, clipped to the histogram's range; a clock that went back counts as 1 µs."""
        self._histogram.record_value(min(max(latency_ns // 1000, LOWEST_US), HIGHEST_US), rows)

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count())

    def encoded(self) -> str:
        """Everything so far, as text for a message (HdrHistogram V2, compressed, base64)."""
        return str(self._histogram.encode().decode("ascii"))

    def reset(self) -> None:
        self._histogram.reset()

    def percentiles(self) -> Percentiles:
        return _percentiles(self._histogram)


def merged_percentiles(encoded: Iterable[str]) -> Percentiles:
    """Percentiles over several recorders' `encoded()`; as if all had been recorded in one."""
    total = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
    for text in encoded:
        total.decode_and_add(text.encode("ascii"))
    return _percentiles(total)


def _percentiles(histogram: HdrHistogram) -> Percentiles:
    def at(percentile: float) -> float:
        return float(histogram.get_value_at_percentile(percentile)) / 1000

    if not histogram.get_total_count():
        return Percentiles(0, 0.0, 0.0, 0.0, 0.0)
    return Percentiles(int(histogram.get_total_count()), at(50), at(99), at(99.9), histogram.get_max_value() / 1000)


class EmitTimes:
    """Intended emission times of a transaction's rows, at most `limit` of them; the earliest of each bucket is kept.

    Buckets are about 1 ms wide and double when there are too many. So a latency read from here errs by at most one
    bucket, and always on the slow side.
    """

    __slots__ = ("_buckets", "_limit", "_shift")

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._shift = 20
        self._buckets: dict[int, list[int]] = {}  # emit_ns >> shift -> [earliest emit_ns, rows]

    def add(self, emit_ns: int, rows: int) -> None:
        bucket = self._buckets.get(emit_ns >> self._shift)
        if bucket is None:
            self._buckets[emit_ns >> self._shift] = [emit_ns, rows]
            while len(self._buckets) > self._limit:
                self._widen()
        else:
            if emit_ns < bucket[0]:
                bucket[0] = emit_ns
            bucket[1] += rows

    def pairs(self) -> list[tuple[int, int]]:
        return [(emit_ns, rows) for emit_ns, rows in self._buckets.values()]

    def _widen(self) -> None:
        pairs = self.pairs()
        self._shift += 1
        self._buckets = {}
        for emit_ns, rows in pairs:
            self.add(emit_ns, rows)
