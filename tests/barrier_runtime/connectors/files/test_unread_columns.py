"""Columns that no step needs are not read from Parquet files; all other flows get all columns."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow, JsonlSource, ParquetSource, count
from barrier_runtime.api.stream import Stream
from barrier_runtime.data.expressions import columns_used
from barrier_runtime.graph.compiler import compile_plan

ALL = ["at", "k", "v", "text", "wide"]
SCHEMA = pa.schema(
    [("at", pa.int64()), ("k", pa.int64()), ("v", pa.int64()), ("text", pa.string()), ("wide", pa.string())]
)


def row(number: int) -> dict[str, Any]:
    return {"at": number, "k": number % 3, "v": number * 2, "text": f"t{number}", "wide": "x" * 100}


ROWS = [row(number) for number in range(30)]

FLOWS: dict[str, tuple[Callable[[Stream], Stream], list[str], Callable[[dict[str, Any]], Any]]] = {
    "filters, then select": (
        lambda s: s.filter("k = 1").filter("v > 4").select(["text"]),
        ["at", "k", "v", "text"],
        lambda r: {"text": r["text"]} if r["k"] == 1 and r["v"] > 4 else None,
    ),
    "computed": (
        lambda s: s.select({"sum": "v + k", "two": pc.field("v") * 2, "k": "k"}),
        ["at", "k", "v"],
        lambda r: {"sum": r["v"] + r["k"], "two": r["v"] * 2, "k": r["k"]},
    ),
    "two readers": (
        lambda s: s.filter("k = 1").select(["k"]).union(s.filter("k = 2").select({"k": "v"})),
        ["at", "k", "v"],
        lambda r: {1: {"k": 1}, 2: {"k": r["v"]}}.get(r["k"]),
    ),
    "one reader wants all": (
        lambda s: s.filter("k = 1").select(["k"]).union(s.map(lambda r: {"k": r["v"]}).filter("k < 0")),
        ALL,
        lambda r: {"k": 1} if r["k"] == 1 else None,
    ),
    "a filter at the end": (lambda s: s.filter("k = 1"), ALL, lambda r: r if r["k"] == 1 else None),
    "a function": (
        lambda s: s.filter(lambda r: r["k"] == 1).select(["k"]),
        ALL,
        lambda r: {"k": 1} if r["k"] == 1 else None,
    ),
    "a column by its number": (
        lambda s: s.filter(pc.field(1) == 1).select(["text"]),
        ALL,
        lambda r: {"text": r["text"]} if r["k"] == 1 else None,
    ),
    "keys": (
        lambda s: s.key_by("k").aggregate("n", n=count()).filter("n = 10").select(["k"]),
        ALL,
        lambda r: {"k": r["k"]} if r["v"] < 6 else None,
    ),
}


def written(folder: Path) -> str:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS[:20], SCHEMA), folder / "1.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[20:], SCHEMA), folder / "2.parquet")
    return str(folder)


def columns_read(flow: Dataflow) -> list[str]:
    (chain,) = (chain for chain in compile_plan(flow.plan, 1).chains if chain.source is not None)
    assert chain.source is not None
    return chain.source.source.schema.names


@pytest.mark.parametrize("name", FLOWS)
def test_what_no_step_wants_is_not_read_and_results_are_those_of_all_columns(tmp_path: Path, name: str) -> None:
    steps, wanted, result = FLOWS[name]
    flow, out = Dataflow("read"), CollectSink()
    steps(flow.read_parquet("in", written(tmp_path / "in"), event_time="at")).sink("out", out)
    assert columns_read(flow) == wanted
    flow.run_local(parallelism=2)
    expected = [found for found in map(result, ROWS) if found is not None]
    assert sorted(map(str, out.rows())) == sorted(map(str, expected))


def test_edges_behind_sources_and_filters_say_what_columns_they_have(tmp_path: Path) -> None:
    """Rows in flight of an older release, which read all columns, are cut to the used columns."""
    flow = Dataflow("read")
    spread = flow.read_parquet("in", written(tmp_path / "in")).rebalance()
    spread.filter("k = 1").rebalance().filter("v > 4").rebalance().select(["text"]).sink("out", CollectSink())
    edges = compile_plan(flow.plan, 2).edges
    assert [edge.schema and edge.schema.names for edge in edges] == [["k", "v", "text"]] * 3


def test_columns_that_are_not_read_are_checked_all_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "in")
    pq.write_table(pa.table({"at": [1], "k": [1]}), tmp_path / "in" / "3.parquet")
    flow = Dataflow("read")
    flow.read_parquet("in", folder, schema=SCHEMA).select(["k"]).sink("out", CollectSink())
    with pytest.raises(Exception, match="it has no column 'v'"):
        compile_plan(flow.plan, 1)


@pytest.mark.parametrize("chosen", [["day"], ["n"], ["day", "n"]])
def test_columns_of_folders_alone_come_once_for_each_row(tmp_path: Path, chosen: list[str]) -> None:
    for day in ("01", "02"):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"n": [1, 2, 3], "x": [0, 0, 0]}), tmp_path / f"day={day}" / "a.parquet")
    flow, out = Dataflow("read"), CollectSink()
    flow.source("in", ParquetSource(str(tmp_path))).select(chosen).sink("out", out)
    flow.run_local(parallelism=1)
    rows = [{"day": day, "n": n} for day in (1, 2) for n in (1, 2, 3)]
    assert sorted(map(str, out.rows())) == sorted(str({name: row[name] for name in chosen}) for row in rows)


def test_watched_folders_leave_columns_out_and_other_formats_do_not(tmp_path: Path) -> None:
    folder, text = written(tmp_path / "in"), tmp_path / "a.jsonl"
    text.write_text('{"at": 1, "k": 1}\n')
    for source, wanted in (
        (ParquetSource(folder, schema=SCHEMA, watch=datetime.timedelta(seconds=1)), ["k"]),
        (JsonlSource(str(text), schema={"at": int, "k": int}), ["at", "k"]),
    ):
        flow = Dataflow("read")
        flow.source("in", source).select(["k"]).sink("out", CollectSink())
        assert columns_read(flow) == wanted


def test_columns_of_expressions_are_told_or_not_known() -> None:
    a, b = pc.field("at"), pc.field("text")
    assert columns_used(SCHEMA, [(a > 3) & (pc.utf8_length(b) < 5), pc.scalar(1)]) == {"at", "text"}
    assert columns_used(SCHEMA, [pc.if_else(a > 3, pc.field("v"), pc.field("k"))]) == {"at", "v", "k"}
    assert columns_used(SCHEMA, [pc.scalar(1)]) == frozenset()
    assert columns_used(SCHEMA, [a + pc.field(1)]) is None
