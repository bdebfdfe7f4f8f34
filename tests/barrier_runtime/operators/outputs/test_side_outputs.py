"""Side outputs next to the main output of an operator: rows reach all readers, in order and before the next barrier."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import World

from barrier_runtime import CollectSink, Dataflow, IteratorSource, count
from barrier_runtime.api.readers import with_dead_letters
from barrier_runtime.api.stream import Stream
from barrier_runtime.connectors.source import DeadLetters
from barrier_runtime.coordinator.option_types import OptionValues
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.explain import explain_graph
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.outputs.side_outputs import DEAD_LETTERS, DeadLetterOperator

SCHEMA = pa.schema([("n", pa.int64()), ("raw", pa.string()), ("error", pa.string())])


def numbers(first: int, of: int) -> Any:
    """Yields rows of which every third is bad."""
    for n in range(first, 300, of):
        yield {"n": n, "raw": f"r{n}", "error": f"e{n % 4}" if n % 3 == 0 else None}


def parted(flow: Dataflow) -> tuple[Stream, Stream]:
    rows = flow.source("numbers", IteratorSource(numbers, schema=SCHEMA))
    return with_dead_letters(rows, DeadLetters("error", ("n",), {"what": "raw", "error": "error"}))


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.usefixtures("both_ways")
def test_both_streams_go_on_by_key_and_by_row_and_each_row_comes_once(parallelism: int) -> None:
    flow = Dataflow("letters")
    good, bad = parted(flow)
    goods, bads, counts = CollectSink(), CollectSink(), CollectSink()
    good.map(lambda row: {"n": row["n"] + 1}, schema=pa.schema([("n", pa.int64())])).sink("good", goods)
    bad.sink("bad", bads)
    bad.key_by("error").aggregate("by-error", seen=count()).sink("counts", counts)
    flow.run_local(parallelism=parallelism)
    assert sorted(row["n"] for row in goods.rows()) == [n + 1 for n in range(300) if n % 3]
    assert sorted((row["what"], row["error"]) for row in bads.rows()) == sorted(
        (f"r{n}", f"e{n % 4}") for n in range(0, 300, 3)
    )
    assert max(row["seen"] for row in counts.rows() if row["error"] == "e0") == 25


def test_a_reader_of_a_side_output_leaves_the_main_output_in_its_chain() -> None:
    flow = Dataflow("letters")
    good, bad = parted(flow)
    good.sink("good", CollectSink())
    bad.sink("bad", CollectSink())
    graph = compile_plan(flow.plan, 2)
    assert [chain.name for chain in graph.chains] == ["numbers → dead letters-1 → good", "bad"]
    assert [(edge.source_chain, edge.operator, edge.tag) for edge in graph.edges] == [
        (0, "dead letters-1", DEAD_LETTERS)
    ]
    assert "← chain 0, dead letters of dead letters-1, forward, same slot: what string" in explain_graph(
        graph, {}, OptionValues()
    )


def test_a_side_output_that_nobody_reads_is_dropped() -> None:
    flow = Dataflow("letters")
    good, _ = parted(flow)
    sink = CollectSink()
    good.sink("good", sink)
    flow.run_local()
    assert len(sink.rows()) == 200


@pytest.mark.parametrize("errors", [[None, None], ["a", None], ["a", "b"]])
def test_rows_part_with_the_event_time_that_was_reached_at_them(errors: list[str | None]) -> None:
    rows = pa.RecordBatch.from_pylist([{"n": n, "raw": "r", "error": each} for n, each in enumerate(errors)], SCHEMA)
    good: list[Batch] = []
    bad: list[Batch] = []
    operator = DeadLetterOperator("d", "error", ["n"], {"why": "error"})
    operator.open(World().context("d"))
    operator.process(Batch(rows, 7, np.array([10, 20])), Emit(good.append, {DEAD_LETTERS: [bad.append]}))
    times = {0: 10, 1: 20}
    assert with_times(good, "n") == [(n, times[n]) for n, error in enumerate(errors) if error is None]
    assert with_times(bad, "why") == [(error, times[n]) for n, error in enumerate(errors) if error is not None]


def with_times(batches: list[Batch], column: str) -> list[tuple[Any, int]]:
    return [pair for each in batches for pair in zip(each.rows[column].to_pylist(), each.reached, strict=True)]
