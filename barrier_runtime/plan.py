"""What a `Dataflow` has collected: sources and steps as plain values, connected by their numbers. Compiled by
`compile`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from barrier_runtime.graph import Partitioning
from barrier_runtime.operators.base import Operator
from barrier_runtime.sources.base import Source
from state.errors import InvalidJob
from state.ids import check_operator_name


@dataclass(frozen=True)
class Input:
    """Where a step's rows come from and how they are spread over its subtasks."""

    node: int
    partitioning: Partitioning = "forward"
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceNode:
    name: str
    source: Source
    event_time: str | None = None
    max_out_of_orderness_ms: int = 0
    idle_timeout_ms: int | None = None


@dataclass(frozen=True)
class StepNode:
    """`make` gets the step's final name. Unnamed steps are named at compilation and keep no state."""

    name: str | None
    kind: str
    inputs: tuple[Input, ...]
    make: Callable[[str], Operator]
    schema: pa.Schema | None  # of its output, when known
    stateful: bool = False
    is_sink: bool = False
    guarantee: str = ""
    global_committer: bool = False
    describe: str = ""


Node: TypeAlias = SourceNode | StepNode


class Plan:
    """The nodes of one dataflow; a node's number is its place. Names are checked as they come."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._kinds: dict[str, str] = {}  # by name

    def add(self, node: Node) -> int:
        if node.name is not None:
            kind = "source" if isinstance(node, SourceNode) else node.kind
            check_operator_name(node.name)
            if node.name in self._kinds:
                raise InvalidJob(
                    f"the name {node.name!r} is used twice, by a {self._kinds[node.name]} and a {kind}: "
                    "rename one of them; names address state and must be unique in the flow"
                )
            self._kinds[node.name] = kind
        self.nodes.append(node)
        return len(self.nodes) - 1

    def set_watermarks(self, number: int, column: str, max_out_of_orderness_ms: int) -> None:
        """Watermarks of source `number`, made per split."""
        node = self.nodes[number]
        assert isinstance(node, SourceNode)
        self.nodes[number] = replace(node, event_time=column, max_out_of_orderness_ms=max_out_of_orderness_ms)
