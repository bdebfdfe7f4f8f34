"""Traces: a trace per checkpoint, with equal ids from every process, each exported once."""

from collections.abc import Sequence

import msgspec
from coordinator_world import Coordinator, spec, started
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from test_why import phases, record

from barrier_runtime.coordinator.client.rest_token import daemon_key
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.telemetry.opentelemetry import OpenTelemetrySender, Tracing, sender_of
from barrier_runtime.coordinator.status.history import History
from barrier_runtime.coordinator.status.spans import (
    NewSpans,
    Span,
    checkpoint_spans,
    commit_spans,
    recovery_spans,
    rescale_spans,
)
from barrier_runtime.coordinator.status.status import RecoveryStatus, RescaleStatus

SLOW = msgspec.structs.replace(
    record(phases(start_delay_ms=500.0, alignment_ms=200.0, sync_ms=10.0, async_ms=1_200.0)),
    triggered_ms=10_000,
    duration_ms=2_100,
    ack_duration_ms=2_000,
    persist_duration_ms=60,
    decide_duration_ms=40,
)


def test_a_checkpoint_is_a_trace_of_subtasks_and_phases() -> None:
    root, *inner = checkpoint_spans("flights", SLOW)
    assert (root.name, root.parent_id, root.start_ms, root.end_ms) == ("checkpoint 42", 0, 10_000, 12_100)
    assert {span.trace_id for span in inner} == {root.trace_id}
    times = {span.name: (span.start_ms, span.end_ms) for span in inner}
    assert times["subtask 1/0"] == (10_000, 12_000)
    assert times["alignment"] == (10_500, 10_700)
    assert times["async"] == (10_710, 11_910)
    assert times["manifest"] == (12_000, 12_060)
    assert times["log record"] == (12_060, 12_100)
    ids = {span.span_id: span for span in (root, *inner)}
    assert len(ids) == 1 + len(inner)
    parents = {span.name: ids[span.parent_id].name for span in inner}
    assert parents["subtask 1/0"] == parents["manifest"] == "checkpoint 42"
    assert parents["sync"] == "subtask 1/0"


def test_every_process_makes_the_same_ids_and_no_two_checkpoints_share_one() -> None:
    (root, *_), (again, *_) = checkpoint_spans("flights", SLOW), checkpoint_spans("flights", SLOW)
    assert (root.trace_id, root.span_id) == (again.trace_id, again.span_id)
    assert (f"{root.trace_id:032x}", f"{root.span_id:016x}") == ("86532134e8b2aa9fb1b6473aedf912fe", "1a73e787fbb95d12")
    others = [
        checkpoint_spans("trains", SLOW)[0],
        checkpoint_spans("flights", msgspec.structs.replace(SLOW, token=2))[0],
        checkpoint_spans("flights", msgspec.structs.replace(SLOW, checkpoint=43))[0],
    ]
    assert len({root.trace_id, *(other.trace_id for other in others)}) == 4


def test_the_commit_comes_later_into_the_same_trace() -> None:
    assert commit_spans("flights", SLOW) == []
    (commit,) = commit_spans("flights", msgspec.structs.replace(SLOW, commit_duration_ms=30, slowest_commit="out/1"))
    (root, *_) = checkpoint_spans("flights", SLOW)
    assert (commit.trace_id, commit.parent_id) == (root.trace_id, root.span_id)
    assert (commit.start_ms, commit.end_ms) == (12_100, 12_130)


def test_a_recovery_is_a_trace_once_it_is_over() -> None:
    going_on = RecoveryStatus(7, "slot 1 lost contact", 100, 400, None, None)
    assert recovery_spans("flights", going_on) == []
    root, slots, restore = recovery_spans("flights", msgspec.structs.replace(going_on, running_ms=900))
    assert (root.start_ms, root.end_ms) == (100, 900)
    assert (slots.end_ms, restore.start_ms, restore.end_ms) == (400, 400, 900)


def test_what_a_process_finds_is_not_told_again_and_what_comes_is_told_once() -> None:
    history = History(job="flights", run_id="r", history=(SLOW,))
    spans = NewSpans()
    assert spans.look(history) == []
    committed = msgspec.structs.replace(SLOW, commit_duration_ms=5)
    both = (committed, msgspec.structs.replace(SLOW, checkpoint=43))
    told = spans.look(msgspec.structs.replace(history, history=both))
    assert [span.name for span in told if span.parent_id == 0] == ["checkpoint 43"]
    assert "commit" in {span.name for span in told}
    assert spans.look(msgspec.structs.replace(history, history=both)) == []


