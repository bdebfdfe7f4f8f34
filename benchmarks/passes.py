"""Cost of a turn of a slot's subtasks on a single core with small batches: no Spark, sockets or waiting.

    python -m benchmarks.passes --workload keyed-count --rate 10000
    python -m benchmarks.passes --rate 10000 --scheduled

A single thread plays two slots, with the runtime's own subtasks, channels and frames, and state in RocksDB. The clock
of the sources moves by `--every` between two turns, so each source batch has `rate` x `every` / 2 rows, however busy
the machine is. A turn runs the source's subtask of each slot, then the subtasks behind the shuffle. Reported is the
lowest processor time of several rounds, per turn of a slot and per row; so two commits that are measured in turn are
comparable even if others use the machine. The kernel's part (sockets, timers, wakes) is not included.

With `--scheduled` each slot has a `Scheduler` that decides when each subtask has a turn, and the time in which
both slots rest is skipped. Reported are cores per slot at that rate, of the runtime alone, with warmer caches than
in a job.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Barrier, Element
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph
from barrier_runtime.operators.base import Capture
from barrier_runtime.runtime.aligner import Aligner
from barrier_runtime.runtime.host.clock import SourceTime
from barrier_runtime.runtime.in_flight import InFlightData
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, OutputChannel, ResultPartition
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from barrier_runtime.runtime.scheduler import Scheduler
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes
from benchmarks.machine import describe
from benchmarks.measuring_sink import MeasuringSink
from benchmarks.paced_source import PacedSource
from benchmarks.surroundings import Surroundings
from benchmarks.workloads import workload

SLOTS = 2
LATENCY_TARGET_S = 0.001
WARM_UP_TURNS = 4_000


class _Host:
    """Time of both slots' sources; no rows are captured here."""

    def __init__(self) -> None:
        self.at_ns = time.time_ns()
        self.source_time: SourceTime | None = None

    def now_ms(self) -> float:
        return time.time_ns() / 1e6

    def now_ns(self) -> int:
        return time.time_ns()

    def source_ns(self) -> int:
        return self.at_ns if self.source_time is None else self.source_time.now_ns()

    def starved_ns(self) -> int:
        return 0

    def captured(
        self, subtask: Subtask, barrier: Barrier, captures: dict[str, Capture], times: SnapshotTimes, recording: bool
    ) -> None:
        raise AssertionError("no barrier is sent")

    def recorded(self, subtask: Subtask, checkpoint: int, in_flight: InFlightData) -> None:
        raise AssertionError("no barrier is sent")

    def start_timer(self, subtask: Subtask, delay_ms: int, callback: Callable[[], None]) -> None:
        raise AssertionError("no barrier is sent")

    def snapshot_aborted(self, subtask: Subtask, checkpoint: int, reason: str) -> None:
        raise AssertionError("no barrier is sent")

    def ended(self, subtask: Subtask) -> None:
        raise AssertionError("the source is endless")


class _Skipping:
    """A clock of slots that never sleep, and their event loop (`call_soon`).

    When all slots would sleep, the time until the first wake-up is skipped."""

    wall_ns = staticmethod(time.time_ns)

    def __init__(self) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.skipped_s = 0.0
        self._timers: list[_SkippedTimer] = []

    def call_soon(self, call: Callable[[], object]) -> None:
        self.soon.append(call)

    def monotonic_s(self) -> float:
        return time.process_time() + self.skipped_s  # other processes on the core cause no delay

    def timer(self, loop: object, ring: Callable[[], None]) -> "_SkippedTimer":
        self._timers.append(_SkippedTimer(self, ring))
        return self._timers[-1]

    def turn(self) -> None:
        """A call, or an idle time."""
        if self.soon:
            self.soon.popleft()()
            return
        first = min(self._timers, key=lambda timer: timer.at_s)
        self.skipped_s += max(0.0, first.at_s - self.monotonic_s())
        first.at_s = float("inf")
        first.ring()


class _SkippedTimer:
    def __init__(self, clock: _Skipping, ring: Callable[[], None]) -> None:
        self._clock = clock
        self.ring = ring
        self.at_s = float("inf")

    def set(self, delay_s: float) -> None:
        self.at_s = self._clock.monotonic_s() + delay_s

    def close(self) -> None:
        self.at_s = float("inf")


class _Framed:
    """An output to another slot, through the frames of a data connection without a socket."""

    writable = True

    def __init__(self, target: InputChannel) -> None:
        self._target = target
        self._writer, self._reader = FrameWriter(), FrameReader()

    def send(self, element: Element) -> None:
        data = b"".join(bytes(memoryview(part)) for part in self._writer.encode(element))
        for received, size in self._reader.feed(data):
            self._target.push(received, size)


class _Channel(InputChannel):
    """Wakes the reader, if any."""

    def __init__(self, index: int, port: int) -> None:
        self.wake: Callable[[], None] = lambda: None
        super().__init__(index, port, lambda: self.wake())


