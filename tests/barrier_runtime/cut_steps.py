"""A table of all public steps, for tests that cut the same rows into other batches.

Each step takes and emits rows of `SCHEMA`, so any step can follow any other. Other outputs of a step (late rows,
misses, failed rows) go into sinks of their own. A step with several inputs gets `bench.other()` as second input,
all of whose rows precede the first row of the stream; the steps `…_of_the_same` get a second stream of the same
source, so the rows of their inputs interleave.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cut_bench import STEPS, Bench, Made, Step, step
from cut_functions import (
    MS,
    SCHEMA,
    Behind,
    Connected,
    Counted,
    Every3,
    Failing,
    Numbered,
    Recent,
    Rows,
    Ruled,
    Timed,
    as_many_as_n,
    fetch,
    not_five,
    not_seven,
    plus_one,
    told,
)

from barrier_runtime import (
    Calendar,
    Count,
    Every,
    Global,
    Retry,
    Session,
    Sliding,
    Tumbling,
    arg_max,
    connect,
    count,
    max_,
    sum_,
)
from barrier_runtime.api.dataflow import Stream

DAY_MS = 86_400_000

# ------------------------------------------------------------ without key


@step("Stream.map")
def map_(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.map(lambda row: {**row, "n": row["n"] + 1}, schema=SCHEMA)


@step("Stream.map", makes_late=True)
def map_to_earlier(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.map(lambda row: {**row, "t": row["t"] - row["n"] % 3 * 15}, schema=SCHEMA)


@step("Stream.map", variant=True)
def map_that_fails(bench: Bench, rows: Stream, name: str) -> Stream:
    good, bad = rows.map(not_seven, schema=SCHEMA, name=name, on_error="side")
    bench.beside(name, bad.select(["row"]))
    return good


@step("Stream.map", variant=True)
def map_tried_again(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.map(lambda row: row, schema=SCHEMA, on_error=Retry(2, backoff=MS, on=(OSError,)))


@step("Stream.flat_map")
def flat_map(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.flat_map(lambda row: [{**row, "n": n} for n in range(row["n"] % 3)], schema=SCHEMA)


@step("Stream.filter")
def filter_by_text(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.filter("n % 4 <> 1")


@step("Stream.filter", variant=True)
def filter_by_function(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.filter(lambda row: row["n"] % 4 != 2)


@step("Stream.select", variant=True)
def select_names(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.select({"time": "t", "n": "n", "k": "k"}).select({"k": "k", "t": "time", "n": "n"})


@step("Stream.select", makes_late=True)
def select_expressions(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.select({"k": "k", "t": "t - n % 2 * 12", "n": "n + 1"})


@step("Stream.with_columns", makes_late=True, variant=True)
def with_columns(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.with_columns(n="n + 1", t="t - n % 2 * 12")


@step("Stream.rename", "Stream.drop", variant=True)
def rename_and_drop(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.rename(n="m").with_columns(n="m + 1").drop("m").select("k", "t", "n")


@step("Stream.explode")
def explode(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.explode("slice(array(n, n + 1, n + 2), 1, CAST(pmod(n, 4) AS INT))", into="m").drop("n").rename(m="n")


@step("Stream.inspect", variant=True)
def inspect_(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.inspect(lambda row: None)


@step("Stream.key_by", "KeyedStream.aggregate", by_order=True, variant=True)
def key_by_expression(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.key_by(odd="n % 2").aggregate(name, so_far=count()).select({"k": "k", "t": "t", "n": "so_far"})


@step("Stream.split")
def split_by_function(bench: Bench, rows: Stream, name: str) -> Stream:
    odd, even = rows.split(name, lambda row: ("even", "odd")[row["n"] % 2], into=("odd", "even"))
    bench.beside(name, odd)
    return even


@step("Stream.split", variant=True)
def split_by_text(bench: Bench, rows: Stream, name: str) -> Stream:
    few, many = rows.split(name, "CASE WHEN n > 6 THEN 'many' ELSE 'few' END", into=("few", "many"))
    bench.beside(name, many)
    return few


@step("Stream.map_batches")
def map_batches(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.map_batches(lambda batch: batch, schema=SCHEMA)


@step("Stream.map_batches")
def map_batches_one_to_one(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.map_batches(plus_one, schema=SCHEMA, one_to_one=True)


@step("Stream.map_batches")
def map_batches_to_fewer(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.map_batches(lambda batch: batch.filter(pc.not_equal(batch["n"], 3)), schema=SCHEMA)


@step("Stream.map_batches")
def map_batches_to_more(bench: Bench, rows: Stream, name: str) -> Stream:
    """Emits another number of rows, which by chance equals the input's in some batches."""
    return rows.map_batches(as_many_as_n, schema=SCHEMA)


