"""Plan of a `Dataflow`: sources and steps as plain values, connected by their numbers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.source import Source
from barrier_runtime.coordinator.wire.messages import STABLE_KIND
from barrier_runtime.data.event_time import Detail, is_event_time
from barrier_runtime.graph.job_graph import Combines, Partitioning
from barrier_runtime.operators.base import Operator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id, check_operator_name
from barrier_runtime.state.snapshots.snapshot import StateDescription

if TYPE_CHECKING:
    from barrier_runtime.connectors.memory.batch_function import BatchCall


@dataclass(frozen=True)
class Input:
    """Input of a step: the node that emits the rows, and the partitioning over the step's subtasks."""

    node: int
    partitioning: Partitioning = "forward"
    keys: tuple[str, ...] = ()
    tag: str = ""  # of a side output; empty: the main output
    aligned: bool = False  # see `Edge`


@dataclass(frozen=True)
class Within:
    """Tumbling windows that hold the times of `column`; a row is emitted after the end of the window."""

    column: str
    size_ms: int
    offset_ms: int


@dataclass(frozen=True)
class SourceNode:
    name: str
    source: Source
    event_time: str | None = None
    max_out_of_orderness_ms: int = 0
    idle_timeout_ms: int | None = None
    max_rows_per_second: float | None = None  # of all subtasks together
    after: tuple[str, ...] = ()  # steps whose first input ends before this source is read


@dataclass(frozen=True)
class StepNode:
    """A step. `make` gets the step's final name. Unnamed steps are named at compilation and have no state."""

    name: str | None
    kind: str
    inputs: tuple[Input, ...]
    make: Callable[[str], Operator]
    schema: pa.Schema | None  # of the main output, if known
    stateful: bool = False
    is_sink: bool = False
    guarantee: str = ""
    global_committer: bool = False
    commit_every_ms: int = 0  # see `OperatorSpec`
    shows_early: bool = False  # see `OperatorSpec`
    is_idempotent: bool = False  # see `OperatorSpec`
    describe: str = ""
    definition: str = ""  # see `OperatorSpec`
    makes_watermarks: bool = False  # independent of the watermarks of the input
    begins_chain: bool = False  # the step emits rows without input, which only the first step of a chain can
    detail: Detail = "none"  # how closely the step follows event time
    whole_batches: bool = False  # the step never takes a batch in parts of one event time: see `graph/event_time`
    event_times: frozenset[str] | None = None  # columns of the rows that the watermark is based on; None: unknown
    within: frozenset[Within] = frozenset()  # columns whose times lie within the window of a result row
    timeless: bool = False  # the step has state, but watermarks do not change its results
    by_wall_clock: str = ""  # why a replay may produce other rows; empty: a replay produces the same rows
    side_outputs: Mapping[str, pa.Schema | None] = field(default_factory=dict)  # tag -> schema, if known
    keys: str = ""  # see `OperatorSpec`
    states: Mapping[str, StateDescription] = field(default_factory=dict)  # see `OperatorSpec`
    sink_kind: str = ""  # see `OperatorSpec`
    target: str = ""  # see `OperatorSpec`
    places: tuple[str, ...] = ()  # of a sink: the places that it writes, see `TwoPhaseCommitSink.places`
    batch_call: "BatchCall | None" = None  # function that the program calls with the decided batches of this sink
    reads: frozenset[str] | None = None  # input columns that the step itself needs; None: all
    updates: frozenset[str] = frozenset()  # columns that are emitted again with every row, see `updates`
    made_of: Mapping[str, frozenset[str] | None] | None = None  # of a select: new name -> columns; None: unknown
    counts_updates: str = ""  # use of every update of an earlier step, for `explain`; empty: none
    renames: Mapping[str, str] | None = None  # the rows of the input with these columns: new name -> column
    keeps: Mapping[str, str] | None = None  # as `renames`, plus computed columns
    combiner: Callable[[], Combines] | None = None  # see `Edge`

    @property
    def stable(self) -> bool:
        """Returns whether a replay produces the same rows, whatever the steps before produce."""
        return self.kind == STABLE_KIND


Node: TypeAlias = SourceNode | StepNode

T = TypeVar("T")
_Of: TypeAlias = Callable[[Node], frozenset[T] | None]
_Renamed: TypeAlias = Callable[[frozenset[T], Mapping[str, str]], Iterator[T]]  # by new name -> column
_SAME_ROWS = frozenset(  # kinds of steps that keep rows and columns
    {
        *("filter", "inspect", "union", "broadcast_join", "one key", "deduplicate", "running aggregate", "lookup"),
        *("dead letters", STABLE_KIND),
    }
)
_BATCHES = frozenset({"map_batches", "process_groups"})  # their functions nearly always keep a row's time


def _event_times(node: Node) -> frozenset[str] | None:
    if isinstance(node, StepNode):
        return node.event_times
    return None if node.event_time is None else frozenset([node.event_time])


def _renamed(columns: frozenset[str], names: Mapping[str, str]) -> Iterator[str]:
    return (name for name, column in names.items() if column in columns)


def _within(node: Node) -> frozenset[Within] | None:
    return node.within if isinstance(node, StepNode) else None


