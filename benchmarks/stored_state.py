"""State made from a table, and state read as tables: speed and memory. Without Spark.

    python -m benchmarks.stored_state --keys 10000000

`write_savepoint` of a `ValueState(int)` per key from incoming batches; then reads of these entries from RocksDB, of
`--rows` rows of a running aggregate from segments, and of a single key. Each part is a separate process, so that the
peak RSS is the memory of this part alone. Results: build/bench/stored_state.json.
"""

import argparse
import dataclasses
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime import CollectSink, Dataflow, ProcessContext, ValueState, count, sum_
from barrier_runtime.bootstrap import write_savepoint
from barrier_runtime.state_tables import open_checkpoint

_FOLDER = Path("build/bench/stored_state")
_RESULT = Path("build/bench/stored_state.json")
_BATCH_ROWS = 100_000
_VALUES, _SUMS = "values", "sums"


@dataclass(frozen=True)
class Measured:
    """`seconds`: wall clock; `cpu_s`: all threads of the process; `rss_mb`: peak, with imports."""

    part: str
    entries: int
    seconds: float
    cpu_s: float
    rss_mb: int
    bytes: int = 0


class Last:
    last = ValueState(int)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> None:
        self.last.value = row["n"]


def flow() -> Dataflow:
    flow = Dataflow("stored-state")
    rows = flow.from_iterator("rows", lambda index, of: iter(()), schema={"key": int, "n": int}, splits=1)
    rows.key_by("key").process("last", Last, schema={"key": int}).sink("out", CollectSink())
    rows.key_by("key").aggregate("sums", rows=count(), total=sum_("n")).sink("totals", CollectSink())
    return flow


def _batches(keys: int, more: Callable[[int], dict[str, pa.Array]]) -> Iterator[pa.RecordBatch]:
    """Keys 0 to `keys`, with the columns that `more` makes for a number of keys."""
    for first in range(0, keys, _BATCH_ROWS):
        end = min(keys, first + _BATCH_ROWS)
        yield pa.record_batch({"key": pa.array(np.arange(first, end)), **more(end - first)})


def _reader(keys: int, more: Callable[[int], dict[str, pa.Array]]) -> pa.RecordBatchReader:
    schema = next(_batches(1, more)).schema
    return pa.RecordBatchReader.from_batches(schema, _batches(keys, more))


def _numbers(*names: str) -> Callable[[int], dict[str, pa.Array]]:
    return lambda rows: {name: pa.array(np.arange(rows)) for name in names}


def write_values(keys: int) -> tuple[int, int]:
    done = write_savepoint(_url(_VALUES), flow=flow(), states={("last", "last"): _reader(keys, _numbers("value"))})
    return done.entries["last", "last"], done.bytes


def write_sums(keys: int) -> tuple[int, int]:
    columns = _numbers("rows", "values:n", "sum:n")
    done = write_savepoint(_url(_SUMS), flow=flow(), states={("sums", "running"): _reader(keys, columns)})
    return done.entries["sums", "running"], done.bytes


def read_values(keys: int) -> tuple[int, int]:
    return _read(_VALUES, "last", "last", None)


def read_sums(keys: int) -> tuple[int, int]:
    return _read(_SUMS, "sums", "running", None)


def read_one_key(keys: int) -> tuple[int, int]:
    return _read(_VALUES, "last", "last", {"key": keys // 2})


def _read(folder: str, operator: str, state: str, where: dict[str, Any] | None) -> tuple[int, int]:
    with open_checkpoint(_url(folder)) as stored:
        return sum(batch.num_rows for batch in stored.table(operator, state, where)), 0


def _url(name: str) -> str:
    return str((_FOLDER / name).resolve())


_PARTS: dict[str, Callable[[int], tuple[int, int]]] = {
    "write_savepoint": write_values,
    "read RocksDB": read_values,
    "read one key": read_one_key,
    "write_savepoint, columns": write_sums,
    "read segments": read_sums,
}


def measured(part: str, keys: int) -> Measured:
    """Measures in this process."""
    began, cpu = time.perf_counter(), time.process_time()
    entries, size = _PARTS[part](keys)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Measured(part, entries, round(seconds, 2), round(cpu, 2), rss_mb, size)


def _apart(part: str, keys: int) -> Measured:
    command = [sys.executable, "-m", "benchmarks.stored_state", "--part", part, "--keys", str(keys)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored_state", description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000, help="of the values")
    parser.add_argument("--rows", type=int, default=3_000_000, help="of the aggregate")
    parser.add_argument("--part", choices=sorted(_PARTS), help="this one alone, in this process")
    chosen = parser.parse_args(arguments)
    if chosen.part is not None:
        print(json.dumps(dataclasses.asdict(measured(chosen.part, chosen.keys))))
        return
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    found = []
    for part in _PARTS:
        found.append(
            _apart(part, chosen.rows if part in ("write_savepoint, columns", "read segments") else chosen.keys)
        )
        each = found[-1]
        rate = f"{each.entries / max(each.cpu_s, 0.001):,.0f} a second of processor time"
        print(f"{part}: {each.entries:,} entries in {each.seconds} s, {rate}, {each.rss_mb} MB, {each.bytes:,} bytes")
    _RESULT.write_text(json.dumps([dataclasses.asdict(each) for each in found], indent=2) + "\n")
    shutil.rmtree(_FOLDER)


if __name__ == "__main__":
    main()
