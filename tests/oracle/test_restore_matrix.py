"""A killed job continues at any other parallelism, with any operators: aligned, and with rows in flight.

All kinds of edges are combined (forward, hash, rebalance, broadcast, union), since errors of restores at another
parallelism were found in mixtures. Production's classes run in virtual time; the whole program dies when a checkpoint
is decided, and continues from that checkpoint with P' slots. The sinks' rows equal those of a run without the crash.
"""

import contextlib
import datetime
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime import (
    BroadcastState,
    Calendar,
    CollectSink,
    Dataflow,
    ListState,
    MapState,
    OwnTrigger,
    Session,
    Sliding,
    TriggerResult,
    Tumbling,
    ValueState,
    collect_list,
    connect,
    count,
    max_,
    sum_,
)
from barrier_runtime.runtime import scheduler, subtask
from barrier_runtime.testing.flows.run import MAX_PARALLELISM, CrashPoint, FlowScenario, FlowUnderTest, run_flow
from barrier_runtime.testing.simulation.cluster import ClusterOptions

BEFORE, AFTER = (1, 2, 3, 5), (1, 2, 3, 5, 7, 16)
MS = datetime.timedelta(milliseconds=1)
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.int64())])
PER_SPLIT = 8
KEYS = 6


def rows(source: int, splits: int) -> tuple[pa.RecordBatch, ...]:
    """`v` is unique per row; times rise within a split, by 10 ms on average."""
    made = []
    for split in range(splits):
        numbers = [(source * 10 + split) * 1_000 + at for at in range(PER_SPLIT)]
        its = [{"k": f"k{(v * 7) % KEYS}", "v": v, "t": 100 + 10 * (v % 1_000) + split} for v in numbers]
        made.append(pa.RecordBatch.from_pylist(its, schema=ROWS))
    return tuple(made)


INPUTS = {"a": rows(1, 3), "b": rows(2, 2), "rules": rows(3, 1)}


def source(flow: Dataflow, name: str) -> Any:
    splits = len(INPUTS[name])
    return flow.from_iterator(name, lambda part, of: [], schema=ROWS, splits=splits, event_time="t")


def out(stream: Any, name: str) -> None:
    stream.sink(f"{name}-rows", CollectSink())


class Collected:
    """Per key: the number of rows, as a value, a list and a map; a timer for each row, ten milliseconds later."""

    seen = ValueState(int, default=0)
    listed = ListState(int)
    by_number = MapState(int, int)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.seen.value += 1
        self.listed.append(row["v"])
        self.by_number[row["v"]] = row["t"]
        ctx.timers.register(ctx.timestamp + 10)
        assert self.seen.value == len(self.by_number) == sum(1 for _ in self.listed)
        yield {"k": key, "v": self.seen.value, "t": 0}

    def on_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"k": key, "v": -1, "t": due_ms}


class Numbered:
    state = {"n": ("int64", 0)}

    def process_groups(self, keys: Any, batch: pa.RecordBatch, state: dict[str, Any]) -> dict[str, Any]:
        numbers = np.empty(batch.num_rows, np.int64)
        for at, key in enumerate(keys.of_row.tolist()):
            state["n"][key] += 1
            numbers[at] = state["n"][key]
        return {"k": batch.column("k"), "n": numbers}


