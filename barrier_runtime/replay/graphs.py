"""From a job's graph to that of its replay. Pure. No sink is in it, and nothing behind the operator looked at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from barrier_runtime.connectors.read_range import ReadRange
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import Edge, JobGraph, OperatorSpec
from barrier_runtime.graph.places import OperatorPlace
from barrier_runtime.operators.base import Emit, Operator


class RecordingSink(Operator):
    """In place of a sink: tells what came to it, and writes nothing."""

    def __init__(self, name: str, told: Callable[[str, Batch], None]) -> None:
        self._name = name
        self._told = told

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if len(batch):
            self._told(self._name, batch)


def without_sinks(graph: JobGraph, told: Callable[[str, Batch], None]) -> JobGraph:
    """Each sink only records what came to it."""

    def harmless(spec: OperatorSpec) -> OperatorSpec:
        if not spec.is_sink:
            return spec
        make = partial(RecordingSink, spec.name, told)
        return OperatorSpec(spec.name, spec.kind, make, describe="records what comes to it")

    chains = tuple(replace(chain, operators=tuple(map(harmless, chain.operators))) for chain in graph.chains)
    return replace(graph, chains=chains)


def up_to(graph: JobGraph, target: OperatorPlace, watch: Callable[[Operator], Operator]) -> JobGraph:
    """Only what leads to the target, which is `watch`ed; nothing reads what it gives."""
    needed = {target.chain.id}
    todo = [target.chain.id]
    while todo:
        for edge in graph.inputs(todo.pop()):
            if edge.source_chain not in needed:
                needed.add(edge.source_chain)
                todo.append(edge.source_chain)
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    chains = []
    for chain in graph.chains:
        if chain.id not in needed:
            continue
        operators: Sequence[OperatorSpec] = chain.operators
        if chain.id == target.chain.id:
            spec = chain.operators[target.place]
            watched = replace(spec, make=partial(_watched, spec.make, watch))
            operators = (*chain.operators[: target.place], watched)
        chains.append(replace(chain, id=numbers[chain.id], operators=tuple(operators)))
    kept = [edge for edge in graph.edges if edge.target_chain in needed]
    edges: list[Edge] = [
        replace(edge, id=id, source_chain=numbers[edge.source_chain], target_chain=numbers[edge.target_chain])
        for id, edge in enumerate(kept)
    ]
    return replace(graph, chains=tuple(chains), edges=tuple(edges))


def _watched(make: Callable[[], Operator], watch: Callable[[Operator], Operator]) -> Operator:
    return watch(make())


def reading(graph: JobGraph, ranges: Mapping[str, ReadRange]) -> JobGraph:
    """Sources read what `ranges` say and no more."""
    chains = tuple(
        chain if chain.source is None else replace(chain, source=replace(chain.source, range=ranges[chain.source.name]))
        for chain in graph.chains
    )
    return replace(graph, chains=chains)
