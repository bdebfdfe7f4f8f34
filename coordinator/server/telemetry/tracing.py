"""Traces of checkpoints and recoveries for OpenTelemetry, with the extra `[otel]`.

Active if the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`, or `…_TRACES_ENDPOINT`), like any
instrumented program; OpenTelemetry's variables for exporters and resources apply. Spans are made from the jobs'
histories once a second, and a thread sends them (`sending`). While the thread pauses, histories are not read; later
spans include that time, as far as the history goes back.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.telemetry.sending import Sending, endpoint_of, reachable
from barrier_runtime.coordinator.status.spans import NewSpans, Span
from barrier_runtime.state.errors import InvalidJob

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_LOOK_S = 1.0
_MOST = 2_000  # spans of one look; older ones are dropped


class SpanSender(Protocol):
    @property
    def ready(self) -> bool:
        """Returns whether spans would be accepted; otherwise they would be dropped."""
        ...

    def send(self, spans: Sequence[Span]) -> None: ...

    def close(self) -> None: ...


def sender_of(environment: Mapping[str, str] = os.environ) -> SpanSender | None:
    """Returns None without a named collector. Raises `InvalidJob` if packages for it are missing."""
    named = next((name for name in ENDPOINTS if environment.get(name)), None)
    if named is None or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        return OpenTelemetrySender()
    except ImportError as error:
        raise InvalidJob(
            f"{named} is set, but OpenTelemetry is not installed ({error}): pip install 'barrier-runtime[otel]', or "
            "unset the variable"
        ) from error


class OpenTelemetrySender:
    """Sends spans with their given ids. `exporter`: of the SDK; by default OTLP over HTTP."""

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
        self._sending = Sending("traces", own, (), there=partial(reachable, endpoint_of(ENDPOINTS)))

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
        """Sends the rest, for a second at most. Blocks."""
        self._sending.close()
        self._provider.shutdown()


class Tracing:
    """Sends new spans of the jobs that this daemon leads."""

    def __init__(self, directory: JobDirectory, sender: SpanSender) -> None:
        self._directory = directory
        self._sender = sender
        self._jobs: dict[tuple[str, str], tuple[object, NewSpans]] = {}  # (job, run) -> last examined revision

    async def run(self) -> None:
        """Runs until cancelled."""
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
