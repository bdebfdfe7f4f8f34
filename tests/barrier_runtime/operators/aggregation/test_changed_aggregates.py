"""Aggregates added or removed between a checkpoint and the restored program.

An added aggregate begins at zero in every key and open window, the others continue, and an aggregate that was removed
and added again begins anew.
"""

import datetime
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from everywhere import MS, Row, Slots, model
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World, held_in_memory

from barrier_runtime import (
    CollectSink,
    ColumnAggregate,
    Dataflow,
    InvalidJob,
    RowAggregate,
    arg_max,
    collect_list,
    count,
    count_distinct,
    first,
    last,
    max_,
    mean,
    min_,
    sum_,
    variance,
)
from barrier_runtime.api.dataflow import preview_of_restore
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from tests.drawn import examples

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.int64()), ("y", pa.float64()), ("s", pa.string())])
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Joined(RowAggregate):
    """Concatenates the texts."""

    type, state = pa.string(), str

    def zero(self) -> str:
        return ""

    def add(self, state: str, text: str | None) -> str:  # type: ignore[override]
        return state + (text or "-")

    def merge(self, state: str, later: str) -> str:
        return state + later

    def result(self, state: str) -> str:
        return state


class Spread(ColumnAggregate):
    type = pa.float64()
    state = {"low": ("float64", np.inf), "high": ("float64", -np.inf)}

    def add(self, state: Any, groups: Any, values: Any) -> None:  # type: ignore[override]
        np.minimum.at(state["low"], groups, values)
        np.maximum.at(state["high"], groups, values)

    def merge(self, state: Any, later: Any) -> None:
        np.minimum(state["low"], later["low"], out=state["low"])
        np.maximum(state["high"], later["high"], out=state["high"])

    def result(self, state: Any) -> Any:
        return state["high"] - state["low"]


def known(rows: list[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


# result -> (aggregate, reference function); no two aggregates share state
EVERY: dict[str, tuple[Any, Any]] = {
    "total": (sum_("x"), lambda rows: sum(known(rows, "x")) if known(rows, "x") else None),
    "low": (min_("x"), lambda rows: min(known(rows, "x"), default=None)),
    "high": (max_("x"), lambda rows: max(known(rows, "x"), default=None)),
    "low_y": (min_("y"), lambda rows: min(known(rows, "y"), default=None)),
    "mean_y": (mean("y"), lambda rows: sum(known(rows, "y")) / len(known(rows, "y")) if known(rows, "y") else None),
    "text": (max_("s"), lambda rows: max(known(rows, "s"), default=None)),
    "last": (last("s"), lambda rows: rows[-1]["s"] if rows else None),
    "best": (
        arg_max("s", by="x"),
        lambda rows: next(
            (row["s"] for row in rows if row["x"] is not None and row["x"] == max(known(rows, "x"))), None
        ),
    ),
    "texts": (collect_list("s", limit=100), lambda rows: known(rows, "s")),
    "different": (count_distinct("x"), lambda rows: len(set(known(rows, "x")))),
    "joined": (Joined("s"), lambda rows: "".join(row["s"] or "-" for row in rows)),
    "spread": (
        Spread("y"),
        lambda rows: max(known(rows, "y"), default=-np.inf) - min(known(rows, "y"), default=np.inf),
    ),
}
ALWAYS = {"first_x": first("x"), "first_y": first("y"), "first_s": first("s")}  # so that all columns are in use
ROWS = 20_000  # of whole jobs
STEPS = ["running", "tumbling", "sliding", "session"]


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([row[f.name] for row in rows], f.type) for f in SCHEMA], schema=SCHEMA)


def chosen(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(list(EVERY), rng.randint(1, 5))
    return {name: EVERY[name][0] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "kind"), [*zip(STEPS, ["rocksdb", "memory", "memory", "rocksdb"], strict=True)])
@given(seed=st.integers(0, 2**32))
@examples(20)
def test_an_aggregate_counts_what_came_since_it_was_there_over_any_number_of_changes(
    step: str, kind: Kind, seed: int
) -> None:
    rng = random.Random(seed)
    with held_in_memory(rng.choice([None, None, 2])):
        _counted_over_changes(step, kind, rng)


