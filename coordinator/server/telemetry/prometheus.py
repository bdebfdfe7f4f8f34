"""`/metrics`: the status of every job as Prometheus' text."""

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from barrier_runtime.coordinator.status.figure_table import DURATION, EXPOSED, durations, is_exported, samples
from barrier_runtime.coordinator.status.status import JobStatus

CONTENT_TYPE = CONTENT_TYPE_LATEST


def exposition(jobs: Iterable[JobStatus], now_ms: int) -> bytes:
    """Running jobs, and jobs that ended within the last hour."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Jobs([job for job in jobs if is_exported(job, now_ms)]))
    return generate_latest(registry)


class _Jobs(Collector):
    def __init__(self, jobs: list[JobStatus]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        made = {row: Metric(row.exposed.removesuffix("_total"), row.help, row.kind) for row in EXPOSED}
        for job in self._jobs:
            for row, labels, figure in samples(job):
                values = dict(zip(("job", *row.labels), (job.job, *labels), strict=True))
                made[row].add_sample(row.exposed, values, figure)
            _add_durations(made[DURATION], job)
        return (metric for metric in made.values() if metric.samples)


def _add_durations(metric: Metric, job: JobStatus) -> None:
    counted = durations(job)
    for bound, count in (*((str(bound), count) for bound, count in counted.counts), ("+Inf", counted.total)):
        metric.add_sample(f"{DURATION.exposed}_bucket", {"job": job.job, "le": bound}, count)
    metric.add_sample(f"{DURATION.exposed}_count", {"job": job.job}, counted.total)
    metric.add_sample(f"{DURATION.exposed}_sum", {"job": job.job}, counted.sum_s)
