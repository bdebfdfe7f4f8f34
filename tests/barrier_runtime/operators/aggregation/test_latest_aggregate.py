"""`emit="latest"`: which rows of running aggregates go out, and when."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World
from subtask_bench import Bench, barrier
from subtask_bench import rows as numbers

from barrier_runtime import CollectSink, Dataflow, count, first, max_, sum_
from barrier_runtime.data.elements import WATERMARK_MAX, Batch, EndOfInput, Idle, Watermark
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.operators.aggregation import latest
from barrier_runtime.operators.aggregation.latest import LatestAggregateOperator
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

AGGREGATES = {"n": count(), "total": sum_("v"), "opened": first("v"), "most": max_("v")}
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
Row = dict[str, Any]


class TimedWorld(World):
    """Timers ring by `ring` alone."""

    def __init__(self, latency_target_s: float = 0.5) -> None:
        super().__init__()
        self._latency_target_s = latency_target_s
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def context(self, operator: str, restored: Any = ()) -> OperatorContext:
        return dataclasses.replace(
            super().context(operator, restored),
            latency_target_s=self._latency_target_s,
            call_later=lambda seconds, callback: self.timers.append((seconds, callback)),
        )

    def ring(self) -> None:
        timers, self.timers = self.timers, []
        for _, callback in timers:
            callback()


class Latest(Driven):
    world: TimedWorld

    def __init__(self, world: TimedWorld | None = None, restored: Any = (), **aggregates: Any) -> None:
        operator = LatestAggregateOperator("r", ["k"], aggregates or AGGREGATES)
        super().__init__(operator, world or TimedWorld(), restored, name="r")

    def turn(self) -> bool:
        return self.operator.by_clock and self.operator.on_wall_clock(self._emit)

    def barrier(self) -> None:
        self.operator.before_barrier(self._emit)

    def end(self) -> None:
        self.operator.on_end(self._emit)


def rows(text: str, first_value: int = 0) -> list[Row]:
    """A row for each letter, which is the key."""
    return [{"k": key, "v": first_value + at} for at, key in enumerate(text)]


def counts(found: list[Row]) -> list[tuple[str, int]]:
    return [(row["k"], row["n"]) for row in found]


def is_subsequence(found: list[Row], of: list[Row]) -> bool:
    left = iter(of)
    return all(row in left for row in found)


# ------------------------------------------------------------ which rows


ENDS = {"watermark": lambda driven: driven.watermark(5), "barrier": Latest.barrier, "end": Latest.end}


@pytest.mark.slow
@examples(60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.text("abc", min_size=1, max_size=9), max_size=3),
            st.booleans(),
            st.sampled_from([*ENDS, "time"]),
        ),
        max_size=6,
    )
)
def test_the_last_row_of_each_key_goes_out_whatever_the_cuts(parts: list[tuple[list[str], bool, str]]) -> None:
    """Batches of many rows (`large`: in Arrow, otherwise as lists), and an event that releases the rows."""
    latest_rows, each = Latest(), Driven(RunningAggregateOperator("r", ["k"], AGGREGATES))
    value = 0
    for batches, large, event in parts:
        for text in batches:
            for driven in (latest_rows, each):
                driven.feed(rows(text * (60 if large else 1), value), SCHEMA)
            value += 1_000
        assert latest_rows.take() == []
        if event == "time":
            latest_rows.world.ring()
            latest_rows.turn()
        else:
            ENDS[event](latest_rows)
        given, every = latest_rows.take(), each.take()
        assert sorted(given, key=str) == sorted({row["k"]: row for row in every}.values(), key=str)
        assert is_subsequence(given, every)
        assert not latest_rows.operator.unfinished


def test_rows_as_lists_and_in_arrow_are_replaced_by_later_rows() -> None:
    driven = Latest()
    driven.feed(rows("ab"), SCHEMA)
    driven.feed(rows("bc" * 300), SCHEMA)
    driven.feed(rows("ca"), SCHEMA)
    driven.barrier()
    assert counts(driven.take()) == [("b", 301), ("c", 301), ("a", 2)]


def test_a_batch_of_lists_stays_lists() -> None:
    driven = Latest(n=count())
    few = pa.RecordBatch.from_pylist(rows("abab"), schema=SCHEMA)
    for _ in range(2):
        driven.operator.process(Batch(FewRows.of(few), 7), driven._emit)
    driven.barrier()
    (batch,) = driven.batches
    assert batch.few is not None
    assert (batch.emit_ns, counts(driven.take())) == (7, [("a", 4), ("b", 4)])


# ------------------------------------------------------------ when


def test_rows_wait_for_latency_target_and_no_longer() -> None:
    driven = Latest()
    driven.feed(rows("ab"), SCHEMA)
    driven.feed(rows("b"), SCHEMA)
    assert [seconds for seconds, _ in driven.world.timers] == [0.5]
    assert not driven.turn()
    assert driven.operator.unfinished
    driven.world.ring()
    assert driven.turn()
    assert counts(driven.take()) == [("a", 1), ("b", 2)]
    assert not driven.turn()
    driven.feed(rows("a"), SCHEMA)
    assert [seconds for seconds, _ in driven.world.timers] == [0.5]


def test_idleness_is_announced_although_a_barrier_released_the_rows() -> None:
    """The chain asks after a turn with work alone whether idleness may be announced."""
    driven = Latest()
    driven.feed(rows("a"), SCHEMA)
    driven.barrier()
    assert not driven.operator.unfinished
    driven.take()
    driven.world.ring()
    assert driven.turn()
    assert driven.take() == []
    assert not driven.turn()


def test_without_a_latency_target_a_batch_goes_out_at_once() -> None:
    driven = Latest(TimedWorld(0.0))
    driven.feed(rows("abab"), SCHEMA)
    assert counts(driven.take()) == [("a", 2), ("b", 2)]
    assert not driven.world.timers


def test_no_more_rows_are_held_than_fit() -> None:
    with patch.object(latest, "MOST_ROWS", 8):
        driven = Latest()
        for _ in range(20):
            driven.feed(rows("abcd"), SCHEMA)
        assert driven.take() == []
        driven.feed(rows("efg"), SCHEMA)
        driven.feed(rows("hij"), SCHEMA)
        assert counts(driven.take())[:4] == [("a", 20), ("b", 20), ("c", 20), ("d", 20)]


@pytest.mark.parametrize("repeated", [2_000, 3_000])
def test_a_large_batch_is_held_only_if_it_repeats_an_eighth_of_its_keys(repeated: int) -> None:
    driven = Latest()
    driven.feed(rows("ab"), SCHEMA)
    keys = [f"k{at % (20_000 - repeated)}" for at in range(20_000)]
    driven.feed([{"k": key, "v": 0} for key in keys], SCHEMA)
    at_once = driven.take()
    if repeated < 2_500:
        assert [row["k"] for row in at_once] == ["a", "b", *keys]
    else:
        assert at_once == []
    driven.barrier()
    last = {row["k"]: row["n"] for row in [*at_once, *driven.take()]}
    assert last == dict(Counter(["a", "b", *keys]))


@pytest.mark.slow
def test_rows_of_many_bytes_are_not_held() -> None:
    driven = Latest(n=count())
    schema = pa.schema([("k", pa.string()), ("text", pa.string())])
    for _ in range(3):
        driven.feed([{"k": key, "text": "x" * (3 << 20)} for key in "ab"], schema)
    assert driven.take() == []
    driven.feed([{"k": key, "text": "x" * (5 << 20)} for key in "abc"], schema)
    assert counts(driven.take()) == [("a", 4), ("b", 4), ("c", 1)]


def test_held_rows_delay_idleness_and_end_announced_idleness_at_once() -> None:
    """Otherwise event time of other subtasks would pass the rows before they are out."""
    world = TimedWorld()
    operator = LatestAggregateOperator("r", ["v"], {"n": count()})
    operator.open(world.context("r"))
    bench: Any = Bench(inputs=1, operator=operator)

    def due() -> None:
        world.ring()
        bench.work()

    bench.feed((0, Watermark(5)), (0, numbers(1)), (0, Idle()))
    assert bench.emitted() == [Watermark(5)]
    due()
    assert bench.emitted() == [[1], Idle()]
    bench.feed((0, numbers(2)))
    assert bench.emitted() == [Watermark(5)]
    bench.feed((0, numbers(1, 2)), (0, barrier(1)))
    assert bench.emitted() == [[1, 2], barrier(1)]
    bench.feed((0, numbers(3)), (0, EndOfInput()))
    assert bench.emitted() == []
    due()
    assert bench.emitted() == [[3], Watermark(WATERMARK_MAX), EndOfInput()]


# ------------------------------------------------------------ event time


def test_rows_keep_the_event_time_reached_and_it_never_decreases() -> None:
    driven = Latest()
    driven.feed(rows("aba"), SCHEMA, reached=np.array([1, 2, 3]))
    driven.feed(rows("bc"), SCHEMA, reached=np.array([3, 5]))
    driven.feed(rows("a"), SCHEMA, reached=np.array([4]))  # of another channel
    driven.feed(rows("c"), SCHEMA)
    driven.watermark(5)
    found = [(batch.rows.to_pydict()["k"], batch.reached) for batch in driven.batches]
    assert [(keys, None if reached is None else reached.tolist()) for keys, reached in found] == [
        (["a", "b", "c"], [3, 3, 5]),
        (["a"], [4]),
        (["c"], None),
    ]


# ------------------------------------------------------------ state


def test_a_program_may_change_what_it_emits() -> None:
    world = TimedWorld()
    driven: Driven = Latest(world)
    driven.feed(rows("abb"), SCHEMA)
    driven.operator.before_barrier(driven._emit)
    for checkpoint, kind in enumerate((RunningAggregateOperator, LatestAggregateOperator), 1):
        snapshot = driven.snapshot(checkpoint)
        driven.operator.close()
        driven = Driven(kind("r", ["k"], AGGREGATES), world, (snapshot,), name="r")
        driven.feed(rows("b"), SCHEMA)
        driven.operator.before_barrier(driven._emit)
        assert counts(driven.take()) == [("b", 2 + checkpoint)]


# ------------------------------------------------------------ flows


def flow_of(emit: Any, name: str = "n") -> tuple[Dataflow, CollectSink]:
    flow, out = Dataflow("latest"), CollectSink()
    stream = flow.from_iterator("rows", lambda part, of: rows("abca" * 50)[part::of], schema=SCHEMA)
    stream.key_by("k").aggregate("totals", emit=emit, **{name: count()}).sink("out", out)
    return flow, out


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_ends_with_the_last_row_of_each_key(parallelism: int) -> None:
    flow, out = flow_of("latest")
    flow.run_local(parallelism=parallelism, latency_target=0.01)
    found = counts(out.rows())
    assert {key: max(n for each, n in found if each == key) for key in "abc"} == {"a": 100, "b": 50, "c": 50}
    assert len(set(found)) == len(found)


def test_the_plan_names_the_choice() -> None:
    graph = compile_plan(flow_of("latest")[0].plan, 1)
    described = [spec.describe for chain in graph.chains for spec in chain.operators if spec.name == "totals"]
    assert "; the last row of each key" in described[0]


@pytest.mark.parametrize("emit", ["last", None, count()])
def test_other_choices_are_refused(emit: Any) -> None:
    with pytest.raises(InvalidJob, match=r"aggregate 'totals': emit=.*: pass 'each' or 'latest'"):
        flow_of(emit)


def test_a_sink_that_relies_on_equal_rows_is_refused() -> None:
    from barrier_runtime import RedisUpsertSink

    flow = Dataflow("upserts")
    stream = flow.from_iterator("rows", lambda part, of: [], schema=SCHEMA)
    totals = stream.key_by("k").aggregate("totals", emit="latest", n=count()).select(["k", "n"])
    with pytest.raises(InvalidJob, match=r"in step 'totals' before it emit='latest' chooses rows by the wall clock"):
        totals.sink("out", RedisUpsertSink("redis://host", key="k", deterministic=True))
    totals.stable().sink("out", RedisUpsertSink("redis://host", key="k", deterministic=True))
