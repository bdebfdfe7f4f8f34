"""Export of figures and user metrics to an OpenTelemetry collector, with the extra `[otel]`.

Active if the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`, or `…_METRICS_ENDPOINT`). The daemon's loop
makes points from the statuses behind `/metrics`, and a thread sends them (`sending`). While the thread waits for an
answer or pauses, no points are made; later points of counters make up for them. A collector's Prometheus exporter turns
the names back into those of `/metrics`, so dashboards and alerts fit both.

`Telling` runs all OpenTelemetry exports of a daemon from start to end.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.telemetry.sending import Sending, endpoint_of, reachable
from barrier_runtime.coordinator.server.telemetry.tracing import Tracing, sender_of
from barrier_runtime.coordinator.status.figure_table import DURATION, Figure, durations, is_exported, samples
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import InvalidJob

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}  # ending of a name -> unit in its place

Attributes = tuple[tuple[str, str], ...]


def named(figure: Figure) -> tuple[str, str]:
    """Returns OpenTelemetry's name and unit."""
    name = figure.exposed.removesuffix("_total")
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            return name.removesuffix(ending), unit
    return name, ""


def interval_s(environment: Mapping[str, str] = os.environ) -> float:
    given = environment.get(INTERVAL, "60000")
    if not given.isdigit() or not 100 <= int(given) <= 86_400_000:
        raise InvalidJob(f"{INTERVAL}={given!r}: give 100 to 86400000 (milliseconds)")
    return int(given) / 1000


def metrics_of(environment: Mapping[str, str] = os.environ) -> "OpenTelemetryMetrics | None":
    """Returns None without a named collector. Raises `InvalidJob` if packages for it are missing."""
    endpoint = next((name for name in ENDPOINTS if environment.get(name)), None)
    off = environment.get("OTEL_METRICS_EXPORTER", "otlp").lower() == "none"
    if endpoint is None or off or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        return OpenTelemetryMetrics()
    except ImportError as error:
        raise InvalidJob(
            f"{endpoint} is set, but OpenTelemetry is not installed ({error}): pip install 'barrier-runtime[otel]', or "
            "unset the variable"
        ) from error


