"""Timers of a subtask in RocksDB: cost, memory of very many, time until a restored timer fires.

    python -m benchmarks.timers [--timers 10000000] [--memory-mb 256] [--folder DIR]

Registers timers by key at times far apart, with a checkpoint every million and at the end. A separate process
restores the last checkpoint, so that the process's memory is that of the restored timers alone. Times are of the
processor where stated.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from barrier_runtime.operators.keyed.timers import TABLE, Timers
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.backend.keyed_backend import KeyedBackend, open_keyed_backend
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.paths import Paths

_EVERY = 1_000_000  # timers between two checkpoints
_FIRED = 100_000


def opened(
    folder: Path, name: str, memory_mb: int, restored: tuple[OperatorSnapshot, ...] = (), operator: str = "timers"
) -> KeyedBackend:
    """Two thirds of the memory are for RocksDB, the rest is for the tables' own data, as in a slot."""
    numbers = iter(range(1 << 30))
    return open_keyed_backend(
        kind="rocksdb",
        operator=operator,
        subtask=0,
        parallelism=1,
        max_parallelism=128,
        restored=restored,
        store=LocalStore(folder / "objects"),
        paths=Paths("job"),
        token=1,
        slot_uuid=name,
        directory=folder / name,
        copies=LocalCopies(),
        memory=SlotMemory((memory_mb << 20) * 2 // 3),
        cache_bytes=(memory_mb << 20) // 3,
        new_uuid=lambda: f"{name}-{next(numbers)}",
    )


def checkpoint(backend: KeyedBackend, number: int) -> KeyedSnapshot:
    backend.snapshots.freeze(number)
    while not backend.snapshots.drain():
        pass
    snapshot = backend.snapshots.write(number)
    backend.snapshots.clean_up()
    backend.snapshots.completed(number)
    return snapshot


def rss_mb() -> float:
    """Peak until now, of this process alone; getrusage would include the peak of the parent."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1_024


def _register(folder: Path, count: int, memory_mb: int) -> dict[str, float]:
    backend, current = opened(folder, "first", memory_mb), CurrentKey()
    timers = Timers(backend.timer_table(TABLE, 1), current)
    began_s, calls_s = time.process_time(), 0.0
    for start in range(0, count, _EVERY):
        call_s = time.process_time()
        for number in range(start, min(start + _EVERY, count)):
            current.key = (number * 2_654_435_761 % 1_000_003,)
            timers.register(number * 7_919 % count)
        calls_s += time.process_time() - call_s
        snapshot = checkpoint(backend, 1 + start // _EVERY)
    total_s = time.process_time() - began_s
    (folder / "snapshot").write_bytes(msgspec.msgpack.encode(snapshot))
    (folder / "from").write_text(str(timers.lowest_ms))
    held = len(timers)
    backend.close()
    return {
        "register_us_cpu": calls_s / count * 1e6,
        "with_checkpoints_us_cpu": total_s / count * 1e6,
        "rss_mb": rss_mb(),
        "held": held,
    }


def _restore(folder: Path, count: int, memory_mb: int) -> dict[str, float]:
    keyed = msgspec.msgpack.decode((folder / "snapshot").read_bytes(), type=KeyedSnapshot)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    backend = opened(folder, "restored", memory_mb, (OperatorSnapshot("timers", 0, 1, keyed=keyed),))
    opened_s = time.perf_counter()
    timers = Timers(backend.timer_table(TABLE, 1), CurrentKey(), None, int((folder / "from").read_text()))
    next(timers.due(count))
    first_s, first_cpu_s = time.perf_counter(), time.process_time()
    fired = sum(1 for _, _ in zip(timers.due(count), range(_FIRED), strict=False))
    fire_us = (time.process_time() - first_cpu_s) / fired * 1e6
    backend.close()
    return {
        "download_and_open_s": opened_s - began_s,
        "then_first_timer_s": first_s - opened_s,
        "first_timer_s_cpu": first_cpu_s - began_cpu_s,
        "fire_us_cpu": fire_us,
        "rss_mb": rss_mb(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=10_000_000)
    parser.add_argument("--memory-mb", type=int, default=256)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--restore", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.restore:
        print(json.dumps(_restore(given.folder, given.timers, given.memory_mb)))
        return
    folder = Path(tempfile.mkdtemp(prefix="barrier-timers-", dir=given.folder))
    try:
        told = {"register": _register(folder, given.timers, given.memory_mb)}
        again = [sys.executable, "-m", "benchmarks.timers", "--restore", "--folder", str(folder)]
        sizes = ["--timers", str(given.timers), "--memory-mb", str(given.memory_mb)]
        told["restore"] = json.loads(subprocess.run([*again, *sizes], check=True, capture_output=True).stdout)
    finally:
        shutil.rmtree(folder)
    for what, figures in told.items():
        print(what, {name: round(value, 3) for name, value in figures.items()})


if __name__ == "__main__":
    main()
