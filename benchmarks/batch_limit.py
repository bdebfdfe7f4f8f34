"""Limit of this machine: the keyed workloads as a batch by DuckDB, Polars and pyarrow, same files.

    python -m benchmarks.batch_limit --keys 10000 1000000

A batch aggregation keeps no state after the run, takes no checkpoints, keeps no order, and returns a row per group.
So `run --measure throughput` of this runtime over the same files cannot be faster; the difference is the cost of
streaming. Each run is a separate process; engines take turns. Seconds count from the first byte read until the answer
is in memory, without imports; processor time is the process's in these seconds. The engines' answers are compared.
"""

import argparse
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.inputs import file_rows, with_input
from benchmarks.machine import describe
from benchmarks.session import FOLDER
from benchmarks.spec import RunSpec

ENGINES = ("duckdb", "polars", "pyarrow")
WORKLOADS = ("keyed-count", "tumbling")
_WINDOW_MS = 10_000


class Run(msgspec.Struct, frozen=True):
    """An aggregation. `answer`: the number of groups, their rows, and the sum of the values."""

    seconds: float
    cpu_s: float
    answer: tuple[int, int, int]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    if chosen.one:
        engine, workload, folder = chosen.one
        print(msgspec.json.encode(_timed(engine, workload, Path(folder), chosen.threads)).decode())
        return 0
    print(describe())
    print("\n| workload, keys | engine | rows/s, median | least, most | rows per core-second | groups |")
    print("| --- | --- | --- | --- | --- | --- |")
    for workload in chosen.workload or WORKLOADS:
        for keys in chosen.keys:
            _compared(workload, keys, chosen)
    return 0


def _compared(workload: str, keys: int, chosen: argparse.Namespace) -> None:
    """Prints a line per engine; ends the program if the engines' answers differ."""
    spec = RunSpec(
        engine="ours", workload=workload, measure="throughput", source="parquet", sink="discard", rows=chosen.rows,
        keys=keys, parallelism=chosen.threads,
    )  # fmt: skip
    spec = with_input(spec, chosen.folder / "run/input", file_rows(spec))
    runs: dict[str, list[Run]] = {engine: [] for engine in ENGINES}
    for _ in range(chosen.rounds):
        for engine, found in runs.items():
            found.append(_in_a_process(engine, workload, spec.input, chosen.threads))
    answers = {engine: found[0].answer for engine, found in runs.items()}
    if len(set(answers.values())) != 1 or answers["duckdb"][1] != spec.rows:
        sys.exit(f"{workload}, {keys:,} keys, {spec.rows:,} rows: the answers differ: {answers}")
    for engine, found in runs.items():
        rates = [spec.rows / run.seconds for run in found]
        per_core = median(spec.rows / run.cpu_s for run in found)
        print(
            f"| {workload}, {keys:,} | {engine} | {median(rates):,.0f} | {min(rates):,.0f}, {max(rates):,.0f} "
            f"| {per_core:,.0f} | {found[0].answer[0]:,} |",
            flush=True,
        )


def _in_a_process(engine: str, workload: str, folder: str, threads: int) -> Run:
    """Sets the number of threads before a library is imported, because Polars reads the number only then."""
    command = [sys.executable, "-m", "benchmarks.batch_limit", "--threads", str(threads)]
    told = subprocess.run(
        [*command, "--one", engine, workload, folder],
        env={**os.environ, "POLARS_MAX_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(told.stdout, type=Run)


def _timed(engine: str, workload: str, folder: Path, threads: int) -> Run:
    prepared = {"duckdb": _duckdb, "polars": _polars, "pyarrow": _pyarrow}[engine](
        folder, workload == "tumbling", threads
    )
    began, began_cpu = time.perf_counter(), time.process_time()
    found = prepared()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    counted = pc.sum(found["n"]).as_py(), pc.sum(found["total"]).as_py()
    return Run(seconds, cpu_s, (found.num_rows, int(counted[0]), int(counted[1])))


# ---------------------------------------------------------------- engines: imports first, then the timed part


def _duckdb(folder: Path, windowed: bool, threads: int) -> Callable[[], pa.Table]:
    import duckdb

    connection = duckdb.connect(config={"threads": threads, "preserve_insertion_order": False})
    window = f', "at" // {_WINDOW_MS}' if windowed else ""
    query = (
        f"SELECT key{window}, count(*) AS n, sum(value)::BIGINT AS total "
        f"FROM read_parquet('{folder}/*.parquet') GROUP BY ALL"
    )
    return lambda: connection.sql(query).to_arrow_table()


def _polars(folder: Path, windowed: bool, _threads: int) -> Callable[[], pa.Table]:
    import polars as pl

    by = [pl.col("key"), *([pl.col("at") // _WINDOW_MS] if windowed else [])]
    query = (
        pl.scan_parquet(f"{folder}/*.parquet").group_by(by).agg(n=pl.len().cast(pl.Int64), total=pl.col("value").sum())
    )
    return lambda: query.collect(engine="streaming").to_arrow()


def _pyarrow(folder: Path, windowed: bool, threads: int) -> Callable[[], pa.Table]:
    pa.set_cpu_count(threads)
    return functools.partial(_grouped, folder, windowed)


def _grouped(folder: Path, windowed: bool) -> pa.Table:
    columns = {"key": pc.field("key"), "value": pc.field("value")}
    if windowed:
        columns["window"] = pc.divide(pc.field("at"), pa.scalar(_WINDOW_MS, pa.int64()))
    rows = ds.dataset(folder, format="parquet").to_table(columns=columns)
    keys = [name for name in columns if name != "value"]
    grouped = rows.group_by(keys, use_threads=True).aggregate([([], "count_all"), ("value", "sum")])
    return grouped.rename_columns([{"count_all": "n", "value_sum": "total"}.get(n, n) for n in grouped.column_names])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batch_limit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the inputs (%(default)s)")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="again for each; all, unless told")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--rows", type=int, default=32_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="engines take turns (%(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # engine, workload, folder: in a child process
    return parser


if __name__ == "__main__":
    sys.exit(main())
