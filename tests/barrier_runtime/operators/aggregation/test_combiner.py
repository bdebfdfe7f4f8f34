"""The combiner: partial rows merge to the same results as the rows; and when it combines."""

import datetime
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World

from barrier_runtime import (
    CollectSink,
    Dataflow,
    Every,
    Session,
    Sliding,
    Tumbling,
    all_,
    count,
    first,
    max_,
    mean,
    min_,
    sum_,
)
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.operators.aggregation import partials
from barrier_runtime.operators.aggregation.latest import LatestAggregateOperator
from barrier_runtime.operators.aggregation.partial_schema import is_partial
from barrier_runtime.operators.aggregation.partials import Combiner, rows_of
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.deduplication.operator import DeduplicateOperator, DuplicatesCombiner
from barrier_runtime.operators.windows.clocks import EventTime
from barrier_runtime.operators.windows.contents import Aggregates, Repeats, WindowParts
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.runtime import in_flight
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, ResultPartition
from barrier_runtime.runtime.network.frames import FrameError, FrameReader, FrameWriter
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

Row = dict[str, Any]
AGGREGATES = {
    "n": count(),
    "nv": count("v"),
    "total": sum_("v"),
    "wide": sum_("v", widen=True),
    "mean": mean("v"),
    "low": min_("v"),
    "high": max_("at"),
    "all": all_("b"),
}
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("g", pa.int64()),
        ("v", pa.int64()),
        ("at", pa.timestamp("ms")),
        ("b", pa.bool_()),
        ("text", pa.string()),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "g": st.integers(0, 2),
        "v": st.one_of(st.none(), st.integers(-(2**58), 2**58), st.integers(-3, 3)),
        "at": st.one_of(st.none(), st.integers(0, 10**12)),
        "b": st.one_of(st.none(), st.booleans()),
        "text": st.text(max_size=3),
    }
)


