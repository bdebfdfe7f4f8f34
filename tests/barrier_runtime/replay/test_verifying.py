"""A repeated flow has equal results, or `verify` names the difference: clocks, random numbers, the order of sets."""

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, CsvSink, Dataflow, JsonlSink, ParquetSink, ProcessContext, ValueState
from barrier_runtime.operators.aggregation.kinds.cells import EncodedValues
from barrier_runtime.operators.aggregation.kinds.sketches import DistinctSketch, FrequentSketch
from barrier_runtime.replay import verify
from barrier_runtime.replay.verifying import same_content
from barrier_runtime.state_tables.differences import StateDifference
from tests.barrier_runtime.replay.two_checkpoints import flow_of, two_checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("sink", [ParquetSink, JsonlSink, CsvSink])
def test_a_deterministic_flow_comes_to_the_same_state_and_rows(sink: Any, tmp_path: Path) -> None:
    job = two_checkpoints(str(tmp_path / "ckpt"), partial(flow_of, sink=sink(str(tmp_path / "out"))))
    found = verify(job.flow, after=job.before, until=job.until, checkpoints=job.folder)
    assert found.same, found.differences
    assert found.read == job.rows_until - job.rows_before
    assert found.read_back == ("out",)
    assert not found.repeated
    assert found.states >= 3


class Dice:
    last = ValueState(float)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        if row["n"] % 50 == 7:
            self.last.value = random.random()
        yield {"user": user, "total": row["n"]}


class Clock:
    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        yield {"user": user, "total": time.perf_counter_ns() if row["n"] % 50 == 7 else row["n"]}


class Each:
    def __init__(self, n: int) -> None:
        self.n = n


class SetOrder:
    first = ValueState(int)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        kept = [Each(n) for n in range(row["n"] % 40 + 20)]
        self.first.value = next(iter(set(kept))).n + 100 * (self.first.value or 0) % 1_000_003
        yield {"user": user, "total": row["n"]}


def sketches(cut: int, values: int) -> dict[str, Any]:
    """Returns the state of both hash-table sketches, read back after each `cut` rows."""
    encoding = EncodedValues(pa.string())
    written: dict[str, Any] = {"rows": values}
    for sketch in (DistinctSketch("v", encoding), FrequentSketch("v", encoding)):
        cell = b""
        for first in range(0, values, cut):
            rows = [f"{number * 3}" for number in range(first, min(values, first + cut))]
            cell = sketch.closed(sketch.add(sketch.opened(cell), rows))
        written[sketch.name] = cell
    return written


def differing(before: Any, after: Any) -> StateDifference:
    return StateDifference("step", "windows", "changed", {"k": 1}, None, before, after)


@pytest.mark.parametrize("values", [5, 54, 600])
def test_where_batches_end_makes_no_difference_of_sketches(values: int) -> None:
    """Their bytes differ, in the order of a hash table."""
    in_one, in_many = sketches(values, values), sketches(7, values)
    assert values == 5 or in_one != in_many
    assert same_content(differing(in_one, in_many))
    for other in (sketches(7, values + 1), {**in_many, "rows": 0}, None, 3):
        assert not same_content(differing(in_one, other))


@pytest.mark.parametrize(
    ("make", "where"),
    [
        pytest.param(Dice, "totals", marks=pytest.mark.slow),
        (Clock, "out"),
        pytest.param(SetOrder, "totals", marks=pytest.mark.slow),
    ],
)
def test_hidden_non_determinism_is_named(make: Any, where: str, tmp_path: Path) -> None:
    job = two_checkpoints(str(tmp_path / "ckpt"), partial(flow_of, make, ParquetSink(str(tmp_path / "out"))))
    found = verify(job.flow, after=job.before, until=job.until, checkpoints=job.folder)
    assert not found.same
    assert found.differences[0].operator == where
    if where == "totals":
        assert "user=" in found.differences[0].what
    else:
        assert "'total'" in found.differences[0].what


@pytest.mark.slow
def test_a_sink_that_cannot_be_read_back_is_compared_with_a_second_replay(tmp_path: Path) -> None:
    job = two_checkpoints(str(tmp_path / "ckpt"), partial(flow_of, Clock, CollectSink()))
    found = verify(job.flow, after=job.before, until=job.until, checkpoints=job.folder)
    assert found.repeated == ("out",)
    assert [each.operator for each in found.differences][:1] == ["out"]


@pytest.mark.slow
def test_masked_columns_are_in_no_difference(tmp_path: Path) -> None:
    job = two_checkpoints(str(tmp_path / "ckpt"), partial(flow_of, Dice, CollectSink()))
    found = verify(job.flow, after=job.before, until=job.until, checkpoints=job.folder, redact=["user", "last"])
    told = str(found.differences)
    assert "***" in told
    assert "ann" not in told
    assert "bob" not in told


@pytest.mark.slow
def test_error_rows_name_the_old_checkpoint_without_counting_as_a_difference(tmp_path: Path) -> None:
    def refuses(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] % 10 == 7:
            raise ValueError("7 is bad")
        return row

    flow = Dataflow("letters")
    rows = [{"n": n} for n in range(100)]
    read = flow.from_iterator("rows", lambda index, of: iter(rows), schema={"n": int}, splits=1)
    good, errors = read.map(refuses, name="refuses", schema={"n": int}, on_error="side")
    good.sink("out", JsonlSink(str(tmp_path / "out")))
    errors.sink("bad", JsonlSink(str(tmp_path / "bad")))
    flow.run_local(checkpoints=tmp_path / "ckpt", parallelism=2)
    found = verify(flow, after=0, checkpoints=str(tmp_path / "ckpt"))
    assert found.same, found.differences
    assert (found.read_back, found.repeated) == (("out",), ("bad",))