def test_the_library_sends_them_with_their_ids_and_errors() -> None:
    exporter = InMemorySpanExporter()
    sender = OpenTelemetrySender(exporter)
    failed = msgspec.structs.replace(SLOW, outcome="declined", reason="disk full")
    spans = checkpoint_spans("flights", failed)
    sender.send(spans)
    sender.close()
    sent = {each.name: each for each in exporter.get_finished_spans()}
    root, subtask = sent["checkpoint 42"], sent["subtask 1/0"]
    assert (root.context.trace_id, root.context.span_id) == (spans[0].trace_id, spans[0].span_id)
    assert root.parent is None
    assert subtask.parent.span_id == spans[0].span_id
    assert (root.start_time, root.end_time) == (10_000_000_000, 12_100_000_000)
    assert root.status.description == "disk full"
    assert root.attributes["barrier.checkpoint"] == 42


class Led:
    """The part of a job's runner that `Tracing` reads, over the real protocol."""

    spec, has_led = spec(), True

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.looked = 0

    @property
    def history_revision(self) -> int:
        return self._coordinator.protocol.history_revision

    @property
    def history(self) -> History:
        self.looked += 1
        return self._coordinator.protocol.history()


class Sender:
    def __init__(self) -> None:
        self.ready = True
        self.sent: list[str] = []

    def send(self, spans: Sequence[Span]) -> None:
        self.sent += [span.name for span in spans if not span.parent_id]

    def close(self) -> None:
        """Does nothing."""


def test_no_history_is_read_while_a_sender_is_not_ready_and_nothing_of_it_is_missed(store) -> None:
    coordinator, a, b = started(store)
    directory = JobDirectory(store, daemon_key=daemon_key("t" * 64), leader="a", host="h")
    job, sender = Led(coordinator), Sender()
    directory._current[coordinator.status.job] = job  # type: ignore[assignment]
    tracing = Tracing(directory, sender)
    tracing.look()
    assert job.looked == 1
    sender.ready = False
    for _ in range(3):
        coordinator.checkpoint(a, b)
        tracing.look()
    assert (job.looked, sender.sent) == (1, [])
    sender.ready = True
    tracing.look()
    assert sender.sent == ["checkpoint 1", "checkpoint 2", "checkpoint 3"]


def test_without_a_collector_there_is_no_sender() -> None:
    assert sender_of({}) is None
    assert sender_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://nobody:1", "OTEL_SDK_DISABLED": "true"}) is None


def test_a_jobs_own_history_gives_its_checkpoints(store) -> None:
    coordinator, a, b = started(store)
    assert isinstance(coordinator, Coordinator)
    spans = NewSpans()
    spans.look(coordinator.protocol.history())
    coordinator.checkpoint(a, b)
    told = spans.look(coordinator.protocol.history())
    assert [span.name for span in told if not span.parent_id] == ["checkpoint 1"]
    assert sum(span.name.startswith("subtask ") for span in told) == 4


def test_a_rescale_is_a_trace_with_its_parts_as_far_as_it_came() -> None:
    done = RescaleStatus(
        id="r", before=2, parallelism=4, state="done", asked_ms=100, paused_ms=300, decided_ms=340, moved_ms=350,
        ended_ms=500,
    )  # fmt: skip
    spans = rescale_spans("flights", done)
    assert [(each.name, each.start_ms, each.end_ms) for each in spans] == [
        ("rescale of flights", 100, 500),
        ("slots start", 100, 300),
        ("checkpoint", 300, 340),
        ("commit", 340, 350),
        ("move", 350, 500),
    ]
    assert {each.parent_id for each in spans[1:]} == {spans[0].span_id}
    failed = msgspec.structs.replace(done, paused_ms=None, decided_ms=None, moved_ms=None, state="failed", error="late")
    assert [each.name for each in rescale_spans("flights", failed)] == ["rescale of flights", "slots start"]
    assert rescale_spans("flights", failed)[0].error == "late"
    assert rescale_spans("flights", msgspec.structs.replace(done, ended_ms=None)) == []


def test_a_rescale_that_ended_is_told_once() -> None:
    done = RescaleStatus(id="r", before=2, parallelism=4, state="done", asked_ms=100, ended_ms=500)
    new = NewSpans()
    new.look(History(job="flights", run_id="1"))
    assert [each.name for each in new.look(History(job="flights", run_id="1", rescales=(done,)))] == [
        "rescale of flights",
        "slots start",
    ]
    assert new.look(History(job="flights", run_id="1", rescales=(done,))) == []