def _counted_over_changes(step: str, kind: Kind, rng: random.Random) -> None:
    declared = rng.random() < 0.7
    always = {} if declared else ALWAYS
    aggregates = {**chosen(rng), **always}
    slots = Slots(step, aggregates, kind, SCHEMA if declared else None)
    rows: list[Row] = []
    got: list[tuple[Row, dict[str, int]]] = []
    since = dict.fromkeys(aggregates, 0)  # result -> number of the first row that it counts
    for _ in range(rng.randint(2, 6)):
        if rng.random() < 0.9:
            fed = [
                {
                    "k": rng.randint(0, 3),
                    "t": rng.randint(0, 150),
                    "x": rng.choice([None, 1, 2, -3, 7]),
                    "y": rng.choice([None, 0.5, 2.0, 4.0]),
                    "s": rng.choice([None, "", "a", "bc"]),
                }
                for _ in range(rng.choice([1, 3, 20]))
            ]
            slots.feed(batch(fed), as_list=rng.random() < 0.5)
            rows += [{**row, "n": len(rows) + at} for at, row in enumerate(fed)]
            got += [(row, dict(since)) for row in slots.take()]
        if rng.random() < 0.8:
            slots.aggregates = {**chosen(rng), **always}
            since = {name: since.get(name, len(rows)) for name in slots.aggregates}
        slots.rescale(rng.choice([1, 1, 2, 3]), entries=rng.random() < 0.5)
    got += [(row, dict(since)) for row in slots.finish()]
    slots.close()

    if step == "running":
        expected = model(step, rows, lambda held: list(held))
        assert len(got) == len(expected)
        for held, (row, begins) in _matched(expected, got):
            _check(row, begins, held)
    else:
        final = {(k, start): held for k, start, held in model(step, rows, lambda held: list(held))}
        assert len(got) == len(final)
        for row, begins in got:
            start = (row["window_start"] - EPOCH) // MS
            _check(row, begins, final[row["k"], start])


def _matched(expected: list[Any], got: list[Any]) -> Any:
    """Pairs expected and actual rows; rows of a key leave in arrival order."""
    of_key: dict[int, list[Any]] = {}
    for _, _, held in expected:
        of_key.setdefault(held[-1]["k"], []).append(held)
    at = dict.fromkeys(of_key, 0)
    for row, begins in got:
        yield of_key[row["k"]][at[row["k"]]], (row, begins)
        at[row["k"]] += 1


def _check(row: Row, begins: Mapping[str, int], held: list[Row]) -> None:
    for name, begin in begins.items():
        if name in EVERY:
            counted = [each for each in held if each["n"] >= begin]
            assert row[name] == EVERY[name][1](counted), (name, begin, held)