class UnderRules:
    """Every subtask holds all rules received; the rows of the stream are emitted unchanged, each rule once."""

    rules = BroadcastState(int, int)

    def on_rows(self, key: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return row

    def on_rules(self, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.rules[row["v"]] = row["t"]
        return {**row, "t": len(self.rules)}


def states() -> Dataflow:
    """State by value, list, map, columns, of broadcast rows, and of ids; timers; a lookup; a side output."""
    flow = Dataflow("states")
    both = source(flow, "a").union(source(flow, "b")).filter("v >= 0")
    once = both.rebalance().map(dict, schema=ROWS).deduplicate("once", "v", within=None)
    asked = once.lookup(
        "asked", lambda keys: {key: {"name": f"of {key}"} for key in keys}, key="k", schema={"name": str}
    )
    out(asked, "asked")
    ruled = connect(rows=once.key_by("k"), rules=source(flow, "rules").broadcast())
    out(ruled.process("ruled", UnderRules, schema=ROWS), "ruled")
    out(once.key_by("k").process("collected", Collected, schema=ROWS, event_time="t"), "collected")
    out(once.key_by("k").aggregate("counted", n=count(), total=sum_("v")).select(["k", "n"]), "counted")
    out(once.key_by("k").process_groups("numbered", Numbered, schema={"k": str, "n": int}), "numbered")
    even, odd = once.split("parity", "IF(v % 2 = 0, 'even', 'odd')", into=("even", "odd"))
    out(even.key_by("k").aggregate("even", n=count()).select(["k", "n"]), "even")
    out(odd, "odd")
    return flow


class Thirds(OwnTrigger):
    """Each third row emits; the last result contains the number of earlier results."""

    state = {"seen": 0}

    def on_row(self, row: dict[str, Any], window: Any) -> TriggerResult | None:
        window.state["seen"] += 1
        return TriggerResult.FIRE if window.state["seen"] % 3 == 0 else None


def windows() -> Dataflow:
    """All kinds of windows: aggregated, with cells, applied, the greatest; of all rows."""
    flow = Dataflow("windows")
    both = source(flow, "a").union(source(flow, "b").rebalance())
    keyed = both.key_by("k")
    tumbling = keyed.window("tumbling", Tumbling(40 * MS), event_time="t")
    out(tumbling.aggregate(n=count(), most=max_("v"), total=sum_("v")), "tumbling")
    sliding = keyed.window("sliding", Sliding(60 * MS, 20 * MS), event_time="t")
    out(sliding.aggregate(n=count(), total=sum_("v")), "sliding")
    out(keyed.window("sessions", Session(25 * MS), event_time="t").aggregate(n=count(), total=sum_("v")), "sessions")
    applied = keyed.window("applied", Tumbling(50 * MS), event_time="t")
    numbers = applied.apply(_whole, schema={"k": str, "numbers": str})
    out(numbers, "applied")
    out(keyed.window("top", Tumbling(50 * MS), event_time="t").top(2, by="v"), "top")
    before = keyed.window("before", Tumbling(40 * MS), event_time="t").aggregate(n=count())
    out(before.window_all("best", Tumbling(40 * MS), event_time="window_start").top(2, by="k"), "best")
    out(keyed, "by-key")
    cells = keyed.window("cells", Tumbling(80 * MS), event_time="t").aggregate(all=collect_list("v", limit=100))
    out(cells.map(_sorted, schema={"k": str, "numbers": str}), "cells")
    hours = both.select({"k": "k", "v": "v", "t": "t * 3600000"}).with_watermarks("t", 500 * 3_600_000 * MS)
    days = hours.key_by("k").window("days", Calendar("day", zone="Europe/Berlin"), event_time="t")
    out(days.aggregate(n=count(), total=sum_("v")), "days")
    own = keyed.window("own", Tumbling(80 * MS), event_time="t", early=Thirds())
    out(own.aggregate(n=count(), total=sum_("v")).filter("NOT early"), "own")
    everything = both.window_all("all", Tumbling(100 * MS), event_time="t")
    out(everything.aggregate(n=count(), total=sum_("v")), "all")
    return flow


def _whole(key: str, window: Any, table: pa.Table) -> dict[str, Any]:
    return {"k": key, "numbers": str(sorted(table["v"].to_pylist()))}


def _sorted(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"k": row["k"], "numbers": str(sorted(row["all"]))}


def joins() -> Dataflow:
    """All kinds of joins of two streams, one behind a rebalance."""
    flow = Dataflow("joins")
    left = source(flow, "a").key_by("k")
    right = source(flow, "b").rebalance().union(source(flow, "rules")).key_by("k")
    between = (-20 * MS, 30 * MS)
    out(left.join("interval", right, between=between, event_time="t", how="full"), "interval")
    out(left.window_join("windows", right, Tumbling(40 * MS), event_time="t", how="left"), "windows")
    out(left.asof_join("as-of", right, event_time="t"), "as-of")
    out(left.table_join("table", right, event_time="t", how="left"), "table")
    return flow


def one_of_each() -> Dataflow:
    """A flow of as many slots as key groups."""
    flow = Dataflow("one-of-each")
    both = source(flow, "a").union(source(flow, "b").rebalance()).key_by("k")
    out(both.process("collected", Collected, schema=ROWS, event_time="t"), "collected")
    out(both.window("tumbling", Tumbling(40 * MS), event_time="t").aggregate(n=count(), total=sum_("v")), "tumbling")
    return flow


FLOWS: dict[str, Callable[[], Dataflow]] = {"states": states, "windows": windows, "joins": joins}
MODES: dict[str, tuple[dict[str, Any], ClusterOptions]] = {
    "aligned": ({"interval_ms": 500}, ClusterOptions()),
    "unaligned": (
        {"interval_ms": 300, "unaligned": True, "aligned_timeout_ms": 0},
        ClusterOptions(turn_us=10_000, window_bytes=300),
    ),
}


def under_test(name: str, mode: str, *parallelisms: int) -> FlowUnderTest:
    checkpoints, cluster = MODES[mode]
    flow = FLOWS.get(name, one_of_each)
    inputs = {node.name: INPUTS[node.name] for node in flow().plan.nodes if node.name in INPUTS}
    return FlowUnderTest(flow, inputs, {}, parallelisms, checkpoints, cluster)


@functools.cache
def expected(name: str) -> dict[str, Counter[str]]:
    outcome = run_flow(under_test(name, "aligned", 1), FlowScenario(0, 1))
    assert not outcome.trouble
    assert all(outcome.rows.values()), "each sink gets rows"
    return {sink: as_multiset(rows) for sink, rows in outcome.rows.items()}


def as_multiset(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in found)


def judge(name: str, mode: str, before: int, after: int) -> int:
    """Number of inputs of subtasks whose rows in flight were restored."""
    scenario = FlowScenario(before * 100 + after, before, CrashPoint("decision", 1, "program"))
    outcome = run_flow(under_test(name, mode, before, after), scenario)
    where = f"{name}, {mode}, {before} to {after}"
    assert (outcome.trouble, outcome.crashed) == ("", True), where
    found = {sink: as_multiset(its) for sink, its in outcome.rows.items()}
    assert found == expected(name), where
    return outcome.restored_in_flight


def judged(mode: str, cases: Iterable[tuple[str, int, int]]) -> int:
    """Runs cases: a flow, the flow's parallelism, and the parallelism after the restore. Returns the number of inputs
    that had rows in flight.
    """
    in_flight = 0
    with contextlib.ExitStack() as patched:
        if mode == "unaligned":  # rows are left in queues, and barriers overtake them
            patched.enter_context(patch.object(subtask, "_ELEMENTS_PER_STEP", 1))
            patched.enter_context(patch.object(scheduler, "_MOST_ROUNDS", 1))
        for name, before, after in cases:
            in_flight += judge(name if after < MAX_PARALLELISM else "one of each", mode, before, after)
    return in_flight


QUICK = ("unaligned", 2)  # `make check` runs one: with rows in flight, which move to other subtasks
WHOLE, FIRST, OTHERS = slice(None), slice(1), slice(1, None)  # of the other parallelisms of a test
CELLS = [(mode, before, WHOLE) for mode, before in itertools.product(MODES, BEFORE) if (mode, before) != QUICK] + [
    (*QUICK, FIRST),
    (*QUICK, OTHERS),
]


@pytest.mark.parametrize(
    ("mode", "before", "part"),
    [pytest.param(*cell, marks=() if cell == (*QUICK, FIRST) else pytest.mark.slow) for cell in CELLS],
)
def test_a_job_goes_on_at_any_other_parallelism(mode: str, before: int, part: slice) -> None:
    """1.6. Each pair in one of the modes with one of the flows, in turn, and one job at its own parallelism: each flow
    meets each P and both modes, each P' meets both modes. `make oracle` runs every flow with each pair in both.
    """
    flows, first = list(FLOWS), BEFORE.index(before) + (mode == "unaligned")
    turns = [(turn, to) for turn, to in enumerate(AFTER, first) if turn % 2 and (to != before or before == 2)]
    cases = [(flows[turn % len(flows)], before, to) for turn, to in turns]
    in_flight = judged(mode, cases[part])
    if mode == "unaligned" and before in (2, 3) and part != OTHERS:
        assert in_flight, "some of these restored rows in flight"


if __name__ == "__main__":
    for mode in MODES:
        print(f"{mode}: {judged(mode, itertools.product(FLOWS, BEFORE, AFTER))} inputs with rows in flight", flush=True)
