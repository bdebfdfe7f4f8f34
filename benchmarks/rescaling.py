"""Rescales, replacements and savepoints of a running job: time without output, and rows read twice.

    python -m benchmarks.rescaling --rate 50000 --keys 100000 --rescales 12
    python -m benchmarks.rescaling --wide --keys 20000000 --rescales 9 --replaces 5
    python -m benchmarks.rescaling --wide --keys 1000000 --rescales 0 --savepoints 10

The job goes 2 -> 4 -> 3 -> 2 slots again and again, is replaced by another program, or is copied to savepoints. With
`--wide` a key with state has 100 bytes in RocksDB, all keys exist from the start (the job begins with a savepoint of
all keys), and each row changes the bytes of a single key; otherwise the job is a count per key, in columns.

Figures of a rescale: the longest time between two rows at the sinks from the request until a second after the rescale
(*gap*), and the pause from the coordinator, in parts: until the last checkpoint is decided, until the checkpoint is
visible, until the new slots run. A row that is read twice comes to a sink twice. Figures of a savepoint: the gap while
it is taken, the gap of as long a time before the request, and the savepoint's bytes compared with the whole state.
Results: build/bench/rescaling.json.
"""

import argparse
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from barrier_runtime import Dataflow
from barrier_runtime.bootstrap import write_savepoint
from barrier_runtime.coordinator.status.status import RescaleStatus
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.requests import SavepointTaken
from benchmarks.measuring_sink import MeasuringSink
from benchmarks.paced_source import PacedSource
from benchmarks.stamps import Ints, read_stamps
from benchmarks.workloads import KEYED_COUNT, WIDE_BYTES, WIDE_STATE

_FOLDER = Path("build/bench/rescaling")
_MEMORY = Path("/dev/shm")
# In memory if there is room: a sink that waits for the disk would be measured instead of rows.
_ROWS = _MEMORY / "bench-rescaling-rows" if _MEMORY.is_dir() else (_FOLDER / "rows").resolve()
_RESULT = Path("build/bench/rescaling.json")
_ROUND = (4, 3, 2)
_REST_S = 1.5  # between two rescales
_TIMEOUT_S = 120.0
_AT_ONCE = 500_000  # keys of a savepoint


@dataclass(frozen=True)
class RescaleFigures:
    """Milliseconds. `busy`: processes that wanted a processor at the begin (kernel's load of a minute)."""

    kind: str
    before: int
    after: int
    gap_ms: float
    pause_ms: int
    checkpoint_ms: int
    commit_ms: int
    restore_ms: int
    busy: float


@dataclass(frozen=True)
class SavepointFigures:
    took_ms: float
    gap_ms: float
    gap_before_ms: float
    bytes: int
    state_bytes: int
    busy: float


