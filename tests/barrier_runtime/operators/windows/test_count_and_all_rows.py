"""Windows by count, windows over all rows, and functions of aggregates, as jobs and over restarts."""

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Slots
from window_operators import aggregating

from barrier_runtime import (
    CollectSink,
    Count,
    Dataflow,
    Every,
    Global,
    Session,
    Sliding,
    TimeWindow,
    Tumbling,
    count,
    first,
    sum_,
)
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.windows.whole.apply import ONE_KEY
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
AGGREGATES = {"n": count(), "total": sum_("v"), "first_v": first("v")}
Rows = list[dict[str, Any]]


def rows_of(many: int) -> Rows:
    return [{"k": "abc"[number % 3], "t": number * 7 % 90, "v": number} for number in range(many)]


def full(rows: Rows, size: int, slide: int | None = None) -> Rows:
    """Returns the result of the last `size` rows after every `slide` rows of a key."""
    results = []
    for key in {row["k"] for row in rows}:
        values = [row["v"] for row in rows if row["k"] == key]
        for end in range(slide or size, len(values) + 1, slide or size):
            its = values[max(0, end - size) : end]
            results.append({"k": key, "n": len(its), "total": sum(its), "first_v": its[0]})
    return results


def plain(rows: Rows) -> list[str]:
    return sorted(str(sorted((name, str(value)) for name, value in row.items())) for row in rows)


def read(flow: Dataflow, rows: Rows, splits: int = 1) -> Any:
    return flow.from_iterator(
        "rows",
        lambda part, of: rows[part::of],
        schema=SCHEMA,
        splits=splits,
        event_time="t",
        max_out_of_orderness=100 * MS,
    )


