"""What the operators of a slot count and time, for as long as its process lives. All on the slot's loop.

Each operator has a `MetricGroup`; a metric is a row of `coordinator/metric_table`. The slot sends what all groups have
with its heartbeats.
"""

import time
from collections.abc import Callable

from barrier_runtime.coordinator.metric_table import Counter, Gauge, Histogram
from barrier_runtime.data.latency import LatencyRecorder


class MetricGroup:
    """The metrics of one operator, by their names in the table."""

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
        """`rows` rows that were due at `emit_ns` have come so far now."""
        recorder = self.latencies.get(metric.name)
        if recorder is None:
            recorder = self.latencies[metric.name] = LatencyRecorder()
        recorder.record(self._wall_ns() - emit_ns, rows)


class MetricRegistry:
    """The groups of one slot. They outlive a generation. Workers that open operators ask for groups, too."""

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._groups: dict[str, MetricGroup] = {}

    def group(self, operator: str) -> MetricGroup:
        """Always the same one for the same operator."""
        return self._groups.setdefault(operator, MetricGroup(self._wall_ns))

    def counts(self) -> dict[str, float]:
        """As a heartbeat has them; so are the latencies."""
        groups = list(self._groups.items())  # at once: a worker may add one
        return {f"{operator}.{name}": value for operator, group in groups for name, value in group.counts.items()}

    def latencies(self) -> dict[str, str]:
        groups = list(self._groups.items())
        return {
            f"{operator}:{name}": recorder.encoded()
            for operator, group in groups
            for name, recorder in group.latencies.items()
        }
