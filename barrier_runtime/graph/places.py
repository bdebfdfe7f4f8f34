"""Finding an operator in a graph by its name. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from barrier_runtime.graph.job_graph import Chain, JobGraph
from barrier_runtime.state.errors import InvalidJob


@dataclass(frozen=True)
class OperatorPlace:
    """Where an operator stands, and by which columns of each input port its rows are spread."""

    chain: Chain
    place: int
    keys: Mapping[int, tuple[str, ...]]  # empty: it does not come right behind key_by


def place_of(graph: JobGraph, operator: str) -> OperatorPlace:
    for chain in graph.chains:
        for place, spec in enumerate(chain.operators):
            if spec.name == operator and not spec.is_sink:
                edges = graph.inputs(chain.id) if place == 0 else ()
                keys = {edge.port: edge.keys for edge in edges if edge.partitioning == "hash"}
                return OperatorPlace(chain, place, keys)
    names = [spec.name for chain in graph.chains for spec in chain.operators if not spec.is_sink]
    raise InvalidJob(f"flow {graph.name!r} has no step {operator!r}; it has: {', '.join(names)}")
