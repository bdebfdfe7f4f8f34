"""Rows for many slots wait for other rows within a step, and every channel gets the same rows, in the same places."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World
from subtask_bench import TOKEN, Bench, barrier

from barrier_runtime.connectors.memory.rate import GeneratedRows
from barrier_runtime.data.elements import Barrier, Batch, Element, EndOfInput, Idle, Watermark
from barrier_runtime.graph.job_graph import Edge, SourceSpec
from barrier_runtime.operators.base import Operator
from barrier_runtime.runtime.network.channels import WIDE, InputChannel, LocalOutput, ResultPartition
from barrier_runtime.runtime.network.gathering import MOST_ROWS
from barrier_runtime.runtime.sources.driver import SourceDriver
from tests.drawn import examples

EDGE = Edge(0, 0, 1, "hash", keys=("k",))


class Ends:
    """An edge by key to `slots` subtasks."""

    def __init__(self, slots: int, key: str = "k") -> None:
        self.channels = [InputChannel(0, 0, lambda: None) for _ in range(slots)]
        outputs = [LocalOutput(channel, lambda: None) for channel in self.channels]
        self.partition = ResultPartition(replace(EDGE, keys=(key,)), outputs, 0, 128)

    def taken(self) -> list[list[Element]]:
        received: list[list[Element]] = []
        for channel in self.channels:
            channel.chunk.bytes = 1 << 30
            received.append([])
            while channel.readable:
                received[-1].append(channel.pop())
        return received


def rows(keys: list[int], **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys, pa.int64()), **columns})


def flat(elements: list[Element]) -> list[Any]:
    """Rows with the event time reached and control elements, in order, without the ends of batches."""
    found: list[Any] = []
    for element in elements:
        if not isinstance(element, Batch):
            found.append(element)
            continue
        reached = [None] * len(element) if element.reached is None else element.reached.tolist()
        found += zip(map(str, element.rows.to_pylist()), reached, strict=True)
    return found


@st.composite
def elements(draw: st.DrawFn) -> list[Element]:
    drawn: list[Element] = []
    for at in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 5)) == 0:
            drawn.append(draw(st.sampled_from([Watermark(at), Idle(), Barrier(at, TOKEN)])))
            continue
        count = draw(st.sampled_from([1, 3, 130]))
        keys = [(at * 31 + row * draw(st.sampled_from([1, 7]))) % 50 for row in range(count)]
        columns = {"x": pa.array(["x"] * count)} if draw(st.integers(0, 3)) == 0 else {}
        reached = np.arange(count) + draw(st.integers(0, 200)) if draw(st.booleans()) else None
        batch = Batch(rows(keys, **columns), draw(st.integers(1, 9)), reached)
        if draw(st.booleans()):
            batch.as_few  # noqa: B018
        drawn.append(batch)
    return drawn


@examples(200)
@given(elements(), st.integers(1, 5))
def test_every_channel_gets_equal_rows_between_equal_control_elements(drawn: list[Element], sent_every: int) -> None:
    gathering, plain = Ends(WIDE), Ends(WIDE)
    gathering.partition.gathers = True
    for at, element in enumerate(drawn):
        for ends in (gathering, plain):
            if isinstance(element, Batch):
                ends.partition.emit(element)
            else:
                ends.partition.control(element)
        if at % sent_every == 0:
            gathering.partition.send_gathered()
    gathering.partition.control(EndOfInput())
    plain.partition.control(EndOfInput())
    assert list(map(flat, gathering.taken())) == list(map(flat, plain.taken()))


def test_gathered_rows_keep_the_earliest_time_of_emission() -> None:
    ends = Ends(WIDE)
    ends.partition.gathers = True
    for emit_ns in (7, 3, 5):
        ends.partition.emit(Batch(rows([1]), emit_ns))
    ends.partition.send_gathered()
    (batch,) = [element for received in ends.taken() for element in received]
    assert isinstance(batch, Batch)
    assert (len(batch), batch.emit_ns) == (3, 3)


@pytest.mark.parametrize("column", [pa.array(np.arange(MOST_ROWS // 4)), pa.array(["x" * 600] * 1_000)])
def test_rows_are_sent_when_they_suffice(column: pa.Array) -> None:
    ends, sent = Ends(64), 0
    ends.partition.gathers = True
    batch = Batch(rows(list(range(len(column))), x=column), 1)
    while not any(channel.readable for channel in ends.channels):
        ends.partition.emit(batch)
        sent += 1
    assert 4 <= sent <= 8


class Slow(Operator):
    """Takes `ms` per batch, and passes batches on."""

    def __init__(self, ms: float) -> None:
        self.ms = ms
        self.set_back_ms = 0.0  # the wall clock, at each batch
        self.calls = 0

    def process(self, batch: Batch, emit: Any, port: int = 0) -> None:
        self.calls += 1
        self.bench.pass_time(self.ms)
        self.bench.clock_ms -= self.set_back_ms
        emit(batch)


def stepping(slots: int, ms: float, latency_target_s: float) -> tuple[Bench, Ends]:
    operator, ends = Slow(ms), Ends(slots)
    bench = Bench(operator=operator, outputs=[ends.partition], latency_target_s=latency_target_s)
    operator.bench = bench
    return bench, ends


def batches_in(ends: Ends) -> int:
    return max(sum(isinstance(element, Batch) for element in received) for received in ends.taken())


def test_rows_of_a_step_leave_together_and_before_its_end() -> None:
    bench, ends = stepping(WIDE, 0.1, 0.001)
    bench.queue(*[(0, Batch(rows([1] * 200), 1))] * 4)
    bench.subtask.step()
    assert batches_in(ends) == 1
    assert not bench.inputs[0].readable


@pytest.mark.parametrize("set_back_ms", [0.0, 3_600_000.0])
def test_rows_wait_for_at_most_the_latency_target(set_back_ms: float) -> None:
    bench, ends = stepping(WIDE, 0.4, 0.001)
    bench.operator.set_back_ms = set_back_ms
    bench.queue(*[(0, Batch(rows([1] * 200), 1))] * 5)
    bench.subtask.step()
    assert batches_in(ends) == 2  # after 1.2 ms, and at the end of the step


@pytest.mark.parametrize("set_back_ms", [0.0, 3_600_000.0])
def test_source_is_polled_for_at_most_the_latency_target(set_back_ms: float) -> None:
    operator, ends = Slow(0.1), Ends(WIDE, "value")
    source, driver = GeneratedRows("ticks", 3_000_000, None, None, 1), SourceDriver()
    driver.open(World().context("ticks"), SourceSpec("ticks", source, tuple(source.splits(1))))
    bench = Bench(0, operator=operator, outputs=[ends.partition], latency_target_s=0.001, source=("ticks", driver))
    operator.bench = bench
    while operator.calls < 30:  # 300 rows are due after each batch
        assert bench.subtask.step()
    operator.set_back_ms = set_back_ms
    ends.taken()
    before = operator.calls
    bench.subtask.step()
    assert batches_in(ends) == 1
    assert operator.calls - before == 10


@pytest.mark.parametrize(("slots", "latency_target_s"), [(WIDE - 1, 0.001), (WIDE, 0.0)], ids=["narrow", "no wait"])
def test_rows_of_narrow_jobs_and_without_latency_target_leave_at_once(slots: int, latency_target_s: float) -> None:
    bench, ends = stepping(slots, 0.1, latency_target_s)
    bench.queue(*[(0, Batch(rows([1] * 200), 1))] * 4)
    bench.work()
    assert batches_in(ends) == 4


def test_rows_that_wait_go_before_the_barrier() -> None:
    bench, ends = stepping(WIDE, 0.1, 0.001)
    bench.queue((0, Batch(rows([1] * 200), 1)), (0, barrier(1)), (1, Batch(rows([1] * 200), 1)), (1, barrier(1)))
    bench.work()
    for received in ends.taken():
        kinds = [type(element) for element in received]
        assert kinds in ([Batch, Barrier], [Barrier])
