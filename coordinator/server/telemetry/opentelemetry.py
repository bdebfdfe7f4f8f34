"""Export of metrics and traces to an OpenTelemetry collector, with the extra `[otel]`.

Active if the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`, `…_METRICS_ENDPOINT`, `…_TRACES_ENDPOINT`).
Traces are spans of checkpoints and recoveries; metrics have the names of `/metrics` after a collector's Prometheus
exporter. While the sending thread waits or pauses, nothing is made: later points of counters make up for missed points,
and later spans include that time.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.telemetry.sending import Sending, endpoint_of, reachable
from barrier_runtime.coordinator.status.figure_table import DURATION, Figure, durations, is_exported, samples
from barrier_runtime.coordinator.status.spans import NewSpans, Span
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import InvalidJob

TRACE_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
METRIC_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_LOOK_S = 1.0
_MOST = 2_000  # spans of one look; older spans are dropped


Made = TypeVar("Made")


class SpanSender(Protocol):
    @property
    def ready(self) -> bool: ...

    def send(self, spans: Sequence[Span]) -> None: ...

    def close(self) -> None: ...


def sender_of(environment: Mapping[str, str] = os.environ) -> SpanSender | None:
    """Returns None without a named collector. Raises `InvalidJob` if packages are missing."""
    return _if_named(OpenTelemetrySender, TRACE_ENDPOINTS, environment)


def _if_named(make: Callable[[], Made], endpoints: Sequence[str], environment: Mapping[str, str]) -> Made | None:
    named = next((name for name in endpoints if environment.get(name)), None)
    if named is None or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        return make()
    except ImportError as error:
        raise InvalidJob(
            f"{named} is set, but OpenTelemetry is not installed ({error}): pip install 'barrier-runtime[otel]', or "
            "unset the variable"
        ) from error


class OpenTelemetrySender:
    """`exporter`: of the SDK; by default OTLP over HTTP."""

    def __init__(self, exporter: object | None = None) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.export import SpanExporter
        from opentelemetry.sdk.trace.id_generator import IdGenerator

        class GivenIds(IdGenerator):
            span_id = trace_id = 1

            def generate_span_id(self) -> int:
                return self.span_id

            def generate_trace_id(self) -> int:
                return self.trace_id

        made: list[ReadableSpan] = []

        class Collected(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                made.append(span)

        self._trace = trace
        self._ids = GivenIds()
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "barrier-runtime")})
        self._provider = TracerProvider(id_generator=self._ids, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(Collected())
        self._tracer = self._provider.get_tracer("barrier_runtime")
        self._made: list[Any] = made
        own = exporter if isinstance(exporter, SpanExporter) else OTLPSpanExporter()
        self._sending = Sending("traces", own, (), there=partial(reachable, endpoint_of(TRACE_ENDPOINTS)))

    @property
    def ready(self) -> bool:
        return self._sending.ready

    def send(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._make(span)
        made = self._made[:]
        self._made.clear()
        if made:  # a sampler may have left out all of them
            self._sending.offer(made)

    def _make(self, span: Span) -> None:
        trace = self._trace
        self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
        context = None
        if span.parent_id:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            parent = trace.SpanContext(span.trace_id, span.parent_id, is_remote=True, trace_flags=flags)
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        made = self._tracer.start_span(
            span.name, context=context, attributes=dict(span.attributes), start_time=round(span.start_ms * 1e6)
        )
        if span.error:
            made.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        made.end(end_time=round(span.end_ms * 1e6))

    def close(self) -> None:
        self._sending.close()
        self._provider.shutdown()


class Tracing:
    def __init__(self, directory: JobDirectory, sender: SpanSender) -> None:
        self._directory = directory
        self._sender = sender
        self._jobs: dict[tuple[str, str], tuple[object, NewSpans]] = {}  # (job, run) -> last examined revision

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        if not self._sender.ready:
            return
        found: list[Span] = []
        known, self._jobs = self._jobs, {}
        for name, runner in self._directory.jobs.items():
            key = (name, runner.spec.run_id)
            seen, spans = known.get(key, (None, NewSpans()))
            revision = runner.history_revision
            if revision != seen and runner.has_led:  # without leadership the history is not read yet
                found += spans.look(runner.history)
                seen = revision
            self._jobs[key] = seen, spans
        if found:
            self._sender.send(found[-_MOST:])


_UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}  # ending of a name -> unit in its place

Attributes = tuple[tuple[str, str], ...]


def named(figure: Figure) -> tuple[str, str]:
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
    off = environment.get("OTEL_METRICS_EXPORTER", "otlp").lower() == "none"
    return None if off else _if_named(OpenTelemetryMetrics, METRIC_ENDPOINTS, environment)


class CounterStarts:
    """A value below the previous value starts a counter anew."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Attributes], tuple[int, float]] = {}

    def of(self, name: str, attributes: Attributes, value: float, now_ms: int) -> int:
        start_ms, before = self._seen.get((name, attributes), (now_ms, 0.0))
        start_ms = now_ms if value < before else start_ms
        self._seen[name, attributes] = start_ms, value
        return start_ms

    def keep(self, jobs: set[str]) -> None:
        self._seen = {key: value for key, value in self._seen.items() if dict(key[1]).get("job") in jobs}


class OpenTelemetryMetrics:
    """`exporter`: as in `OpenTelemetrySender`."""

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
            there=partial(reachable, endpoint_of(METRIC_ENDPOINTS)),
        )

    @property
    def ready(self) -> bool:
        return self._sending.ready

    def offer(self, statuses: Iterable[JobStatus]) -> bool:
        """Returns False if the data are dropped."""
        return self.ready and self._sending.offer(self.points(statuses))

    def points(self, statuses: Iterable[JobStatus]) -> Any:
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
            min=None,
            max=None,
        )

    def close(self) -> None:
        self._sending.close()


class Metering:
    def __init__(self, directory: JobDirectory, metrics: OpenTelemetryMetrics, now_ms: Callable[[], int]) -> None:
        self._directory = directory
        self._metrics = metrics
        self._now_ms = now_ms

    async def run(self, every_s: float) -> None:
        while True:
            self.look()
            await asyncio.sleep(every_s)

    def look(self) -> None:
        if not self._metrics.ready:
            return
        led = [runner.status() for runner in self._directory.jobs.values() if runner.has_led]
        self._metrics.offer([status for status in led if is_exported(status, self._now_ms())])


log = logging.getLogger("coordinator.tracing")


class OpenTelemetryExports:
    """Inactive if the environment names no collector."""

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
        """The future is done with the data sent, or after a second."""
        for task in self._tasks:
            task.cancel()
        for look in self._looks:
            try:
                look()
            except Exception:  # an orderly end of the daemon's jobs comes first
                log.exception("the last figures could not be made for the collector")
        return asyncio.gather(*(asyncio.to_thread(close) for close in self._closes))
