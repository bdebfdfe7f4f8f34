"""Waits in a keyed function: wall-clock timers, a barrier behind a million timers, rows of a lookup.

    python -m benchmarks.waiting wall-timers   how late wall-clock timers fire, 10,000 of them a second
    python -m benchmarks.waiting barrier       how late checkpoints begin while a million timers fire at a watermark
    python -m benchmarks.waiting rules         how soon rows by key see a broadcast rule
    python -m benchmarks.waiting lookup        rows per second of a lookup whose service takes 5 ms

Each command runs a whole job in this process, without Spark, with state in RocksDB, and prints the machine's load.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from barrier_runtime import BroadcastState, CollectSink, Dataflow, ProcessContext, connect
from barrier_runtime.runtime.host.process import PROCESS_HEAP, tune_interpreter
from benchmarks.machine import facts

_DELAY = timedelta(milliseconds=500)


class _Late:
    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> None:
        ctx.wall_timers.after(_DELAY)

    def on_wall_timer(self, key: int, due_ms: int, ctx: ProcessContext) -> dict[str, float]:
        return {"late_ms": time.time() * 1_000 - due_ms}


def wall_timers(folder: Path, rate: int = 10_000, seconds: int = 10) -> dict[str, float]:
    flow, sink = Dataflow("wall-timers"), CollectSink()
    rows = flow.rate("numbers", rate, rate * seconds, splits=1)
    rows.key_by("value").process("late", _Late, schema={"late_ms": float}).sink("out", sink)
    flow.run_local(parallelism=1, checkpoints=str(folder / "checkpoints"), state_backend="rocksdb")
    late = np.array([row["late_ms"] for row in sink.rows()])
    p50, p99, highest = np.percentile(late, (50, 99, 100)).tolist()
    return {"timers": len(late), "p50_ms": p50, "p99_ms": p99, "max_ms": highest}


class _Together:
    """A timer per key, all for the same time, which the last row makes due."""

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> None:
        ctx.timers.register(1_000_000)

    def on_timer(self, key: int, at_ms: int, ctx: ProcessContext) -> None:
        pass


def barrier(folder: Path, timers: int = 1_000_000) -> dict[str, Any]:
    """Measures aligned checkpoints, whose barriers wait behind the jump of event time, and unaligned ones."""
    return {mode: _barrier(folder / mode, timers, mode == "unaligned") for mode in ("aligned", "unaligned")}


def _barrier(folder: Path, timers: int, unaligned: bool) -> dict[str, Any]:
    """Figures of checkpoints triggered after the last row was read.

    They are the start delay in the worst subtask, and the duration."""
    read_s: list[float] = []

    def numbers(_: int, __: int) -> Iterator[dict[str, int]]:
        for number in range(timers):
            yield {"key": number, "at": 0}
        read_s.append(time.time())
        yield {"key": -1, "at": 2_000_000}

    flow = Dataflow("barrier")
    rows = flow.from_iterator("in", numbers, schema={"key": int, "at": int}, splits=1, event_time="at")
    fired = rows.key_by("key").process("together", _Together, schema={"key": int}, event_time="at")
    fired.sink("out", CollectSink())
    result = flow.run_local(
        parallelism=1,
        checkpoints=str(folder / "checkpoints"),
        checkpoint_interval=0.2,
        state_backend="rocksdb",
        unaligned=unaligned,
    )
    found = [each for each in result.status.checkpoints.history if each.triggered_ms >= read_s[0] * 1_000]
    return {
        "firing_s": time.time() - read_s[0],
        "checkpoints": len(found),
        "start_delay_ms": [round(each.start_delay_ms, 1) for each in found],
        "duration_ms": [each.duration_ms for each in found],
        "outcomes": sorted({each.outcome for each in found}),
    }


class _Seen:
    """In each subtask, once per rule: time from the rule's due time until the first row by key reads it."""

    newest = BroadcastState(str, float)

    def open(self, ctx: ProcessContext) -> None:
        self._seen = 0.0

    def on_rules(self, row: dict[str, Any], ctx: ProcessContext) -> None:
        self.newest["due_s"] = row["intended_at"].timestamp()

    def on_rows(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> dict[str, float] | None:
        due_s = self.newest.get("due_s", 0.0)
        if due_s == self._seen:
            return None
        self._seen = due_s
        return {"late_ms": (time.time() - due_s) * 1_000}


def rules(folder: Path, rate: int = 10_000, every: int = 100, seconds: int = 10) -> dict[str, float]:
    """`every`: rules per second. There are two subtasks, so that a subtask gets rules from the other."""
    flow, sink = Dataflow("rules"), CollectSink()
    rows = flow.rate("rows", rate, rate * seconds, splits=2)
    told = flow.rate("rules", every, every * seconds, splits=1)
    streams = connect(rows=rows.key_by("value"), rules=told.broadcast())
    streams.process("seen", _Seen, schema={"late_ms": float}).sink("out", sink)
    flow.run_local(parallelism=2, checkpoints=str(folder / "checkpoints"), state_backend="rocksdb")
    late = np.array([row["late_ms"] for row in sink.rows()])
    p50, p99, highest = np.percentile(late, (50, 99, 100)).tolist()
    return {"seen": len(late), "p50_ms": p50, "p99_ms": p99, "max_ms": highest}


async def _fetch(keys: Sequence[int]) -> dict[int, dict[str, int]]:
    await asyncio.sleep(0.005)
    return {key: {"known": key} for key in keys}


def lookup(folder: Path, rows: int = 1_000_000) -> dict[str, float]:
    """Measures two runs, so that start and end cancel out."""

    def took_s(count: int) -> tuple[float, float]:
        flow = Dataflow("lookup")
        stream = flow.rate("numbers", 1_000_000_000, count, splits=1)
        stream.lookup("known", _fetch, key="value", schema={"known": int}, capacity=1_000).sink("out", CollectSink())
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        flow.run_local(parallelism=1, checkpoints=str(folder / str(count)))
        return time.perf_counter() - began_s, time.process_time() - began_cpu_s

    (few_s, few_cpu_s), (many_s, many_cpu_s) = took_s(rows // 10), took_s(rows)
    more = rows - rows // 10
    return {"rows_per_s": more / (many_s - few_s), "cpu_us_per_row": (many_cpu_s - few_cpu_s) / more * 1e6}


def main() -> None:
    tune_interpreter()  # as in a slot on Spark
    PROCESS_HEAP.begin()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures: dict[str, Callable[[Path], dict[str, Any]]] = {
        "wall-timers": wall_timers,
        "barrier": barrier,
        "rules": rules,
        "lookup": lookup,
    }
    parser.add_argument("measure", choices=measures)
    folder = Path(tempfile.mkdtemp(prefix="waiting-"))
    try:
        measured = measures[parser.parse_args().measure](folder)
    finally:
        shutil.rmtree(folder)
    print(json.dumps({**facts(), **measured}, default=str, indent=1))


if __name__ == "__main__":
    main()