def restarted(
    aggregates: list[dict[str, Any]], rows: list[list[Row]], kind: Kind = "memory", entries: bool = False
) -> list[list[Row]]:
    """Returns the results of each version of a running step for that version's rows."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    world, snapshots, given = World(kind), (), []
    for checkpoint, (version, part) in enumerate(zip(aggregates, rows, strict=True), 1):
        driven = Driven(RunningAggregateOperator("r", ["k"], version, schema), world, snapshots, name="r")
        driven.feed(part, schema)
        given.append([{name: row[name] for name in version} for row in driven.take()])
        if entries and driven.operator._table._in_segments:  # type: ignore[attr-defined]
            driven.operator._table._leave_segments()  # type: ignore[attr-defined]
        snapshots = (driven.snapshot(checkpoint),)  # type: ignore[assignment]
        driven.operator.close()
    return given


@pytest.mark.parametrize("entries", [False, True])
def test_aggregate_that_shares_all_its_state_with_an_older_aggregate_continues(entries: bool) -> None:
    given = restarted(
        [{"total": sum_("x")}, {"total": sum_("x"), "mean": mean("x"), "n": count(), "values": count("x")}],
        [[{"k": 1, "x": 4}, {"k": 1, "x": None}], [{"k": 1, "x": 8}]],
        entries=entries,
    )
    assert given[1] == [{"total": 12, "mean": 6.0, "n": 3, "values": 2}]


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("added", [min_("x"), max_("x"), sum_("x"), mean("x")])
def test_new_aggregate_is_null_until_its_first_value_though_its_column_was_counted(added: Any, entries: bool) -> None:
    given = restarted(
        [{"n": count("x")}, {"n": count("x"), "new": added}, {"n": count("x"), "new": added, "low": min_("x")}],
        [[{"k": 1, "x": 5}], [{"k": 1, "x": None}, {"k": 1, "x": 3}], [{"k": 1, "x": None}]],
        entries=entries,
    )
    assert given[1] == [{"n": 1, "new": None}, {"n": 2, "new": 3}]
    assert [(row["n"], row["new"]) for row in given[2]] == [(2, 3)]


@pytest.mark.parametrize("entries", [False, True])
def test_a_sum_that_had_left_64_bits_is_not_given_as_one_that_has_not(entries: bool) -> None:
    """The removed mean counted the overflows of the sum."""
    most = 2**63 - 1
    with pytest.raises(InvalidJob, match=r"sum_\('x'\) of key 1 leaves 64 bits: use sum_\('x', widen=True\)"):
        restarted(
            [{"mean": mean("x")}, {"total": sum_("x")}],
            [[{"k": 1, "x": most}, {"k": 1, "x": most}], [{"k": 1, "x": 1}]],
            entries=entries,
        )


def test_state_that_no_key_has_any_more_does_not_come_back_with_an_aggregate() -> None:
    """When all windows are over, the table has no rows; the next checkpoint records the empty table."""
    low, total = {"low": min_("x")}, {"total": sum_("x")}
    slots = Slots("tumbling", {**low, **total}, schema=SCHEMA)
    base = {"x": 5, "y": None, "s": None}
    slots.feed(batch([{"k": 1, "t": 10, **base}]))
    slots.rescale(1)
    slots.subtasks[0].watermark(200)
    assert [row["low"] for row in slots.take()] == [5]
    slots.rescale(1)
    slots.aggregates = total
    slots.rescale(1)
    slots.rescale(1)
    slots.feed(batch([{"k": 1, "t": 210, **base}]))
    slots.aggregates = {**low, **total}
    slots.rescale(1)
    (row,) = slots.finish()
    assert (row["low"], row["total"]) == (None, 5)
    slots.close()


@pytest.mark.parametrize("entries", [False, True])
def test_what_was_dropped_does_not_come_back_with_its_aggregate(entries: bool) -> None:
    """Also if only one of many keys changed in between."""
    low, total = {"low": min_("x")}, {"total": sum_("x")}
    every, one, another = [{"k": k, "x": 1} for k in range(9)], [{"k": 0, "x": 2}], [{"k": 5, "x": 7}]
    given = restarted([low | total, total, low | total], [every, one, another], entries=entries)
    assert given[1:] == [[{"total": 3}], [{"low": 7, "total": 8}]]


def test_types_of_columns_that_came_must_be_known_before_there_are_rows() -> None:
    world = World()
    driven = Driven(RunningAggregateOperator("r", ["k"], {"n": count()}), world, name="r")
    driven.feed([{"k": 1, "x": 2}])
    snapshot = driven.snapshot(1)
    both = RunningAggregateOperator("r", ["k"], {"n": count(), "s": sum_("x")})
    with pytest.raises(
        InvalidJob, match=r"running aggregate 'r': it goes on with state .* \(k: int64\) and now uses 'x' .*schema="
    ):
        Driven(both, world, (snapshot,), name="r")


class Kept(RowAggregate):
    """Adds whole numbers, in a state whose type a test chooses."""

    type, state = pa.int64(), int

    def zero(self) -> Any:
        return 0

    def add(self, state: Any, value: int | None) -> Any:  # type: ignore[override]
        return state + (value or 0)

    def result(self, state: Any) -> int:
        return int(state)


def with_state(kind: Any) -> Any:
    return type("Kept", (Kept,), {"state": kind})("value")


def with_columns(columns: Mapping[str, Any]) -> Any:
    return type("Spread", (Spread,), {"state": dict(columns)})("value")


def flow_of(aggregates: Mapping[str, Any], sink: CollectSink, function: Any = dict, per_second: int = 400) -> Dataflow:
    flow = Dataflow("counted")
    rows = flow.rate("numbers", per_second, ROWS, splits=1).map(function, schema={"k": int, "value": int})
    rows.key_by("k").aggregate("stats", **aggregates).sink("out", sink)
    return flow


def run(folder: Path, aggregates: Mapping[str, Any], fails: bool = False, **options: Any) -> list[Row]:
    """Runs a whole job over the numbers 0 … ROWS - 1. `fails`: the job is slow and fails after some checkpoints."""
    log = folder / "counted" / "log"

    def at(row: dict[str, int]) -> dict[str, Any]:
        if fails and row["value"] % 20 == 0 and len(list(log.iterdir())) > 3:
            raise ValueError("enough")
        return {"k": row["value"] % 2, "value": row["value"]}

    sink = CollectSink()
    flow = flow_of(aggregates, sink, at, 400 if fails else 1_000_000)
    if fails:
        with pytest.raises(JobFailed, match="enough"):
            flow.run_local(checkpoints=str(folder), checkpoint_interval=0.05, restart="none", **options)
    else:
        flow.run_local(checkpoints=str(folder), checkpoint_interval=0.05, restart="none", **options)
    return sink.rows()


@pytest.mark.parametrize("entries", [False, True])
def test_an_int_that_a_float_rounds_is_refused_as_state_of_an_own_aggregate(entries: bool) -> None:
    own = [{"own": type("Kept", (Kept,), {"state": kind})("x")} for kind in (int, float)]
    assert restarted(own, [[{"k": 1, "x": 1 << 53}], [{"k": 1, "x": 2}]], entries=entries)[1] == [
        {"own": (1 << 53) + 2}
    ]
    with pytest.raises(InvalidJob, match="a float does not hold all digits of 9007199254740993"):
        restarted(own, [[{"k": 1, "x": (1 << 53) + 1}], [{"k": 1, "x": 1}]], entries=entries)


def test_the_state_of_an_own_aggregate_has_its_type_after_each_batch() -> None:
    half = type("Half", (Kept,), {"add": lambda self, state, value: state + 0.5})("x")
    with pytest.raises(InvalidJob, match=r"'Half' is declared int, but 0.5 \(float\) is stored"):
        restarted([{"own": half}], [[{"k": 1, "x": 1}]])


@pytest.mark.slow
def test_a_higher_limit_of_distinct_values_continues_a_job(tmp_path: Path) -> None:
    run(tmp_path, {"n": count_distinct("value", limit=50_000)}, fails=True)
    higher = {"n": count_distinct("value", limit=60_000)}
    page, starts = preview_of_restore(flow_of(higher, CollectSink()), {"checkpoints": str(tmp_path)}, local=True)
    assert starts
    assert "aggregate count_distinct(value): matched\n" in page
    rows = run(tmp_path, higher)
    assert max(row["n"] for row in rows) == ROWS // 2


@pytest.mark.slow
def test_what_does_not_fit_the_checkpoint_is_refused_before_the_run_is_begun(tmp_path: Path) -> None:
    """R5: a removed aggregate, and changed state types of users' own aggregates."""
    stats = {"n": count(), "own": with_state(int), "spread": Spread("value")}
    run(tmp_path, stats, fails=True)
    log = tmp_path / "counted" / "log"
    records = sorted(path.name for path in log.iterdir())
    low_only = {"low": ("float64", np.inf)}
    for changed, told in (
        ({"own": stats["own"], "spread": stats["spread"]}, r"'stats': .* has values of aggregate count\(\*\), which"),
        ({"n": count()}, r"aggregate own \(your own\), aggregate spread \(your own\), .* allow_non_restored"),
        ({**stats, "own": with_state(str)}, r"'stats', aggregate own .* was int .* is str now.*another name"),
        ({**stats, "spread": with_columns(low_only)}, r"aggregate spread .* was columns \(low <f8, high <f8\)"),
        ({**stats, "own": Spread("value")}, r"aggregate own .*: its state was a value .* is columns \(low <f8, high"),
    ):
        with pytest.raises(JobFailed, match=told):
            run(tmp_path, changed)
    assert sorted(path.name for path in log.iterdir()) == records


