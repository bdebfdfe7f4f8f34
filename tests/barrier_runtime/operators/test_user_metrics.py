"""`ctx.metrics`: counters and gauges of a keyed function, in the job's status beside the step's own."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, ProcessContext
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
    found = {name: value for name, value in slot.metrics.items() if name.startswith("step.")}
    assert found == {"step.user_rows": 3.0, "step.user_total": 9.0, "step.user_last": 3.0}


def test_a_harness_gives_them_of_all_subtasks() -> None:
    with KeyedHarness(counts, key="k", rows=ROWS, parallelism=3) as harness:
        assert harness.metrics() == {}
        harness.push(*({"k": f"k{n}", "n": n} for n in range(10)))
        assert harness.metrics() == {"rows": 10.0, "total": 45.0, "last": 9.0}


def names() -> Iterator[str]:
    yield from (f"m{n}" for n in range(101))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda metrics: metrics.counter("n").inc(-1), r"counter 'n': inc\(-1\) would lower it"),
        (lambda metrics: metrics.counter("No"), "metric 'No': use 1 to 64 small letters"),
        (lambda metrics: metrics.gauge(""), "metric '': use 1 to 64 small letters"),
        (
            lambda metrics: (metrics.counter("n"), metrics.gauge("n")),
            "metric 'n' is a counter in one place and a gauge",
        ),
        (lambda metrics: [metrics.gauge(name) for name in names()], "metric 'm100' would be number 101"),
    ],
)
def test_wrong_use_is_refused(use: Callable[[Any], object], said: str) -> None:
    def wrong(key: str, row: Row, ctx: ProcessContext) -> None:
        use(ctx.metrics)

    with KeyedHarness(wrong, key="k", rows=ROWS) as harness, pytest.raises(InvalidJob, match=said):
        harness.push({"k": "a", "n": 1})
