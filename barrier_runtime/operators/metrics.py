"""Counts and latencies of a slot's operators, kept as long as the process lives; on the slot's loop.

Latencies are histograms of microseconds (`coordinator/status/latency`), which merge without loss.
"""

import base64
import time
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.coordinator.metric_table import Counter, Gauge, Histogram
from barrier_runtime.coordinator.status.latency import (
    COMPRESSED,
    HALF_BITS,
    HEAD,
    HIGHEST_US,
    INDICES,
    LOWEST_US,
    OUTER,
    PLAIN,
    SIGNIFICANT_DIGITS,
)

Ints: TypeAlias = npt.NDArray[Any]
_LIMITS = np.array([1 << 7 * places for places in range(1, 8)], np.uint64)  # first values that need one more byte


def indices_of(us: Ints) -> Ints:
    shifts = np.maximum(np.frexp(us.astype(np.float64))[1] - 11, 0)
    indices: Ints = (shifts << HALF_BITS) + (us >> shifts)
    return indices


def encode(counts: Ints) -> str:
    """Encodes a histogram for `coordinator/status/latency`. `counts`: by index, all below 2**54."""
    indices = np.flatnonzero(counts)
    zeros = np.diff(indices, prepend=-1) - 1  # before each index; a negative number encodes as many zeros
    told = np.column_stack((-zeros, counts[indices])).ravel()
    body = _packed(told[told != 0])
    head = HEAD.pack(PLAIN, len(body), 0, SIGNIFICANT_DIGITS, LOWEST_US, HIGHEST_US, 1.0)
    packed = zlib.compress(head + body)
    return base64.b64encode(OUTER.pack(COMPRESSED, len(packed)) + packed).decode("ascii")


def _packed(numbers: Ints) -> bytes:
    """Zigzag encoding, seven bits a byte, at most eight bytes."""
    values = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    lengths = np.searchsorted(_LIMITS, values, side="right") + 1
    ends = np.cumsum(lengths)
    data = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(lengths.max(initial=0))):
        longer = lengths > place
        seven = (values[longer] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
        data[(ends - lengths)[longer] + place] = seven | np.where(lengths[longer] > place + 1, 0x80, 0).astype(np.uint8)
    return data.tobytes()


_EXACT_BITS = 11  # bits of a value that the histogram keeps with three digits
_MOST_COUNTED = 4_096


class LatencyRecorder:
    """Counts rows by latency; for a single thread."""

    def __init__(self) -> None:
        self._histogram = np.zeros(INDICES, np.int64)
        self._counted: dict[int, int] = {}  # microseconds -> rows, not yet in the slower histogram

    def record(self, latency_ns: int, rows: int = 1) -> None:
        """Clips to the histogram's range; a clock that went back counts as 1 µs."""
        us = latency_ns // 1000
        shift = us.bit_length() - _EXACT_BITS
        if shift > 0:
            us = us >> shift << shift
        counted = self._counted
        counted[us] = counted.get(us, 0) + rows
        if len(counted) > _MOST_COUNTED:
            self._count()

    def _count(self) -> None:
        counted, self._counted = self._counted, {}
        us = np.fromiter(counted.keys(), np.int64, len(counted)).clip(LOWEST_US, HIGHEST_US)
        np.add.at(self._histogram, indices_of(us), np.fromiter(counted.values(), np.int64, len(counted)))

    def encoded(self) -> str:
        self._count()
        return encode(self._histogram)


class EmitTimes:
    """Intended emission times of a transaction's rows: at most `limit` buckets, each with the earliest.

    Buckets are about 1 ms wide; the width doubles if there are too many. A latency errs by at most a bucket, on the
    slow side.
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


class MetricGroup:
    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self.counts: dict[str, float] = {}
        self.latencies: dict[str, LatencyRecorder] = {}

    def count(self, metric: Counter, amount: float = 1.0) -> None:
        counts, name = self.counts, metric.name
        counts[name] = counts.get(name, 0.0) + amount

    def gauge(self, metric: Gauge, figure: float) -> None:
        self.counts[metric.name] = figure

    def latency(self, metric: Histogram, emit_ns: int, rows: int) -> None:
        """Records that rows due at `emit_ns` (wall clock) have got this far."""
        recorder = self.latencies.get(metric.name)
        if recorder is None:
            recorder = self.latencies[metric.name] = LatencyRecorder()
        recorder.record(self._wall_ns() - emit_ns, rows)


class MetricRegistry:
    """Metric groups of a slot, across generations."""

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._groups: dict[str, MetricGroup] = {}

    def group(self, operator: str) -> MetricGroup:
        return self._groups.setdefault(operator, MetricGroup(self._wall_ns))

    def counts(self) -> dict[str, float]:
        groups = list(self._groups.items())  # a worker thread may add a group
        return {f"{operator}.{name}": value for operator, group in groups for name, value in group.counts.items()}

    def latencies(self) -> dict[str, str]:
        groups = list(self._groups.items())
        return {
            f"{operator}:{name}": recorder.encoded()
            for operator, group in groups
            for name, recorder in group.latencies.items()
        }
