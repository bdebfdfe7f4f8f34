"""`ctx.emit`: side outputs get rows as they are at the call, with the event time of the call."""

import datetime
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import World

from barrier_runtime import (
    CollectSink,
    Dataflow,
    InvalidJob,
    IteratorSource,
    JobFailed,
    ProcessContext,
    Tumbling,
    ValueState,
    WrongUse,
    count,
)
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.testing import KeyedHarness

Row = dict[str, Any]
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])
OUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
HOT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])
COLD = pa.schema([("v", pa.int64())])
_SECOND = datetime.timedelta(seconds=1)


class Alarm:
    n = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        self.n.value += 1
        if row["v"] >= 90:
            ctx.emit("hot", {"k": key, "v": row["v"], "at": row["at"]})
        elif row["v"] < 10:
            ctx.emit("cold", {"v": row["v"]})
        yield {"k": key, "n": self.n.value}


def readings(first: int = 0, of: int = 1) -> Iterator[Row]:
    for n in range(first, 600, of):
        yield {"k": f"k{n % 5}", "v": n % 100, "at": n * 10}


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.usefixtures("both_ways")
def test_what_is_emitted_goes_to_whatever_follows_and_each_row_comes_once(parallelism: int) -> None:
    flow = Dataflow("alarms")
    rows = flow.source("readings", IteratorSource(readings, schema=ROWS, splits=2), event_time="at")
    out, hot, cold = rows.key_by("k").process("alarm", Alarm, schema=OUT, side={"hot": HOT, "cold": COLD})
    assert (out.schema, hot.schema, cold.schema) == (OUT, HOT, COLD)
    outs, hots, colds, windows = CollectSink(), CollectSink(), CollectSink(), CollectSink()
    out.sink("outs", outs)
    hot.filter(lambda row: row["v"] != 95).sink("hots", hots)
    hot.key_by("k").window("per-k", Tumbling(_SECOND), event_time="at").aggregate(n=count()).sink("windows", windows)
    cold.rebalance().sink("colds", colds)
    flow.run_local(parallelism=parallelism)
    expected = list(readings())
    assert sorted(row["n"] for row in outs.rows() if row["k"] == "k0") == list(range(1, 121))
    assert sorted(row["at"] for row in hots.rows()) == [r["at"] for r in expected if r["v"] >= 90 and r["v"] != 95]
    assert sorted(row["v"] for row in colds.rows()) == sorted(r["v"] for r in expected if r["v"] < 10)
    in_windows: dict[tuple[str, int], int] = {}
    for each in expected:
        if each["v"] >= 90:
            place = each["k"], each["at"] // 1000 * 1000
            in_windows[place] = in_windows.get(place, 0) + 1
    found = {(row["k"], int(row["window_start"].timestamp() * 1000)): row["n"] for row in windows.rows()}
    assert found == in_windows, "no row is late for its own window: watermarks come behind the side output's rows"


class Changes:
    """Emits a row and a list, and changes both later."""

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        kept = {"k": key, "all": [row["v"]]}
        ctx.emit("lists", kept)
        kept["all"].append(-1)
        ctx.emit("lists", kept)
        kept["k"] = "changed"
        flat = {"v": row["v"]}
        ctx.emit("flat", flat)
        flat["v"] = -1
        emit = ctx.emit
        emit("flat", {"v": 7})
        return {"k": key, "n": 1}


def test_a_row_counts_as_it_was_when_it_was_emitted() -> None:
    side = {"lists": {"k": str, "all": pa.list_(pa.int64())}, "flat": COLD}
    with KeyedHarness(Changes, key="k", rows=ROWS, schema=OUT, side=side) as harness:
        harness.push(*({"k": "a", "v": v, "at": 0} for v in (3, 4)))
        assert harness.side("lists") == [{"k": "a", "all": each} for each in ([3], [3, -1], [4], [4, -1])]
        assert [row["v"] for row in harness.side("flat")] == [3, 7, 4, 7]
        assert harness.side("flat") == []


class Timely:
    """Emits at each row and timer, in order."""

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        ctx.emit("seen", {"at": row["at"], "timer": False})
        ctx.timers.register(row["at"] + 5)
        return {"at": row["at"], "timer": False}

    def on_timer(self, key: str, at_ms: int, ctx: ProcessContext) -> Row:
        ctx.emit("seen", {"at": at_ms, "timer": True})
        return {"at": at_ms, "timer": True}


