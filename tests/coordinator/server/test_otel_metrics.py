"""Metrics by OpenTelemetry: the same samples as `/metrics`, over HTTP, and no harm when nobody answers."""

import http.server
import queue
import threading
from collections.abc import Iterator

import msgspec
import pytest
from coordinator_world import started
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from barrier_runtime.coordinator.server.telemetry.opentelemetry import (
    CounterStarts,
    OpenTelemetryMetrics,
    interval_s,
    metrics_of,
    named,
)
from barrier_runtime.coordinator.status.figure_table import EXPOSED, durations, samples
from barrier_runtime.coordinator.status.status import CheckpointsStatus, DurationCounts, JobStatus, SlotStatus
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore


def status() -> JobStatus:
    coordinator, _, _ = started(MemoryStore())
    slot = SlotStatus(0, "u", 1, "h", 1, "running", 0, {"totals.late_rows": 3.0, "totals.seen_twice": 7.0})
    counts = CheckpointsStatus(completed=2, durations=DurationCounts().with_one(60).with_one(700_000))
    return msgspec.structs.replace(coordinator.status, slots=(slot,), checkpoints=counts, at_ms=5_000)


@pytest.fixture
def collector() -> Iterator[tuple[str, "queue.Queue[ExportMetricsServiceRequest]"]]:
    got: queue.Queue[ExportMetricsServiceRequest] = queue.Queue()

    class Door(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            got.put(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_collector_gets_every_sample_user_metrics_included(
    collector: tuple[str, "queue.Queue[ExportMetricsServiceRequest]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{url}/v1/metrics")
    metrics = metrics_of()
    assert metrics is not None
    job = status()
    assert metrics.offer([job])
    request = got.get(timeout=60)
    metrics.close()
    sent = {each.name: each for each in request.resource_metrics[0].scope_metrics[0].metrics}
    points = {
        (name, tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes))): point.as_double
        for name, metric in sent.items()
        for point in (*metric.sum.data_points, *metric.gauge.data_points)
    }
    wanted = {
        (named(family)[0], tuple(sorted((("job", job.job), *zip(family.labels, labels, strict=True))))): value
        for family, labels, value in samples(job)
    }
    assert points == wanted
    assert ("barrier_operator_metric", (("job", job.job), ("metric", "seen_twice"), ("operator", "totals"))) in points
    assert sent["barrier_late_rows"].sum.is_monotonic
    histogram = sent["barrier_checkpoint_duration"].histogram.data_points[0]
    assert (histogram.count, histogram.sum) == (2, pytest.approx(700.06))
    assert (
        list(histogram.explicit_bounds)
        == [bound for bound, _ in durations(job).counts][: len(histogram.explicit_bounds)]
    )
    assert sum(histogram.bucket_counts) == 2
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1


def test_names_become_those_of_metrics_again() -> None:
    endings = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "": ""}
    for family in EXPOSED:
        name, unit = named(family)
        total = "_total" if family.kind == "counter" else ""
        assert f"{name}{endings[unit]}{total}" == family.exposed


def test_a_counter_that_falls_begins_anew() -> None:
    starts, rows = CounterStarts(), (("job", "flights"),)
    seen = ((1, 5.0), (2, 9.0), (3, 2.0), (4, 4.0))
    assert [starts.of("rows", rows, value, now) for now, value in seen] == [1, 1, 3, 3]
    starts.keep(set())
    assert starts.of("rows", rows, 5.0, 9) == 9


def test_points_are_dropped_while_a_collector_does_not_answer() -> None:
    class Hanging:
        def __init__(self) -> None:
            self.asked, self.answers, self.closed = threading.Event(), threading.Event(), threading.Event()

        def export(self, data: object) -> None:
            self.asked.set()
            self.answers.wait()
            raise ConnectionError("refused")

        def shutdown(self) -> None:
            self.closed.set()

    exporter = Hanging()
    metrics = OpenTelemetryMetrics(exporter)
    assert metrics.offer([status()])
    assert exporter.asked.wait(60)
    assert [metrics.offer([status()]) for _ in range(3)] == [True, False, False]
    exporter.answers.set()
    metrics.close()
    assert exporter.closed.wait(60)


def test_without_a_collector_nothing_is_sent() -> None:
    assert metrics_of({}) is None
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://nobody:1"}
    assert metrics_of({**endpoint, "OTEL_METRICS_EXPORTER": "none"}) is None
    assert metrics_of({**endpoint, "OTEL_SDK_DISABLED": "true"}) is None
    assert interval_s({}) == 60
    with pytest.raises(InvalidJob, match="OTEL_METRIC_EXPORT_INTERVAL='soon'"):
        interval_s({"OTEL_METRIC_EXPORT_INTERVAL": "soon"})
