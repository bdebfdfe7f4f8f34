"""Windows and joins at full size: very many keys in one batch, rows of 8 MB, and columns that change order between
batches.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import Driven, World
from window_operators import aggregating, applying, topping

from barrier_runtime import CollectSink, Dataflow, Every, Global, Session, Sliding, Tumbling, count, first, last, sum_
from barrier_runtime.api.stream import Stream
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.base import Operator
from barrier_runtime.operators.joins.as_of import AsOfJoinOperator, VersionedTableJoinOperator
from barrier_runtime.operators.joins.base import Side
from barrier_runtime.operators.joins.interval import IntervalJoinOperator, WindowJoinOperator

SECOND = timedelta(seconds=1)
MANY = 140_000  # two whole batches of the most rows that an operator gives at once, and a rest
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
SIDES = (
    Side(("k",), "t", SCHEMA),
    Side(("kk",), "tt", pa.schema([("kk", pa.int64()), ("tt", pa.int64()), ("w", pa.int64())])),
)
AGGREGATES: dict[str, Any] = {"n": count(), "total": sum_("v")}


def each_once(schema: pa.Schema, many: int, shift: int) -> pa.RecordBatch:
    """Batch with each key once, in random order; the value contains the key."""
    keys = np.random.default_rng(shift).permutation(many)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys % 1_000), pa.array(keys + shift)], schema=schema)


def column(driven: Driven, name: str) -> Any:
    return np.concatenate([batch.rows.column(name).to_numpy() for batch in driven.batches])


WINDOWS: dict[str, Callable[[], Operator]] = {
    "tumbling": lambda: aggregating("op", ["k"], Tumbling(SECOND), "t", AGGREGATES),
    "session": lambda: aggregating("op", ["k"], Session(SECOND), "t", AGGREGATES),
}
WHOLE: dict[str, Callable[[], Operator]] = {
    "apply": lambda: applying("op", ["k"], Tumbling(SECOND), "t", lambda k, w, t: t, SCHEMA, SCHEMA),
    "top": lambda: topping("op", ["k"], Tumbling(SECOND), "t", 1, "v", True, SCHEMA),
}
JOINS: dict[str, Callable[[], Operator]] = {
    "interval": lambda: IntervalJoinOperator("op", *SIDES, (-SECOND, SECOND), "full"),
    "window": lambda: WindowJoinOperator("op", *SIDES, Tumbling(SECOND), "full"),
    "as of": lambda: AsOfJoinOperator("op", *SIDES),
    "table": lambda: VersionedTableJoinOperator("op", *SIDES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_very_many_keys_in_one_batch_each_come_out_once_over_a_restart(name: str) -> None:
    world = World("rocksdb")
    driven = Driven(WINDOWS[name](), world)
    driven.feed(each_once(SCHEMA, MANY, 0))
    driven.feed(each_once(SCHEMA, MANY, 7))
    snapshot = driven.snapshot(1)
    driven.operator.close()
    driven = Driven(WINDOWS[name](), world, (snapshot,))
    driven.watermark(WATERMARK_MAX)
    keys = column(driven, "k")
    assert len(keys) == MANY
    assert len(np.unique(keys)) == MANY
    assert (column(driven, "n") == 2).all()
    assert (column(driven, "total") == 2 * keys + 7).all()
    driven.operator.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_rows_of_very_many_windows_in_one_batch_each_come_out_once_over_a_restart(name: str) -> None:
    world, many = World("rocksdb"), MANY // 2  # a smaller number: the function is called for each window
    driven = Driven(WHOLE[name](), world)
    driven.feed(each_once(SCHEMA, many, 0))
    snapshot = driven.snapshot(1)
    driven.operator.close()
    driven = Driven(WHOLE[name](), world, (snapshot,))
    driven.watermark(WATERMARK_MAX)
    keys = column(driven, "k")
    assert len(keys) == many
    assert len(np.unique(keys)) == many
    assert (column(driven, "v") == keys).all()
    driven.operator.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINS)
def test_very_many_keys_in_one_batch_of_each_side_are_joined_over_a_restart(name: str) -> None:
    world = World("rocksdb")
    driven = Driven(JOINS[name](), world)
    driven.feed(each_once(SIDES[1].schema, MANY, 7), port=1)
    snapshot = driven.snapshot(1)
    driven.operator.close()
    driven = Driven(JOINS[name](), world, (snapshot,))
    driven.feed(each_once(SCHEMA, MANY, 0))
    driven.watermark(WATERMARK_MAX)
    keys = column(driven, "k")
    assert len(keys) == MANY
    assert len(np.unique(keys)) == MANY
    assert (column(driven, "w") == keys + 7).all()
    assert driven.operator.held == (0, 0)  # type: ignore[attr-defined]
    driven.operator.close()


def read(flow: Dataflow, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> Stream:
    """Stream of `rows`, read unchanged from two splits."""
    return flow.from_iterator(
        name,
        lambda part, of: rows[part::of],
        schema=schema,
        splits=2,
        event_time=schema.names[1],
        max_out_of_orderness=timedelta(minutes=1),
    )


def steps(flow: Dataflow, left: Stream, right: Stream) -> dict[str, CollectSink]:
    """Each kind of window and join, of rows (k, t, v) and (kk, tt, w)."""
    keyed, other = left.key_by("k"), right.key_by("kk")
    found: dict[str, Stream] = {}
    for name, window in {"tumbling": Tumbling(SECOND), "sliding": Sliding(2 * SECOND, SECOND)}.items():
        found[name] = keyed.window(name, window, event_time="t").aggregate(n=count(), a=first("v"), z=last("v"))
    found["session"] = keyed.window("session", Session(SECOND), event_time="t").aggregate(n=count(), a=first("v"))
    found["early"] = keyed.window("early", Global(), early=Every(rows=1)).aggregate(n=count(), z=last("v"))
    found["running"] = keyed.aggregate("running", n=count(), z=last("v"))
    found["top"] = keyed.window("top", Tumbling(SECOND), event_time="t").top(1, by="v")
    found["apply"] = keyed.window("apply", Tumbling(SECOND), event_time="t").apply(
        lambda key, window, table: table.select(["k", "t", "v"]), schema=left.schema
    )
    found["interval"] = keyed.join("interval", other, between=(-SECOND, SECOND), how="full", event_time=("t", "tt"))
    found["window join"] = keyed.window_join("both", other, Tumbling(SECOND), event_time=("t", "tt"), how="full")
    found["as of"] = keyed.asof_join("as-of", other, event_time=("t", "tt"))
    found["table"] = keyed.table_join("table", other, event_time=("t", "tt"))
    sinks = {name: CollectSink() for name in found}
    for name, stream in found.items():
        stream.sink(f"of-{name.replace(' ', '-')}", sinks[name])
    return sinks


@pytest.mark.slow
def test_rows_of_8_mb_go_through_windows_and_joins() -> None:
    """Results equal those of one-letter rows, within a slot and between slots."""
    sizes = {1: [], 8_000_000: []}  # type: dict[int, list[Any]]
    for size, results in sizes.items():
        flow = Dataflow("large")
        letters = "abcabc"
        left = [{"k": n % 2, "t": n * 300, "v": letters[n] * size} for n in range(6)]
        right = [{"kk": n % 2, "tt": n * 400, "w": letters[n] * size} for n in range(3)]
        schemas = [
            pa.schema([(a, pa.int64()), (b, pa.int64()), (c, pa.string())]) for a, b, c in ("ktv", ("kk", "tt", "w"))
        ]
        sinks = steps(flow, read(flow, "left", left, schemas[0]), read(flow, "right", right, schemas[1]))
        flow.run_local(parallelism=2, checkpoint_interval=0.2)
        for name, sink in sinks.items():
            rows = []
            for row in sink.rows():
                texts = {key: value for key, value in row.items() if isinstance(value, str)}
                assert all(value == value[:1] * size for value in texts.values()), name
                rows.append(str(sorted((key, texts[key][:1] if key in texts else value) for key, value in row.items())))
            results.append((name, sorted(rows)))
    assert sizes[1] == sizes[8_000_000]


def turned(rows: pa.RecordBatch, by: int) -> pa.RecordBatch:
    names = rows.schema.names
    return rows.select([*names[by:], *names[:by]])


MADE: dict[str, Callable[[], Operator]] = {
    **WINDOWS,
    **JOINS,
    **WHOLE,
    "running": lambda: RunningAggregateOperator("op", ["k"], AGGREGATES),
    "early": lambda: aggregating("op", ["k"], Tumbling(SECOND), "t", AGGREGATES, early=Every(rows=3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_columns_of_an_input_may_come_in_another_order_with_each_batch(name: str) -> None:
    results = []
    for turning in (0, 1):
        world, out = World(), list[str]()
        driven = Driven(MADE[name](), world)
        for number in range(12):
            rows = np.arange(number * 40, number * 40 + 40)
            for port, side in enumerate(SIDES if name in JOINS else SIDES[:1]):
                arrays = [pa.array(rows % 5), pa.array(rows * 10 + 3 * port), pa.array(rows)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=side.schema)
                driven.feed(turned(batch, turning * (number + port) % 3), port=port)
            driven.watermark(int(rows[-1]) * 10)
            out += [str(sorted(row.items())) for row in driven.take()]
            if number == 6:
                snapshot = driven.snapshot(1)
                driven.operator.close()
                driven = Driven(MADE[name](), world, (snapshot,))
        driven.watermark(WATERMARK_MAX)
        results.append(out + [str(sorted(row.items())) for row in driven.take()])
        driven.operator.close()
    assert len(results[0]) >= 5
    assert results[0] == results[1]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_whose_fields_change_places_go_through_a_job(parallelism: int) -> None:
    """For a function that declares no schema."""
    flow, out = Dataflow("turning"), CollectSink()
    rows = [{"k": n % 5, "t": n * 10, "v": n} for n in range(400)]

    def turn(row: dict[str, Any]) -> dict[str, Any]:
        at = row["v"] // 7 % 3
        names = ["k", "t", "v"]
        return {name: row[name] for name in (*names[at:], *names[:at])}

    keyed = read(flow, "rows", rows, SCHEMA).map(turn).key_by("k")
    windows = keyed.window("w", Tumbling(SECOND), event_time="t").aggregate(**AGGREGATES)
    windows.key_by("k").aggregate("all", rows=sum_("n"), whole=sum_("total")).sink("out", out)
    flow.run_local(parallelism=parallelism)
    ends = {row["k"]: (row["rows"], row["whole"]) for row in out.rows()}
    assert ends == {k: (80, sum(range(k, 400, 5))) for k in range(5)}