@pytest.mark.slow
@given(
    st.sampled_from([(1, None), (2, None), (5, None), (2, 1), (4, 2), (6, 1), (6, 6)]),
    st.lists(st.one_of(st.lists(st.sampled_from("ab"), min_size=1, max_size=9), st.integers(1, 3)), max_size=12),
)
@examples(60)
def test_each_n_rows_of_a_key_are_a_window_over_restarts_and_the_rest_is_dropped(
    of: tuple[int, int | None], actions: list[Any]
) -> None:
    size, slide = of
    slots = Slots(lambda: aggregating("w", ["k"], Count(size, slide), None, AGGREGATES, SCHEMA), 1)
    fed: Rows = []
    found: Rows = []
    for number, what in enumerate(actions):
        if isinstance(what, int):
            found += slots.take()
            slots = slots.rescaled(number + 1, what)
        else:
            rows = [{"k": key, "t": 0, "v": len(fed) + at} for at, key in enumerate(what)]
            slots.feed(rows, SCHEMA)
            fed += rows
            emitted = [row for driven in slots.driven for row in driven.rows]
            assert plain(found + emitted) == plain(full(fed, size, slide))
    slots.watermarks(*[WATERMARK_MAX] * slots.parallelism)
    assert plain(found + slots.take()) == plain(full(fed, size, slide))
    assert not any(len(driven.operator._table.load_all()) for driven in slots.driven)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_counts_by_key_and_over_all_rows(parallelism: int) -> None:
    rows = rows_of(70)
    flow, by_key, of_all, minutes = Dataflow("count"), CollectSink(), CollectSink(), CollectSink()
    stream = read(flow, rows)
    stream.key_by("k").window("four", Count(4)).aggregate(**AGGREGATES).sink("by-key", by_key)
    stream.window_all("ten", Count(10)).aggregate(**AGGREGATES).sink("all", of_all)
    tens, late = stream.window_all("spans", Tumbling(30 * MS), event_time="t").aggregate(late=True, n=count())
    tens.sink("spans-out", minutes)
    late.sink("late", too_late := CollectSink())
    flow.run_local(parallelism=parallelism)
    assert plain(by_key.rows()) == plain(full(rows, 4))
    expected = full([{**row, "k": "x"} for row in rows], 10)
    assert plain(of_all.rows()) == plain([{name: row[name] for name in row if name != "k"} for row in expected])
    counts = {row["window_start"].timestamp() * 1000: row["n"] for row in minutes.rows()}
    assert counts == {start: sum(row["t"] // 30 * 30 == start for row in rows) for start in (0, 30, 60)}
    assert too_late.rows() == []
    assert late.schema.names == SCHEMA.names


def seen(key: Any, window: TimeWindow, table: pa.Table) -> dict[str, Any]:
    assert ONE_KEY not in table.column_names
    return {"key": str(key), "start": window.start_ms, "rows": len(table)}


@pytest.mark.slow
def test_functions_and_ranks_of_all_rows_see_no_key() -> None:
    rows = rows_of(60)
    flow, applied, in_parts, ranked = Dataflow("all"), CollectSink(), CollectSink(), CollectSink()
    stream = read(flow, rows)
    schema = {"key": str, "start": int, "rows": int}

    def parts(key: Any, window: TimeWindow, batches: Any) -> dict[str, Any]:
        return seen(key, window, pa.Table.from_batches(batches))

    def windows(name: str) -> Any:
        return stream.window_all(name, Tumbling(30 * MS), event_time="t")

    windows("a").apply(seen, schema=schema).sink("applied", applied)
    windows("b").apply(parts, schema=schema, batches=True).sink("parts", in_parts)
    windows("c").top(1, by="v").sink("ranked", ranked)
    flow.run_local(parallelism=2)
    expected = [
        {"key": "None", "start": start, "rows": sum(row["t"] // 30 * 30 == start for row in rows)}
        for start in (0, 30, 60)
    ]
    assert plain(applied.rows()) == plain(in_parts.rows()) == plain(expected)
    assert [row["v"] for row in ranked.rows()] == [
        max(row["v"] for row in rows if row["t"] // 30 * 30 == start) for start in (0, 30, 60)
    ]
    assert list(ranked.rows()[0]) == [*SCHEMA.names, "window_start", "window_end", "rank"]


@pytest.mark.slow
@pytest.mark.parametrize("window", [Tumbling(30 * MS), Sliding(30 * MS, 10 * MS), Session(2 * MS), Global(), Count(3)])
def test_a_function_of_aggregates_is_called_for_each_result(window: Any) -> None:
    rows = rows_of(60)
    flow, plainly, applied = Dataflow("aggregates"), CollectSink(), CollectSink()
    event_time = None if isinstance(window, Global) else "t"
    keyed = read(flow, rows).key_by("k")

    def tell(key: Any, of: TimeWindow, values: dict[str, Any]) -> Any:
        yield {"k": key, "n": values["n"], "total": values["total"], "start": of.start, "values": len(values)}

    schema = {"k": str, "n": int, "total": int, "start": pa.timestamp("ms", "UTC"), "values": int}
    keyed.window("plain", window, event_time=event_time).aggregate(n=count(), total=sum_("v")).sink("p", plainly)
    results = keyed.window("applied", window, event_time=event_time).apply(
        tell, schema=schema, n=count(), total=sum_("v")
    )
    results.sink("a", applied)
    flow.run_local(parallelism=2)
    assert plainly.rows()
    expected = [
        {"k": row["k"], "n": row["n"], "total": row["total"], "start": row.get("window_start"), "values": 2}
        for row in plainly.rows()
    ]
    assert plain(applied.rows()) == plain(expected)


def test_what_they_cannot_be_is_refused_with_the_remedy() -> None:
    stream = read(Dataflow("refused"), [])
    keyed = stream.key_by("k")
    for rows in (0, -1, True, 1.5):
        with pytest.raises(InvalidJob, match="at least 1"):
            Count(rows)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="leave event_time out"):
        keyed.window("w", Count(3), event_time="t")
    with pytest.raises(InvalidJob, match="leave early= out"):
        keyed.window("w", Count(3), early=Every(rows=1))
    windows = keyed.window("w", Count(3))
    with pytest.raises(InvalidJob, match="not for Count windows"):
        windows.top(1, by="v")
    with pytest.raises(InvalidJob, match="leave batches= out"):
        windows.apply(seen, schema={"n": int}, batches=True, n=count())
    unknown = stream.map(lambda row: row)
    with pytest.raises(InvalidJob, match="know the columns"):
        unknown.window_all("w", Count(3))
