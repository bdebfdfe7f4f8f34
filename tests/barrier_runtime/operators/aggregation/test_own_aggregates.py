"""Users' own aggregates, by rows and by columns: every step accepts them like the built-in ones; incomplete ones are
refused.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World

from barrier_runtime import CollectSink, ColumnAggregate, Dataflow, RowAggregate, Session, Tumbling, count
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from tests.barrier_runtime.operators.aggregation.everywhere import MS, Row, check, operator_of
from tests.drawn import examples

STEPS = ["running", "tumbling", "sliding", "session"]
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64()), ("w", pa.float64()), ("s", pa.string())])


class Longest(RowAggregate):
    """The longest texts, all of them, with their number: state is a list, which is changed in place."""

    type = pa.list_(pa.string())
    state = list[str]

    def zero(self) -> list[str]:
        return []

    def add(self, state: list[str], text: str | None) -> list[str]:  # type: ignore[override]
        if text is not None and (not state or len(text) >= len(state[0])):
            if state and len(text) > len(state[0]):
                state.clear()
            state.append(text)
        return state

    def merge(self, state: list[str], later: list[str]) -> list[str]:  # type: ignore[override]
        for text in later:
            state = self.add(state, text)
        return state

    def result(self, state: list[str]) -> list[str]:  # type: ignore[override]
        return state


class Weighted(ColumnAggregate):
    """Mean of v with weight w over rows that have both; null without weight."""

    type = pa.float64()
    state = {"total": "float64", "weight": "float64", "most": ("int64", -(2**63))}

    def add(self, state: Any, groups: Any, v: Any, w: Any) -> None:  # type: ignore[override]
        np.add.at(state["total"], groups, v * w)
        np.add.at(state["weight"], groups, w)
        np.maximum.at(state["most"], groups, v)

    def merge(self, state: Any, later: Any) -> None:  # type: ignore[override]
        state["total"] += later["total"]
        state["weight"] += later["weight"]
        np.maximum(state["most"], later["most"], out=state["most"])

    def result(self, state: Any) -> Any:  # type: ignore[override]
        mean = state["total"] / np.where(state["weight"] == 0, 1, state["weight"]) + 0.0
        return pa.array(np.minimum(mean, state["most"]), mask=state["weight"] == 0)


AGGREGATES: dict[str, Any] = {"n": count(), "longest": Longest("s"), "mean": Weighted("v", "w")}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "t": st.integers(0, 250),
            "v": st.none() | st.integers(-9, 9),
            "w": st.none() | st.sampled_from([0.5, 1.0, 2.0]),
            "s": st.none() | st.text(max_size=3),
        }
    ),
    max_size=40,
)


def expected(rows: list[Row]) -> Row:
    texts = [row["s"] for row in rows if row["s"] is not None]
    most = max(map(len, texts), default=0)
    both = [(row["v"], row["w"]) for row in rows if row["v"] is not None and row["w"] is not None]
    weight = sum(w for _, w in both)
    return {
        "n": len(rows),
        "longest": [text for text in texts if len(text) == most],
        "mean": min(sum(v * w for v, w in both) / weight + 0.0, max(v for v, _ in both)) if both else None,
    }


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@examples(60)
@given(rows=ROWS, seed=st.integers(0, 2**32))
def test_own_aggregates_equal_plain_python_in_every_step_over_cuts_and_restores(
    step: str, rows: list[Row], seed: int
) -> None:
    check(step, AGGREGATES, SCHEMA, rows, expected, seed)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_many_rows_of_few_and_of_many_keys_go_on_from_rocksdb(step: str) -> None:
    rng = np.random.default_rng(4)
    rows = [
        {
            "k": rng.choice(["a", f"k{rng.integers(0, 400)}"]).item(),
            "t": int(rng.integers(0, 250)),
            "v": int(rng.integers(-9, 9)),
            "w": [0.5, 1.0, None][rng.integers(0, 3)],
            "s": "x" * int(rng.integers(0, 30)),
        }
        for _ in range(1_200)
    ]
    check(step, AGGREGATES, SCHEMA, rows, expected, 1, "rocksdb")


def test_a_whole_job_runs_with_own_aggregates_and_shows_them() -> None:
    rows = [{"k": "a", "t": n, "v": n, "w": 1.0, "s": "x" * n} for n in range(4)]
    flow, out = Dataflow("own"), CollectSink()
    read = flow.from_iterator("rows", lambda i, of: rows[i::of], schema=SCHEMA, event_time="t")
    windows = read.key_by("k").window("w", Session(10 * MS), event_time="t").aggregate(**AGGREGATES)
    windows.sink("out", out)
    flow.run_local(parallelism=1)
    (row,) = out.rows()
    assert (row["n"], row["longest"], row["mean"]) == (4, ["xxx"], 1.5)
    assert "longest=Longest(s), mean=Weighted(v, w)" in str(flow.explain())


class Pairs(RowAggregate):
    """Pairs of a value and the number of earlier values; the state is a list of lists, all changed in place."""

    type = pa.list_(pa.list_(pa.int64()))
    state = list[list[int]]

    def zero(self) -> list[list[int]]:
        return []

    def add(self, state: list[list[int]], value: int) -> list[list[int]]:  # type: ignore[override]
        for pair in state:
            pair[0] += 1
        state.append([0, value])
        return state

    def result(self, state: list[list[int]]) -> list[list[int]]:  # type: ignore[override]
        return state


def test_each_row_of_a_running_aggregate_has_the_result_as_it_was_then() -> None:
    flow, out = Dataflow("own"), CollectSink()
    rows = [{"k": "a", "t": n, "v": n, "w": 1.0, "s": ""} for n in range(3)]
    read = flow.from_iterator("rows", lambda i, of: rows[i::of], schema=SCHEMA)
    read.key_by("k").aggregate("pairs", pairs=Pairs("v")).sink("out", out)
    flow.run_local(parallelism=1)
    assert [row["pairs"] for row in out.rows()] == [[[0, 0]], [[1, 0], [0, 1]], [[2, 0], [1, 1], [0, 2]]]


class NoMerge(RowAggregate):
    type, state = pa.int64(), int

    def zero(self) -> int:
        return 0

    def add(self, state: int, value: Any) -> int:  # type: ignore[override]
        return state + value  # type: ignore[no-any-return]

    def result(self, state: int) -> Any:  # type: ignore[override]
        return state


class NoMergeOfColumns(ColumnAggregate):
    type = pa.int64()
    state = {"n": "int64"}

    def add(self, state: Any, groups: Any, *values: Any) -> None:
        np.add.at(state["n"], groups, 1)

    def result(self, state: Any) -> Any:  # type: ignore[override]
        return state["n"]


@pytest.mark.parametrize("aggregate", [NoMerge("v"), NoMergeOfColumns("v")], ids=str)
def test_sessions_refuse_an_unmergeable_aggregate_by_name_and_other_windows_accept(aggregate: Any) -> None:
    keyed = Dataflow("f").from_iterator("s", lambda i, n: iter(()), schema=SCHEMA, event_time="t").key_by("k")
    name = type(aggregate).__name__
    with pytest.raises(InvalidJob, match=rf"window 's'.*total={name}\(v\) has no merge\(\): write {name}.merge"):
        keyed.window("s", Session(10 * MS), event_time="t").aggregate(total=aggregate)
    keyed.window("w", Tumbling(10 * MS), event_time="t").aggregate(total=aggregate)
    driven = Driven(operator_of("session", {"total": aggregate}))
    driven.feed(pa.record_batch({"k": ["a", "a"], "t": [0, 18], "v": [1, 1]}))
    with pytest.raises(InvalidJob, match=r"has no merge\(\)"):
        driven.feed(pa.record_batch({"k": ["a"], "t": [9], "v": [1]}))


@pytest.mark.parametrize("step", ["running", "tumbling"])
def test_what_a_function_raises_names_it_the_step_and_the_output_with_its_traceback(step: str) -> None:
    driven = Driven(operator_of(step, {"total": NoMerge("v")}))
    where = "running aggregate 'a'" if step == "running" else "window 'a'"
    with pytest.raises(UserCodeError, match=rf"NoMerge.add\(\) of {where}, output 'total', raised TypeError") as raised:
        driven.feed(pa.record_batch({"k": [1, 1], "t": [0, 0], "v": pa.array([1, None])}))
    assert "return state + value" in raised.value.user_traceback


class Wrong(NoMergeOfColumns):
    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__("v")

    def add(self, state: Any, groups: Any, *values: Any) -> None:
        if self.how == "replaced":
            state["n"] = state["n"] + 0.5
        elif self.how == "another":
            state["m"] = state["n"]

    def result(self, state: Any) -> Any:
        return {"short": state["n"][:0], "text": ["x"] * len(state["n"])}.get(self.how, state["n"])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("replaced", r"Wrong.add\(\) left other columns in its state"),
        ("another", r"Wrong.add\(\) left other columns in its state"),
        ("short", r"Wrong.result\(\) returned 0 values for 2 keys"),
        ("text", r"Wrong.result\(\) returned what is no int64, the type of output 'x'"),
    ],
)
def test_columns_that_are_not_as_declared_are_refused(how: str, message: str) -> None:
    driven = Driven(operator_of("running", {"x": Wrong(how)}))
    with pytest.raises(InvalidJob, match=message):
        driven.feed(pa.record_batch({"k": [1, 2], "v": [3, 4]}))


def test_aggregates_that_do_not_say_what_they_keep_or_give_are_refused() -> None:
    def made(base: Any, **attributes: Any) -> Any:
        functions = dict.fromkeys(("zero", "add", "result"), lambda *given: None)
        return type("Mine", (base,), functions | attributes)

    with pytest.raises(InvalidJob, match=r"Mine\(\): name the columns it is computed of, as in Mine\('price'\)"):
        made(RowAggregate, type=pa.int64(), state=int)()
    with pytest.raises(InvalidJob, match="Mine does not say what its results are: declare type"):
        made(RowAggregate, state=int)("v")
    with pytest.raises(InvalidJob, match="Mine does not say what its state is: declare state"):
        made(RowAggregate, type=pa.int64())("v")
    with pytest.raises(InvalidJob, match="msgspec cannot write"):
        made(RowAggregate, type=pa.int64(), state=np.ndarray)("v")
    with pytest.raises(InvalidJob, match="Mine does not say what its state is: declare state"):
        made(ColumnAggregate, type=pa.int64())("v")
    for state in ({"n": "object"}, {"n": "nothing"}, {"n": ("int64", math.inf)}, {"n": "datetime64[s]"}):
        with pytest.raises(InvalidJob, match=r"Mine.state\['n'\] = .* is not a numpy dtype of a number: use 'int64'"):
            made(ColumnAggregate, type=pa.int64(), state=state)("v")


def test_times_and_text_come_to_columns_as_numpy_has_them() -> None:
    seen = []

    class Seen(NoMergeOfColumns):
        def add(self, state: Any, groups: Any, *values: Any) -> None:
            seen.extend(values)

    driven = Driven(operator_of("tumbling", {"x": Seen("at", "s", "b")}))
    at = pa.array([5, None, 7], pa.timestamp("ms", "UTC"))
    driven.feed(pa.record_batch({"k": [1, 1, 1], "t": [0, 0, 0], "at": at, "s": ["x", "y", "z"], "b": [True] * 3}))
    assert [column.dtype.kind for column in seen] == ["M", "O", "b"]
    assert [column.tolist() for column in seen[1:]] == [["x", "z"], [True, True]]


def test_the_state_of_an_own_aggregate_is_not_taken_for_that_of_another_output() -> None:
    world = World()
    driven = Driven(RunningAggregateOperator("r", ["k"], {"a": NoMerge("v")}), world, name="r")
    driven.feed([{"k": 1, "v": 5}])
    (before,) = driven.take()
    snapshot = driven.snapshot(1)
    driven = Driven(RunningAggregateOperator("r", ["k"], {"b": NoMerge("v")}), world, (snapshot,), name="r")
    driven.feed([{"k": 1, "v": 5}])
    assert driven.take() == [{"k": 1, "v": 5, "b": before["a"]}]
