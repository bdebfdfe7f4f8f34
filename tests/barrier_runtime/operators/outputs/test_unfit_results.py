"""Results of `map` and `flat_map` that do not fit a declared schema go to the errors, like rows that raise."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.launch.outcome import JobFailed

LINES = [
    '{"id": 1, "v": 2}',
    '{"id": 2, "v": "x"}',
    "nope",
    '{"id": 4, "v": 1, "w": 2}',
    "[5]",
    "null",
    '{"id": 7, "v": 99999999999999999999}',
    '{"id": 8, "v": 3}',
]
BAD = [line for line in LINES if line not in (LINES[0], LINES[-1])]


@dataclass
class Event:
    id: int
    v: int


def lines(flow: Dataflow) -> Any:
    rows = [{"line": line} for line in LINES]
    return flow.from_iterator("in", lambda i, n: rows, schema={"line": str}, splits=1)


def parsed(row: dict[str, Any]) -> Any:
    return json.loads(row["line"])


@pytest.mark.parametrize("step", ["map", "flat_map"])
@pytest.mark.parametrize("schema", [{"id": int, "v": int}, Event])
def test_results_that_do_not_fit_are_rows_of_the_errors_in_order(step: str, schema: Any) -> None:
    flow, out, bad = Dataflow("unfit"), CollectSink(), CollectSink()
    rows = lines(flow)
    if step == "map":
        good, errors = rows.map(parsed, schema=schema, on_error="side")
    else:
        good, errors = rows.flat_map(lambda row: [parsed(row)], schema=schema, on_error="side")
    good.sink("out", out)
    errors.sink("bad", bad)
    flow.run_local(parallelism=1)
    assert [(row["id"], row["v"]) for row in out.rows()] == [(1, 2), (8, 3)]
    assert [json.loads(row["row"])["line"] for row in bad.rows()] == BAD
    assert {row["error_type"] for row in bad.rows()} == {"InvalidJob", "JSONDecodeError"}


def test_all_results_of_a_row_go_or_none() -> None:
    flow, out, bad = Dataflow("unfit"), CollectSink(), CollectSink()
    good, errors = lines(flow).flat_map(
        lambda row: [{"n": 1}, {"n": "x" if row["line"] == "nope" else 2}], schema={"n": int}, on_error="side"
    )
    good.sink("out", out)
    errors.sink("bad", bad)
    flow.run_local(parallelism=1)
    assert [row["n"] for row in out.rows()] == [1, 2] * (len(LINES) - 1)
    assert [json.loads(row["row"]) for row in bad.rows()] == [{"line": "nope"}]


@pytest.mark.filterwarnings(r"ignore:[\s\S]*the row is skipped")
@pytest.mark.filterwarnings(r"ignore:[\s\S]*the row is skipped")
def test_skipped_results_are_counted() -> None:
    flow, out = Dataflow("unfit"), CollectSink()
    lines(flow).map(parsed, schema={"id": int, "v": int}, name="parse", on_error="skip").sink("out", out)
    result = flow.run_local(parallelism=1)
    assert len(out.rows()) == 2
    assert result.status.slots[0].metrics["parse.skipped_rows"] == len(BAD)


@pytest.mark.parametrize("options", [{"schema": {"id": int, "v": int}}, {"on_error": "skip"}])
@pytest.mark.filterwarnings("ignore:.*the row is skipped")
def test_without_on_error_or_without_a_schema_the_job_ends(options: Any) -> None:
    flow = Dataflow("unfit")
    lines(flow).map(parsed, **options).sink("out", CollectSink())
    with pytest.raises(JobFailed):
        flow.run_local(parallelism=1)
