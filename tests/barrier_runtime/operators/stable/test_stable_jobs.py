"""Whole jobs with `stable`: random numbers before an idempotent sink, failures, the end, a drain, and refusals."""

import datetime
import functools
import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import (
    ClickHouseSink,
    CollectSink,
    Dataflow,
    InvalidJob,
    JobFailed,
    RedisUpsertSink,
    Stream,
    Tumbling,
    UpsertSink,
    count,
)
from barrier_runtime.state.errors import Unavailable

ROWS = 400
_LOCK = threading.Lock()
WRITTEN: dict[str, dict[int, list[float]]] = {}  # test -> key -> values in order


class Table(UpsertSink):
    """A target that remembers each write."""

    def __init__(self, name: str, *, after_decision: bool = False) -> None:
        super().__init__(deterministic=not after_decision, after_decision=after_decision)
        self.name = name

    def upsert(self, rows: pa.RecordBatch) -> None:
        with _LOCK:
            for row in rows.to_pylist():
                WRITTEN[self.name][row["v"]].append(row["drawn"])


class Drawing:
    """Adds a random number to each row; fails once at each of some numbers of calls."""

    def __init__(self, failing: tuple[int, ...]) -> None:
        self.failing = set(failing)
        self.calls: dict[int, list[float]] = defaultdict(list)
        self._numbers = itertools.count(1)

    def __deepcopy__(self, memo: Any) -> "Drawing":
        return self

    def __call__(self, row: dict[str, int]) -> dict[str, float]:
        with _LOCK:
            number, drawn = next(self._numbers), random.random()
            self.calls[row["v"]].append(drawn)
        if number in self.failing:
            raise Unavailable("the service of random numbers is away: it is tried again")
        return {**row, "drawn": drawn}


def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
    return ({"v": v} for v in range(index, ROWS, of))


@pytest.mark.slow
@pytest.mark.parametrize("after_decision", [False, True], ids=["stable", "after_decision"])
def test_random_rows_are_written_again_identically_after_failures(after_decision: bool) -> None:
    drawing = Drawing((100, 250, 450))
    WRITTEN["random"] = defaultdict(list)
    flow = Dataflow("random")
    drawn = (
        flow.rate("numbers", 1_000, ROWS, splits=2)
        .select(["value"])
        .rename(value="v")
        .map(drawing, schema={"v": int, "drawn": float})
    )
    rows = drawn if after_decision else drawn.stable()
    rows.sink("table", Table("random", after_decision=after_decision))
    flow.run_local(parallelism=2, checkpoint_interval=0.05)
    written = WRITTEN["random"]
    assert set(written) == set(range(ROWS))
    assert [v for v, values in written.items() if len(set(values)) > 1] == []
    assert any(len(set(drawing.calls[v])) > 1 for v in drawing.calls), "a replay drew other numbers"


@pytest.mark.slow
def test_the_end_of_the_input_waits_for_no_interval() -> None:
    """The coordinator requests the checkpoints that two such steps and the sink need; the interval never passes."""
    flow = Dataflow("ends")
    sink = CollectSink()
    rows = flow.from_iterator("numbers", numbers, schema={"v": int}).stable("first")
    kept = rows.key_by("v").process("pass", lambda key, row, ctx: [row], schema={"v": int})
    kept.stable("second").sink("out", sink)
    flow.run_local(parallelism=2, checkpoint_interval=datetime.timedelta(hours=1))
    assert sorted(row["v"] for row in sink.rows()) == list(range(ROWS))


@pytest.mark.slow
def test_windows_behind_stored_rows_are_complete() -> None:
    flow = Dataflow("windows")
    sink = CollectSink()
    rows = flow.from_iterator("numbers", numbers, schema={"v": int}, event_time="v").stable()
    keyed = rows.key_by(k="v % 3")
    windows = keyed.window("counted", Tumbling(datetime.timedelta(milliseconds=50)), event_time="v")
    windows.aggregate(n=count()).sink("out", sink)
    flow.run_local(parallelism=2, checkpoint_interval=0.02)
    assert sum(row["n"] for row in sink.rows()) == ROWS
    assert len(sink.rows()) == 3 * ROWS // 50


