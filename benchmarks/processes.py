"""Rows per second of a keyed count and sum from files: a job in one process, and slots in processes of their own.

    python -m benchmarks.processes --rows 6000000 --rounds 3

The runs of a round are in turn: `run_local()`, `processes=1`, `processes=2`. Each figure is from two runs, over a tenth
of the rows and over all rows, so starts do not count. CPU is that of the program, the coordinator and all slots.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from barrier_runtime import Dataflow
from barrier_runtime.connectors.memory.callable import CallableSink
from benchmarks.backlog import FILES
from benchmarks.backlog_rows import folder_of
from benchmarks.backlog_workloads import SUMS
from benchmarks.machine import describe

_SHAPES: dict[str, int | None] = {"run_local()": None, "processes=1": 1, "processes=2": 2}


@dataclass(frozen=True)
class Spent:
    """Seconds by the clock, and of processors."""

    s: float
    cpu_s: float

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.s - other.s, self.cpu_s - other.cpu_s)


def _now() -> Spent:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Spent(time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used))


def _discarded(rows: pa.RecordBatch) -> None:
    """Sink of rows that nobody reads."""


def run(kind: str, folder: Path, rows: int, processes: int | None) -> Spent:
    """Reads all rows of `folder`: in one slot of this process, or in `processes` slots."""
    flow = Dataflow("processes")
    read = {"jsonl": flow.read_jsonl, "csv": flow.read_csv, "parquet": flow.read_parquet}[kind]
    SUMS.ours(read("rows", str(folder))).sink("out", CallableSink(_discarded))
    with tempfile.TemporaryDirectory() as checkpoints:
        began = _now()
        options = {"checkpoints": checkpoints, "checkpoint_interval": 1.0, "ui": False}
        if processes is None:
            result = flow.run_local(parallelism=1, **options)  # type: ignore[arg-type]
        else:
            result = flow.run_local(processes=processes, **options)  # type: ignore[arg-type]
        spent = _now() - began
    if result.records != rows:
        raise RuntimeError(f"{result.records:,} of {rows:,} rows were read")
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=FILES, default="jsonl")
    parser.add_argument("--inputs", type=Path, default=Path("build/bench/inputs"))
    given = parser.parse_args()
    few = given.rows // 10
    of_few, of_all = (folder_of(given.kind, rows, given.inputs) for rows in (few, given.rows))
    found: dict[str, list[Spent]] = defaultdict(list)
    for _ in range(given.rounds):
        for name, processes in _SHAPES.items():
            small = run(given.kind, of_few, few, processes)
            found[name].append(run(given.kind, of_all, given.rows, processes) - small)
            spent = found[name][-1]
            print(f"{name}: {(given.rows - few) / spent.s:,.0f} rows/s, {spent.cpu_s:.1f} CPU s", flush=True)
    print(f"\n| {given.kind}, {given.rows:,} rows | rows/s | µs of a core per row |\n|---|---|---|")
    for name, spents in found.items():
        s, cpu_s = statistics.median(each.s for each in spents), statistics.median(each.cpu_s for each in spents)
        print(f"| {name} | {(given.rows - few) / s:,.0f} | {cpu_s / (given.rows - few) * 1e6:.2f} |")
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
