"""Outputs of a step by name, beside their order."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, Outputs, Stream, Tumbling, count
from barrier_runtime.api.dataflow import KeyedStream

ROWS = [{"k": "a", "n": 1, "at": datetime(2026, 1, 1)}, {"k": "b", "n": 0, "at": datetime(2026, 1, 1)}]
SCHEMA = {"k": str, "n": int, "at": datetime}


def begin() -> tuple[Dataflow, Stream]:
    flow = Dataflow("outputs")
    return flow, flow.from_iterator("in", lambda index, of: iter(ROWS), schema=SCHEMA, splits=1, event_time="at")


def keyed() -> KeyedStream:
    return begin()[1].key_by("k")


def inverse(row: Any) -> dict[str, float]:
    return {"x": 1 / row["n"]}


def nothing(*_: Any) -> None:
    """Emits no rows."""


def fetch(keys: list[Any]) -> list[Any]:
    return [None] * len(keys)


def hours() -> Any:
    return keyed().window("hours", Tumbling(3600), event_time="at")


def joined(name: str, **more: Any) -> Any:
    left = keyed()
    return getattr(left, name)("both", left, event_time="at", late=True, **more)


STEPS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "map": (lambda: begin()[1].map(inverse, on_error="side"), ["main", "errors"]),
    "flat_map": (lambda: begin()[1].flat_map(lambda row: [row], on_error="side"), ["main", "errors"]),
    "filter": (lambda: begin()[1].filter(bool, on_error="side"), ["main", "errors"]),
    "map_batches": (lambda: begin()[1].map_batches(lambda batch: batch, on_error="side"), ["main", "errors"]),
    "split": (lambda: begin()[1].split("s", str, into=("big", "small")), ["big", "small"]),
    "split errors": (lambda: begin()[1].split("s", str, into=("a", "main"), on_error="side"), ["a", "main", "errors"]),
    "rows": (lambda: begin()[1].process("p", nothing, side={"hot": {"n": int}}), ["main", "hot"]),
    "keyed": (
        lambda: keyed().process("p", lambda key, row, ctx: None, side={"hot": {"n": int}}, on_error="side"),
        ["main", "hot", "errors"],
    ),
    "aggregate": (lambda: hours().aggregate(late=True, n=count()), ["main", "late"]),
    "top": (lambda: hours().top(1, by="n", late=True), ["main", "late"]),
    "apply": (
        lambda: hours().apply(lambda key, window, table: None, schema={"n": int}, late=True, on_error="side"),
        ["main", "late", "errors"],
    ),
    "apply aggregates": (
        lambda: hours().apply(
            lambda key, window, values: None, schema={"n": int}, late=True, on_error="side", n=count()
        ),
        ["main", "late", "errors"],
    ),
    "apply late aggregates": (
        lambda: hours().apply(lambda key, window, values: None, schema={"n": int}, late=True, n=count()),
        ["main", "late"],
    ),
    "window_all": (
        lambda: begin()[1].window_all("w", Tumbling(3600), event_time="at").aggregate(late=True, n=count()),
        ["main", "late"],
    ),
    "join": (lambda: joined("join", between=(0, 60)), ["main", "late_left", "late_right"]),
    "window_join": (lambda: joined("window_join", window=Tumbling(60)), ["main", "late_left", "late_right"]),
    "asof_join": (lambda: joined("asof_join"), ["main", "late_left", "late_right"]),
    "table_join": (lambda: joined("table_join"), ["main", "late_left", "late_right"]),
    "lookup": (
        lambda: begin()[1].lookup("l", fetch, key="k", schema={"x": int}, how="side", on_error="side"),
        ["main", "misses", "errors"],
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_outputs_have_the_same_order_by_name_and_by_position(step: str) -> None:
    make, names = STEPS[step]
    outputs = make()
    assert isinstance(outputs, Outputs)
    assert list(outputs) == [getattr(outputs, name) for name in names] == [outputs[name] for name in names]
    assert repr(outputs).startswith(f"Outputs({names[0]}=<Stream")


def test_rows_of_named_outputs_are_those_of_the_tuple() -> None:
    flow, rows = begin()
    sinks = {name: CollectSink() for name in ("good", "bad", "zero", "else")}
    parsed = rows.map(inverse, name="parse", on_error="side")
    parsed.main.sink("good", sinks["good"])
    parsed.errors.select(["row"]).sink("bad", sinks["bad"])
    parts = rows.split("kind", lambda row: "no n" if row["n"] == 0 else "else", into=("no n", "else"))
    parts["no n"].select(["k"]).sink("zero", sinks["zero"])
    parts["else"].select(["k"]).sink("else", sinks["else"])
    flow.run_local(parallelism=1)
    assert sinks["good"].rows() == [{"x": 1.0}]
    assert [row["row"] for row in sinks["bad"].rows()] == ['{"k":"b","n":0,"at":"2026-01-01T00:00:00Z"}']
    assert (sinks["zero"].rows(), sinks["else"].rows()) == ([{"k": "b"}], [{"k": "a"}])


def test_late_rows_over_all_rows_have_no_internal_key() -> None:
    windows = begin()[1].window_all("w", Tumbling(timedelta(hours=1)), event_time="at").aggregate(late=True, n=count())
    assert windows.late.schema is not None
    assert windows.late.schema.names == list(SCHEMA)


def test_a_step_with_one_output_returns_the_stream() -> None:
    streams: list[Any] = [
        hours().apply(lambda key, window, values: None, schema={"n": int}, n=count()),
        hours().apply(lambda key, window, table: None, schema={"n": int}),
        hours().aggregate(n=count()),
        begin()[1].map(inverse),
    ]
    assert [type(stream) for stream in streams] == [Stream] * 4


def test_an_unknown_output_is_refused_with_the_names() -> None:
    parsed: Any = begin()[1].map(inverse, on_error="side")
    with pytest.raises(InvalidJob, match=r"outputs main, errors, .* 'error': did you mean 'errors'"):
        _ = parsed.error
    with pytest.raises(InvalidJob, match=r"none is named 'sink': choose an output first, as in \.main"):
        parsed.sink("out", CollectSink())
    with pytest.raises(InvalidJob, match="none is named 'late'"):
        _ = parsed["late"]


def test_a_side_output_cannot_have_the_name_of_the_main_output() -> None:
    with pytest.raises(InvalidJob, match="'main' is the name of the main output"):
        keyed().process("p", lambda key, row, ctx: None, side={"main": {"n": int}})
