"""A flow that is run again comes to the same, or what differs is named: clocks, random numbers, the order of sets."""

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, CsvSink, JsonlSink, ParquetSink, ProcessContext, ValueState
from barrier_runtime.replay import verify
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