def made(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def forced(keys: list[str], aggregates: dict[str, Any] = AGGREGATES) -> Combiner:
    made = Combiner(keys, aggregates, "aggregate 'r'")
    made.mode = "on"  # type: ignore[misc]
    return made


@pytest.mark.slow
@examples(100)
@given(
    st.lists(st.lists(ROW, min_size=1, max_size=30), min_size=1, max_size=4),
    st.sampled_from([["k"], ["g"], ["g", "k"]]),
    st.booleans(),
)
def test_partial_rows_give_the_results_of_the_rows(batches: list[list[Row]], keys: list[str], one: bool) -> None:
    """`one`: all partial rows arrive as one batch, in which keys repeat. Sums may leave 64 bits in between."""
    aggregates = {name: each for name, each in AGGREGATES.items() if name != "total"}
    sender, world = forced(keys, aggregates), World()
    partial = [sender.combined(Batch(made(rows), 7)) for rows in batches]
    merged = Driven(LatestAggregateOperator("r", keys, aggregates, SCHEMA), world, name="r")
    plain = Driven(LatestAggregateOperator("r", keys, aggregates, SCHEMA))
    if one and len({batch.schema for batch in partial}) == 1:
        partial = [Batch(pa.concat_batches([batch.rows for batch in partial]), 7)]
        batches = [[row for rows in batches for row in rows]]
    for rows, batch in zip(batches, partial, strict=True):
        merged.operator.process(batch, merged._emit)
        plain.feed(rows, SCHEMA)
        assert merged.take() == plain.take()
    snapshot = merged.snapshot(1)
    merged.operator.close()
    again = Driven(RunningAggregateOperator("r", keys, aggregates, SCHEMA), world, (snapshot,), name="r")
    for driven in (again, plain):
        driven.feed(batches[0], SCHEMA)
    last = {tuple(row[key] for key in keys): row for row in again.take()}
    assert sorted(last.values(), key=str) == sorted(plain.take(), key=str)


def test_a_partial_row_is_the_last_row_of_its_key() -> None:
    rows = [{"k": key, "g": 0, "v": v, "text": key * v} for v, key in enumerate("abcab", 1)]
    combined = forced(["k"], {"n": count(), "total": sum_("v")}).combined(
        Batch(made(rows), 7, np.array([1, 1, 2, 2, 3]))
    )
    assert is_partial(combined.schema)
    assert (combined.emit_ns, combined.reached.tolist()) == (7, [2, 2, 3])  # type: ignore[union-attr]
    assert combined.rows.to_pydict()["text"] == ["ccc", "aaaa", "bbbbb"]


def test_sums_that_may_leave_64_bits_are_not_combined() -> None:
    rows = made([{"k": "a", "g": 0, "v": 2**62}] * 2)
    batch = Batch(rows, 0)
    assert forced(["k"]).combined(batch) is batch
    driven = Driven(LatestAggregateOperator("r", ["k"], {"total": sum_("v")}, SCHEMA))
    near = forced(["k"], {"total": sum_("v")})
    driven.operator.process(near.combined(Batch(rows.slice(0, 1), 0)), driven._emit)
    with pytest.raises(InvalidJob, match=r"sum_\('v'\) of key 'a' leaves 64 bits"):
        driven.operator.process(near.combined(Batch(rows.slice(0, 1), 0)), driven._emit)


def test_results_that_depend_on_the_order_are_not_combined() -> None:
    batch = Batch(made([{"k": "a", "g": 0, "v": 1}] * 3), 0)
    assert forced(["k"], {"n": count(), "f": first("v")}).combined(batch) is batch


# ------------------------------------------------------------ the choice


def keys(different: int, rows: int) -> Batch:
    return Batch(pa.record_batch({"k": np.arange(rows) % different, "v": np.ones(rows, np.int64)}), 0)


def test_the_share_of_different_keys_decides_with_hysteresis() -> None:
    chosen = Combiner(["k"], {"n": count()}, "aggregate 'r'")

    def combines(different: int, rows: int = 1_000) -> bool:
        return is_partial(chosen.combined(keys(different, rows)).schema)

    assert not combines(300)
    assert not any(combines(10) for _ in range(partials._PAUSE))  # no sample yet
    assert combines(10)
    assert combines(270)  # stays on
    assert not combines(300)
    assert not combines(10)


def test_a_sample_of_few_rows_does_not_decide_on_larger_batches() -> None:
    chosen = Combiner(["k"], {"n": count()}, "aggregate 'r'")

    def combines(rows: int) -> bool:
        return is_partial(chosen.combined(keys(3_000, rows)).schema)

    assert not any(map(combines, [1_000, 1_500, 5_000, 9_000]))
    assert combines(partials._SAMPLE)


def test_a_larger_batch_is_tried_if_a_sample_has_fewer_than_most_keys() -> None:
    chosen = Combiner(["k"], {"n": count()}, "aggregate 'r'")

    def takes_more(different: int, rows: int) -> bool:
        assert not is_partial(chosen.combined(keys(different, rows)).schema)
        return chosen.takes_more

    sample = partials._SAMPLE
    assert not takes_more(sample // 5 * 4, sample)
    assert not any(takes_more(sample // 2, sample) for _ in range(partials._PAUSE))
    assert takes_more(sample // 2, sample)
    assert not takes_more(sample // 2, sample)  # the source has no larger batch
    assert not any(takes_more(sample // 2, sample) for _ in range(partials._LONG_PAUSE))
    assert takes_more(sample // 2, sample)
    assert is_partial(chosen.combined(keys(sample // 2, 3 * sample)).schema)
    assert chosen.takes_more
    assert is_partial(chosen.combined(keys(sample // 4, sample)).schema)  # stays on


def test_larger_batches_are_requested_while_narrow_rows_are_combined() -> None:
    chosen = Combiner(["k"], {"n": count()}, "aggregate 'r'")

    def takes_more(batch: Batch) -> bool:
        chosen.combined(batch)
        return chosen.takes_more

    assert not chosen.takes_more
    assert takes_more(keys(10, 1_000))
    assert not takes_more(keys(1, partials.FEWEST - 1))
    wide = keys(10, 1_000).rows.append_column("text", pa.array(["x" * partials._NARROW] * 1_000))
    assert not takes_more(Batch(wide, 0))
    assert not takes_more(keys(900, 1_000))


@pytest.mark.parametrize(("different", "sizes"), [(10, [10]), (100_000, [65_536, 34_464])])
def test_a_larger_batch_that_is_not_combined_is_sent_in_parts(different: int, sizes: list[int]) -> None:
    channel = InputChannel(0, 0, lambda: None, 1 << 30)
    channel.chunk.bytes = 1 << 30
    edge = Edge(0, 0, 1, "hash", ("k",), combiner=lambda: Combiner(["k"], {"n": count()}, "aggregate 'r'"))
    sender = ResultPartition(edge, [LocalOutput(channel, lambda: None)], 0, 128)
    sender.emit(keys(different, 100_000))
    received = []
    while channel.readable:
        batch = channel.pop()
        assert isinstance(batch, Batch)
        received.append(batch.count)
    assert received == sizes


def test_small_batches_are_sent_unchanged() -> None:
    batch = keys(1, partials.FEWEST - 1)
    assert Combiner(["k"], {"n": count()}, "aggregate 'r'").combined(batch) is batch


def test_it_may_be_forced_off() -> None:
    batch = keys(1, 1_000)
    with patch.object(Combiner, "mode", "off"):
        assert Combiner(["k"], {"n": count()}, "aggregate 'r'").combined(batch) is batch


# ------------------------------------------------------------ windows

SECONDS = [datetime.timedelta(seconds=seconds) for seconds in range(5)]
EVENTS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])


def windows_of(window: Any) -> Driven:
    operator = WindowOperator("w", ["k"], window, EventTime("t"), Aggregates({"total": sum_("v")}), EVENTS)
    return Driven(operator, World(), name="w")


@pytest.mark.parametrize("window", [Tumbling(SECONDS[2]), Sliding(SECONDS[4], SECONDS[1])])
def test_partial_rows_of_windows_give_the_results_and_late_rows_of_the_rows(window: Any) -> None:
    """The first batch has rows on both sides of a window's end, the second has late rows."""
    batches = [[1_100, 1_900, 2_100, 2_200, 3_900] * 2, [700, 800, 900, 2_500, 4_100] * 2]
    merged, plain = windows_of(window), windows_of(window)
    sender = Combiner(["k"], {"total": sum_("v")}, "window 'w'", WindowParts(window, "t"))
    sender.mode = "on"  # type: ignore[misc]
    for times in batches:
        rows = pa.RecordBatch.from_pylist([{"k": "ab"[t % 3 % 2], "t": t, "v": t} for t in times], schema=EVENTS)
        combined = sender.combined(Batch(rows, 0))
        assert is_partial(combined.schema)
        assert combined.count < rows.num_rows
        for driven, batch in ((merged, combined), (plain, Batch(rows, 0))):
            driven.operator.process(batch, driven._emit)
            driven.watermark(1_999)
    for driven in (merged, plain):
        driven.watermark(100_000)
    assert merged.take() == plain.take()
    late = [driven.world.metrics.counts.get("late_rows") for driven in (merged, plain)]
    assert late[0] == late[1]
    assert (late[0] or 0) == (6 if isinstance(window, Tumbling) else 0)


def test_rows_at_which_event_time_advances_are_not_combined() -> None:
    """Some of them may be late, others not."""
    rows = pa.RecordBatch.from_pylist([{"k": "a", "t": t, "v": t} for t in (1, 2)], schema=EVENTS)
    sender = Combiner(["k"], {"n": count()}, "window 'w'", WindowParts(Tumbling(SECONDS[2]), "t"))
    sender.mode = "on"  # type: ignore[misc]
    for batch in (Batch(rows, 0, np.array([1, 2])), Batch(rows.slice(0, 0), 0)):
        assert sender.combined(batch) is batch
    assert sender.combined(Batch(rows, 0)).count == 1


@pytest.mark.parametrize(
    ("window", "options", "why"),
    [
        (Session(SECONDS[1]), {}, None),
        (Tumbling(SECONDS[1]), {"allowed_lateness": SECONDS[1]}, "each late row emits its window again"),
        (Tumbling(SECONDS[1]), {"early": Every(rows=2)}, "early results depend on the order of rows"),
        (Tumbling(SECONDS[1]), {}, None),
    ],
)
def test_the_plan_says_why_windows_are_not_combined(window: Any, options: Any, why: str | None) -> None:
    flow = Dataflow("windows")
    rows = flow.from_iterator("rows", lambda part, of: [], schema=EVENTS, event_time="t")
    rows.key_by("k").window("w", window, event_time="t", **options).aggregate(n=count()).sink("out", CollectSink())
    said = next(spec.describe for chain in compile_plan(flow.plan, 1).chains for spec in chain.operators)
    assert said.endswith(f"not combined before the exchange: {why}" if why else "n=count(*)")


# ------------------------------------------------------------ sessions

EVENT = st.fixed_dictionaries(
    {"k": st.sampled_from(["a", "b", None]), "t": st.integers(0, 12), "v": st.integers(-(2**62), 2**62)}
)
ARRIVALS = st.lists(
    st.tuples(st.lists(EVENT, min_size=1, max_size=20), st.integers(0, 12), st.booleans()), min_size=1, max_size=5
)


def fed(driven: Driven, batch: Batch) -> list[Row]:
    driven.operator.process(batch, driven._emit)
    return driven.take()


def advanced(driven: Driven, watermark_ms: int) -> list[Row]:
    driven.watermark(watermark_ms)
    return driven.take()


def rising(rows: list[Row], up_to_ms: int) -> np.ndarray[Any, Any]:
    """Event time reached at each row: it advances to `up_to_ms` in the middle of the rows."""
    return np.array([-100] * (len(rows) // 2) + [up_to_ms] * (len(rows) - len(rows) // 2))


@pytest.mark.slow
@examples(200)
@given(ARRIVALS, st.booleans())
def test_repeats_give_the_sessions_and_late_rows_of_the_rows(arrivals: Any, any_sum: bool) -> None:
    """Watermarks between and within the batches; some rows are late. Without `any_sum` some sums leave 64 bits."""
    aggregates = {"n": count(), "total": sum_("v", widen=True)} if any_sum else {"n": count(), "high": max_("v")}
    window = Session(0.003)

    def sessions() -> Driven:
        operator = WindowOperator("w", ["k"], window, EventTime("t"), Aggregates(aggregates), EVENTS)
        return Driven(operator, World(), name="w")

    sender = Combiner(["k"], aggregates, "window 'w'", Repeats(window, "t"))
    sender.mode = "on"  # type: ignore[misc]
    merged, plain, reached_ms = sessions(), sessions(), -100
    for rows, up_to_ms, by_row in arrivals:
        now_ms = max(reached_ms, up_to_ms)
        reached = np.maximum(rising(rows, now_ms), reached_ms) if by_row else None
        batch = Batch(pa.RecordBatch.from_pylist(rows, schema=EVENTS), 0, reached)
        assert fed(merged, sender.combined(batch)) == fed(plain, batch)
        reached_ms = now_ms
        assert advanced(merged, reached_ms) == advanced(plain, reached_ms)
    assert advanced(merged, 100) == advanced(plain, 100)
    late = [driven.world.metrics.counts.get("late_rows") for driven in (merged, plain)]
    assert late[0] == late[1]


def test_only_repeats_are_combined_before_sessions() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"k": k, "t": int(t), "v": 1} for k, t in ("a1", "a1", "b1", "a2", "a1", "b1")], schema=EVENTS
    )
    sender = Combiner(["k"], {"n": count()}, "window 'w'", Repeats(Session(SECONDS[1]), "t"))
    sender.mode = "on"  # type: ignore[misc]
    combined = sender.combined(Batch(rows, 0)).rows
    assert [(row["k"], row["t"]) for row in combined.to_pylist()] == [("a", 1), ("a", 2), ("a", 1), ("b", 1)]
    assert rows_of(combined).tolist() == [2, 1, 1, 2]


# ------------------------------------------------------------ duplicates


@pytest.mark.slow
@examples(200)
@given(ARRIVALS, st.sampled_from([None, 1, 5]))
def test_first_rows_are_those_of_single_rows(arrivals: Any, within_ms: int | None) -> None:
    """Ids are forgotten between batches, and between rows at different event times."""
    sender = DuplicatesCombiner(["k"], within_ms, "deduplicate 'd'")
    sender.mode = "on"  # type: ignore[misc]
    merged, plain = (Driven(DeduplicateOperator("d", ["k"], within_ms, EVENTS), World(), name="d") for _ in range(2))
    reached_ms = -100
    for rows, up_to_ms, by_row in arrivals:
        now_ms = max(reached_ms, up_to_ms)
        reached = np.maximum(rising(rows, now_ms), reached_ms) if by_row else None
        batch = Batch(pa.RecordBatch.from_pylist(rows, schema=EVENTS), 0, reached)
        assert fed(merged, sender.combined(batch)) == fed(plain, batch)
        reached_ms = now_ms
        for driven in (merged, plain):
            driven.watermark(reached_ms)
    counts = [driven.world.metrics.counts for driven in (merged, plain)]
    assert counts[0]["duplicates"] == counts[1]["duplicates"]


# ------------------------------------------------------------ on the way, and in other programs


def test_partial_rows_and_rows_share_a_connection() -> None:
    rows = Batch(made([{"k": "a", "g": 0, "v": 1}] * 3), 5)
    partial = forced(["k"], {"n": count()}).combined(rows)
    writer, reader = FrameWriter(), FrameReader()
    sent = [rows, partial, partial, rows]
    got = [element for each in sent for element, _ in reader.feed(b"".join(map(bytes, writer.encode(each))))]
    assert got == sent
    with pytest.raises(FrameError, match="the schema of an edge changed"):
        writer.encode(Batch(rows.rows.select(["k"]), 5))


def test_rows_in_flight_keep_their_partial_aggregates() -> None:
    """A restore drops columns that the program does not read any more."""
    partial = forced(["k"], {"n": count()}).combined(Batch(made([{"k": "a", "g": 0, "v": 1}] * 3), 5))
    kept = in_flight._as_sent_now(partial, pa.schema([("k", pa.string()), ("v", pa.int64())]))
    assert kept.schema.names[:2] == ["k", "v"]
    assert rows_of(kept.rows).tolist() == [3]


def test_a_step_that_emits_each_row_refuses_partial_rows() -> None:
    partial = forced(["k"], {"n": count()}).combined(Batch(made([{"k": "a", "g": 0, "v": 1}] * 3), 5))
    driven = Driven(RunningAggregateOperator("r", ["k"], {"n": count()}, SCHEMA))
    with pytest.raises(
        InvalidJob, match=r"running aggregate 'r': the checkpoint has rows in flight that are aggregated"
    ):
        driven.operator.process(partial, driven._emit)


def test_an_aggregate_that_partial_rows_lack_begins_at_zero() -> None:
    partial = forced(["k"], {"n": count()}).combined(Batch(made([{"k": "a", "g": 0, "v": 1}] * 3), 5))
    newer = {"n": count(), "total": sum_("v"), "opened": first("v")}
    driven = Driven(LatestAggregateOperator("r", ["k"], newer, SCHEMA))
    driven.operator.process(partial, driven._emit)
    driven.feed([{"k": "a", "g": 0, "v": 8}], SCHEMA)
    assert [(row["n"], row["total"], row["opened"]) for row in driven.take()] == [(3, None, None), (4, 8, 8)]


@pytest.mark.parametrize("added", [mean("v"), min_("v"), max_("v"), sum_("v")], ids=str)
def test_an_added_aggregate_refuses_partial_rows_that_count_its_values(added: Any) -> None:
    """Their number would be that of values of the new aggregate: a mean would be wrong for ever."""
    partial = forced(["k"], {"n": count("v")}).combined(Batch(made([{"k": "a", "g": 0, "v": 1}] * 3), 5))
    driven = Driven(LatestAggregateOperator("r", ["k"], {"n": count("v"), "new": added}, SCHEMA))
    with pytest.raises(InvalidJob, match="an aggregate of 'v' was added, and the checkpoint has rows in flight"):
        driven.operator.process(partial, driven._emit)


# ------------------------------------------------------------ flows


def flow_of(**aggregates: Any) -> tuple[Dataflow, CollectSink]:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.float64())])
    rows = [{"k": "abca"[at % 4], "v": at, "x": 0.5} for at in range(4_000)]
    flow, out = Dataflow("combined"), CollectSink()
    stream = flow.from_iterator("rows", lambda part, of: rows[part::of], schema=schema)
    stream.key_by("k").aggregate("totals", emit="latest", **aggregates).sink("out", out)
    return flow, out


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["chosen", "on", "off"])
def test_a_job_gives_the_same_results_in_every_mode(mode: str) -> None:
    flow, out = flow_of(n=count(), total=sum_("v"), low=min_("v"), mean=mean("v"))
    with patch.object(Combiner, "mode", mode):
        flow.run_local(parallelism=2, latency_target=0)
    last = {row["k"]: row for row in sorted(out.rows(), key=lambda row: row["n"])}
    numbers = {key: [at for at in range(4_000) if "abca"[at % 4] == key] for key in "abc"}
    assert {key: (row["n"], row["total"], row["low"], row["mean"]) for key, row in last.items()} == {
        key: (len(its), sum(its), its[0], sum(its) / len(its)) for key, its in numbers.items()
    }


def test_the_plan_names_an_aggregate_that_prevents_combining() -> None:
    def said(**aggregates: Any) -> str:
        graph = compile_plan(flow_of(**aggregates)[0].plan, 1)
        return next(spec.describe for chain in graph.chains for spec in chain.operators if spec.name == "totals")

    assert said(n=count()).endswith("rows are combined before the exchange if that saves rows")
    assert said(n=count(), s=sum_("x")).endswith(
        "not combined before the exchange: s=sum(x) depends on the order of rows"
    )
