"""Runs a whole flow on one thread: real subtasks, channels and source drivers, without a coordinator and checkpoints.

A run takes some milliseconds, so thousands of small flows can be compared. The rows of sinks are collected singly.
"""

import dataclasses
from typing import Any

from operator_harness import InlineExecutor, World

from barrier_runtime import Dataflow
from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import Row
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph, OperatorSpec
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.runtime.aligner import Aligner
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, ResultPartition
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.subtask import Subtask

_TOKEN = 1
_MOST_TURNS = 1_000_000


class _Collecting(Operator):
    """Replacement for a sink that keeps the rows in order of arrival."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self._rows += batch.rows.to_pylist()


class InlineJob:
    """A flow ready to run. `step` lets each subtask do a piece of work in turn."""

    def __init__(self, flow: Dataflow, world: World, parallelism: int = 1) -> None:
        graph = compile_plan(flow.plan, parallelism)
        self._graph, self._world = graph, world
        self.sinks: dict[str, list[Row]] = {}
        self._opened: list[Operator | SourceDriver] = []
        self._now_ns = 0
        inputs = {
            (chain.id, index): self._inputs(graph, chain, parallelism)
            for chain in graph.chains
            for index in range(parallelism)
        }
        self._subtasks = [
            self._subtask(chain, index, parallelism, inputs) for chain in graph.chains for index in range(parallelism)
        ]

    def run(self) -> None:
        """To the end of all inputs."""
        try:
            for _ in range(_MOST_TURNS):
                left = [subtask for subtask in self._subtasks if not subtask.ended]
                if not left:
                    return
                for subtask in left:
                    self._now_ns += 1_000_000
                    subtask.step()
            raise AssertionError(f"{len(left)} subtasks have not ended")
        finally:
            for each in self._opened:
                each.close()

    # ------------------------------------------------------------ a subtask's host

    def now_ms(self) -> float:
        return self._now_ns / 1e6

    def now_ns(self) -> int:
        return self._now_ns

    source_ns = now_ns

    def starved_ns(self) -> int:
        return 0

    def ended(self, subtask: Subtask) -> None: ...

    # ------------------------------------------------------------ inside

    def _inputs(self, graph: JobGraph, chain: Chain, parallelism: int) -> dict[tuple[int, int], InputChannel]:
        """Returns the channels by edge and sending subtask; a forward edge has one channel."""
        found: dict[tuple[int, int], InputChannel] = {}
        for edge in graph.inputs(chain.id):
            for source in range(1 if edge.partitioning == "forward" else parallelism):
                found[edge.id, source] = InputChannel(len(found), edge.port, lambda: None)
        return found

    def _subtask(self, chain: Chain, index: int, parallelism: int, inputs: Any) -> Subtask:
        own = list(inputs[chain.id, index].values())
        outputs = [self._output(edge, index, parallelism, inputs) for edge in self._graph.outputs(chain.id)]
        source = None
        if chain.source is not None:
            driver = SourceDriver()
            driver.open(self._context(chain.source.name, index, parallelism), chain.source)
            self._opened.append(driver)
            source = (chain.source.name, driver)
        operators = [(spec.name, self._operator(spec, index, parallelism)) for spec in chain.operators]
        aligner = Aligner(len(own), _TOKEN)
        return Subtask(SubtaskId(chain.id, index), _TOKEN, operators, own, outputs, aligner, self, source)  # type: ignore[arg-type]

    def _output(self, edge: Edge, index: int, parallelism: int, inputs: Any) -> ResultPartition:
        if edge.partitioning == "forward":
            channels = [inputs[edge.target_chain, index][edge.id, 0]]
        else:
            channels = [inputs[edge.target_chain, target][edge.id, index] for target in range(parallelism)]
        outputs = [LocalOutput(channel, lambda: None) for channel in channels]
        return ResultPartition(edge, list(outputs), index, self._graph.max_parallelism, edge.operator)

    def _operator(self, spec: OperatorSpec, index: int, parallelism: int) -> Operator:
        if spec.is_sink:
            return _Collecting(self.sinks.setdefault(spec.name, []))
        operator = spec.make()
        operator.open(self._context(spec.name, index, parallelism))
        self._opened.append(operator)
        return operator

    def _context(self, name: str, index: int, parallelism: int) -> Any:
        self._world.subtask, self._world.parallelism = index, parallelism
        context = self._world.context(name)
        return dataclasses.replace(
            context,
            new_executor=InlineExecutor,
            new_awaited_executor=InlineExecutor,
            call_later=lambda seconds, call: None,
            now_s=lambda: self._now_ns / 1e9,
        )


def run_inline(flow: Dataflow, world: World, parallelism: int = 1) -> dict[str, list[Row]]:
    """Returns the rows of each sink by the sink's name, in order of arrival."""
    job = InlineJob(flow, world, parallelism)
    job.run()
    return job.sinks
