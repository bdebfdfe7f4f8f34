"""Rows per second of a vectorised keyed function (`process_groups`): a single operator and core, RocksDB.

    python -m benchmarks.groups [--rows 4000000] [--keys 10000] [--batch-rows 8192]

Two examples with state in columns: the last value of each key with the previous value, per batch; and keys whose value
rose above a threshold, once per crossing. A checkpoint follows every million rows and is in the figures. Rates are by
the CPU time of this process, with RocksDB's threads, and by the clock.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.process_groups import BatchKeys, ProcessGroupsOperator
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
_EVERY = 1_000_000  # rows between two checkpoints
_LIMIT = 90.0


def last_value(keys: BatchKeys, batch: pa.RecordBatch, state: dict[str, Any]) -> dict[str, Any]:
    """A row for each key of the batch: the previous value and the current value."""
    before = state["last"].copy()
    state["last"][:] = batch.column("v").to_numpy()[keys.last_rows]
    return {"k": keys.rows.column("k"), "before": before, "v": state["last"]}


def threshold(keys: BatchKeys, batch: pa.RecordBatch, state: dict[str, Any]) -> dict[str, Any]:
    """A row for each key that is above the limit at the end of the batch, and was not before."""
    last = batch.column("v").to_numpy()[keys.last_rows]
    above = last > _LIMIT
    crossed = above & (state["above"] == 0)
    state["above"][:] = above
    return {"k": keys.rows.column("k").filter(pa.array(crossed)), "v": last[crossed]}


_EXAMPLES: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any], pa.Schema]] = {
    "last value": (
        last_value,
        {"last": ("float64", float("nan"))},
        pa.schema([("k", pa.int64()), ("before", pa.float64()), ("v", pa.float64())]),
    ),
    "threshold": (threshold, {"above": "int8"}, _SCHEMA),
}


def _run(name: str, rows: int, keys: int, batch_rows: int, folder: Path) -> str:
    function, state, schema = _EXAMPLES[name]
    operator = ProcessGroupsOperator("groups", ["k"], function, schema=schema, state=state)
    operator.open(Surroundings(folder, 0, 1).context("groups"))
    random, out, since, number = np.random.default_rng(1), 0, 0, 0
    batches = [
        Batch(
            pa.RecordBatch.from_arrays(
                [pa.array(random.integers(0, keys, batch_rows)), pa.array(random.random(batch_rows) * 100)],
                schema=_SCHEMA,
            ),
            0,
        )
        for _ in range(64)
    ]

    def given(batch: Batch) -> None:
        nonlocal out
        out += batch.rows.num_rows

    emit = Emit(given)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for done in range(0, rows, batch_rows):
        operator.process(batches[done // batch_rows % len(batches)], emit)
        since += batch_rows
        if since >= _EVERY:
            since, number = 0, number + 1
            capture = operator.snapshot(number)
            assert capture.keyed is not None
            while not capture.keyed.drain(4_096):
                pass
            capture.keyed.write(number)
            capture.keyed.clean_up()
            operator.on_complete(number)
    spent_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    operator.close()
    return f"{rows / cpu_s:,.0f} rows a CPU second, {rows / spent_s:,.0f} a second; {out:,} rows out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--batch-rows", type=int, default=8_192)
    given = parser.parse_args()
    print(describe())
    for name in _EXAMPLES:
        folder = Path(tempfile.mkdtemp(prefix="barrier-groups-"))
        try:
            print(f"  {name:<12} {_run(name, given.rows, given.keys, given.batch_rows, folder)}")
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
