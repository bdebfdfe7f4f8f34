"""From a `Dataflow` to the graph that slots run: chains where rows just pass on, edges where they are spread or split.

A step joins the chain of its input when that is a plain forward from a step nobody else reads. It begins a chain when
rows are exchanged (hash, rebalance), when it has several inputs, or when its input has several readers.
"""

import warnings
from dataclasses import replace
from functools import partial

import pyarrow as pa

from barrier_runtime.dataflow import Dataflow
from barrier_runtime.graph import Chain, Edge, JobGraph, OperatorSpec, SourceSpec
from barrier_runtime.plan import Node, SourceNode, StepNode
from barrier_runtime.sources.base import DiscoveringSource
from state.errors import InvalidJob

_MAX_KEY_GROUPS = 32_768
_MODES = ("exactly_once", "at_least_once")


def compile_flow(
    flow: Dataflow, parallelism: int, max_parallelism: int = 128, *, mode: str = "exactly_once"
) -> JobGraph:
    """Check the flow and build its graph. Raises `InvalidJob`; lists the source's splits (reads folders)."""
    if not 1 <= parallelism <= max_parallelism <= _MAX_KEY_GROUPS:
        raise InvalidJob(
            f"flow {flow.name!r}: parallelism {parallelism} with max_parallelism {max_parallelism}: "
            f"use 1 <= parallelism <= max_parallelism <= {_MAX_KEY_GROUPS}"
        )
    if mode not in _MODES:
        raise InvalidJob(f"flow {flow.name!r}: mode {mode!r}: use one of {', '.join(_MODES)}")
    nodes = _named(flow.plan.nodes)
    readers = _readers(nodes)
    _check_ends(flow.name, nodes, readers)
    if mode == "exactly_once":
        _check_guarantees(nodes)
    chains, edges = _chained(nodes, readers, parallelism)
    return JobGraph(flow.name, parallelism, max_parallelism, chains, edges)


def _named(nodes: list[Node]) -> list[Node]:
    """Unnamed steps get `<kind>-<n>`, skipping names in use. Nothing is stored under these names."""
    used = {node.name for node in nodes if node.name is not None}
    counts: dict[str, int] = {}
    named: list[Node] = []
    for node in nodes:
        if node.name is None:
            assert isinstance(node, StepNode)
            while True:
                counts[node.kind] = counts.get(node.kind, 0) + 1
                name = f"{node.kind}-{counts[node.kind]}"
                if name not in used:
                    break
            node = replace(node, name=name)
        named.append(node)
    return named


def _readers(nodes: list[Node]) -> dict[int, list[int]]:
    """Per node the nodes that read it, once per input."""
    readers: dict[int, list[int]] = {number: [] for number in range(len(nodes))}
    for number, node in enumerate(nodes):
        if isinstance(node, StepNode):
            for input in node.inputs:
                readers[input.node].append(number)
    return readers


def _check_ends(flow: str, nodes: list[Node], readers: dict[int, list[int]]) -> None:
    if not any(isinstance(node, SourceNode) for node in nodes):
        raise InvalidJob(f"flow {flow!r} has no source: begin with read_parquet(), rate() or another source")
    if not any(isinstance(node, StepNode) and node.is_sink for node in nodes):
        raise InvalidJob(f"flow {flow!r} has no sink: end a stream with .sink(name, …)")
    for number, node in enumerate(nodes):
        if not readers[number] and not (isinstance(node, StepNode) and node.is_sink):
            warnings.warn(
                f"flow {flow!r}: nothing reads the output of {node.name!r}: end it with .sink(…), or remove it",
                stacklevel=3,
            )


def _check_guarantees(nodes: list[Node]) -> None:
    """Exactly-once needs every source upstream of an exactly-once sink to replay the same rows."""
    unstable: dict[int, set[str]] = {}  # per node: sources above it that cannot replay
    for number, node in enumerate(nodes):
        if isinstance(node, SourceNode):
            unstable[number] = set() if node.source.exactly_once else {node.name}
            continue
        unstable[number] = set().union(*[unstable[input.node] for input in node.inputs])
        if node.is_sink and node.guarantee == "exactly_once" and unstable[number]:
            source = sorted(unstable[number])[0]
            raise InvalidJob(
                f"sink {node.name!r} is exactly-once, but source {source!r} has no stable positions: a replay after a "
                "failure may give other rows. Use a source that replays, a sink that declares at_least_once, "
                'or mode="at_least_once"'
            )


def _chained(
    nodes: list[Node], readers: dict[int, list[int]], parallelism: int
) -> tuple[tuple[Chain, ...], tuple[Edge, ...]]:
    members: list[list[int]] = []  # nodes of each chain
    chain_of: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if isinstance(node, StepNode) and len(node.inputs) == 1:
            input = node.inputs[0]
            if input.partitioning == "forward" and len(readers[input.node]) == 1:
                chain_of[number] = chain_of[input.node]
                members[chain_of[number]].append(number)
                continue
        chain_of[number] = len(members)
        members.append([number])
    chains = tuple(_chain(id, [nodes[number] for number in numbers], parallelism) for id, numbers in enumerate(members))
    edges: list[Edge] = []
    for numbers in members:
        first = nodes[numbers[0]]
        if isinstance(first, SourceNode):
            continue
        for port, input in enumerate(first.inputs):
            edges.append(
                Edge(
                    len(edges),
                    chain_of[input.node],
                    chain_of[numbers[0]],
                    input.partitioning,
                    input.keys,
                    port,
                    _schema(nodes[input.node]),
                )
            )
    return chains, tuple(edges)


def _schema(node: Node) -> pa.Schema | None:
    return node.source.schema if isinstance(node, SourceNode) else node.schema


def _chain(id: int, nodes: list[Node], parallelism: int) -> Chain:
    source = _source(nodes[0], parallelism) if isinstance(nodes[0], SourceNode) else None
    return Chain(id, tuple(_operator(node) for node in nodes if isinstance(node, StepNode)), source)


def _source(node: SourceNode, parallelism: int) -> SourceSpec:
    splits = tuple(node.source.splits(parallelism))
    if not splits and not isinstance(node.source, DiscoveringSource):
        raise InvalidJob(f"source {node.name!r} has no splits: there is nothing to read")
    if len({split.id for split in splits}) != len(splits):
        raise InvalidJob(
            f"source {node.name!r}: two splits have the same id: positions are kept by id, make them unique"
        )
    return SourceSpec(
        node.name, node.source, splits, node.event_time, node.max_out_of_orderness_ms, node.idle_timeout_ms
    )


def _operator(node: StepNode) -> OperatorSpec:
    assert node.name is not None
    return OperatorSpec(
        node.name,
        node.kind,
        partial(node.make, node.name),
        node.stateful,
        node.is_sink,
        node.guarantee,
        node.global_committer,
        node.describe,
    )
