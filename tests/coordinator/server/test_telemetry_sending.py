"""Collectors that refuse, are unreachable, or never answer: no process waits, and no data is built for them."""

import contextlib
import http.server
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from test_daemon import Daemon, one_checkpoint, running_slots

from barrier_runtime.coordinator.server.telemetry import sending as sending_module
from barrier_runtime.coordinator.server.telemetry.sending import Sending, reachable, rest_s
from tests.waiting import until


class Answer:
    def __init__(self, name: str) -> None:
        self.name = name


class Collector:
    """An exporter with answers given by the test; without an answer it waits."""

    def __init__(self) -> None:
        self.asked: queue.Queue[object] = queue.Queue()
        self.answers: queue.Queue[Answer | Exception] = queue.Queue()
        self.closed = threading.Event()

    def export(self, data: object) -> Answer:
        self.asked.put(data)
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(self) -> None:
        self.closed.set()


def test_rests_double_up_to_a_minute() -> None:
    assert [rest_s(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 10_000)] == [2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("failure", [Answer("FAILURE"), ConnectionError("refused")])
def test_after_a_failure_nothing_is_wanted_until_the_rest_is_over(failure: Answer | Exception) -> None:
    collector, rests, over = Collector(), [], threading.Event()

    def rest(failures: int) -> float:
        rests.append(failures)
        return 0.0 if over.is_set() else 86_400.0

    sending = Sending("traces", collector, "empty", rest)
    assert sending.offer("lost")
    collector.answers.put(failure)
    assert collector.asked.get(timeout=60) == "lost"
    until(lambda: rests and not sending.ready, "the rest")
    assert not sending.offer("not made")
    sending.close()  # no rest holds it up
    assert collector.closed.is_set()
    until(lambda: not sending._thread.is_alive(), "its thread has ended")
    assert collector.asked.empty()


def test_until_a_collector_takes_an_empty_request_nothing_is_made_for_it() -> None:
    """Two failures, a success, and the same again: pauses restart at their shortest."""
    collector, rests = Collector(), []
    sending = Sending("traces", collector, "empty", lambda failures: rests.append(failures) or 0.0)
    for turn in range(2):
        until(lambda turn=turn: sending.offer(turn), "it takes more")
        for sent, name in ((turn, "FAILURE"), ("empty", "FAILURE"), ("empty", "SUCCESS")):
            assert collector.asked.get(timeout=60) == sent
            assert sent == turn or not sending.ready
            collector.answers.put(Answer(name))
    until(lambda: sending.ready, "it takes more")
    assert rests == [1, 2, 1, 2]
    sending.close()


def test_a_collector_that_cannot_be_connected_to_is_not_asked() -> None:
    collector, looks, there = Collector(), [], threading.Event()

    def looked() -> bool:
        looks.append(there.is_set())
        return there.is_set()

    sending = Sending("traces", collector, "empty", lambda failures: 0.0, looked)
    assert sending.offer("lost")
    assert collector.asked.get(timeout=60) == "lost"
    collector.answers.put(Answer("FAILURE"))
    until(lambda: len(looks) > 10, "some looks")
    assert collector.asked.empty()
    assert not sending.ready
    there.set()
    assert collector.asked.get(timeout=60) == "empty"
    collector.answers.put(Answer("SUCCESS"))
    until(lambda: sending.ready, "it takes more")
    sending.close()


def test_whether_a_server_is_there_is_told_by_a_connection_and_not_past_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"
        assert reachable(url)
    assert not reachable(url)
    assert not reachable("http://no-such-host.invalid/v1/traces")
    assert reachable("")  # nothing is known of it
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert reachable(url), "the exporter goes by the proxy"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert not reachable(url)


def test_closing_leaves_behind_a_collector_that_never_answers() -> None:
    collector = Collector()
    sending = Sending("traces", collector, "empty")
    assert sending.offer("first")
    assert collector.asked.get(timeout=60) == "first"
    assert sending.offer("waits")
    assert not sending.offer("one too many")
    sending.close()  # returns although nobody has answered
    assert collector.closed.is_set()
    assert sending._thread.is_alive()
    assert not sending.offer("late")
    collector.answers.put(Answer("FAILURE"))
    until(lambda: not sending._thread.is_alive(), "its thread has ended")
    assert collector.asked.empty(), "what waited is dropped"


def test_closing_sends_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "CLOSE_S", 60.0)
    collector = Collector()
    sending = Sending("traces", collector, "empty")
    for each in ("first", "last"):
        until(lambda each=each: sending.offer(each), "room")
        collector.answers.put(Answer("SUCCESS"))
    sending.close()
    assert [collector.asked.get(timeout=60) for _ in range(2)] == ["first", "last"]


# ---------------------------------------------------------------- a daemon


@contextlib.contextmanager
def silent_collector() -> Iterator[tuple[str, threading.Event]]:
    """A collector that accepts connections and data, and never answers."""
    asked, held = threading.Event(), []
    listening = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                held.append(listening.accept()[0])
                held[-1].settimeout(60)
                if held[-1].recv(1):
                    asked.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    for each in (listening, *held):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
    thread.join(60)


@pytest.mark.slow
def test_a_daemon_ends_although_its_collector_never_answers(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "86400")  # a day, and so is the test's patience
    with silent_collector() as (url, asked):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        with Daemon(tmp_path) as daemon:
            slots = running_slots(daemon)
            try:
                one_checkpoint(slots)
                until(asked.is_set, "the collector is asked")
                os.kill(daemon.process.pid, signal.SIGTERM)
                assert daemon.process.wait(timeout=120) == 0
            finally:
                for slot in slots:
                    slot.close()


_PATIENT = """
import sys
from barrier_runtime.coordinator.server.telemetry import sending
sending.CLOSE_S = 120.0
from barrier_runtime.coordinator.server.daemon import main
sys.exit(main())
"""


class PatientDaemon(Daemon):
    """A daemon that waits longer than a second for the answers to the last data: a collector may be slow."""

    def start(self) -> None:
        at = self._command.index("-m")
        self._command[at : at + 2] = ["-c", _PATIENT]
        super().start()


@pytest.mark.slow
def test_a_daemon_that_ends_sends_its_last_checkpoint(tmp_path, monkeypatch) -> None:
    """The last look finds the checkpoint, which is sent before the process ends."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    got: queue.Queue[ExportTraceServiceRequest] = queue.Queue()

    class Door(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    try:
        with PatientDaemon(tmp_path) as daemon:
            slots = running_slots(daemon)
            try:
                last = 0
                while got.empty():  # what a daemon finds when it looks first was told by another
                    last = one_checkpoint(slots)
                last = one_checkpoint(slots)
                daemon.process.terminate()
                assert daemon.process.wait(timeout=120) == 0
            finally:
                for slot in slots:
                    slot.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    sent = {
        span.name
        for request in got.queue
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert f"checkpoint {last}" in sent
