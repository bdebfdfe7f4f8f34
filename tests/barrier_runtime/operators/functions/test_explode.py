"""`explode`: rows of elements and entries, with positions and nulls, as Spark makes them."""

from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Stream
from barrier_runtime.state.errors import InvalidJob

SCHEMA = pa.schema(
    [("id", pa.int64()), ("words", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int64())), ("s", pa.string())]
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "words": ["a", None, "b"], "m": [("k", 1), ("l", None)], "s": "x,y"},
    {"id": 2, "words": [], "m": [], "s": ""},
    {"id": 3, "words": None, "m": None, "s": None},
    {"id": 4, "words": ["c"], "m": [("k", 4)], "s": "z"},
]


def rows_in(flow: Dataflow, schema: pa.Schema = SCHEMA) -> Stream:
    return flow.from_iterator("in", lambda index, of: iter(ROWS), schema=schema, splits=1)


def result(stream: Stream, flow: Dataflow) -> list[tuple[Any, ...]]:
    stream.sink("out", out := CollectSink())
    flow.run_local(parallelism=1)
    assert all(list(row) == stream.schema.names for row in out.rows())
    return [tuple(row.values()) for row in out.rows()]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.string())])
def test_each_element_of_an_array_becomes_a_row(kind: pa.DataType) -> None:
    flow = Dataflow("explode")
    schema = SCHEMA.set(1, pa.field("words", kind))
    found = result(rows_in(flow, schema).drop("m", "s").explode("words", into="word"), flow)
    assert found == [(1, "a"), (1, None), (1, "b"), (4, "c")]


def test_rows_without_elements_go_out_once_with_outer() -> None:
    flow = Dataflow("explode")
    found = result(rows_in(flow).select("id", "words").explode("words", outer=True, position="at"), flow)
    assert found == [(1, "a", 0), (1, None, 1), (1, "b", 2), (2, None, None), (3, None, None), (4, "c", 0)]


def test_entries_of_a_map_have_two_columns() -> None:
    flow = Dataflow("explode")
    found = result(rows_in(flow).select("m", "id").explode("m", into=("name", "value"), position="at"), flow)
    assert found == [("k", 1, 1, 0), ("l", None, 1, 1), ("k", 4, 4, 0)]
    assert rows_in(Dataflow("explode")).select("m").explode("m").schema.names == ["key", "value"]


def test_elements_of_an_expression_get_a_name() -> None:
    flow = Dataflow("explode")
    found = result(rows_in(flow).select("id", "s").explode("split(s, ',')", into="part"), flow)
    assert found == [(1, "x,y", "x"), (1, "x,y", "y"), (2, "", ""), (4, "z", "z")]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda rows: rows.explode("wordz"), r"explode: there is no column 'wordz' \(did you mean 'words'\?\)"),
        (lambda rows: rows.explode("id"), "column 'id' is int64: it takes an array or a map"),
        (lambda rows: rows.explode("split(s, ',')"), r"name the elements of .*, as in explode\(.*into='item'\)"),
        (lambda rows: rows.explode("split(s, ',')", into="id"), "the output column 'id' exists already"),
        (
            lambda rows: rows.explode("words", into="id"),
            "column 'id' exists already: choose another name by",
        ),
        (lambda rows: rows.explode("words", into=("a", "b")), r"into=\['a', 'b'\]: give one name"),
        (lambda rows: rows.explode("m", into="a"), r"into=\['a'\]: give names of the key and the value"),
        (lambda rows: rows.explode("words", position="s"), "the output column 's' exists already"),
        (lambda rows: rows.map(dict).explode("words"), "explode: it has to know all columns"),
        (
            lambda rows: rows.select({"x": "explode(words)"}),
            r"explode makes several rows of one.*stream\.explode",
        ),
    ],
)
def test_mistakes_are_refused_when_the_flow_is_written(write: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        write(rows_in(Dataflow("explode")))