@pytest.mark.slow
def test_aggregate_of_a_column_unused_at_the_checkpoint_counts_from_there(
    tmp_path: Path,
) -> None:
    """The schema is known here. The test above covers an unknown schema, where the error names the declaration."""
    run(tmp_path, {"n": count()}, fails=True)
    after = run(tmp_path, {"n": count(), "total": sum_("value")})
    for k in (0, 1):
        mine = [row for row in after if row["k"] == k and "total" in row]
        assert mine[-1]["n"] == ROWS // 2
        assert [row["total"] for row in mine] == list(np.cumsum([row["value"] for row in mine]))


@pytest.mark.slow
def test_a_preview_says_of_each_aggregate_what_a_start_would_do_with_it(tmp_path: Path) -> None:
    run(tmp_path, {"n": count(), "own": with_state(int), "low": min_("value")}, fails=True)
    flow = flow_of({"n": count(), "own": with_state(float), "high": max_("value")}, CollectSink())
    page, starts = preview_of_restore(flow, {"checkpoints": str(tmp_path)}, local=True)
    told = [line.strip() for line in page.splitlines() if "aggregate" in line]
    assert told[:-1] == [
        "aggregate count(*): matched",
        "aggregate max(value): new, begins at its zero in keys and open windows that are there",
        "aggregate min(value): gone; its values are dropped if allow_non_restored is set, refused otherwise",
        "aggregate own (your own): matched, type changed",
    ]
    assert told[-1].startswith("refused: ")
    assert not starts
    assert preview_of_restore(flow, {"checkpoints": str(tmp_path), "allow_non_restored": True}, local=True)[1]


