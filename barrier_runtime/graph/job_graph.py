"""The compiled job, which slots run: chains of operators and the edges between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import pyarrow as pa

from barrier_runtime.connectors.read_range import ReadRange
from barrier_runtime.connectors.source import Positioned, Source, Split
from barrier_runtime.coordinator.wire.messages import ChainSpec
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.event_time import Detail
from barrier_runtime.operators.base import Operator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription

# "single": all rows go to subtask 0, which determines their order. "same": as "forward", but barriers, watermarks and
# ends go to all subtasks.
Partitioning = Literal["forward", "same", "hash", "rebalance", "broadcast", "single"]


@dataclass(frozen=True)
class OperatorSpec:
    """`make` builds a new, unopened operator, and travels in Spark's closure."""

    name: str
    kind: str
    make: Callable[[], Operator]
    stateful: bool = False
    is_sink: bool = False
    guarantee: str = ""
    global_committer: bool = False
    describe: str = ""
    definition: str = ""  # a restore requires an equal definition of the state, such as the windows' size
    side_outputs: tuple[str, ...] = ()
    keys: str = ""
    states: Mapping[str, StateDescription] = field(default_factory=dict)
    sink_kind: str = ""  # name of the kind of sink, "" for a user's own
    target: str = ""  # table, topic or folder of a sink
    columns: Mapping[str, str] = field(default_factory=dict)  # columns that shape the state, with types if known
    commit_every_ms: int = 0  # with `global_committer`: delay of commits
    shows_early: bool = False  # rows are visible before their checkpoint, see `sink_facts`
    is_idempotent: bool = False  # rows replace earlier rows of their key

    @property
    def state_kind(self) -> str:
        return f"sink: {self.sink_kind}" if self.sink_kind else self.kind


@dataclass(frozen=True)
class SourceSpec:
    name: str
    source: Source
    splits: tuple[Split, ...]
    event_time: str | None = None
    max_out_of_orderness_ms: int = 0
    idle_timeout_ms: int | None = None
    max_rows_per_batch: int = 65_536
    detail: Detail = "none"
    watermark_interval_ms: int = 0  # minimum time between watermarks for later operators
    range: ReadRange | None = None  # of a replay: rows to read
    max_rows_per_second: float | None = None  # of all subtasks together
    after: tuple[str, ...] = ()  # steps whose first input ends before this source is read

    @property
    def state_kind(self) -> str:
        """Kind of the positions in snapshots; "source" for users' sources."""
        positions_in = self.source.positions_in if isinstance(self.source, Positioned) else ""
        return f"source: {positions_in}" if positions_in else "source"


@dataclass(frozen=True)
class Chain:
    """Steps that run in one subtask per slot and call each other directly.

    A chain with a source has no input edge; the source's name is the first name."""

    id: int
    operators: tuple[OperatorSpec, ...]
    source: SourceSpec | None = None

    @property
    def state_kinds(self) -> dict[str, str]:
        kinds = {self.source.name: self.source.state_kind} if self.source else {}
        return kinds | {operator.name: operator.state_kind for operator in self.operators}

    @property
    def targets(self) -> dict[str, str]:
        return {operator.name: operator.target for operator in self.operators if operator.target}

    @property
    def name(self) -> str:
        names = ([self.source.name] if self.source else []) + [operator.name for operator in self.operators]
        return " → ".join(names)


class Combines(Protocol):
    takes_more: bool  # larger batches would have a lower share of different keys

    def combined(self, batch: Batch) -> Batch:
        """Returns a smaller batch, or `batch`."""
        ...


@dataclass(frozen=True)
class Edge:
    """Exchange of rows between two chains.

    `operator` and `tag` name a side output; both are empty for the main output of the chain's last operator."""

    id: int
    source_chain: int
    target_chain: int
    partitioning: Partitioning
    keys: tuple[str, ...] = ()
    port: int = 0  # input of the target chain's first operator
    schema: pa.Schema | None = None  # None: known at the first batch
    operator: str = ""
    tag: str = ""
    aligned: bool = False  # no barrier overtakes rows, not even in unaligned checkpoints
    combiner: Callable[[], Combines] | None = None  # makes the combiner of a sending subtask; hash only
    timeless: bool = False  # broadcast rows, which never hold event time back


@dataclass(frozen=True)
class JobGraph:
    name: str
    parallelism: int
    max_parallelism: int
    chains: tuple[Chain, ...]
    edges: tuple[Edge, ...]
    replay: str = ""  # beginning of the command that replays rows; empty: none

    def inputs(self, chain: int) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target_chain == chain)

    def outputs(self, chain: int) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source_chain == chain)

    def chain_specs(self) -> tuple[ChainSpec, ...]:
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
    chain: Chain
    place: int
    keys: Mapping[int, tuple[str, ...]]  # empty if the operator does not directly follow key_by


def place_of(graph: JobGraph, operator: str) -> OperatorPlace:
    for chain in graph.chains:
        for place, spec in enumerate(chain.operators):
            if spec.name == operator and not spec.is_sink:
                edges = graph.inputs(chain.id) if place == 0 else ()
                keys = {edge.port: edge.keys for edge in edges if edge.partitioning == "hash"}
                return OperatorPlace(chain, place, keys)
    names = [spec.name for chain in graph.chains for spec in chain.operators if not spec.is_sink]
    raise InvalidJob(f"flow {graph.name!r} has no step {operator!r}; it has: {', '.join(names)}")
