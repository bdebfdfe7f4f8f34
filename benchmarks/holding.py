"""Longest time for which a piece of work holds the loop of a slot: processor time of the loop's thread."""

import asyncio
import contextlib
import dataclasses
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.connectors.source import Fetching, Preparable, Source, Waking
from barrier_runtime.connectors.source_bases.ranges import PartFetcher
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.lookups.book import BookSettings
from barrier_runtime.operators.lookups.operator import LookupOperator, LookupSettings
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.runtime.sources.driver import SourceDriver
from benchmarks.surroundings import Surroundings

_WAIT_S = 0.05
_BEHIND_S = 2.0  # pause before the first poll, in which a reader's thread may fill the buffer

T = TypeVar("T")


@dataclass(frozen=True)
class Hold:
    """Longest hold; rows; processor time of the whole process while reading."""

    hold_s: float = 0.0
    rows: int = 0
    process_s: float = 0.0

    def or_longer(self, other: "Hold") -> "Hold":
        return Hold(max(self.hold_s, other.hold_s), other.rows, max(self.process_s, other.process_s))


class _Meter:
    """Longest of the timed calls."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def time(self, work: Callable[[], T]) -> T:
        began_s = time.thread_time()
        result = work()
        self.longest_s = max(self.longest_s, time.thread_time() - began_s)
        return result


def held(source: Source, rows: int, barrier: bool) -> Hold:
    """Reads `rows` rows of all splits, as the loop of a slot does. `barrier`: a barrier waits at every poll."""
    meter, read, awake = _Meter(), 0, threading.Event()
    before_s = time.process_time()
    for split in source.splits(1):
        reader = source.reader(split)
        if isinstance(reader, Waking):
            reader.wake_by(awake.set)
        if isinstance(reader, Fetching):
            reader.fetch_by(PartFetcher(awake.set))
        if isinstance(reader, Preparable):
            reader.prepare()
        time.sleep(_BEHIND_S)

        def turn(reader: Any = reader) -> Any:
            polled = reader.poll(SourceSpec.max_rows_per_batch, time.time_ns())
            if barrier:
                reader.position()
            return polled

        while read < rows and not reader.finished:
            awake.clear()
            polled = meter.time(turn)
            if polled is None:
                awake.wait(_WAIT_S)
            else:
                rows_now = polled.rows
                read += rows_now.count if isinstance(rows_now, FewRows) else rows_now.num_rows
        reader.close()
    return Hold(meter.longest_s, read, time.process_time() - before_s)


def held_by_driver(source: Source, folder: Path, barrier: bool) -> Hold:
    """Reads all splits of `source` to their ends, as a subtask does."""
    driver, meter, read = SourceDriver(), _Meter(), 0
    before_s = time.process_time()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        driver.open(Surroundings(Path(own), 0, 1).context("rows"), SourceSpec("rows", source, tuple(source.splits(1))))
        for checkpoint in itertools.count(1):

            def turn(checkpoint: int = checkpoint) -> Batch | None:
                batch = driver.poll(time.time_ns())
                if barrier:
                    driver.snapshot(checkpoint)
                return batch

            batch = meter.time(turn)
            read += batch.count if batch is not None else 0
            if driver.finished:
                break
        driver.close()
    return Hold(meter.longest_s, read, time.process_time() - before_s)


class _Line:
    """Executor whose work runs outside the loop's time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._waiting.append((work, done))

    def run(self, meter: _Meter) -> None:
        while self._waiting:
            work, done = self._waiting.pop(0)
            result = work()

            def tell(done: Callable[[Any, BaseException | None], None] = done, result: Any = result) -> None:
                done(result, None)

            meter.time(tell)


def held_by_lookup(rows: int, folder: Path, barrier: bool) -> Hold:
    """A lookup of `rows` keys whose replies come in a single request."""
    book = BookSettings(capacity=rows, most_keys=rows, most_requests=1, linger_s=0.0, timeout_s=3600.0)
    settings = LookupSettings(("id",), pa.schema([("name", pa.string())]), book)
    operator, line, meter = (
        LookupOperator("names", lambda keys: [{"name": "x"} for _ in keys], settings),
        _Line(),
        _Meter(),
    )
    numbers = pa.array(range(rows), pa.int64())
    batches: list[Batch] = []
    emit, before_s = Emit(batches.append), time.process_time()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        context = Surroundings(Path(own), 0, 1).context("names")
        operator.open(dataclasses.replace(context, new_executor=lambda: line, wake_from_thread=lambda: None))
        operator.process(Batch(pa.record_batch({"id": numbers}), 0), emit)  # rows come in many batches
        line.run(_Meter())
        for checkpoint in itertools.count(1):

            def turn(checkpoint: int = checkpoint) -> None:
                operator.on_wall_clock(emit)
                if barrier:
                    operator.snapshot(checkpoint)

            meter.time(turn)
            if not operator.unfinished:
                break
    return Hold(meter.longest_s, sum(batch.count for batch in batches), time.process_time() - before_s)


def held_by_sink(sink: TwoPhaseCommitSink, batches: Sequence[pa.RecordBatch], folder: Path, barrier: bool) -> Hold:
    """Writes `batches` as a transaction, or with `barrier` each batch as a transaction, and commits them."""
    operator, meter, lines = SinkOperator("rows", lambda: sink), _Meter(), list[_Line]()
    before_s = time.process_time()

    def new_line() -> _Line:
        lines.append(_Line())
        return lines[-1]

    def run_lines() -> None:
        for line in lines:
            line.run(meter)

    def checkpoint(number: int) -> None:
        capture = meter.time(lambda: operator.snapshot(number))
        if capture.blocking is not None:
            capture.blocking()
        run_lines()
        meter.time(lambda: operator.on_complete(number))
        run_lines()

    with tempfile.TemporaryDirectory(dir=folder) as own:
        context = dataclasses.replace(
            Surroundings(Path(own), 0, 1).context("rows"),
            executor=new_line(),
            snapshot_executor=new_line(),
            new_executor=new_line,
            new_awaited_executor=new_line,
            wake_from_thread=lambda: None,
            call_later=lambda seconds, callback: None,
            report_commit=_nothing,
            lineage="holds",
        )
        operator.open(context)
        run_lines()
        for number, rows in enumerate(batches, 1):
            batch = Batch(rows, time.time_ns())
            meter.time(lambda batch=batch: operator.process(batch, Emit(_nothing)))  # type: ignore[misc]
            run_lines()
            if barrier:
                checkpoint(number)
        checkpoint(len(batches) + 1)
        operator.close()
    rows_written = sum(rows.num_rows for rows in batches)
    return Hold(meter.longest_s, rows_written, time.process_time() - before_s)


def _nothing(_: Any) -> None:
    """Sinks emit no rows, and nobody hears of commits."""


@contextlib.contextmanager
def longest_callback() -> Iterator[list[float]]:
    """The list gets the processor time of the longest callback of asyncio's loops within the block."""
    longest, run = [0.0], asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], time.thread_time() - began_s)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign,assignment]
    try:
        yield longest
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
