"""Latency histograms: how a sink's two latencies are recorded and sent with heartbeats. `coordinator.status.latency`
merges and reads them.

Histograms of microseconds, 1 µs to 1 h, with 3 significant digits (`coordinator.status.histogram`), so that percentiles
of several slots can be merged without loss. `EmitTimes` is what a transaction remembers of its rows until they are
visible: a bounded list of (intended emission time, rows), because one entry per row would cost more than the rows.
"""

import numpy as np

from barrier_runtime.coordinator.status.latency import HIGHEST_US, INDICES, LOWEST_US
from barrier_runtime.data.latency_text import encode, indices_of

_EXACT_BITS = 11  # of a value that the histogram keeps with three digits
_MOST_COUNTED = 4_096


class LatencyRecorder:
    """Counts rows by latency. One writer; not shared between threads."""

    def __init__(self) -> None:
        self._histogram = np.zeros(INDICES, np.int64)
        self._counted: dict[int, int] = {}  # microseconds -> rows, not in the histogram yet: that takes longer

    def record(self, latency_ns: int, rows: int = 1) -> None:
        """`rows` rows took `latency_ns`, clipped to the histogram's range; a clock that went back counts as 1 µs."""
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
        """Everything so far, as text for a message (as HdrHistogram has it: V2, compressed, base64)."""
        self._count()
        return encode(self._histogram)


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
