"""Cost of a checkpoint: bytes uploaded against bytes changed, duration, and blocking of the loop.

    python -m benchmarks.snapshots --keys 1000000 --changed 0.01 --checkpoints 60
    python -m benchmarks.snapshots --keys 1000000 --changed 1 --columns

One subtask of two (so half of the keys) has values of 100 bytes in a state table over RocksDB, or with `--columns` a
count per key in columns. `--changed` of the keys change per second, with a checkpoint per second. Changes are made in
small steps over the second, as by batches. A *gap* is the longest time without a step of the loop, minus the time in
which the loop's thread waited for a processor (as counted by Linux).
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from barrier_runtime.runtime.host.process import tune_interpreter
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.keys.row_index import Ints
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot
from barrier_runtime.state.values.table import StateTable
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

_VALUE_BYTES = 92  # and 8 of the key
_STEP_S = 0.001


class Values:
    """Keys and bytes that do not compress, in a state table."""

    entry_bytes = 8 + _VALUE_BYTES

    def __init__(self, backend: KeyedBackend, keys: Ints) -> None:
        self._table: StateTable = backend.table("value", bytes, bytes, 1, immutable=True)
        self._random = np.random.default_rng(2)
        self.begin(keys)
        self.change(0, len(keys))

    def begin(self, keys: Ints) -> None:
        self._keys = keys.tolist()
        self._values = self._random.bytes(len(keys) * _VALUE_BYTES)

    def change(self, first: int, end: int) -> None:
        for at in range(first, end):
            self._table.put((self._keys[at],), self._values[at * _VALUE_BYTES : (at + 1) * _VALUE_BYTES])


class Columns:
    """Keys and their counts, in a columnar table."""

    entry_bytes = 8 + 8

    def __init__(self, backend: KeyedBackend, keys: Ints) -> None:
        self._table: ColumnTable = backend.column_table("count", {"count": ("i8", 0)}, 1, evictable=True)
        self.begin(keys)
        self.change(0, len(keys))

    def begin(self, keys: Ints) -> None:
        self._keys = keys

    def change(self, first: int, end: int) -> None:
        slots = self._table.row_ids_int64(self._keys[first:end])
        self._table.columns["count"][slots] += 1
        self._table.mark_dirty(slots)


class Round:
    """A second, with a checkpoint."""

    def __init__(self, backend: KeyedBackend, state: Values | Columns, number: int, every_s: float) -> None:
        self._backend = backend
        self._state = state
        self._number = number
        self._every_s = every_s
        self.gap_s = self.freeze_s = self.drain_s = 0.0
        self.upload_s = 0.0
        self.snapshot: KeyedSnapshot | None = None

    def run(self, keys: Ints) -> None:
        self._state.begin(keys)
        began = time.perf_counter()
        last = _running_s()
        self._backend.snapshots.freeze(self._number)
        self.freeze_s = time.perf_counter() - began
        worker = threading.Thread(target=self._upload)
        drained = done = 0
        while (now := time.perf_counter()) < began + self._every_s or worker.is_alive() or not drained:
            self.gap_s, last = max(self.gap_s, (running := _running_s()) - last), running
            if not drained:
                drained = self._backend.snapshots.drain()
                if drained:
                    self.drain_s = time.perf_counter() - began
                    worker.start()
            due = min(len(keys), int((now - began) / self._every_s * len(keys)))
            self._state.change(done, due)
            if due == done and drained:
                time.sleep(_STEP_S / 4)
            done = due
        worker.join()
        self._state.change(done, len(keys))
        self._backend.snapshots.completed(self._number)

    def _upload(self) -> None:
        began = time.perf_counter()
        self.snapshot = self._backend.snapshots.write(self._number)
        self._backend.snapshots.clean_up()
        self.upload_s = time.perf_counter() - began


def _running_s() -> float:
    """The clock, without the time in which this thread was ready but no processor was free."""
    waited_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter() - waited_ns / 1e9


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--changed", type=float, default=0.01, help="share of the keys per second")
    parser.add_argument("--checkpoints", type=int, default=30)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--columns", action="store_true", help="a count per key, as aggregates keep it")
    parser.add_argument("--folder", default="build/bench/snapshots")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    tune_interpreter()
    print(describe())
    try:
        measure(Surroundings(scratch, 0, 1), chosen)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def measure(surroundings: Surroundings, chosen: argparse.Namespace) -> None:
    random = np.random.default_rng(1)
    backend = surroundings.context("values").open_keyed()
    own = random.choice(1 << 40, chosen.keys // 2)
    state = Columns(backend, own) if chosen.columns else Values(backend, own)
    count = int(len(own) * chosen.changed)
    rounds = []
    for number in range(1, chosen.checkpoints + 2):
        each = Round(backend, state, number, chosen.every)
        each.run(random.permutation(own) if chosen.changed >= 1 else random.choice(own, count))
        rounds.append(each)
    backend.close()
    report(rounds, count * state.entry_bytes)


def report(rounds: list[Round], changed_bytes: int) -> None:
    first, *later = rounds
    assert first.snapshot is not None
    uploaded = [each.snapshot.new_bytes for each in later if each.snapshot is not None]
    print(f"first checkpoint: {first.snapshot.new_bytes:,} bytes, {first.drain_s + first.upload_s:.2f} s")
    print(f"then {len(later)} with {changed_bytes:,} bytes changed each:")
    print(
        f"  uploaded: mean {np.mean(uploaded):,.0f} = {np.mean(uploaded) / changed_bytes:.2f} x changed, "
        f"p50 {np.median(uploaded):,.0f}, max {max(uploaded):,}"
    )
    for name, values in (
        ("freeze", [each.freeze_s for each in later]),
        ("freeze to drained", [each.drain_s for each in later]),
        ("link and upload", [each.upload_s for each in later]),
        ("longest gap", [each.gap_s for each in later]),
    ):
        print(f"  {name:<18} p50 {np.median(values) * 1e3:6.2f} ms   max {max(values) * 1e3:6.2f} ms")


if __name__ == "__main__":
    sys.exit(main())