SEEN = pa.schema([("at", pa.int64()), ("timer", pa.bool_())])


def timely(as_list: bool, reached: list[int] | None) -> tuple[list[Batch], list[Batch]]:
    operator = ProcessOperator("p", ["k"], Timely, output=SEEN, schema=ROWS, side={"seen": SEEN})
    operator.open(World().context("p"))
    main: list[Batch] = []
    side: list[Batch] = []
    emit = Emit(main.append, {"seen": [side.append]})
    rows = pa.RecordBatch.from_pylist([{"k": "a", "v": 0, "at": at} for at in (0, 10, 20)], ROWS)
    few = FewRows.of(rows)
    assert few is not None
    told = None if reached is None else np.array(reached)
    operator.process(Batch(few if as_list else rows, 7, told), emit)
    operator.on_watermark(50, emit)
    operator.close()
    return main, side


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("reached", [None, [-1, 9, 19]])
def test_emitted_rows_have_the_event_time_that_yielded_ones_have(as_list: bool, reached: list[int] | None) -> None:
    """Rows and timers emit and yield the same, so both outputs are the same."""
    main, side = timely(as_list, reached)
    assert [row["at"] for batch in side for row in batch.rows.to_pylist()] == (
        [0, 5, 10, 15, 20, 25] if reached else [0, 10, 20, 5, 15, 25]
    )
    assert side == main
    assert side[0].emit_ns == 7
    assert (side[0].reached is None) == (reached is None)


class Gives:
    """Emits a value of any type."""

    value: Any = None

    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        ctx.emit("hot", type(self).value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"v": "warm"}, r"side output 'hot' of process '.*': column 'v' is int64, but a row has 'warm' \(str\) there"),
        ({"v": 1, "w": 2}, r"side output 'hot' of process '.*': a row has the column 'w', which is not in its schema"),
        ("warm", r"side output 'hot' of process '.*': the function gave a str where a row is expected"),
        (None, r"side output 'hot' of process '.*': the function gave a NoneType where a row is expected"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_step_side_output_column_and_types(value: Any, said: str) -> None:
    Gives.value = value
    with KeyedHarness(Gives, key="k", rows=ROWS, side={"hot": COLD}) as harness:
        with pytest.raises(InvalidJob, match=said) as raised:
            harness.push({"k": "a", "v": 1, "at": 0})
        if isinstance(value, dict):
            assert "emit what side= declares, or correct side=" in str(raised.value)
        Gives.value = {"v": 1}
        harness.push({"k": "a", "v": 1, "at": 0})
        assert harness.side("hot") == [{"v": 1}], "what did not fit is gone"


def test_an_undeclared_side_output_is_refused_with_the_declared_ones() -> None:
    row = {"k": "a", "v": 99, "at": 0}
    with KeyedHarness(Alarm, key="k", rows=ROWS, side={"hto": HOT, "cold": COLD}) as harness:
        with pytest.raises(WrongUse) as raised:
            harness.push(row)
        assert str(raised.value.args[0]).startswith(
            "process 'function': ctx.emit('hot', …), but its side outputs are 'hto', 'cold': did you mean 'hto'? Else "
            "use one of them, or add 'hot' to side=\n  in "
        )
        with pytest.raises(InvalidJob, match="there is no side output 'hot', only 'hto', 'cold'"):
            harness.side("hot")
    said = r"the step has no side outputs: declare them.*side=\{'hot': schema\}"
    with KeyedHarness(Alarm, key="k", rows=ROWS) as harness, pytest.raises(InvalidJob, match=said):
        harness.push(row)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"side": ["hot"]}, r"process: side=\['hot'\]: give a mapping or None"),
        ({"side": {}}, r"process 'p': side=\{\}: give a schema by name"),
        ({"side": {"hot": None}}, r"process 'p': side output 'hot' has no schema"),
        ({"side": {"": HOT}}, "process 'p': side output '' has no name"),
        ({"side": {3: HOT}}, "process 'p': side output 3 has no name"),
        ({"side": {"hot": {}}}, "side output 'hot' of process 'p': the schema has no columns"),
        ({"side": {"hot": {"v": "nonsense"}}}, "side output 'hot' of process 'p': column 'v' has the unknown type"),
        ({"side": {"errors": HOT}, "on_error": "side"}, "the side output 'errors' is that of on_error="),
        ({"on_error": "ignore"}, 'process \'p\': on_error=\'ignore\': use "fail", "skip", "side" or a Retry'),
    ],
)
def test_wrong_declarations_are_refused_when_the_flow_is_written(options: Any, said: str) -> None:
    flow = Dataflow("wrong")
    rows = flow.source("readings", IteratorSource(readings, schema=ROWS))
    with pytest.raises(InvalidJob, match=said):
        rows.key_by("k").process("p", Alarm, **options)


