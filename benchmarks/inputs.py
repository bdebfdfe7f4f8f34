"""Parquet files of bounded runs: each file is made once, for all engines and rounds.

A run reads the first files through a folder of links, so a smaller input is the beginning of a larger input. Flink
hands files out in no order, and a window drops the rows of an early file that is read late. So Flink gets the same
rows, row group by row group, in as many files as subtasks; each file is in order of time and read by a single subtask.
"""

import tempfile
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from benchmarks import events, nexmark
from benchmarks.spec import RunSpec
from benchmarks.workloads import ROWWISE, workload

_LEAST_FILES = 8
_MOST_ROWS = {"events": 1_000_000, "nexmark": 500_000}
_ANY_ORDER = ("flink", "flink-sql", "pyflink")
_ROWWISE_ROWS = 62_500  # PyFlink processes a hundred thousand rows in 15 seconds


def file_rows(spec: RunSpec) -> int:
    """Rows of each file if at most `spec.rows` are read."""
    most = _ROWWISE_ROWS if spec.workload in ROWWISE else _MOST_ROWS[workload(spec.workload).input]
    return max(1, min(most, spec.rows // _LEAST_FILES))


def with_input(spec: RunSpec, parent: Path, rows_per_file: int) -> RunSpec:
    """`spec` with the folder of `spec.rows` rows, rounded up to whole files; missing files are made."""
    known = workload(spec.workload)
    is_nexmark = known.input == "nexmark"
    pace = known.pace(spec.keys)
    of_pace = f"-{pace}-a-second" if known.per_key is not None else ""
    every = parent / (f"nexmark-{rows_per_file}" if is_nexmark else f"events-{spec.keys}-{rows_per_file}{of_pace}")
    count = -(-spec.rows // rows_per_file)
    first = every / f"first-{count}"
    first.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        made = every / f"part-{number:05}.parquet"
        if not made.exists():
            begin, end = number * rows_per_file, (number + 1) * rows_per_file
            rows = nexmark.bounded(begin, end) if is_nexmark else events.bounded(begin, end, spec.keys, pace)
            events.write_parquet(made, rows)
        if not (first / made.name).exists():
            (first / made.name).hardlink_to(made)
    read = in_order(first, spec.parallelism) if spec.engine in _ANY_ORDER else first
    return msgspec.structs.replace(spec, input=str(read.resolve()), rows=count * rows_per_file)


def in_order(folder: Path, files: int) -> Path:
    """A folder with the rows of `folder` in `files` files.

    The first file of `folder` goes to the first file, the second to the second, and so on in turn."""
    parts = sorted(folder.glob("*.parquet"))
    dealt = folder.with_name(f"{folder.name}-in-{files}")
    if not dealt.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work, dealt.name)
            made.mkdir()
            for number in range(min(files, len(parts))):
                with pq.ParquetWriter(
                    made / f"part-{number:05}.parquet", pq.read_schema(parts[0]), compression="snappy"
                ) as writer:
                    for part in parts[number::files]:
                        writer.write_table(pq.read_table(part))
            made.rename(dealt)
    return dealt
