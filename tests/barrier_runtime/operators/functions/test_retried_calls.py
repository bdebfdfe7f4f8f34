"""`on_error=Retry(…)` of functions of single rows: calls are retried; a call that keeps failing restarts the job."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven

from barrier_runtime import CollectSink, Dataflow, InvalidJob, Retry, Unavailable, UserCodeError, ValueState
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.operators.functions.row_functions import ProcessRowsOperator
from barrier_runtime.operators.retry import LONGEST_S, RetriedCall, check_pauses
from barrier_runtime.testing import KeyedHarness
from tests.drawn import examples

SHORT = timedelta(milliseconds=1)


@examples(100)
@given(
    raised=st.lists(st.sampled_from([ConnectionError, TimeoutError, ValueError, None]), min_size=1, max_size=6),
    times=st.integers(1, 4),
)
def test_a_call_is_repeated_for_what_is_named_and_no_oftener(raised: list[Any], times: int) -> None:
    paused: list[float] = []
    calls = []

    def asks(row: int) -> int:
        kind = raised[len(calls)] if len(calls) < len(raised) else None
        calls.append(row)
        if kind is not None:
            raise kind("away")
        return row + 1

    call = RetriedCall(asks, Retry(times, timedelta(seconds=0.1), on=(OSError,)), False, paused.append)
    first = next((at for at, kind in enumerate([*raised, None]) if kind is None or not issubclass(kind, OSError)))
    ends = ([*raised, None])[first]
    if first > times:
        with pytest.raises(Unavailable, match=rf"asks\(\) raised .*: away, {times + 1} times for one row"):
            call(7)
        assert (len(calls), len(paused)) == (times + 1, times)
        return
    if ends is None:
        assert call(7) == 8
    else:
        with pytest.raises(ValueError, match="away"):
            call(7)
    assert calls == [7] * (first + 1)
    assert paused == [pytest.approx(0.1 * 2**at) for at in range(first)]


def test_a_repetition_gets_the_row_as_it_came() -> None:
    seen = []

    def asks(row: dict[str, Any]) -> dict[str, Any]:
        row["cents"] *= 100
        row["of"].append(row.pop("id"))
        seen.append(dict(row))
        if len(seen) < 3:
            raise ConnectionError("away")
        return row

    call = RetriedCall(asks, Retry(2, SHORT), False, lambda s: None)
    assert call({"id": 1, "cents": 5, "of": [0]}) == {"cents": 500, "of": [0, 1]}


def test_rows_of_a_generator_are_as_they_were_when_they_were_given() -> None:
    def twice(row: dict[str, int]) -> Any:
        yield row
        row["n"] += 10
        yield row

    assert RetriedCall(twice, Retry(1), True)({"n": 1}) == [{"n": 1}, {"n": 11}]


def test_functions_that_choose_a_branch_and_functions_of_batches_are_repeated_too() -> None:
    calls = []

    def branch(row: dict[str, int]) -> str:
        calls.append("branch")
        if len(calls) == 1:
            raise ConnectionError("away")
        return "odd" if row["n"] % 2 else "even"

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append("batch")
        if calls.count("batch") == 1:
            raise ConnectionError("away")
        return pa.RecordBatch.from_pydict({"n": [2 * n for n in batch.column("n").to_pylist()]})

    flow, sinks = Dataflow("retried"), [CollectSink(), CollectSink()]
    numbers = flow.from_iterator("in", lambda i, of: iter([{"n": 1}, {"n": 2}]), schema={"n": int}, splits=1)
    odd, even = numbers.split("kind", branch, into=("odd", "even"), on_error=Retry(1, SHORT))
    odd.map_batches(doubled, schema={"n": int}, on_error=Retry(1, SHORT)).sink("odd", sinks[0])
    even.sink("even", sinks[1])
    flow.run_local(parallelism=1)
    assert [[row["n"] for row in sink.rows()] for sink in sinks] == [[2], [2]]
    with pytest.raises(InvalidJob, match=r"on_error=.* is for functions, and .* is an expression"):
        numbers.split("by", "'odd'", into=("odd", "even"), on_error=Retry(1))


def test_rows_of_a_call_that_fails_half_way_do_not_go_out() -> None:
    failing = [True]

    def twice(row: dict[str, int]) -> Any:
        yield {"n": row["n"]}
        if failing.pop() if failing else False:
            raise ConnectionError("away")
        yield {"n": row["n"] + 10}

    flow, sink = Dataflow("retried"), CollectSink()
    numbers = flow.from_iterator("in", lambda i, of: iter([{"n": 1}, {"n": 2}]), schema={"n": int}, splits=1)
    numbers.flat_map(twice, on_error=Retry(1, SHORT)).filter(lambda row: row["n"] != 2, on_error=Retry(1)).sink(
        "o", sink
    )
    flow.run_local(parallelism=1)
    assert [row["n"] for row in sink.rows()] == [1, 11, 12]


def test_what_fails_at_last_goes_on_from_the_last_checkpoint_under_restart(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def asks(row: dict[str, int]) -> dict[str, int]:
        with calls.open("a") as file:
            file.write(".")
        if row["n"] == 3 and calls.stat().st_size < 8:
            raise ConnectionError("away")
        return row

    def run(**more: Any) -> list[int]:
        flow, sink = Dataflow("retried"), CollectSink()
        rows = flow.from_iterator("in", lambda i, of: iter([{"n": n} for n in range(5)]), schema={"n": int}, splits=1)
        rows.map(asks, on_error=Retry(1, SHORT, on=ConnectionError)).sink("out", sink)
        flow.run_local(parallelism=1, **more)
        return [row["n"] for row in sink.rows()]

    with pytest.raises(JobFailed, match=r"asks\(\) raised ConnectionError: away, 2 times for one row"):
        run(restart="none")
    calls.unlink()
    assert run(restart_delay=0.01) == [0, 1, 2, 3, 4]


def test_a_keyed_function_says_unavailable_and_is_restarted_with_its_state(tmp_path: Path) -> None:
    raised = tmp_path / "raised"

    class Counts:
        seen = ValueState(int, default=0)

        def process(self, key: int, row: dict[str, int], ctx: Any) -> dict[str, int]:
            self.seen.value += 1
            if row["n"] == 4 and not raised.exists():
                raised.touch()
                raise Unavailable("the shop does not answer")
            return {"n": row["n"], "seen": self.seen.value}

    flow, sink = Dataflow("unavailable"), CollectSink()
    rows = flow.from_iterator(
        "in", lambda i, of: iter([{"k": 1, "n": n} for n in range(6)]), schema={"k": int, "n": int}, splits=1
    )
    rows.key_by("k").process("counts", Counts, schema={"n": int, "seen": int}).sink("out", sink)
    flow.run_local(parallelism=1, restart_delay=0.01)
    assert [(row["n"], row["seen"]) for row in sink.rows()] == [(n, n + 1) for n in range(6)]


def test_wrong_use_is_refused_with_the_remedy() -> None:
    numbers = Dataflow("refused").from_iterator("in", lambda i, of: iter(()), schema={"k": int}, splits=1)
    with pytest.raises(InvalidJob, match=r"its slot stands still: keep them within 1 s, or take lookup"):
        numbers.map(lambda row: row, on_error=Retry(5, timedelta(seconds=0.2)))
    check_pauses(Retry(3, timedelta(seconds=LONGEST_S / 7)), "here")
    with pytest.raises(InvalidJob, match="is for functions"):
        numbers.filter("k > 1", on_error=Retry(1))


def test_what_is_not_named_ends_the_job_with_the_users_traceback() -> None:
    flow = Dataflow("named")
    numbers = flow.from_iterator("in", lambda i, of: iter([{"k": 1}]), schema={"k": int}, splits=1)
    numbers.map(lambda row: {"k": row["gone"]}, on_error=Retry(2, SHORT, on=(OSError,))).sink("o", CollectSink())
    with pytest.raises(JobFailed, match="KeyError: 'gone'") as failed:
        flow.run_local(parallelism=1)
    assert isinstance(failed.value.__cause__, KeyError | UserCodeError)


class Counting:
    def open(self, ctx: Any) -> None:
        self.failed = 0
        ctx.metrics.gauge("last").set(-1)

    def process(self, *given: Any) -> None:
        row, ctx = given[-2:]
        ctx.metrics.counter("rows").inc()
        ctx.metrics.gauge("last").set(row["k"])
        ctx.metrics.gauge("failing" if self.failed < row["fails"] else "good").set(1)
        ctx.metrics.histogram("sizes").record(row["k"])
        if self.failed < row["fails"]:
            self.failed += 1
            ctx.metrics.histogram("failures").record(7)
            raise ConnectionError("away")
        self.failed = 0


COUNTED = {"rows": 3.0, "last": 5.0, "good": 1.0, "sizes.count": 3.0, "sizes.max": 5.0}


def test_what_a_call_counts_is_counted_when_it_succeeds() -> None:
    retry, rows = Retry(3, SHORT, on=(ConnectionError,)), [{"k": k, "fails": k % 4} for k in (3, 4, 5)]
    with KeyedHarness(Counting, key="k", on_error=retry) as harness:
        harness.push(*rows)
        found = harness.metrics()
        assert {name: round(found[name], 2) for name in COUNTED} == COUNTED
        assert "failing" not in found
        assert found.get("failures.count", 0) == 0
    driven = Driven(ProcessRowsOperator("p", Counting, on_error=retry))
    driven.feed(rows)
    counts = driven.world.metrics.counts
    assert {name: counts.get(f"user_{name}") for name in ("rows", "last", "good", "failing")} == {
        "rows": 3.0,
        "last": 5.0,
        "good": 1.0,
        "failing": None,
    }