def rescales(
    rate: float, keys: int, count: int, replaces: int, savepoints: int, wide: bool
) -> tuple[list[RescaleFigures], list[SavepointFigures], int]:
    """Figures of each rescale, and the number of rows that were read twice."""
    for folder in (_FOLDER, _ROWS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    restore = str((_FOLDER / "filled").resolve()) if wide else "latest"
    if wide:
        write_savepoint(restore, flow=_flow(rate, keys, wide), states={("wide", "kept"): filled(keys)})
    done: list[tuple[RescaleStatus, float]] = []
    copied: list[tuple[float, float, SavepointTaken, int, float]] = []
    with _flow(rate, keys, wide).start(
        master="local[6]",  # a program that takes over has slots besides the old slots
        parallelism=2,
        checkpoints=str((_FOLDER / "checkpoints").resolve()),
        checkpoint_interval=1.0,
        restore=restore,
    ) as handle:
        _wait_for_checkpoints(handle, 3)
        for number in range(count + replaces):
            time.sleep(_REST_S)
            busy = os.getloadavg()[0]
            if number < count:
                handle.rescale(_ROUND[number % len(_ROUND)], timeout=_TIMEOUT_S)
            else:
                handle.replace(_flow(rate, keys, wide), timeout=_TIMEOUT_S)
            done.append((handle.status().rescales[-1], busy))
        for number in range(savepoints):
            time.sleep(2 * _REST_S)
            busy, asked_s = os.getloadavg()[0], time.time()
            taken = handle.savepoint(str((_FOLDER / f"savepoint-{number}").resolve()), _TIMEOUT_S)
            last = handle.status().checkpoints.last_completed
            copied.append((asked_s, time.time(), taken, 0 if last is None else last.full_bytes, busy))
        time.sleep(_REST_S)
        handle.stop()
        handle.wait(timeout=_TIMEOUT_S)
    stamps = read_stamps(_ROWS)
    shutil.rmtree(_ROWS)
    twice = len(stamps.intended) - len(np.unique(stamps.intended))
    figures = [_figures(status, busy, stamps.arrived) for status, busy in done]
    return figures, [_savepoint_figures(*each, stamps.arrived) for each in copied], twice


def _flow(rate: float, keys: int, wide: bool) -> Dataflow:
    workload = WIDE_STATE if wide else KEYED_COUNT
    flow, result = workload.flow(lambda flow: flow.source("events", PacedSource(rate, keys), event_time="at"))
    result.sink("measured", MeasuringSink(str(_ROWS), column="emitted", keep_s=0.05))
    return flow


def filled(keys: int) -> pa.RecordBatchReader:
    """Each key with as many bytes of noise as in the workload; the first eight bytes are the key's count."""
    width = WIDE_BYTES - 8
    schema = pa.schema([("key", pa.int64()), ("value", pa.binary())])
    random = np.random.default_rng(1)

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, keys, _AT_ONCE):
            count = min(_AT_ONCE, keys - first)
            noise = random.integers(0, 256, (count, width), np.uint8)
            noise[:, :8] = 0
            values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(noise)])
            numbers = pa.array(np.arange(first, first + count))
            yield pa.RecordBatch.from_arrays([numbers, values.cast(pa.binary())], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _wait_for_checkpoints(handle: JobHandle, count: int) -> None:
    until = time.monotonic() + _TIMEOUT_S
    while handle.status().checkpoints.completed < count:
        if time.monotonic() > until:
            raise TimeoutError(f"no {count} checkpoints within {_TIMEOUT_S} s: {handle.status().reason}")
        time.sleep(0.1)


def _figures(status: RescaleStatus, busy: float, arrived_ns: Ints) -> RescaleFigures:
    paused, decided, moved, ended = status.paused_ms, status.decided_ms, status.moved_ms, status.ended_ms
    if paused is None or decided is None or moved is None or ended is None:
        raise ValueError(f"this rescale did not move the job: {status}")
    return RescaleFigures(
        status.kind,
        status.before,
        status.parallelism,
        _gap_ms(arrived_ns, status.asked_ms / 1e3, ended / 1e3 + 1),
        ended - paused,
        decided - paused,
        moved - decided,
        ended - moved,
        round(busy, 1),
    )


def _savepoint_figures(
    asked_s: float, ended_s: float, taken: SavepointTaken, state_bytes: int, busy: float, arrived_ns: Ints
) -> SavepointFigures:
    took_s = ended_s - asked_s
    gap_ms, before_ms = _gap_ms(arrived_ns, asked_s, ended_s), _gap_ms(arrived_ns, asked_s - took_s, asked_s)
    return SavepointFigures(round(took_s * 1e3), gap_ms, before_ms, taken.bytes, state_bytes, round(busy, 1))


def _gap_ms(arrived_ns: Ints, since_s: float, until_s: float) -> float:
    """The longest time without a row."""
    between = arrived_ns[(arrived_ns >= since_s * 1e9) & (arrived_ns <= until_s * 1e9)]
    return round(float(np.diff(between).max(initial=0)) / 1e6, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rescaling", description=__doc__)
    parser.add_argument("--rate", type=float, default=50_000.0, help="rows per second")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rescales", type=int, default=12)
    parser.add_argument("--replaces", type=int, default=0, help="of the program, afterwards")
    parser.add_argument("--savepoints", type=int, default=0, help="of the running job, at the end")
    parser.add_argument("--wide", action="store_true", help="100 bytes per key, all of them there from the start")
    chosen = parser.parse_args(arguments)
    found, copied, twice = rescales(
        chosen.rate, chosen.keys, chosen.rescales, chosen.replaces, chosen.savepoints, chosen.wide
    )
    for each in (*found, *copied):
        print(each)
    told = {}
    for kind in sorted({each.kind for each in found}):
        gaps = [each.gap_ms for each in found if each.kind == kind]
        told[kind] = {"gap_p50_ms": float(np.median(gaps)), "gap_max_ms": max(gaps)}
        print(f"{kind}: gap p50 {np.median(gaps):.0f} ms, max {max(gaps):.0f} ms, {len(gaps)} times")
    print(f"{twice} rows read twice")
    changes, savepoints = ([dataclasses.asdict(each) for each in of] for of in (found, copied))
    figures = {**told, "read_twice": twice, "changes": changes, "savepoints": savepoints}
    _RESULT.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
