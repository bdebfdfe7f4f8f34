"""Memory of `deduplicate` for very many ids, with the Bloom filters, and the cost of an id.

    python -m benchmarks.deduplicated [--ids 10000000] [--memory-mb 256] [--folder DIR]

A single subtask runs on RocksDB, which has two thirds of the memory; filters and cached entries have the rest. All ids
(text of 16 letters) come once, with a checkpoint every million; then a tenth of the ids comes again. A separate process
restores the last checkpoint and fills the filters again; a hundredth of the ids comes once more. Memory is the peak of
a process; the memory before state is opened, with the batches of ids, is printed too. Times are processor time.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.deduplication.operator import DeduplicateOperator
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings
from benchmarks.timers import opened, rss_mb

_NAME = "ids"
_ROWS = 10_000  # per batch
_EVERY = 1_000_000  # ids between two checkpoints
_ODD = np.uint64(0x9E3779B97F4A7C15)  # makes ids practically random


class _Run:
    def __init__(self, folder: Path, name: str, memory_mb: int, restored: tuple[OperatorSnapshot, ...] = ()) -> None:
        self.before_mb = rss_mb()
        self.passed, self._emit = 0, Emit(self._count)
        self.operator = DeduplicateOperator(_NAME, ["id"], schema=pa.schema([("id", pa.string())]))
        self._context = replace(
            Surroundings(folder, 0, 1).context(name),
            restored=restored,
            open_keyed=lambda: opened(folder, name, memory_mb, restored, _NAME),
        )
        began_s = time.process_time()
        self.operator.open(self._context)
        self.open_s = time.process_time() - began_s

    def feed(self, first: int, count: int) -> float:
        """Processor time per row, ns."""
        spent_s = 0.0
        for start in range(first, first + count, _ROWS):
            batch = _batch(start, min(_ROWS, first + count - start))
            began_s = time.process_time()
            self.operator.process(batch, self._emit)
            spent_s += time.process_time() - began_s
        return spent_s / count * 1e9

    def snapshot(self, number: int) -> OperatorSnapshot:
        capture = self.operator.snapshot(number)
        assert capture.keyed is not None
        while not capture.keyed.drain(4_096):
            pass
        keyed = capture.keyed.write(number)
        capture.keyed.clean_up()
        self.operator.on_complete(number)
        return OperatorSnapshot(_NAME, 0, 1, values=capture.values, keyed=keyed)

    def figures(self, **more: float) -> dict[str, float]:
        lookups = self._context.metrics.counts.get("lookups", 0.0)
        memory = {"rss_mb": rss_mb(), "of_that_before_mb": self.before_mb}
        return {**more, **memory, "filters_mb": self.operator._filters.bytes / 2**20, "lookups": lookups}

    def _count(self, batch: Batch) -> None:
        self.passed += len(batch)


def _batch(first: int, count: int) -> Batch:
    numbers = np.arange(first, first + count, dtype=np.uint64) * _ODD
    return Batch(pa.record_batch({"id": pa.array([f"{number:016x}" for number in numbers.tolist()])}), 0)


def _register(folder: Path, ids: int, memory_mb: int) -> dict[str, float]:
    run, ns = _Run(folder, "first", memory_mb), []
    for number, start in enumerate(range(0, ids, _EVERY), 1):
        ns.append(run.feed(start, min(_EVERY, ids - start)))
        snapshot = run.snapshot(number)
    again_ns = run.feed(0, ids // 10)
    assert run.passed == ids, f"{run.passed} of {ids} ids passed"
    (folder / "snapshot").write_bytes(msgspec.msgpack.encode(snapshot))
    figures = run.figures(new_ns=sum(ns) / len(ns), again_ns=again_ns)
    run.operator.close()
    return figures


def _restore(folder: Path, ids: int, memory_mb: int) -> dict[str, float]:
    snapshot = msgspec.msgpack.decode((folder / "snapshot").read_bytes(), type=OperatorSnapshot)
    run = _Run(folder, "restored", memory_mb, (snapshot,))
    again_ns = run.feed(0, ids // 100)
    assert run.passed == 0, f"{run.passed} ids passed that had come before"
    figures = run.figures(open_s=run.open_s, again_ns=again_ns)
    run.operator.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=10_000_000)
    parser.add_argument("--memory-mb", type=int, default=256)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--restore", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.restore:
        print(json.dumps(_restore(given.folder, given.ids, given.memory_mb)))
        return
    print(describe())
    folder = Path(tempfile.mkdtemp(prefix="barrier-ids-", dir=given.folder))
    try:
        told = {"first": _register(folder, given.ids, given.memory_mb)}
        again = [sys.executable, "-m", "benchmarks.deduplicated", "--restore", "--folder", str(folder)]
        sizes = ["--ids", str(given.ids), "--memory-mb", str(given.memory_mb)]
        told["restored"] = json.loads(subprocess.run([*again, *sizes], check=True, stdout=subprocess.PIPE).stdout)
    finally:
        shutil.rmtree(folder)
    for what, figures in told.items():
        print(what, {name: round(value, 1) for name, value in figures.items()})


if __name__ == "__main__":
    main()
