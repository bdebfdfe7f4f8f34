"""Bytewax's dataflow, run by the Python of the side environment, which has only bytewax.

A scheduled source, a running count per key as in Bytewax's documentation, and a sink that stamps each row.
"""

import json
import sys
import threading
import time
import uuid
from array import array
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from benchmarks.engines.words import say, stop_order
from benchmarks.splitmix import key_of, mixed

_TURN = 500  # rows per batch, as in the Java sources
_SHORTEST_SLEEP = timedelta(microseconds=100)  # as in Flink's source
_FLUSH_NS = 500_000_000
_PAIRS = 4096


class PacedSource(FixedPartitionedSource):  # type: ignore[misc]
    """Rows (key, emitted): row i is due at start + i / rate; partition s of P makes rows s, s + P, …"""

    def __init__(self, rate: float, keys: int, partitions: int, stop: threading.Event) -> None:
        self.period_ns = 1e9 / rate
        self.keys = keys
        self.partitions = partitions
        self.start_ns = time.time_ns()
        self.stop = stop

    def list_parts(self) -> list[str]:
        return [str(index) for index in range(self.partitions)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> "Partition":
        return Partition(self, int(for_part) if resume_state is None else resume_state)


class Partition(StatefulSourcePartition):  # type: ignore[misc]
    def __init__(self, source: PacedSource, row: int) -> None:
        self._source = source
        self._next = row

    def next_batch(self) -> list[tuple[int, int]]:
        source = self._source
        if source.stop.is_set():
            raise StopIteration
        now_ns = time.time_ns()
        rows: list[tuple[int, int]] = []
        while len(rows) < _TURN and (due_ns := self._due_ns(self._next)) <= now_ns:
            rows.append((key_of(mixed(self._next), source.keys), due_ns))
            self._next += source.partitions
        return rows

    def next_awake(self) -> datetime:
        due = datetime.fromtimestamp(self._due_ns(self._next) / 1e9, timezone.utc)
        return max(due, datetime.now(timezone.utc) + _SHORTEST_SLEEP)

    def snapshot(self) -> int:
        return self._next

    def _due_ns(self, row: int) -> int:
        return self._source.start_ns + int(row * self._source.period_ns)


class MeasuringSink(DynamicSink):  # type: ignore[misc]
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "Stamps":
        return Stamps(Path(self._folder))


class Stamps(StatelessSinkPartition):  # type: ignore[misc]
    """A file of pairs (intended emission, arrival), little-endian nanoseconds since the epoch."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"rows-{uuid.uuid4()}.bin").open("wb", buffering=0)
        self._pairs = array("q")
        self._flushed_ns = time.time_ns()

    def write_batch(self, items: list[tuple[str, tuple[int, int]]]) -> None:
        now_ns = time.time_ns()
        for _, (_, emitted_ns) in items:
            self._pairs.extend((emitted_ns, now_ns))
        if len(self._pairs) >= 2 * _PAIRS or now_ns - self._flushed_ns > _FLUSH_NS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if sys.byteorder == "big":
            self._pairs.byteswap()
        self._file.write(self._pairs.tobytes())
        self._pairs = array("q")
        self._flushed_ns = time.time_ns()


def count(before: int | None, row: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    now = (before or 0) + 1
    return now, (now, row[1])


def dataflow(plan: dict[str, Any], stop: threading.Event) -> Dataflow:
    flow = Dataflow("bench")
    rows = op.input("events", flow, PacedSource(plan["rate"], plan["keys"], plan["parallelism"], stop))
    keyed = op.key_on("key", rows, lambda row: str(row[0]))
    op.output("measured", op.stateful_map("counts", keyed, count), MeasuringSink(plan["folder"]))
    return flow


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    stop = stop_order()
    say("began")
    recovery = Path(plan["folder"], "recovery")
    recovery.mkdir()
    init_db_dir(recovery, plan["parallelism"])
    flow = dataflow(plan, stop)
    say("running")
    cli_main(
        flow,
        epoch_interval=timedelta(milliseconds=plan["interval_ms"]),
        recovery_config=RecoveryConfig(recovery, timedelta(0)),
    )
    say("finished")


if __name__ == "__main__":
    main()