class Passes:
    """Two slots of a flow of `workload`, at `rate` rows per second of both together."""

    def __init__(self, name: str, rate: float, keys: int, folder: Path) -> None:
        flow, result = workload(name).flow(
            lambda flow: flow.source("events", PacedSource(rate, keys, keys), event_time="at")
        )
        result.sink("out", MeasuringSink(str(folder / "rows"), column="emitted"))
        self.graph: JobGraph = compile_plan(flow.plan, SLOTS)
        self.host = _Host()
        self._surroundings = [Surroundings(folder, slot, SLOTS) for slot in range(SLOTS)]
        self._inputs = {
            (slot, edge.id, upstream): _Channel(upstream, edge.port)
            for slot in range(SLOTS)
            for edge in self.graph.edges
            for upstream in range(SLOTS)
        }
        self.slots = [[self._subtask(chain, slot) for chain in self.graph.chains] for slot in range(SLOTS)]

    def _subtask(self, chain: Chain, slot: int) -> Subtask:
        surroundings = self._surroundings[slot]
        source = None
        if chain.source is not None:
            source = SourceDriver()
            source.open(surroundings.context(chain.source.name), chain.source)
        operators = [(spec.name, spec.make()) for spec in chain.operators]
        for name, operator in operators:
            operator.open(surroundings.context(name))
        inputs: list[InputChannel] = [
            self._inputs[slot, edge.id, up] for edge in self.graph.inputs(chain.id) for up in range(SLOTS)
        ]
        return Subtask(
            SubtaskId(chain.id, slot),
            1,
            operators,
            inputs,
            [self._output(edge, slot) for edge in self.graph.outputs(chain.id)],
            Aligner(len(inputs), 1, []),
            self.host,
            None if source is None or chain.source is None else (chain.source.name, source),
        )

    def _output(self, edge: Edge, slot: int) -> ResultPartition:
        channels: list[OutputChannel] = []
        for target in range(SLOTS):
            channel = self._inputs[target, edge.id, slot]
            channels.append(LocalOutput(channel, lambda: None) if target == slot else _Framed(channel))
        return ResultPartition(edge, channels, slot, self.graph.max_parallelism)

    def turns(self, count: int, every_ns: int) -> None:
        """`count` turns of each slot. Sources are first; their rows reach the sinks by the end of the turn."""
        depth = len(self.graph.chains)
        for _ in range(count):
            self.host.at_ns += every_ns
            for position in range(depth):
                for slot in self.slots:
                    slot[position].step()

    def scheduled(self) -> Iterator[_Skipping]:
        """Each slot with a scheduler; a turn per step of the iterator."""
        clock = _Skipping()
        schedulers = []
        for number, slot in enumerate(self.slots):
            scheduler = Scheduler(
                cast(asyncio.AbstractEventLoop, clock), lambda: False, _raise, clock, LATENCY_TARGET_S
            )
            schedulers.append(scheduler)
            for (at, _, _), channel in self._inputs.items():
                if at == number:
                    channel.wake = scheduler.wake_by_input
            scheduler.source_time = schedulers[0].source_time  # of the host too: both agree on due rows
            scheduler.start(slot)
        self.host.source_time = schedulers[0].source_time
        while True:
            clock.turn()
            yield clock

    @property
    def rows(self) -> int:
        return sum(slot[0].rows_in for slot in self.slots)

    def close(self) -> None:
        for slot in self.slots:
            for subtask in slot:
                for _, operator in subtask.chain.operators:
                    operator.close()


def measured(passes: Passes, turns: int, every_ns: int, rounds: int) -> tuple[float, float]:
    """Microseconds of processor time per turn of a slot and per row: the lowest of `rounds`."""
    passes.turns(WARM_UP_TURNS, every_ns)
    best = (float("inf"), float("inf"))
    for _ in range(rounds):
        rows, began_s = passes.rows, time.process_time()
        passes.turns(turns, every_ns)
        spent_us = (time.process_time() - began_s) * 1e6
        best = min(best, (spent_us / turns / SLOTS, spent_us / max(1, passes.rows - rows)))
    return best


def _raise(subtask: Subtask | None, error: Exception) -> None:
    raise error


def measured_with_scheduler(passes: Passes, seconds: float, rounds: int) -> tuple[float, float, float]:
    """(Cores, turns per second of a slot, microseconds per row): the lowest of `rounds` of `seconds` each."""
    best = (float("inf"), 0.0, float("inf"))
    turns, began, began_s, rows = 0, 0.0, time.process_time(), passes.rows
    for clock in passes.scheduled():
        turns += 1
        took_s = clock.monotonic_s() - began
        if took_s < seconds:
            continue
        spent_s = time.process_time() - began_s
        if began:  # not the first round, which warms up
            best = min(best, (spent_s / took_s / SLOTS, turns / took_s / SLOTS, spent_s * 1e6 / (passes.rows - rows)))
        if not rounds:
            return best
        rounds -= 1
        turns, began, began_s, rows = 0, clock.monotonic_s(), time.process_time(), passes.rows
    return best


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="keyed-count")
    parser.add_argument("--rate", type=float, default=10_000, help="rows per second of both slots together")
    parser.add_argument("--every", type=float, default=1.0, help="milliseconds between two turns")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--scheduled", action="store_true", help="rests in proportion, as a slot does")
    parser.add_argument("--folder", default="build/bench/passes")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        passes = Passes(chosen.workload, chosen.rate, chosen.keys, scratch)
        try:
            if chosen.scheduled:
                cores, often, per_row = measured_with_scheduler(passes, 0.2, chosen.rounds)
                how = "scheduled"
                found = f"{cores:.4f} cores and {often:,.0f} turns/s of a slot"
            else:
                per_turn, per_row = measured(passes, chosen.turns, int(chosen.every * 1e6), chosen.rounds)
                how, found = f"a turn every {chosen.every:g} ms", f"{per_turn:.1f} us per turn of a slot"
        finally:
            passes.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(describe())
    print(f"{chosen.workload}, {chosen.rate:,.0f} rows/s, {how}: {found}, {per_row:.2f} us per row")
    return 0


if __name__ == "__main__":
    sys.exit(main())
