"""Cost of a row on a single core, stage by stage: no Spark, no sockets, no threads except the state's.

    python -m benchmarks.operators window --keys 1000000

A single thread plays a job of parallelism 2: two readers, rows partitioned by key, half of them through the frames of a
data connection (as between two slots), two operators with RocksDB, and a checkpoint every `--interval` seconds of CPU
time, however busy the machine is. So `rows/s` is for a single core; two cores do about twice as much. Times are CPU
times of this thread; only `all` includes RocksDB's threads. Sinks are left out.
"""

import argparse
import datetime
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from barrier_runtime import Dataflow, Session, Sliding, Tumbling, ValueState, count, sum_
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from barrier_runtime.runtime.sources.driver import SourceDriver
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

T = TypeVar("T")
_WINDOW = datetime.timedelta(seconds=10)


class Stages:
    """CPU nanoseconds of this thread, and the longest single call, by stage."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = {}
        self.longest: dict[str, int] = {}

    def run(self, stage: str, work: Callable[..., T], *arguments: Any) -> T:
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        result = work(*arguments)
        self.spent[stage] = self.spent.get(stage, 0) + time.thread_time_ns() - began_cpu
        self.longest[stage] = max(self.longest.get(stage, 0), time.perf_counter_ns() - began)
        return result


class Bench:
    """Both subtasks of a flow `source → key_by → one operator`, or of a chain without a shuffle."""

    def __init__(self, flow: Dataflow, interval_s: float, batch_rows: int | None, folder: Path) -> None:
        self.graph: JobGraph = compile_plan(flow.plan, 2)
        self.stages = Stages()
        self.rows = self.out = 0
        self._interval_s = interval_s
        self._batch_rows = batch_rows
        self._surroundings = [Surroundings(folder, subtask, 2) for subtask in range(2)]
        chain = self.graph.chains[0]
        assert chain.source is not None
        self._sources = [SourceDriver() for _ in range(2)]
        for source, surroundings in zip(self._sources, self._surroundings, strict=True):
            source.open(surroundings.context(chain.source.name), chain.source)
        self._emit = Emit(self._emitted)
        self._steps = [spec.make() for spec in chain.operators if not spec.is_sink]
        self._keys = self.graph.edges[0].keys if self.graph.edges else ()
        self.keyed = [self._operator(subtask) for subtask in range(2)] if self._keys else []
        self._writers = [FrameWriter(), FrameWriter()]
        self._readers = [FrameReader(), FrameReader()]
        self._watermarks = [0, 0]
        self._checkpoint = 0
        self.new_bytes: list[int] = []
        self.durations_ms: list[float] = []
        self._uploads: list[threading.Thread] = []

    def _operator(self, subtask: int) -> Operator:
        spec = self.graph.chains[1].operators[0]
        operator = spec.make()
        operator.open(self._surroundings[subtask].context(spec.name))
        return operator

    def run(self) -> None:
        began, began_cpu = time.perf_counter(), time.process_time()
        next_checkpoint = time.thread_time() + self._interval_s
        for subtask, batch in self._polled():
            self.rows += batch.rows.num_rows
            if self.keyed:
                self._shuffled(subtask, batch)
                if time.thread_time() >= next_checkpoint:
                    self.checkpoint()
                    next_checkpoint = time.thread_time() + self._interval_s
            else:
                self.stages.run("steps", self._chained, 0, batch)
        for operator in self.keyed:
            self.stages.run("watermark", operator.on_watermark, WATERMARK_MAX, self._emit)
        self.wait_for_uploads()
        self.wall_s, self.cpu_s = time.perf_counter() - began, time.process_time() - began_cpu

    def _polled(self) -> Iterator[tuple[int, Batch]]:
        while not all(source.finished for source in self._sources):
            for subtask, source in enumerate(self._sources):
                if not source.finished:
                    batch = self.stages.run("read", source.poll, time.time_ns(), self._batch_rows)
                    if batch is not None:
                        yield subtask, batch
                    self._watermarks[subtask] = source.watermark() or 0

    def _chained(self, position: int, batch: Batch) -> None:
        if position == len(self._steps):
            self._emitted(batch)
        else:
            self._steps[position].process(batch, Emit(lambda result: self._chained(position + 1, result)))

    def _shuffled(self, subtask: int, batch: Batch) -> None:
        parts = self.stages.run("partition", hash_partition, batch, self._keys, 2, self.graph.max_parallelism)
        for target, part in parts:
            received = [part] if target == subtask else self.stages.run("frames", self._sent, subtask, part)
            for each in received:
                self.stages.run("process", self.keyed[target].process, each, self._emit)
        for operator in self.keyed:
            self.stages.run("watermark", operator.on_watermark, min(self._watermarks), self._emit)

    def _sent(self, subtask: int, batch: Batch) -> list[Batch]:
        data = b"".join(bytes(memoryview(chunk)) for chunk in self._writers[subtask].encode(batch))
        received: list[Batch] = []
        for start in range(0, len(data), 262_144):
            elements = self._readers[subtask].feed(data[start : start + 262_144])
            received += [element for element, _ in elements if isinstance(element, Batch)]
        return received

    def _emitted(self, batch: Batch) -> None:
        self.out += batch.rows.num_rows

    # ---- checkpoints

    def checkpoint(self) -> None:
        """A checkpoint of both subtasks: frozen and drained in slices here, linked and uploaded on threads."""
        self.wait_for_uploads()
        self._checkpoint += 1
        for operator in self.keyed:
            began = time.perf_counter()
            capture = self.stages.run("freeze", operator.snapshot, self._checkpoint)
            assert capture.keyed is not None
            while not self.stages.run("drain", capture.keyed.drain, 256):
                pass
            thread = threading.Thread(target=self._upload, args=(operator, capture.keyed, self._checkpoint, began))
            self._uploads.append(thread)
            thread.start()

    def _upload(self, operator: Operator, keyed: Any, checkpoint: int, began: float) -> None:
        snapshot = keyed.write(checkpoint)
        keyed.clean_up()
        self.new_bytes.append(snapshot.new_bytes)
        self.durations_ms.append((time.perf_counter() - began) * 1e3)

    def wait_for_uploads(self) -> None:
        for thread in self._uploads:
            thread.join()
        if self._uploads:
            for operator in self.keyed:
                operator.on_complete(self._checkpoint)
        self._uploads = []

    def close(self) -> None:
        for operator in self.keyed:
            operator.close()

    def show(self, title: str) -> None:
        print(f"{title}: {self.rows:,} rows in, {self.out:,} out, {self.rows / self.cpu_s:,.0f} rows/s per core")
        for stage, spent in self.stages.spent.items():
            print(f"  {stage:<10} {spent / self.rows:8.1f} ns/row   longest {self.stages.longest[stage] / 1e6:6.1f} ms")
        print(f"  {'all':<10} {self.cpu_s * 1e9 / self.rows:8.1f} ns/row of process CPU, {self.wall_s:.1f} s wall")
        if self.new_bytes:
            slowest = max(self.durations_ms)
            print(f"  {len(self.new_bytes)} snapshots, {np.mean(self.new_bytes):,.0f} bytes, slowest {slowest:.0f} ms")


def events(folder: Path, rows: int, keys: int, per_window: int) -> Path:
    """Parquet files, a file per reader: uniform keys, evenly rising event times, a value."""
    made = folder / f"events-{rows}-{keys}-{per_window}"
    if made.exists():
        return made
    draft = Path(tempfile.mkdtemp(dir=folder))
    random = np.random.default_rng(1)
    step_us = _WINDOW.total_seconds() * 1e6 / per_window
    for part in range(2):
        numbers = np.arange(part, rows, 2)
        columns = {
            "key": random.integers(0, keys, len(numbers)),
            "at": pa.array((numbers * step_us).astype(np.int64)).cast(pa.timestamp("us")),
            "amount": random.integers(0, 1_000, len(numbers)),
        }
        pq.write_table(pa.table(columns), draft / f"part-{part}.parquet", row_group_size=1 << 20)
    draft.rename(made)
    return made


class Totals:
    """The row-wise function of `process`."""

    total = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        total = self.total.value + row["amount"]
        self.total.value = total
        return {"key": key, "total": total}


def window_flow(data: Path, window: Any = Tumbling(_WINDOW)) -> Dataflow:
    flow = Dataflow("window")
    rows = flow.read_parquet("events", str(data)).with_watermarks("at")
    windowed = rows.key_by("key").window("windows", window, event_time="at")
    windowed.aggregate(n=count(), total=sum_("amount")).sink("out", CollectSink())
    return flow


def running_flow(data: Path) -> Dataflow:
    flow = Dataflow("running")
    flow.read_parquet("events", str(data)).key_by("key").aggregate("counts", n=count()).sink("out", CollectSink())
    return flow


def process_flow(data: Path) -> Dataflow:
    flow = Dataflow("process")
    keyed = flow.read_parquet("events", str(data)).key_by("key")
    keyed.process("totals", Totals, schema={"key": "int64", "total": "int64"}).sink("out", CollectSink())
    return flow


def map_flow(data: Path) -> Dataflow:
    flow = Dataflow("map")
    rows = flow.read_parquet("events", str(data)).filter(pc.field("amount") >= 100)
    rows.select({"key": "key", "doubled": pc.field("amount") * 2}).sink("out", CollectSink())
    return flow


_FLOWS: dict[str, Callable[[Path], Dataflow]] = {
    "window": window_flow,
    "sliding": partial(window_flow, window=Sliding(_WINDOW, _WINDOW / 5)),
    "sliding-long": partial(window_flow, window=Sliding(6 * _WINDOW, _WINDOW / 10)),  # 60 s by 1 s
    "session": partial(window_flow, window=Session(_WINDOW / 100)),
    "running": running_flow,
    "process": process_flow,
    "map": map_flow,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=[*_FLOWS])
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--per-window", type=int, default=1_000_000, help="rows in ten seconds of event time")
    parser.add_argument(
        "--interval", type=float, default=2.0, help="CPU seconds between checkpoints (2 on one core: as 1)"
    )
    parser.add_argument("--batch", type=int, help="rows read at a time, at most: small batches, as at a low rate")
    parser.add_argument("--folder", default="build/bench/operators")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = events(folder, chosen.rows, chosen.keys, chosen.per_window)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    bench = Bench(_FLOWS[chosen.workload](data), chosen.interval, chosen.batch, scratch)
    try:
        bench.run()
    finally:
        bench.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print(describe())
    bench.show(f"{chosen.workload}, {chosen.keys:,} keys")
    return 0


if __name__ == "__main__":
    sys.exit(main())
