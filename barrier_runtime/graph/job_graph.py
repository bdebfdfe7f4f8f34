"""The compiled job: chains of operators and the edges between them. Made by `Dataflow.compile`, run by slots.

A chain runs in one subtask per slot, operators calling each other directly. Edges end and begin chains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from barrier_runtime.connectors.read_range import ReadRange
from barrier_runtime.connectors.source import Positioned, Source, Split
from barrier_runtime.coordinator.wire.messages import ChainSpec
from barrier_runtime.data.event_time import Detail
from barrier_runtime.operators.base import Operator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription

# "single": all rows to subtask 0, which so sets one order for them.
Partitioning = Literal["forward", "hash", "rebalance", "broadcast", "single"]


@dataclass(frozen=True)
class OperatorSpec:
    """`make` builds a fresh, unopened operator; it travels in Spark's closure."""

    name: str
    kind: str  # for people: "map", "window", "file sink", …
    make: Callable[[], Operator]
    stateful: bool = False  # a restore must find its snapshot's home
    is_sink: bool = False
    guarantee: str = ""  # sinks only
    global_committer: bool = False  # sinks only
    describe: str = ""  # one line for explain()
    definition: str = ""  # what its state is a state of, such as the windows' size: must be equal to restore it
    side_outputs: tuple[str, ...] = ()  # tags
    keys: str = ""  # its key columns with their types, where they are known
    states: Mapping[str, StateDescription] = field(default_factory=dict)  # that the user declared
    sink_kind: str = ""  # sinks only: name of the kind of sink, "" of a user's own
    target: str = ""  # sinks only: what it writes to
    columns: Mapping[str, str] = field(default_factory=dict)  # that its state depends on, with their types where known
    commit_every_ms: int = 0  # with `global_committer`: how long commits are held back

    @property
    def state_kind(self) -> str:
        """The kind of its state, as snapshots have it."""
        return f"sink: {self.sink_kind}" if self.sink_kind else self.kind


@dataclass(frozen=True)
class SourceSpec:
    name: str
    source: Source
    splits: tuple[Split, ...]
    event_time: str | None = None  # column of event times, for watermarks per split
    max_out_of_orderness_ms: int = 0
    idle_timeout_ms: int | None = None
    max_rows_per_batch: int = 65_536
    detail: Detail = "none"  # how closely operators below follow event time
    watermark_interval_ms: int = 0  # not more often are they told of watermarks
    range: ReadRange | None = None  # of a replay: no further is it read

    @property
    def state_kind(self) -> str:
        """The kind of its positions, as snapshots have it. Sources of users do not say more."""
        positions_in = self.source.positions_in if isinstance(self.source, Positioned) else ""
        return f"source: {positions_in}" if positions_in else "source"


@dataclass(frozen=True)
class Chain:
    """`source` chains have no input edge. The source's name is the first name of the chain."""

    id: int
    operators: tuple[OperatorSpec, ...]
    source: SourceSpec | None = None

    @property
    def state_kinds(self) -> dict[str, str]:
        """The kind of each step, by name."""
        kinds = {self.source.name: self.source.state_kind} if self.source else {}
        return kinds | {operator.name: operator.state_kind for operator in self.operators}

    @property
    def targets(self) -> dict[str, str]:
        """What each sink writes to, where it says so."""
        return {operator.name: operator.target for operator in self.operators if operator.target}

    @property
    def name(self) -> str:
        names = ([self.source.name] if self.source else []) + [operator.name for operator in self.operators]
        return " → ".join(names)


@dataclass(frozen=True)
class Edge:
    """`operator` and `tag`: of a side output, whose it is and which; empty for the main output of the chain's last
    operator."""

    id: int
    source_chain: int
    target_chain: int
    partitioning: Partitioning
    keys: tuple[str, ...] = ()  # hash only: columns
    port: int = 0  # which input of the target chain's first operator
    schema: pa.Schema | None = None  # None: known at the first batch
    operator: str = ""
    tag: str = ""
    aligned: bool = False  # its barriers overtake no rows, in unaligned checkpoints neither


@dataclass(frozen=True)
class JobGraph:
    name: str
    parallelism: int
    max_parallelism: int
    chains: tuple[Chain, ...]
    edges: tuple[Edge, ...]
    replay: str = ""  # how the command begins that meets a row again; empty: it cannot be met

    def inputs(self, chain: int) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target_chain == chain)

    def outputs(self, chain: int) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source_chain == chain)

    def chain_specs(self) -> tuple[ChainSpec, ...]:
        """What the coordinator needs to know of the graph."""
        return tuple(
            ChainSpec(
                chain=chain.id,
                operators=((chain.source.name,) if chain.source else ()) + tuple(op.name for op in chain.operators),
                stateful=((chain.source.name,) if chain.source else ())
                + tuple(op.name for op in chain.operators if op.stateful),
                sinks=tuple(op.name for op in chain.operators if op.is_sink),
                global_sinks=tuple(op.name for op in chain.operators if op.is_sink and op.global_committer),
                commit_every_ms={op.name: op.commit_every_ms for op in chain.operators if op.commit_every_ms},
                is_source=chain.source is not None,
                definitions={op.name: op.definition for op in chain.operators if op.definition},
                keys={op.name: op.keys for op in chain.operators if op.keys},
                states={op.name: dict(op.states) for op in chain.operators if op.states},
                kinds=chain.state_kinds,
                targets=chain.targets,
                columns={op.name: dict(op.columns) for op in chain.operators if op.columns},
                inputs=tuple(dict.fromkeys(edge.source_chain for edge in self.inputs(chain.id))),
            )
            for chain in self.chains
        )


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
