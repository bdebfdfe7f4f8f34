"""Counters and times of operators, as the slot sends them and as the status of a whole job shows them."""

import datetime
import json
from pathlib import Path

import pytest

from barrier_runtime import CollectSink, Dataflow, Tumbling, count
from barrier_runtime.coordinator.metric_table import LATE_ROWS, LOOKUPS, METRICS, PROCESSED, VISIBLE
from barrier_runtime.coordinator.status.latency import merged
from barrier_runtime.coordinator.status.statistics import over_slots
from barrier_runtime.operators.metrics import MetricGroup, MetricRegistry


def test_an_operator_of_the_next_generation_goes_on_counting() -> None:
    registry = MetricRegistry(lambda: 0)
    registry.group("windows").count(LATE_ROWS, 2)
    registry.group("windows").count(LATE_ROWS)
    registry.group("once").count(LOOKUPS, 5)
    assert registry.counts() == {"windows.late_rows": 3.0, "once.lookups": 5.0}


def test_latencies_are_told_by_sink_and_kind_from_the_time_a_row_was_due_until_now() -> None:
    registry = MetricRegistry(lambda: 70_000_000)
    registry.group("out").latency(PROCESSED, 20_000_000, 10)
    registry.group("out").latency(VISIBLE, 0, 1)
    told = merged([registry.latencies()])
    assert {name: each.count for name, each in told.items()} == {"out:processed": 10, "out:visible": 1}
    assert told["out:processed"].max == pytest.approx(50, rel=0.01)
    assert told["out:visible"].max == pytest.approx(70, rel=0.01)


def test_an_operator_that_counted_nothing_is_not_told() -> None:
    registry = MetricRegistry(lambda: 0)
    assert isinstance(registry.group("idle"), MetricGroup)
    assert (registry.counts(), registry.latencies()) == ({}, {})


def test_status_of_a_job_has_every_counted_metric_and_none_outside_the_table(tmp_path: Path) -> None:
    times = [1_000, 9_000, 1_500, 1_600, 20_000]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"k": "a", "t": time}) + "\n" for time in times))
    flow, sink = Dataflow("late"), CollectSink()
    rows = flow.read_jsonl("files", str(tmp_path / "rows.jsonl"), event_time="t")
    windowed = rows.key_by("k").window("w.1", Tumbling(datetime.timedelta(seconds=1)), event_time="t")
    windowed.aggregate(n=count()).sink("out", sink)
    status = flow.run_local(parallelism=2, checkpoint_interval=0.05).status
    told = [slot.metrics for slot in status.slots]
    assert over_slots(LATE_ROWS, told) == 2
    assert sum(slot.get("w.1.late_rows", 0) for slot in told) == 2
    assert status.latency["out:visible"].count == len(sink.rows())
    keys = {metric.key(operator) for metric in METRICS for operator in ("files", "w.1", "out")}
    assert {key for slot in told for key in slot} | set(status.latency) <= keys
