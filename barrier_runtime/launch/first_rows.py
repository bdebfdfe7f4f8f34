"""First rows of a stream, for `show` and notebooks."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from barrier_runtime.connectors.memory.callable import CallableSink
from barrier_runtime.connectors.source import RedeliveringSource
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.graph.logical import Input, Plan, SourceNode, StepNode
from barrier_runtime.launch.local import make_runner, run_graph, run_prepared
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore

_SINK = "first-rows"
_LONGEST_S = 86_400


def first_rows(plan: Plan, stream: Input, rows: int, within_s: float | None = None) -> pa.Table:
    """At most `rows` rows that `stream` produces within `within_s`.

    The steps before run in this process with one subtask, without sinks and checkpoints.
    """
    if not isinstance(rows, int) or rows < 1:
        raise InvalidJob(f"show: {rows!r} rows: give a whole number from 1 on")
    if within_s is not None and not 0 < within_s <= _LONGEST_S:
        raise InvalidJob(f"preview: within={within_s!r}: give seconds above 0, at most {_LONGEST_S}")
    found: list[pa.RecordBatch] = []
    enough: list[Callable[[], object]] = []

    def take(batch: pa.RecordBatch) -> None:
        found.append(batch)
        if sum(each.num_rows for each in found) >= rows:
            for stop in enough:
                stop()

    async def until_enough(graph: JobGraph, spec: JobSpec, store: ObjectStore, options: JobOptions) -> JobStatus:
        runner = make_runner(spec, store)
        loop = asyncio.get_running_loop()
        enough.append(partial(loop.call_soon_threadsafe, runner.stop, "now"))
        if within_s is not None:
            loop.call_later(within_s, runner.stop, "now")
        return await run_graph(graph, spec, store, options, runner)

    options = JobOptions.for_local_run({"parallelism": 1})
    run_prepared(PreparedJob(_leading_to(plan, stream, CallableSink(take)), options), options, until_enough)
    return pa.Table.from_batches(found).slice(0, rows) if found else pa.table({})


def _leading_to(plan: Plan, stream: Input, sink: CallableSink) -> Plan:
    wanted, todo = set(), [stream.node]
    while todo:
        number = todo.pop()
        node = plan.nodes[number]
        if number not in wanted and isinstance(node, StepNode):
            todo += [each.node for each in node.inputs]
        wanted.add(number)
    part = Plan(plan.name)
    places: dict[int, int] = {}
    for number in sorted(wanted):
        node = plan.nodes[number]
        if isinstance(node, SourceNode) and isinstance(node.source, RedeliveringSource):
            raise InvalidJob(
                f"show: source {node.name!r} has messages that are gone once they were read: show a stream of a file, "
                "or write to a sink"
            )
        if isinstance(node, StepNode):
            node = replace(node, inputs=tuple(replace(each, node=places[each.node]) for each in node.inputs))
        places[number] = part.add(node)
    make = partial(SinkOperator, make_sink=lambda: sink)
    ends_in = (replace(stream, node=places[stream.node]),)
    part.add(StepNode(_SINK, "sink", ends_in, make, None, stateful=True, is_sink=True, guarantee=sink.guarantee))
    return part