def test_a_side_output_may_be_called_errors_where_errors_are_no_data() -> None:
    rows = Dataflow("fine").source("readings", IteratorSource(readings, schema=ROWS))
    assert len(rows.key_by("k").process("p", Alarm, side={"errors": HOT})) == 2


def test_what_nothing_reads_is_counted_and_explain_says_so() -> None:
    flow = Dataflow("alarms")
    rows = flow.source("readings", IteratorSource(readings, schema=ROWS, splits=1))
    out, hot, _ = rows.key_by("k").process("alarm", Alarm, schema=OUT, side={"hot": HOT, "cold": COLD})
    out.sink("outs", CollectSink())
    hot.sink("hots", CollectSink())
    text = flow.explain(parallelism=1)
    assert "      side output hot: to chain 2\n" in text
    assert "      side output cold: nothing reads it: its rows are counted (unread_side_rows) and dropped\n" in text
    assert "← chain 1, hot of alarm, forward, same slot: k string, v int64, at int64" in text
    (slot,) = flow.run_local(parallelism=1).status.slots
    assert slot.metrics["alarm.unread_side_rows"] == 60


def test_watermarks_made_behind_a_step_are_not_those_of_its_side_output() -> None:
    """`at` of the main output is one hour ahead: under these watermarks all side rows would be late."""

    def ahead(key: str, row: Row, ctx: ProcessContext) -> Row:
        ctx.emit("hot", {"k": key, "v": row["v"], "at": row["at"]})
        return {"k": key, "at": row["at"] + 3_600_000}

    flow = Dataflow("hours")
    rows = flow.source("readings", IteratorSource(readings, schema=ROWS, splits=1), event_time="at")
    out, hot = rows.key_by("k").process("ahead", ahead, schema={"k": str, "at": int}, side={"hot": HOT})
    counts = CollectSink()
    out.with_watermarks("at").sink("out", CollectSink())
    hot.key_by("k").window("w", Tumbling(_SECOND), event_time="at").aggregate(n=count()).sink("counts", counts)
    graph = compile_plan(flow.plan, 1)
    assert [chain.name for chain in graph.chains][1:3] == ["ahead", "with_watermarks-1 → out"]
    status = flow.run_local(parallelism=1).status
    assert sum(row["n"] for row in counts.rows()) == 600
    assert "w.late_rows" not in status.slots[0].metrics


def test_a_failure_names_the_row_and_ends_the_job_with_nothing_emitted() -> None:
    def bad(key: str, row: Row, ctx: ProcessContext) -> None:
        ctx.emit("hot", {"v": row["v"]})
        if row["v"] == 7:
            ctx.emit("hott", {"v": 1})

    flow = Dataflow("bad")
    hots = CollectSink()
    rows = flow.source("readings", IteratorSource(readings, schema=ROWS, splits=1))
    _, hot = rows.key_by("k").process("p", bad, schema=OUT, side={"hot": COLD})
    hot.sink("hots", hots)
    with pytest.raises(
        JobFailed, match=r"(?s)ctx\.emit\('hott', …\), but its side outputs are 'hot'.*record: .*'v': 7"
    ):
        flow.run_local(parallelism=1)
    assert hots.rows() == []


def test_side_outputs_go_on_after_a_restore_at_another_parallelism() -> None:
    options: dict[str, Any] = {"key": "k", "schema": OUT, "side": {"hot": HOT, "cold": COLD}}
    with KeyedHarness(Alarm, rows=ROWS, **options) as harness:
        harness.push(*readings(of=7))
        before = harness.side("hot")
        snapshot = harness.snapshot()
    with KeyedHarness(Alarm, restore=snapshot, parallelism=3, **options) as harness:
        assert harness.push({"k": "k0", "v": 95, "at": 1}) == [{"k": "k0", "n": 19}]
        assert harness.side("hot") == [{"k": "k0", "v": 95, "at": 1}], "nothing of before the snapshot again"
    assert before
