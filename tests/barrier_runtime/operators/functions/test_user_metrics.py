"""`ctx.metrics`: counters and gauges of a keyed function in the job's status, together with the step's own metrics."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, ProcessContext
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.testing import KeyedHarness

Row = dict[str, Any]
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])


def counts(key: str, row: Row, ctx: ProcessContext) -> None:
    ctx.metrics.counter("rows").inc()
    ctx.metrics.counter("total").inc(row["n"])
    ctx.metrics.gauge("last").set(row["n"])


def test_the_status_has_them_by_step_and_name() -> None:
    flow = Dataflow("counted")
    rows = flow.from_iterator(
        "in", lambda index, of: iter([{"k": "a", "n": n} for n in (1, 5, 3)]), schema=ROWS, splits=1
    )
    rows.key_by("k").process("step", counts, schema=ROWS).sink("out", CollectSink())
    (slot,) = flow.run_local(parallelism=1).status.slots
    found = {name: value for name, value in slot.metrics.items() if name.startswith("step.user_")}
    assert found == {"step.user_rows": 3.0, "step.user_total": 9.0, "step.user_last": 3.0}


def test_a_harness_gives_them_of_all_subtasks() -> None:
    with KeyedHarness(counts, key="k", rows=ROWS, parallelism=3) as harness:
        assert harness.metrics() == {}
        harness.push(*({"k": f"k{n}", "n": n} for n in range(10)))
        assert harness.metrics() == {"rows": 10.0, "total": 45.0, "last": 9.0}


def test_a_gauge_that_is_no_number_is_not_told_and_the_status_can_be_read() -> None:
    """JSON has no NaN: clients could not parse the job's status, and slots could not report."""
    told = [5.0, float("nan")]

    def ratio(key: str, row: Row, ctx: ProcessContext) -> None:
        ctx.metrics.gauge("ratio").set(told[row["n"]])
        ctx.metrics.gauge("endless").set(float("inf"))

    flow = Dataflow("ratios")
    rows = flow.from_iterator("in", lambda index, of: iter([{"k": "a", "n": n} for n in (0, 1)]), schema=ROWS, splits=1)
    rows.key_by("k").process("step", ratio, schema=ROWS).sink("out", CollectSink())
    status = flow.run_local(parallelism=1).status
    assert [name for name in status.slots[0].metrics if name.startswith("step.user_")] == []
    assert msgspec.json.decode(msgspec.json.encode(status), type=JobStatus) == status


def spread(key: str, row: Row, ctx: ProcessContext) -> None:
    ctx.metrics.histogram("sizes").record(row["n"])


@pytest.mark.slow
def test_the_status_has_how_figures_are_spread_over_all_slots() -> None:
    flow = Dataflow("spread")
    rows = flow.from_iterator(
        "in", lambda index, of: iter([{"k": f"k{n}", "n": n} for n in range(1, 101)]), schema=ROWS, splits=1
    )
    rows.key_by("k").process("step", spread, schema=ROWS).sink("out", CollectSink())
    found = flow.run_local(parallelism=2).status.latency["step:user_sizes"]
    assert found.count == 100
    assert (found.p50, found.p99, found.max) == pytest.approx((50, 99, 100), rel=0.001)


def test_a_harness_gives_how_figures_are_spread_also_beyond_the_bounds() -> None:
    with KeyedHarness(spread, key="k", rows=ROWS, parallelism=2) as harness:
        harness.push(*({"k": f"k{n}", "n": n} for n in (0, 7, 10**12)))
        found = harness.metrics()
    assert found["sizes.count"] == 3
    assert found["sizes.p50"] == pytest.approx(7, rel=0.001)
    assert found["sizes.max"] == pytest.approx(3_600_000, rel=0.001)


def names() -> Iterator[str]:
    yield from (f"m{n}" for n in range(101))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda metrics: metrics.counter("n").inc(-1), r"counter 'n': inc\(-1\) does not raise it"),
        (lambda metrics: metrics.counter("n").inc(float("nan")), r"counter 'n': inc\(nan\) does not raise it"),
        (lambda metrics: metrics.counter("n").inc(float("inf")), r"counter 'n': inc\(inf\) does not raise it"),
        (lambda metrics: metrics.counter("No"), "metric 'No': use 1 to 64 small letters"),
        (lambda metrics: metrics.gauge(""), "metric '': use 1 to 64 small letters"),
        (
            lambda metrics: (metrics.counter("n"), metrics.gauge("n")),
            "metric 'n' is a counter in one place and something else in another: give one",
        ),
        (lambda metrics: [metrics.gauge(name) for name in names()], "metric 'm100' would be number 101"),
        (lambda metrics: [metrics.histogram(name) for name in names()], "histogram 'm20' would be number 21, .* heart"),
        (lambda metrics: (metrics.histogram("n"), metrics.gauge("n")), "metric 'n' is a histogram in one place"),
        (lambda metrics: metrics.histogram("n").record(-1), r"histogram 'n': record\(-1, 1\): record figures from 0"),
        (lambda metrics: metrics.histogram("n").record(float("nan")), r"histogram 'n': record\(nan, 1\)"),
    ],
)
def test_wrong_use_is_refused(use: Callable[[Any], object], said: str) -> None:
    def wrong(key: str, row: Row, ctx: ProcessContext) -> None:
        use(ctx.metrics)

    with KeyedHarness(wrong, key="k", rows=ROWS) as harness, pytest.raises(InvalidJob, match=said):
        harness.push({"k": "a", "n": 1})