class CounterStarts:
    """Start times of counters: a value below the previous value starts anew (with a generation)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Attributes], tuple[int, float]] = {}

    def of(self, name: str, attributes: Attributes, value: float, now_ms: int) -> int:
        start_ms, before = self._seen.get((name, attributes), (now_ms, 0.0))
        start_ms = now_ms if value < before else start_ms
        self._seen[name, attributes] = start_ms, value
        return start_ms

    def keep(self, jobs: set[str]) -> None:
        """Forgets all other jobs."""
        self._seen = {key: value for key, value in self._seen.items() if dict(key[1]).get("job") in jobs}


class OpenTelemetryMetrics:
    """Makes and sends points. `exporter`: of the SDK; by default OTLP over HTTP."""

    def __init__(self, exporter: Any = None) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._sdk: Any = export
        self._scope: Any = InstrumentationScope("barrier_runtime")
        self._resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "barrier-runtime")})
        self._starts = CounterStarts()
        self._sending = Sending(
            "metrics",
            OTLPMetricExporter() if exporter is None else exporter,
            export.MetricsData(resource_metrics=[]),
            there=partial(reachable, endpoint_of(ENDPOINTS)),
        )

    @property
    def ready(self) -> bool:
        """Returns whether data would be accepted; otherwise they would be dropped."""
        return self._sending.ready

    def offer(self, statuses: Iterable[JobStatus]) -> bool:
        """Sends without waiting. False: dropped, because the collector is busy or unavailable."""
        return self.ready and self._sending.offer(self.points(statuses))

    def points(self, statuses: Iterable[JobStatus]) -> Any:
        """Returns `MetricsData` of all jobs."""
        points: dict[Figure, list[Any]] = {}
        jobs = set()
        for status in statuses:
            jobs.add(status.job)
            for figure, labels, value in samples(status):
                attributes = (("job", status.job), *zip(figure.labels, labels, strict=True))
                points.setdefault(figure, []).append(self._number(figure, attributes, value, status.at_ms))
            points.setdefault(DURATION, []).append(self._durations(status))
        self._starts.keep(jobs)
        metrics = [self._metric(figure, of_figure) for figure, of_figure in points.items()]
        scopes = [self._sdk.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")]
        resources = [self._sdk.ResourceMetrics(resource=self._resource, scope_metrics=scopes, schema_url="")]
        return self._sdk.MetricsData(resource_metrics=resources)

    def _metric(self, figure: Figure, points: list[Any]) -> Any:
        name, unit = named(figure)
        cumulative = self._sdk.AggregationTemporality.CUMULATIVE
        if figure.kind == "counter":
            data = self._sdk.Sum(data_points=points, aggregation_temporality=cumulative, is_monotonic=True)
        elif figure.kind == "histogram":
            data = self._sdk.Histogram(data_points=points, aggregation_temporality=cumulative)
        else:
            data = self._sdk.Gauge(data_points=points)
        return self._sdk.Metric(name=name, description=figure.help, unit=unit, data=data)

    def _number(self, figure: Figure, attributes: Attributes, value: float, now_ms: int) -> Any:
        counts = figure.kind == "counter"
        start_ms = self._starts.of(figure.exposed, attributes, value, now_ms) if counts else now_ms
        return self._sdk.NumberDataPoint(
            attributes=dict(attributes),
            start_time_unix_nano=start_ms * 1_000_000,
            time_unix_nano=now_ms * 1_000_000,
            value=value,
        )

    def _durations(self, status: JobStatus) -> Any:
        counted = durations(status)
        attributes = (("job", status.job),)
        up_to = [0, *(count for _, count in counted.counts), counted.total]
        start_ms = self._starts.of(DURATION.exposed, attributes, counted.total, status.at_ms)
        return self._sdk.HistogramDataPoint(
            attributes=dict(attributes),
            start_time_unix_nano=start_ms * 1_000_000,
            time_unix_nano=status.at_ms * 1_000_000,
            count=counted.total,
            sum=counted.sum_s,
            bucket_counts=[after - before for before, after in pairwise(up_to)],
            explicit_bounds=[bound for bound, _ in counted.counts],
            min=None,  # not recorded
            max=None,
        )

    def close(self) -> None:
        """Sends the rest, for a second at most. Blocks."""
        self._sending.close()


class Metering:
    """Offers points of the jobs that this daemon leads."""

    def __init__(self, directory: JobDirectory, metrics: OpenTelemetryMetrics, now_ms: Callable[[], int]) -> None:
        self._directory = directory
        self._metrics = metrics
        self._now_ms = now_ms

    async def run(self, every_s: float) -> None:
        """Runs until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(every_s)

    def look(self) -> None:
        if not self._metrics.ready:
            return
        led = [runner.status() for runner in self._directory.jobs.values() if runner.has_led]
        self._metrics.offer([status for status in led if is_exported(status, self._now_ms())])


log = logging.getLogger("coordinator.tracing")


class Telling:
    """OpenTelemetry exports of a daemon; inactive if the environment names no collector."""

    def __init__(self, directory: JobDirectory, now_ms: Callable[[], int]) -> None:
        """Raises `InvalidJob` for invalid settings. Needs a running loop."""
        sender, metrics = sender_of(), metrics_of()
        every_s = 0.0 if metrics is None else interval_s()
        loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._looks: list[Callable[[], None]] = []
        self._closes: list[Callable[[], None]] = []
        if sender is not None:
            tracing = Tracing(directory, sender)
            self._tasks.append(loop.create_task(tracing.run()))
            self._looks.append(tracing.look)
            self._closes.append(sender.close)
        if metrics is not None:
            metering = Metering(directory, metrics, now_ms)
            self._tasks.append(loop.create_task(metering.run(every_s)))
            self._looks.append(metering.look)
            self._closes.append(metrics.close)

    def end(self) -> "asyncio.Future[list[None]]":
        """Exports the jobs a last time. The future is done with the data sent, or after a second."""
        for task in self._tasks:
            task.cancel()
        for look in self._looks:
            try:
                look()
            except Exception:  # an orderly end of the daemon's jobs comes first
                log.exception("the last figures could not be made for the collector")
        return asyncio.gather(*(asyncio.to_thread(close) for close in self._closes))