@pytest.mark.slow
def test_what_is_dropped_by_wish_and_what_came_are_told_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = run(tmp_path, {"n": count(), "high": max_("value")}, fails=True)
    with caplog.at_level(logging.WARNING, "barrier_runtime.state"):
        after = run(tmp_path, {"n": count(), "total": sum_("value")}, allow_non_restored=True)
    assert "running aggregate 'stats': aggregate sum(value) came since the checkpoint" in caplog.text
    fence = [path.read_bytes() for path in sorted((tmp_path / "counted" / "log").iterdir())]
    assert any(b"new since checkpoint" in data and b"aggregate sum(value) of 'stats'" in data for data in fence)
    counted = sorted((row["k"], row["n"]) for row in before + after)
    assert counted == [(k, n) for k in (0, 1) for n in range(1, ROWS // 2 + 1)]
    for k in (0, 1):
        mine = [row for row in after if row["k"] == k and "total" in row]  # without results of the first run
        assert [row["total"] for row in mine] == list(np.cumsum([row["value"] for row in mine]))


@pytest.mark.slow
def test_the_state_of_an_own_aggregate_is_read_as_the_wider_type_that_it_has_now(tmp_path: Path) -> None:
    run(tmp_path, {"own": with_state(int)}, fails=True)
    after = run(tmp_path, {"own": with_state(float)})
    ends = {row["k"]: row["own"] for row in after if row["value"] >= ROWS - 2}
    assert ends == {k: sum(range(k, ROWS, 2)) for k in (0, 1)}


def test_variance_beside_a_sum_begins_at_its_own_zero() -> None:
    rows = [[{"k": 1, "x": 1}], [{"k": 1, "x": 4}, {"k": 1, "x": 8}]]
    given = restarted([{"s": sum_("x")}, {"s": sum_("x"), "v": variance("x")}], rows)
    assert given[1] == [{"s": 5, "v": None}, {"s": 13, "v": 8.0}]
