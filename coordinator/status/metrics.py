"""What slots told in their heartbeats, as one figure per metric."""

from collections.abc import Callable, Iterable, Mapping

from barrier_runtime.coordinator.metric_table import Counter, Gauge

_MERGES: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


def over_slots(metric: Counter | Gauge, told: Iterable[Mapping[str, float]]) -> float | None:
    """The figure of all slots (and all operators, where it is one of operators); None if nobody told it."""
    found: list[float] = []
    for metrics in told:
        if metric.of == "operator":
            found += [value for key, value in metrics.items() if key.endswith(metric.key())]
        elif metric.name in metrics:
            found.append(metrics[metric.name])
    return _MERGES[metric.over_slots](found) if found else None
