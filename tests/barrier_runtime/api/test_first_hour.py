"""First steps of a newcomer: looking at rows, frames as small tables, plain values as columns."""

import datetime
import decimal
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, KeyedStream, RabbitMQSource, Stream, count
from barrier_runtime.api.missing_steps import OTHER_FRAMEWORKS
from barrier_runtime.samples import READINGS

ROWS = [{"n": 1, "city": "b"}, {"n": 2, "city": "c"}]


def rows_in(flow: Dataflow) -> Stream:
    return flow.from_iterator("in", lambda part, of: ROWS, schema={"n": int, "city": str}, splits=1)


def collected(step: Callable[[Stream], Stream]) -> CollectSink:
    flow, out = Dataflow("first-hour"), CollectSink()
    step(rows_in(flow)).sink("out", out)
    flow.run_local(parallelism=1)
    return out


def test_print_is_a_sink(capsys: pytest.CaptureFixture[str]) -> None:
    flow = Dataflow("first-hour")
    rows_in(flow).sink("look", print)
    assert "CallableSink(print_rows)" in flow.explain()
    flow.run_local(parallelism=1)
    assert capsys.readouterr().out.splitlines() == [str(row) for row in ROWS]


def test_what_was_collected_comes_as_a_table_and_as_a_frame() -> None:
    out = collected(lambda stream: stream)
    assert out.to_arrow() == pa.table({"n": [1, 2], "city": ["b", "c"]})
    assert out.to_pandas().to_dict("records") == ROWS
    assert CollectSink().to_arrow().num_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.table"])
def test_a_frame_is_a_small_table(kind: str) -> None:
    cities = pkgutil.resolve_name(kind)({"city": ["a", "b"], "name": ["Aachen", "Bonn"]})
    out = collected(lambda stream: stream.broadcast_join("cities", cities, on="city"))
    assert [row["name"] for row in out.rows()] == ["Bonn", None]


def test_a_frame_with_an_index_is_taken_without_it() -> None:
    cities = pd.DataFrame({"city": ["b"], "name": ["Bonn"]}, index=[7])
    assert collected(lambda stream: stream.broadcast_join("cities", cities, on="city")).to_arrow().column_names == [
        "n",
        "city",
        "name",
    ]


@pytest.mark.parametrize("table", [5, None, [1, 2]])
def test_what_is_no_small_table_is_told(table: Any) -> None:
    with pytest.raises(InvalidJob, match="a pandas or Polars frame, a list of dicts or a path"):
        rows_in(Dataflow("first-hour")).broadcast_join("cities", table, on="city")


def test_plain_values_are_columns() -> None:
    day = datetime.date(2026, 3, 1)
    values = {"a": 2, "b": 0.5, "c": True, "d": decimal.Decimal("1.50"), "e": day, "f": b"x", "g": "'text'"}
    out = collected(lambda stream: stream.select({"n": "n", **values}))
    assert out.rows() == [{"n": n, **values, "g": "text"} for n in (1, 2)]


def test_a_value_that_cannot_be_a_column_is_told() -> None:
    with pytest.raises(InvalidJob, match=r"'x' is \[1\]: give a column name, an expression or a number"):
        rows_in(Dataflow("first-hour")).select({"x": [1]})


def test_the_sample_is_there_with_its_types() -> None:
    stream = Dataflow("first-hour").read_csv("readings", READINGS)
    assert stream.schema is not None
    assert stream.schema.names == ["sensor", "at", "ms"]
    assert pa.types.is_timestamp(stream.schema.field("at").type)


def test_a_method_that_is_nearly_right_is_recognised() -> None:
    stream = rows_in(Dataflow("first-hour"))
    with pytest.raises(AttributeError, match=r"no attribute 'fliter': did you mean 'filter'\?"):
        stream.fliter  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'agregate': did you mean 'aggregate'\?"):
        stream.key_by("n").agregate  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        stream.xyzzy  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("read_json", r"\.read_jsonl\(name, path\)"),
        ("from_pandas", r"\.from_iterator\(name"),
        ("readStream", r"\.source\(name, source\)"),
        ("from_kafka", r"\.read_kafka\(name"),
        ("read_delta", r"\.source\(name, DeltaSource\(url\)\)"),
        ("read_sql", r"\.from_poll\(name"),
        ("read_streams", r"did you mean 'read_\w+'\?"),
        ("execute", r"\.run_local\(\)"),
        ("filter", "methods of a stream"),
        ("read_cvs", r"did you mean 'read_csv'\?"),
    ],
)
def test_a_flow_answers_names_of_other_frameworks_with_ours(name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=told):
        getattr(Dataflow("first-hour"), name)


@pytest.mark.slow
def test_the_first_rows_of_an_endless_stream_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    flow = Dataflow("first-hour")
    ticks = flow.rate("ticks", 10_000, keys=3)
    ticks.sink("never-written", print)
    odd = ticks.filter("value % 2 = 1").key_by("key").aggregate("n", n=count())
    assert odd.take(5).num_rows == 5
    ticks.select(["value"]).show(2)
    printed = capsys.readouterr().out
    assert "value" in printed
    assert "int64" in printed
    assert "{" not in printed  # the flow's sink has got nothing


def test_a_stream_that_ends_before_is_shown_whole() -> None:
    assert rows_in(Dataflow("first-hour")).take(10).to_pylist() == ROWS
    assert rows_in(Dataflow("first-hour")).filter("n > 5").take(10).num_rows == 0


def test_messages_are_not_taken_from_a_queue_for_looking() -> None:
    queue = Dataflow("first-hour").source("queue", RabbitMQSource("amqp://nowhere", "q", deduplicate=None))
    with pytest.raises(InvalidJob, match="source 'queue' has messages that are gone once they were read"):
        queue.show()
    with pytest.raises(InvalidJob, match="0 rows: give a whole number"):
        queue.take(0)


def test_names_of_other_frameworks_are_answered_with_ours() -> None:
    rows = Dataflow("names").rate("ticks", 10)
    for name, ours in [
        ("where", ".filter("),
        ("withColumn", ".with_columns("),
        ("withColumnRenamed", ".rename("),
        ("selectExpr", ".select("),
        ("peek", ".inspect("),
        ("groupby", ".key_by("),
        ("to_kafka", ".sink("),
        ("foreachBatch", ".for_each_batch("),
        ("withWatermark", "event_time="),
    ]:
        with pytest.raises(InvalidJob, match=f"Stream has no method {name!r}: .*{re.escape(ours)}"):
            getattr(rows, name)
    with pytest.raises(InvalidJob, match=r"KeyedStream has no method 'count': .*aggregate"):
        rows.key_by("value").count()  # type: ignore[attr-defined]


def test_no_answer_hides_a_method_that_there_is() -> None:
    assert [name for name in OTHER_FRAMEWORKS if hasattr(Stream, name) and hasattr(KeyedStream, name)] == []