@pytest.mark.slow
def test_a_drained_job_writes_all_rows() -> None:
    WRITTEN["drained"] = defaultdict(list)
    drawing = Drawing(())
    flow = Dataflow("drained")
    endless = (
        flow.rate("numbers", 500).select(["value"]).rename(value="v").map(drawing, schema={"v": int, "drawn": float})
    )
    endless.stable().sink("table", Table("drained"))
    handle = flow.start_local(parallelism=2, checkpoint_interval=0.05)
    wrote = threading.Event()
    while not wrote.wait(0.01):
        if WRITTEN["drained"]:
            wrote.set()
    handle.stop(drain=True)
    written = WRITTEN["drained"]
    assert set(written) == set(drawing.calls)
    assert [v for v, values in written.items() if len(set(values)) > 1] == []


def test_a_lookup_is_accepted_before_a_deterministic_sink_with_stored_rows() -> None:
    def flow(stored: bool) -> Dataflow:
        made = Dataflow("looked-up")
        found = looked_up(made)
        (found.stable() if stored else found).sink("table", Table("refused"))
        return made

    with pytest.raises(InvalidJob, match=r"give the sink after_decision=True instead, or call stable\(\)"):
        flow(stored=False)
    assert "rows are visible after the decision of their checkpoint" in flow(stored=True).explain()


def test_explain_proposes_stored_rows_for_upserts_at_least_once() -> None:
    class AtLeastOnce(Table):
        def __init__(self) -> None:
            super().__init__("proposed")
            self.guarantee = "at_least_once"

    flow = Dataflow("proposed")
    drawn = flow.from_iterator("numbers", numbers, schema={"v": int}).with_columns(drawn="cast(v as double)")
    drawn.sink("table", AtLeastOnce())
    said = flow.explain()
    assert "exactly once with after_decision=True, or with stable() before the sink and deterministic=True" in said


def looked_up(flow: Dataflow) -> Stream:
    return flow.from_iterator("numbers", numbers, schema={"v": int}).lookup(
        "asked", lambda keys: [{"drawn": 1.0} for _ in keys], key="v", schema={"drawn": float}
    )


def test_after_decision_stores_the_rows_in_a_step_before_the_sink() -> None:
    flow = Dataflow("stored")
    looked_up(flow).key_by("v").sink("table", Table("stored", after_decision=True))
    said = flow.explain()
    assert "hash (v), by key" in said, "the step gets the rows of each key in one subtask"
    assert "table-stable [stable, state] rows are released after the decision of their checkpoint" in said
    assert "sink table: exactly-once, rows are visible after the decision of their checkpoint" in said


@pytest.mark.parametrize(
    "make",
    [
        UpsertSink,
        functools.partial(RedisUpsertSink, "redis://host", key="v"),
        functools.partial(ClickHouseSink, "clickhouse://host", "t", key="v"),
    ],
)
def test_upserts_are_exactly_once_by_one_of_two_arguments(make: Callable[..., UpsertSink]) -> None:
    assert make().guarantee == "at_least_once"
    assert make(after_decision=True).guarantee == "exactly_once"
    with pytest.raises(InvalidJob, match="deterministic=True and after_decision=True: leave out one"):
        make(deterministic=True, after_decision=True)


class Factory:
    """Makes sinks; the flow sees only the attributes of the factory."""

    guarantee = "exactly_once"

    def __call__(self) -> Table:
        return Table("made", after_decision=True)


def test_a_factory_that_hides_after_decision_is_refused() -> None:
    def run(factory: Factory) -> None:
        WRITTEN["made"] = defaultdict(list)
        flow = Dataflow("made")
        looked_up(flow).sink("table", factory)
        flow.run_local(parallelism=1, checkpoint_interval=0.05)

    with pytest.raises(JobFailed, match="set after_decision = True on the factory"):
        run(Factory())
    saying = Factory()
    saying.after_decision = True  # type: ignore[attr-defined]
    run(saying)
    assert set(WRITTEN["made"]) == set(range(ROWS))
