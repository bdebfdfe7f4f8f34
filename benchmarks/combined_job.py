"""Jobs with rows by key on two slots of Spark, for `benchmarks.combiner --slots`; also for older checkouts.

    PYTHONPATH=CHECKOUT python benchmarks/combined_job.py

Runs a job for each line KIND MODE RATE ROWS FOLDER of standard input. The folder has the keys of each split,
`keys-0.npy` and `keys-1.npy`. A job reads ROWS rows, which repeat these keys, at RATE rows per second (0: as fast as
possible), with 100,000 rows per second of event time. For each job a line of standard output tells the rows per second
and the cores that both slots used, from the time when the sources have read a third of the rows to the end.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from barrier_runtime import Dataflow, Tumbling, TwoPhaseCommitSink, count, sum_
from barrier_runtime.connectors.pacing import Schedule
from barrier_runtime.connectors.source import Polled, Split

_SLOTS = 2
_PACE = 100  # rows per millisecond of event time
_WARM = 3  # the first of so many parts is not measured
_SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
_WINDOW = timedelta(seconds=10)


class Keys:
    """A source of `rows` rows."""

    exactly_once = True
    schema = _SCHEMA

    def __init__(self, folder: str, rows: int, rate: float, mode: str) -> None:
        self._folder, self._rows, self._rate, self._mode = folder, rows, rate, mode

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(str(number)) for number in range(_SLOTS)]

    def reader(self, split: Split) -> "KeysReader":
        if self._mode != "before":
            from barrier_runtime.operators.aggregation.partials import Combiner

            Combiner.mode = self._mode  # type: ignore[assignment]
        keys = np.load(Path(self._folder, f"keys-{split.id}.npy"))
        return KeysReader(keys, self._rows // _SLOTS, self._rate / _SLOTS, self._folder)


class KeysReader:
    """Reader of a split. Notes the time when a part of the rows is read."""

    def __init__(self, keys: npt.NDArray[np.int64], rows: int, rate: float, folder: str) -> None:
        self._keys, self._rows, self._folder = keys, rows, folder
        self._schedule = Schedule(rate) if rate else None
        self._row = 0
        self._ones = np.ones(len(keys), np.int64)
        self._times = np.arange(len(keys) + _PACE) * _SLOTS // _PACE

    @property
    def finished(self) -> bool:
        return self._row >= self._rows

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        begin = self._row % len(self._keys)
        count_ = min(max_rows, self._rows - self._row, len(self._keys) - begin)
        emit_ns = now_ns
        if self._schedule is not None:
            self._schedule.begin(now_ns, self._row)
            count_ = min(count_, self._schedule.due_rows(self._row, now_ns))
            emit_ns = self._schedule.due_ns(self._row)
        if count_ <= 0:
            return None
        whole, first = divmod(self._row, _PACE)
        times = self._times[first : first + count_] + whole * _SLOTS
        columns = [self._keys[begin : begin + count_], times, self._ones[:count_]]
        before, self._row = self._row, self._row + count_
        if before < self._rows // _WARM <= self._row:
            _note(self._folder, "warm", _now())
        return Polled(pa.record_batch(columns, schema=_SCHEMA), emit_ns)

    def next_due_ns(self) -> int | None:
        return None if self._schedule is None else self._schedule.next_due_ns(self._row)

    def position(self) -> bytes:
        return msgspec.json.encode(self._row)

    def seek(self, position: bytes) -> None:
        self._row = msgspec.json.decode(position, type=int)

    def close(self) -> None:
        """Does nothing: nothing is open."""


class Dropped(TwoPhaseCommitSink):
    """A sink that keeps nothing, and notes the time of the last rows."""

    guarantee = "at_least_once"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def begin_transaction(self) -> list[int]:
        return []

    def write(self, transaction: list[int], rows: pa.RecordBatch) -> None:
        transaction[:] = _now()

    def pre_commit(self, transaction: list[int], checkpoint: int) -> None:
        if transaction:
            _note(self._folder, "last", transaction)

    def commit(self, committable: bytes) -> None:
        """Never called: pre-commit returns nothing."""

    def abort(self, committable: bytes) -> None:
        """Does nothing: no write can be undone."""


def _now() -> list[int]:
    """Time, and processor time of this process, in nanoseconds."""
    return [time.time_ns(), time.process_time_ns()]


def _note(folder: str, name: str, times: list[int]) -> None:
    Path(folder, f"{name}-{os.getpid()}").write_bytes(msgspec.json.encode(times))


def _noted(folder: str, name: str) -> list[list[int]]:
    """Times of each slot."""
    return [msgspec.json.decode(file.read_bytes()) for file in sorted(Path(folder).glob(f"{name}-*"))]


def flow(kind: str, source: Keys, folder: str) -> Dataflow:
    made = Dataflow("combined")
    keyed = made.source("rows", source, event_time="t").key_by("k")
    if kind == "each":
        results = keyed.aggregate("counts", n=count(), s=sum_("v"))
    elif kind == "latest":
        results = keyed.aggregate("counts", emit="latest", n=count(), s=sum_("v"))
    else:
        results = keyed.window("windows", Tumbling(_WINDOW)).aggregate(n=count(), s=sum_("v"))
    results.sink("out", Dropped(folder))
    return made


def run(spark: SparkSession, kind: str, mode: str, rate: str, rows: str, keys: str) -> tuple[float, float]:
    """Runs a job; returns rows per second and used cores."""
    with tempfile.TemporaryDirectory(prefix="barrier-runtime-bench-", ignore_cleanup_errors=True) as folder:
        for file in Path(keys).glob("keys-*.npy"):
            Path(folder, file.name).symlink_to(file.resolve())
        job = flow(kind, Keys(folder, int(rows), float(rate), mode), folder)
        job.run(spark=spark, parallelism=_SLOTS, checkpoints=str(Path(folder, "store")))
        warm, last = _noted(folder, "warm"), _noted(folder, "last")
    # Slots begin at different times; since the later begin, the other slot has read fewer of its rows.
    took_ns = max(end for end, _ in last) - sum(begin for begin, _ in warm) / len(warm)
    used_ns = sum(cpu for _, cpu in last) - sum(cpu for _, cpu in warm)
    return int(rows) * (_WARM - 1) / _WARM / took_ns * 1e9, used_ns / took_ns


def main() -> None:
    results = os.dup(1)
    os.dup2(2, 1)  # of other output on standard output
    spark = SparkSession.builder.master(f"local[{_SLOTS}]").config("spark.ui.enabled", "false").getOrCreate()
    for line in sys.stdin:
        rows_per_s, cores = run(spark, *line.split())
        os.write(results, f"{rows_per_s} {cores}\n".encode())
    spark.stop()


if __name__ == "__main__":
    main()
