"""Counts and latencies of a slot's operators, kept as long as the process lives; on the slot's loop.

Each operator has a `MetricGroup`; each metric is a row of `coordinator/metric_table`. Heartbeats carry all groups.
"""

import time
from collections.abc import Callable

from barrier_runtime.coordinator.metric_table import Counter, Gauge, Histogram
from barrier_runtime.data.latency import LatencyRecorder


class MetricGroup:
    """Metrics of an operator, by their names in the metric table."""

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
        """Records that `rows` rows due at `emit_ns` (wall clock) have got this far now."""
        recorder = self.latencies.get(metric.name)
        if recorder is None:
            recorder = self.latencies[metric.name] = LatencyRecorder()
        recorder.record(self._wall_ns() - emit_ns, rows)


class MetricRegistry:
    """Metric groups of a slot, across generations. Worker threads that open operators request groups, too."""

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._groups: dict[str, MetricGroup] = {}

    def group(self, operator: str) -> MetricGroup:
        """Returns the group of `operator`, always the same object."""
        return self._groups.setdefault(operator, MetricGroup(self._wall_ns))

    def counts(self) -> dict[str, float]:
        """Returns the counts as heartbeats carry them."""
        groups = list(self._groups.items())  # copied, since a worker thread may add a group
        return {f"{operator}.{name}": value for operator, group in groups for name, value in group.counts.items()}

    def latencies(self) -> dict[str, str]:
        groups = list(self._groups.items())
        return {
            f"{operator}:{name}": recorder.encoded()
            for operator, group in groups
            for name, recorder in group.latencies.items()
        }
