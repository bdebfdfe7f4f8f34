"""What a turn of a slot's subtasks costs in one core when batches are small: no Spark, no sockets, no waiting.

    python -m benchmarks.passes --workload keyed-count --rate 10000

Two slots are played in one thread, with the runtime's own subtasks, channels and frames and state in RocksDB. The time
that sources live by moves by `--every` between two turns, so each source batch has `rate` x `every` / 2 rows, however
busy the machine is; a turn runs the source's subtask of each slot, then those behind the shuffle. Reported is the least
processor time of some rounds, per turn of one slot and per row: figures of two commits taken in turn are comparable
also while others use the machine. The kernel's part (sockets, timers, wakes) is not in them.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Barrier, Element
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph
from barrier_runtime.operators.base import Capture
from barrier_runtime.runtime.alignment.aligner import Aligner
from barrier_runtime.runtime.in_flight.writer import InFlightData
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, OutputChannel, ResultPartition
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes
from benchmarks.machine import describe
from benchmarks.measuring_sink import MeasuringSink
from benchmarks.paced_source import PacedSource
from benchmarks.surroundings import Surroundings
from benchmarks.workloads import workload

SLOTS = 2
WARM_UP_TURNS = 4_000


class _Host:
    """The time of both slots' sources. Nothing is captured here."""

    def __init__(self) -> None:
        self.at_ns = time.time_ns()

    def now_ms(self) -> float:
        return time.time_ns() / 1e6

    def now_ns(self) -> int:
        return time.time_ns()

    def source_ns(self) -> int:
        return self.at_ns

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


class _Framed:
    """An output to another slot: through the frames of a data connection, which has no socket."""

    writable = True

    def __init__(self, target: InputChannel) -> None:
        self._target = target
        self._writer, self._reader = FrameWriter(), FrameReader()

    def send(self, element: Element) -> None:
        data = b"".join(bytes(memoryview(part)) for part in self._writer.encode(element))
        for received, size in self._reader.feed(data):
            self._target.push(received, size)


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
            (slot, edge.id, upstream): InputChannel(upstream, edge.port, lambda: None)
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
        inputs = [self._inputs[slot, edge.id, up] for edge in self.graph.inputs(chain.id) for up in range(SLOTS)]
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
        """So many turns of each slot. Sources are first: what they give is with the sinks at the end of the turn."""
        depth = len(self.graph.chains)
        for _ in range(count):
            self.host.at_ns += every_ns
            for position in range(depth):
                for slot in self.slots:
                    slot[position].step()

    @property
    def rows(self) -> int:
        return sum(slot[0].rows_in for slot in self.slots)

    def close(self) -> None:
        for slot in self.slots:
            for subtask in slot:
                for _, operator in subtask.operators:
                    operator.close()


def measured(passes: Passes, turns: int, every_ns: int, rounds: int) -> tuple[float, float]:
    """Microseconds of processor time per turn of a slot and per row: the least of `rounds`."""
    passes.turns(WARM_UP_TURNS, every_ns)
    best = (float("inf"), float("inf"))
    for _ in range(rounds):
        rows, began_s = passes.rows, time.process_time()
        passes.turns(turns, every_ns)
        spent_us = (time.process_time() - began_s) * 1e6
        best = min(best, (spent_us / turns / SLOTS, spent_us / max(1, passes.rows - rows)))
    return best


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="keyed-count")
    parser.add_argument("--rate", type=float, default=10_000, help="rows per second of both slots together")
    parser.add_argument("--every", type=float, default=1.0, help="milliseconds between two turns")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", default="build/bench/passes")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        passes = Passes(chosen.workload, chosen.rate, chosen.keys, scratch)
        try:
            per_turn, per_row = measured(passes, chosen.turns, int(chosen.every * 1e6), chosen.rounds)
        finally:
            passes.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(describe())
    print(
        f"{chosen.workload}, {chosen.rate:,.0f} rows/s, a turn every {chosen.every:g} ms: "
        f"{per_turn:.1f} us per turn of a slot, {per_row:.2f} us per row"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
