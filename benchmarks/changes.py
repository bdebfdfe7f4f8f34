"""Rows per second, by the clock, of a job that catches up with PostgreSQL's changes after a pause.

    python -m benchmarks.changes [--rows 2000000] [--rounds 3]

A job reads the table and stops with a checkpoint. Then the rows are inserted, in transactions of different sizes, and
the job starts again. PostgreSQL decodes its log beside the job, on the same machine. Shown are the rows per second from
the first rows to the last, the processor time of the job per row, and the number of checkpoints meanwhile.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa

from barrier_runtime import Dataflow
from barrier_runtime.connectors.memory.callable import CallableSink
from benchmarks.hold_units import INSERT, ORDERS
from benchmarks.machine import describe
from examples.servers.postgres import PostgresServer, postgres_server

_SIZES = (1, 1_000, 1_000_000)  # rows of a transaction
_LEAST = 20  # a run has at least a twentieth of the rows, however small the transactions are
_WAIT_S = 600.0
_LOOK_S = 0.2


def _note(file: str, rows: pa.RecordBatch) -> None:
    """Appends the time, the processor time of the process, and the number of rows."""
    with open(file, "a") as notes:
        notes.write(f"{time.perf_counter()} {time.process_time()} {rows.num_rows}\n")


def _noted(file: Path, wanted: int) -> list[list[float]]:
    """Returns the notes once they tell of `wanted` rows."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        notes = [[float(part) for part in line.split()] for line in file.read_text().splitlines()]
        if sum(rows for *_, rows in notes) >= wanted:
            return notes
        time.sleep(_LOOK_S)
    raise SystemExit(f"fewer than {wanted:,} rows came within {_WAIT_S:.0f} s")


def _flow(server: PostgresServer, file: Path) -> Dataflow:
    file.write_text("")
    flow = Dataflow("changes")
    flow.read_postgres_changes("orders", server.url, "orders").sink("out", CallableSink(partial(_note, str(file))))
    return flow


def _caught_up(rows: int, size: int) -> tuple[float, float, int]:
    """Returns rows per second, microseconds of processor time per row, and completed checkpoints."""
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        store, file = str(Path(folder, "store")), Path(folder, "notes")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(ORDERS)
            connection.execute(INSERT.format(first=1, last=1))
            with _flow(server, file).start_local(checkpoints=store) as job:
                _noted(file, 1)
                job.stop(mode="checkpoint")
            for first, last in _ranges(rows, size):
                connection.execute(INSERT.format(first=first, last=last))
        with _flow(server, file).start_local(checkpoints=store) as job:
            (began_s, began_cpu_s, first_rows), *_, (ended_s, ended_cpu_s, _) = notes = _noted(file, rows)
            completed = sum(entry.outcome == "complete" for entry in job.status().checkpoints.history)
    later = sum(taken for *_, taken in notes) - first_rows
    return later / (ended_s - began_s), (ended_cpu_s - began_cpu_s) / later * 1e6, completed


def _ranges(rows: int, size: int) -> Iterator[tuple[int, int]]:
    """First and last number of the rows of each transaction; row 1 exists."""
    for first in range(2, rows + 2, size):
        yield first, min(first + size, rows + 2) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of a run; a twentieth in transactions of a row")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe())
    print("| rows of a transaction | rows/s (least to most) | CPU of the job, us/row | completed checkpoints |")
    print("|---|---|---|---|", flush=True)
    for size in _SIZES:
        rows = options.rows if size > 1 else options.rows // _LEAST
        runs = [_caught_up(rows, size) for _ in range(options.rounds)]
        rates, spent, completed = (sorted(figures) for figures in zip(*runs, strict=True))
        shown = f"{statistics.median(rates):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        print(f"| {size:,} | {shown} | {statistics.median(spent):.1f} | {completed} |", flush=True)


if __name__ == "__main__":
    main()