def _renamed_within(found: frozenset[Within], names: Mapping[str, str]) -> Iterator[Within]:
    return (replace(each, column=name) for each in found for name, column in names.items() if column == each.column)


class Plan:
    """Nodes of the dataflow `name`. A node's number is its index. `add` checks names."""

    def __init__(self, name: str) -> None:
        self.name = check_job_id(name)
        self.program = ""  # file and name of the flow, as app.py:flow, if known
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

    def without_watermarks(self, number: int) -> list[str]:
        """Sources at or above node `number` whose rows arrive there without watermarks."""
        found: dict[str, None] = {}
        todo, seen = [number], set()
        while todo:
            at = todo.pop()
            node = self.nodes[at]
            if at in seen or (isinstance(node, StepNode) and node.makes_watermarks):
                continue
            seen.add(at)
            if isinstance(node, StepNode):
                todo += [input.node for input in reversed(node.inputs)]
            elif node.event_time is None:
                found[node.name] = None
        return list(found)

    def event_times(self, number: int) -> frozenset[str] | None:
        """Columns of node `number` that the watermark is based on; None: unknown."""
        return self._of_rows(number, _event_times, _renamed)

    def event_times_of_rows(self, number: int, tag: str, schema: pa.Schema | None) -> frozenset[str]:
        """As `event_times`, of an output of node `number`; empty: unknown.

        Behind a function, the columns that the watermark is based on before the function, if the rows of `schema`
        have columns of these names that can be event times."""
        known = None if tag else self.event_times(number)
        if known is not None:
            return known
        if schema is None:
            return frozenset()
        above = self._event_times_above(number)
        return frozenset(name for name in above if name in schema.names and is_event_time(schema.field(name).type))

    def _event_times_above(self, number: int) -> set[str]:
        found: set[str] = set()
        below = self.nodes[number]
        todo = [input.node for input in below.inputs] if isinstance(below, StepNode) else []
        seen: set[int] = set()
        while todo:
            at = todo.pop()
            node = self.nodes[at]
            if at in seen:
                continue
            seen.add(at)
            made = _event_times(node)
            if made is not None:
                found |= made
            elif isinstance(node, StepNode):
                todo += [input.node for input in node.inputs]
        return found

    def event_times_of_batches(self, number: int) -> frozenset[str] | None:
        """As `event_times`, if functions of batches keep these columns, which a running step checks."""
        return self._of_rows(number, _event_times, _renamed, batches=True)

    def within(self, number: int) -> frozenset[Within]:
        return self._of_rows(number, _within, _renamed_within) or frozenset()

    def _of_rows(self, number: int, of: _Of[T], renamed: _Renamed[T], batches: bool = False) -> frozenset[T] | None:
        """Property of all rows of node `number`; `of` returns the property of rows that a node makes."""
        same = _SAME_ROWS | _BATCHES if batches else _SAME_ROWS
        found: list[frozenset[T] | None] = []  # by node: inputs have lower numbers
        for node in self.nodes[: number + 1]:
            names = None
            if isinstance(node, StepNode):
                names = node.renames if node.renames is not None or not batches else node.keeps
            if isinstance(node, SourceNode) or not (node.kind in same or names is not None):
                found.append(of(node))
                continue
            before = [None if input.tag else found[input.node] for input in node.inputs]
            known = [each for each in before if each is not None]
            both = frozenset.intersection(*known) if len(known) == len(before) else None
            found.append(both if both is None or names is None else frozenset(renamed(both, names)))
        return found[number]

    def by_wall_clock(self, number: int) -> list[tuple[str, str]]:
        """Steps at or above node `number` of which a replay may produce other rows: name and reason."""
        found, todo, seen = [], [number], set()
        while todo:
            at = todo.pop()
            node = self.nodes[at]
            if at in seen or not isinstance(node, StepNode) or node.stable:
                continue
            seen.add(at)
            todo += [input.node for input in node.inputs]
            if node.by_wall_clock:
                found.append((node.name or node.kind, node.by_wall_clock))
        return found

    def sources_above(self, number: int) -> frozenset[int]:
        node = self.nodes[number]
        if isinstance(node, SourceNode):
            return frozenset([number])
        return frozenset().union(*(self.sources_above(input.node) for input in node.inputs))

    def read_before(self, number: int) -> frozenset[int]:
        first = {node.name: node.inputs[0].node for node in self.nodes if isinstance(node, StepNode) and node.name}
        found, todo = frozenset[int](), [number]
        while todo:
            node = self.nodes[todo.pop()]
            assert isinstance(node, SourceNode)
            new = frozenset().union(*(self.sources_above(first[step]) for step in node.after)) - found
            found |= new
            todo += new
        return found

    def read_after(self, number: int, step: str) -> None:
        """Lets source `number` be read after the first input of `step` has ended."""
        node = self.nodes[number]
        assert isinstance(node, SourceNode)
        self.nodes[number] = replace(node, after=(*node.after, step))

    def set_watermarks(self, number: int, column: str, max_out_of_orderness_ms: int) -> None:
        """Sets the watermarks of source `number`, which are made per split."""
        node = self.nodes[number]
        assert isinstance(node, SourceNode)
        self.nodes[number] = replace(node, event_time=column, max_out_of_orderness_ms=max_out_of_orderness_ms)
