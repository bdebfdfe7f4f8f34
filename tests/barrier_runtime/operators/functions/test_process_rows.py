"""`process` of a stream without key: rows, side outputs, errors as data, metrics, open and close."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import Driven

from barrier_runtime import CollectSink, Dataflow, InvalidJob, JobFailed, RowContext, UserCodeError
from barrier_runtime.operators.functions.row_functions import ProcessRowsOperator
from barrier_runtime.testing import KeyedHarness

Row = dict[str, Any]
SIDE = {"odd": pa.schema([("n", pa.int64())])}


class Halves:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, ctx: RowContext) -> None:
        self.calls.append(f"open {ctx.operator} {ctx.subtask}")

    def process(self, row: Row, ctx: RowContext) -> Iterator[Row]:
        ctx.metrics.counter("rows").inc()
        yield {"half": row["n"] // 2}
        if row["n"] % 2:
            ctx.emit("odd", row)
        if row["n"] < 0:
            raise ValueError(row["n"])

    def close(self) -> None:
        self.calls.append("close")


def test_rows_side_outputs_and_metrics_of_a_function_without_key() -> None:
    driven = Driven(ProcessRowsOperator("p", Halves, None, SIDE), tags=["odd"])
    driven.feed([{"n": 4}, {"n": 7}], reached=np.array([10, 20]))
    assert driven.rows == [{"half": 2}, {"half": 3}]
    assert list(driven.batches[0].reached) == [10, 20]  # type: ignore[arg-type]
    assert [batch.rows.to_pylist() for batch in driven.side["odd"]] == [[{"n": 7}]]
    assert list(driven.side["odd"][0].reached) == [20]  # type: ignore[arg-type]
    assert driven.world.metrics.counts["user_rows"] == 2


def test_of_a_row_at_which_it_raises_nothing_goes_out_but_the_error() -> None:
    driven = Driven(ProcessRowsOperator("p", Halves, None, SIDE, "side"), tags=["odd", "errors"])
    driven.feed([{"n": -1}, {"n": 2}])
    assert driven.rows == [{"half": 1}]
    assert driven.side["odd"] == []
    [errors] = driven.side["errors"]
    assert [(row["error_type"], row["row"], row["key"]) for row in errors.rows.to_pylist()] == [
        ("ValueError", '{"n":-1}', None)
    ]
    with pytest.raises(UserCodeError, match=r"process\(\) of operator 'p'(.|\n)*'n': -1"):
        Driven(ProcessRowsOperator("p", Halves, None, SIDE)).feed([{"n": 0}, {"n": -1}])


def test_results_may_be_a_row_a_list_or_nothing() -> None:
    results: list[Any] = [{"n": 1}, [{"n": 2}, {"n": 3}], None, iter([{"n": 4}])]
    driven = Driven(ProcessRowsOperator("p", lambda row, ctx: results[row["n"]]))
    driven.feed([{"n": n} for n in range(4)], reached=np.array([1, 2, 3, 4]))
    assert [row["n"] for row in driven.rows] == [1, 2, 3, 4]
    assert list(driven.batches[0].reached) == [1, 2, 2, 4]  # type: ignore[arg-type]


class EmitsEarly(Halves):
    def open(self, ctx: RowContext) -> None:
        ctx.emit("odd", {"n": 1})


def test_what_open_emits_has_no_row_to_go_out_with_and_is_refused() -> None:
    said = r"open\(\) emits into 'odd', but rows go out only with a row or a timer: emit it there"
    with pytest.raises(InvalidJob, match=said):
        Driven(ProcessRowsOperator("p", EmitsEarly, None, SIDE), tags=["odd"])

    class Keyed(EmitsEarly):
        def process(self, key: Any, row: Row, ctx: Any) -> None: ...  # type: ignore[override]

    with KeyedHarness(Keyed, key="n", side={"odd": {"n": int}}) as harness, pytest.raises(InvalidJob, match=said):
        harness.push({"n": 1})


def test_each_subtask_has_an_object_of_its_own_which_is_opened_and_closed() -> None:
    given = Halves()
    first, second = (ProcessRowsOperator("p", given, None, SIDE) for _ in range(2))
    for each in (first, second):
        Driven(each)
        each.close()
        each.close()
    assert given.calls == []
    assert first._call.__self__.calls == ["open p 0", "close"]
    assert first._call.__self__ is not second._call.__self__


def test_what_open_raises_is_told_with_its_name() -> None:
    class Broken(Halves):
        def open(self, ctx: RowContext) -> None:
            raise OSError("no such model")

    with pytest.raises(UserCodeError, match=r"Broken.open\(\) of operator 'p', subtask 0, raised OSError: no such mod"):
        Driven(ProcessRowsOperator("p", Broken, None, SIDE))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_a_whole_job_opens_a_function_before_its_rows_and_closes_it() -> None:
    calls: list[str] = []
    lock = threading.Lock()

    class Opened:
        def open(self, ctx: RowContext) -> None:
            with lock:
                calls.append("open")

        def process(self, row: Row, ctx: RowContext) -> Row:
            assert calls.count("open") >= 1
            ctx.emit("all", {"n": row["n"]})
            return {"n": -row["n"]}

        def close(self) -> None:
            with lock:
                calls.append("close")

    class Keyed(Opened):
        def process(self, key: int, row: Row, ctx: Any) -> Row:  # type: ignore[override]
            return row

    flow, out, side = Dataflow("rows"), CollectSink(), CollectSink()
    rows = flow.from_iterator("s", lambda i, of: iter([{"n": n} for n in range(9)]), schema={"n": int}, splits=1)
    main, all_rows = rows.process("negative", Opened, schema={"n": int}, side={"all": {"n": int}})
    main.key_by("n").process("keyed", Keyed, schema={"n": int}).sink("out", out)
    all_rows.sink("side", side)
    flow.run_local(parallelism=2)
    assert sorted(row["n"] for row in out.rows()) == [-n for n in range(8, -1, -1)]
    assert sorted(row["n"] for row in side.rows()) == list(range(9))
    assert sorted(calls) == ["close"] * 4 + ["open"] * 4


def test_an_exception_ends_the_job_with_the_row() -> None:
    flow = Dataflow("rows")
    rows = flow.from_iterator("s", lambda i, of: iter([{"n": -3}]), schema={"n": int}, splits=1)
    rows.process("halves", Halves, side={"odd": {"n": int}})[0].sink("out", CollectSink())
    with pytest.raises(JobFailed, match=r"(.|\n)*'n': -3"):
        flow.run_local(parallelism=1)