@step("Stream.map_batches")
def map_batches_that_fails(bench: Bench, rows: Stream, name: str) -> Stream:
    good, bad = rows.map_batches(not_five, schema=SCHEMA, name=name, on_error="side")
    bench.beside(name, bad.select(["row"]))
    return good


@step("Stream.broadcast_join")
def broadcast_join(bench: Bench, rows: Stream, name: str) -> Stream:
    small = [{"k": "a", "x": 1}, {"k": "b", "x": 2}]
    return rows.broadcast_join(name, small, on="k", how="inner").select(["k", "t", "n"])


@step("Stream.lookup")
def lookup(bench: Bench, rows: Stream, name: str) -> Stream:
    return _looked_up(bench, rows, name, ordered=True)


@step("Stream.lookup", variant=True)
def lookup_in_any_order(bench: Bench, rows: Stream, name: str) -> Stream:
    """Rows of equal event time may overtake each other; here all replies arrive at once."""
    return _looked_up(bench, rows, name, ordered=False)


@step("Stream.process")
def process_rows(bench: Bench, rows: Stream, name: str) -> Stream:
    main, side = rows.process(name, Rows, schema=SCHEMA, side={"side": SCHEMA})
    bench.beside(name, side)
    return main


@step("Stream.with_watermarks")
def with_watermarks(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.select({"k": "k", "t": "t", "n": "n + 0"}).with_watermarks("t", 7 * MS)


@step("Stream.with_watermarks")
def with_generated_watermarks(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.with_watermarks("t", generator=Behind)


@step("Stream.rebalance")
def rebalance(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.rebalance().select({"k": "k", "t": "t", "n": "n"})


@step("Stream.union", variant=True)
def union(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.union(bench.other())


@step("Stream.deduplicate", by_order=True)
def deduplicate(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.deduplicate(name, "k", "n", within=None)


@step("Stream.deduplicate", by_order=True, follows=True)
def deduplicate_within(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.deduplicate(name, "k", within=25 * MS)


def _looked_up(bench: Bench, rows: Stream, name: str, ordered: bool) -> Stream:
    options: dict[str, Any] = {"how": "side", "linger": 0 * MS, "ordered": ordered}
    found, missed = rows.lookup(name, fetch, key="n", schema={"x": int}, **options)
    bench.beside(name, missed)
    return found.select(["k", "t", "n"])


# ------------------------------------------------------------ by key


@step("Stream.key_by", "KeyedStream.aggregate", by_order=True)
def running_aggregate(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.key_by("k").aggregate(name, so_far=count()).select({"k": "k", "t": "t", "n": "so_far"})


@step("KeyedStream.aggregate", by_order=True)
def latest_aggregate(bench: Bench, rows: Stream, name: str) -> Stream:
    """Cuts choose the rows that go out; the last row of each key is the same."""
    latest = rows.key_by("k").aggregate(name, emit="latest", so_far=count(), most=max_("n"))
    last = latest.key_by("k").window(f"{name}-last", Global()).aggregate(t=arg_max("t", by="so_far"), n=max_("so_far"))
    return last.select({"k": "k", "t": "t", "n": "n"})


@step("KeyedStream.process", by_order=True, variant=True)
def process(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.key_by("k").process(name, Counted, schema=SCHEMA)


@step("KeyedStream.process", by_order=True, follows=True)
def process_with_timers(bench: Bench, rows: Stream, name: str) -> Stream:
    main, side = rows.key_by("k").process(name, Timed, event_time="t", schema=SCHEMA, side={"side": SCHEMA})
    bench.beside(name, side)
    return main


@step("KeyedStream.process", by_order=True, follows=True)
def process_with_ttl(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.key_by("k").process(name, Recent, event_time="t", schema=SCHEMA)


@step("KeyedStream.process", by_order=True, follows=True)
def process_that_fails(bench: Bench, rows: Stream, name: str) -> Stream:
    good, bad = rows.key_by("k").process(name, Failing, event_time="t", schema=SCHEMA, on_error="side")
    bench.beside(name, bad.select(["row", "event_time"]))
    return good


@step("KeyedStream.process_groups", by_order=True)
def process_groups(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.key_by("k").process_groups(name, Numbered, schema=SCHEMA)


def _window(kind: Any, **options: Any) -> Made:
    def made(bench: Bench, rows: Stream, name: str) -> Stream:
        windows = rows.key_by("k").window(name, kind, event_time="t", **options)
        results, late = windows.aggregate(late=True, rows=count(), last=max_("n"))
        bench.beside(name, late)
        updates = [column for column in ("update", "early", "retracted") if column in results.schema.names]
        number = "coalesce(rows, 0) * 100 + coalesce(last, 0)" + "".join(
            f" + CAST({column} AS BIGINT) * 1000" for column in updates
        )
        return results.select({"k": "k", "t": pc.field("window_end").cast(pa.int64()), "n": number})

    return made


_LATER: dict[str, Any] = {"allowed_lateness": 25 * MS}
_WINDOWS = {
    "tumbling": _window(Tumbling(20 * MS)),
    "sliding": _window(Sliding(20 * MS, 5 * MS)),
    "session": _window(Session(12 * MS)),
    "tumbling_with_lateness": _window(Tumbling(20 * MS), **_LATER),
    "sliding_with_lateness": _window(Sliding(20 * MS, 10 * MS), **_LATER),
    "session_with_lateness": _window(Session(12 * MS), **_LATER),
    "tumbling_early": _window(Tumbling(40 * MS), early=Every(10 * MS)),
    "tumbling_early_with_lateness": _window(Tumbling(20 * MS), early=Every(10 * MS), **_LATER),
    "tumbling_early_by_rows": _window(Tumbling(40 * MS), early=Every(rows=2)),
    "tumbling_early_by_rows_with_lateness": _window(Tumbling(20 * MS), early=Every(rows=2), **_LATER),
    "sliding_early_by_rows_with_lateness": _window(
        Sliding(20 * MS, 10 * MS), early=Every(rows=2, accumulate=False), **_LATER
    ),
    "tumbling_by_own_trigger": _window(Tumbling(40 * MS), early=Every3()),
    "tumbling_by_own_trigger_with_lateness": _window(Tumbling(20 * MS), early=Every3(), **_LATER),
    "sliding_by_own_trigger": _window(Sliding(40 * MS, 20 * MS), early=Every3()),
    "sliding_by_own_trigger_with_lateness": _window(Sliding(20 * MS, 10 * MS), early=Every3(), **_LATER),
    "session_early": _window(Session(30 * MS), early=Every(10 * MS)),
    "session_early_with_lateness": _window(Session(12 * MS), early=Every(10 * MS), **_LATER),
    "session_early_by_rows_with_lateness": _window(Session(12 * MS), early=Every(rows=2), **_LATER),
    "tumbling_of_negative_offset": _window(Tumbling(20 * MS, -7 * MS)),
}
_VARIANTS = {
    "sliding_with_lateness",
    "tumbling_of_negative_offset",
    "session_early",
    "sliding_by_own_trigger",
    "session_with_lateness",
    "tumbling_early_with_lateness",
    "sliding_early_by_rows_with_lateness",
    "tumbling_by_own_trigger_with_lateness",
    "sliding_by_own_trigger_with_lateness",
    "session_early_with_lateness",
    "session_early_by_rows_with_lateness",
    "join_semi",
    "join_anti",
}
for _name, _make in _WINDOWS.items():
    _early = "early" in _name or "trigger" in _name
    _by_order = _early or "lateness" in _name
    _methods = ("KeyedStream.window", "WindowedStream.aggregate")
    STEPS[_name] = Step(_name, _make, _methods, by_order=_by_order, follows=_early, variant=_name in _VARIANTS)


def _combined(kind: Any) -> Made:
    """Without an output of late rows: such windows combine rows before the exchange."""

    def made(bench: Bench, rows: Stream, name: str) -> Stream:
        windows = rows.key_by("k").window(name, kind, event_time="t")
        results = windows.aggregate(rows=count(), last=max_("n"), total=sum_("n"))
        number = "rows * 10000 + last * 100 + total"
        return results.select({"k": "k", "t": pc.field("window_end").cast(pa.int64()), "n": number})

    return made


for _name, _kind in {
    "tumbling_combined": Tumbling(20 * MS),
    "sliding_combined": Sliding(20 * MS, 5 * MS),
    "session_combined": Session(20 * MS),
}.items():
    STEPS[_name] = Step(_name, _combined(_kind), ("KeyedStream.window", "WindowedStream.aggregate"))


@step("KeyedStream.window", "WindowedStream.aggregate", by_order=True, makes_late=True)
def calendar_windows(bench: Bench, rows: Stream, name: str) -> Stream:
    """Uses times so far apart that some milliseconds become some days. A new watermark follows these times, so the
    order of arrival determines which rows are late.
    """
    times = f"CASE WHEN t > {DAY_MS} THEN t ELSE t * {DAY_MS // 16} END"
    slower = rows.select({"k": "k", "t": times, "n": "n"}).with_watermarks("t", 6 * DAY_MS // 16 * MS)
    days = slower.key_by("k").window(name, Calendar("day", zone="Europe/Berlin"), event_time="t")
    results, late = days.aggregate(late=True, n=count(), last=max_("n"))
    bench.beside(name, late)
    number = pc.field("n") + pc.field("last")
    return results.select({"k": "k", "t": pc.field("window_end").cast(pa.int64()), "n": number})


@step("KeyedStream.window", "WindowedStream.aggregate", by_order=True)
def count_windows(bench: Bench, rows: Stream, name: str) -> Stream:
    return (
        rows.key_by("k")
        .window(name, Count(2))
        .aggregate(t=max_("t"), n=sum_("n"))
        .select({"k": "k", "t": "t", "n": "n"})
    )


@step("KeyedStream.window", "WindowedStream.aggregate")
def global_windows(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.key_by("k").window(name, Global()).aggregate(t=max_("t"), n=sum_("n"))


@step("WindowedStream.apply", by_order=True)
def applied(bench: Bench, rows: Stream, name: str) -> Stream:
    windows = rows.key_by("k").window(name, Tumbling(20 * MS), event_time="t")
    results, late = windows.apply(told, schema=SCHEMA, late=True)
    bench.beside(name, late)
    return results


@step("WindowedStream.top", by_order=True)
def top(bench: Bench, rows: Stream, name: str) -> Stream:
    results, late = rows.key_by("k").window(name, Sliding(20 * MS, 10 * MS), event_time="t").top(1, by="n", late=True)
    bench.beside(name, late)
    return results.select({"k": "k", "t": "t", "n": "n"})


@step("Stream.window_all", "WindowedStream.top", makes_late=True)
def top_of_aggregates(bench: Bench, rows: Stream, name: str) -> Stream:
    """The windows of the second step are those of the first step, so rows keep their start and end."""
    counted = rows.key_by("k").window(f"{name}-keys", Tumbling(20 * MS), event_time="t").aggregate(n=count())
    best = counted.window_all(name, Tumbling(20 * MS), event_time="window_start").top(2, by="k")
    return best.select({"k": "k", "t": pc.field("window_start").cast(pa.int64()), "n": "n"})


@step("Stream.window_all")
def window_all(bench: Bench, rows: Stream, name: str) -> Stream:
    counted = rows.window_all(name, Tumbling(20 * MS), event_time="t").aggregate(n=count(), k=max_("k"))
    return counted.select({"k": "k", "t": pc.field("window_end").cast(pa.int64()), "n": "n"})


# ------------------------------------------------------------ two inputs, the second there before


def _join(kind: str, **options: Any) -> Made:
    def made(bench: Bench, rows: Stream, name: str) -> Stream:
        join = getattr(rows.key_by("k"), kind)
        joined = join(name, bench.other().key_by("k"), **options)
        if isinstance(joined, tuple):
            joined, *late = joined
            bench.beside(name, *late)
        return joined.select({"k": "k", "t": "t", "n": "n"})

    return made


_HOUR = {"between": (-50 * MS, 50 * MS), "event_time": "t", "late": True}
_JOINS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "join": ("join", {**_HOUR, "how": "left"}),
    "join_semi": ("join", {**_HOUR, "how": "semi"}),
    "join_anti": ("join", {**_HOUR, "how": "anti"}),
    "window_join": ("window_join", {"window": Tumbling(30 * MS), "event_time": "t", "how": "left", "late": True}),
    "asof_join": ("asof_join", {"event_time": "t", "late": True}),
    "table_join": ("table_join", {"event_time": "t", "late": True}),
    "table_join_as_it_is": ("table_join", {}),
}
for _name, (_kind, _options) in _JOINS.items():
    _in_order = _name == "table_join_as_it_is"
    _made = _join(_kind, **_options)
    STEPS[_name] = Step(_name, _made, (f"KeyedStream.{_kind}",), in_order=_in_order, variant=_name in _VARIANTS)


@step("ConnectedStreams.process", by_order=True, follows=True)
def connected(bench: Bench, rows: Stream, name: str) -> Stream:
    inputs = connect(rows=rows.key_by("k"), others=bench.other().key_by("k"))
    return inputs.process(name, Connected, event_time="t", schema=SCHEMA)


@step("Stream.broadcast", "ConnectedStreams.process", by_order=True, follows=True, variant=True)
def connected_to_broadcast(bench: Bench, rows: Stream, name: str) -> Stream:
    inputs = connect(rows=rows.key_by("k"), others=bench.other().broadcast())
    return inputs.process(name, Ruled, event_time={"rows": "t"}, schema=SCHEMA)


@step("Stream.broadcast", "ConnectedStreams.process", by_order=True, follows=True)
def connected_at_barriers(bench: Bench, rows: Stream, name: str) -> Stream:
    inputs = connect(rows=rows.key_by("k"), others=bench.other().broadcast("barrier"))
    return inputs.process(name, Ruled, event_time={"rows": "t"}, schema=SCHEMA)


# ------------------------------------------------------------ two inputs of one source


@step("Stream.union", in_order=False, merges=True)
def union_of_two_widths(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.filter("n % 2 = 0").with_columns(n="CAST(n AS INT)").union(rows.filter("n % 2 = 1"))


@step("Stream.union", in_order=False, merges=True)
def union_of_the_same(bench: Bench, rows: Stream, name: str) -> Stream:
    return rows.filter("n % 2 = 0").union(rows.filter("n % 2 = 1"))


@step("KeyedStream.join", in_order=False, merges=True)
def join_of_the_same(bench: Bench, rows: Stream, name: str) -> Stream:
    other = rows.filter("n % 2 = 1").select({"k": "k", "t": "t", "m": "n"})
    joined = rows.key_by("k").join(name, other.key_by("k"), between=(-30 * MS, 30 * MS), event_time="t")
    return joined.select({"k": "k", "t": "t", "n": "n * 100 + m"})


@step("KeyedStream.window_join", in_order=False, merges=True)
def window_join_of_the_same(bench: Bench, rows: Stream, name: str) -> Stream:
    joined = rows.key_by("k").window_join(name, rows.key_by("k"), window=Tumbling(30 * MS), event_time="t")
    return joined.select({"k": "k", "t": "t", "n": "n * 100 + n_right"})


@step("KeyedStream.asof_join", in_order=False, merges=True)
def asof_join_of_the_same(bench: Bench, rows: Stream, name: str) -> Stream:
    other = rows.filter("n % 3 = 1").select({"k": "k", "t": "t", "m": "n"})
    joined = rows.key_by("k").asof_join(name, other.key_by("k"), event_time="t")
    return joined.select({"k": "k", "t": "t", "n": "n * 100 + coalesce(m, 0)"})


# ------------------------------------------------------------ pairs

_READERS = (
    "process_with_timers",
    "deduplicate_within",
    "tumbling",
)  # steps that use event time, tried after each variant
_BEFORE = ("map_to_earlier", "map_batches_to_more")  # steps tried before each variant


def pairs(first: str) -> list[Step]:
    """Returns the steps to try after `first`.

    Steps that depend on the order of rows are omitted after steps without a guaranteed order; where inputs of one
    source interleave, so are steps that lose late rows.
    """
    before = STEPS[first]
    found = []
    for behind in STEPS.values():
        if before.variant and behind.name not in _READERS:
            continue
        if behind.variant and first not in _BEFORE:
            continue
        if not before.in_order and behind.by_order and not behind.follows:
            continue
        if before.merges and (behind.by_order or behind.merges):
            continue
        if behind.merges and (before.by_order or before.makes_late):
            continue
        found.append(behind)
    return found
