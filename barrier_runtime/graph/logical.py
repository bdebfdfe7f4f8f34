"""What a `Dataflow` has collected: sources and steps as plain values, connected by their numbers. Compiled by
`compiler`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.source import Source
from barrier_runtime.data.event_time import Detail
from barrier_runtime.graph.job_graph import Partitioning
from barrier_runtime.operators.base import Operator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id, check_operator_name
from barrier_runtime.state.snapshots.snapshot import StateDescription

if TYPE_CHECKING:
    from barrier_runtime.connectors.batch_function.caller import BatchCall


@dataclass(frozen=True)
class Input:
    """Where a step's rows come from and how they are spread over its subtasks."""

    node: int
    partitioning: Partitioning = "forward"
    keys: tuple[str, ...] = ()
    tag: str = ""  # of a side output; empty: the main output
    aligned: bool = False  # see `Edge`


@dataclass(frozen=True)
class Within:
    """Times of `column` lie in tumbling windows of this size and offset, and a row comes when its window is over."""

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


@dataclass(frozen=True)
class StepNode:
    """`make` gets the step's final name. Unnamed steps are named at compilation and keep no state."""

    name: str | None
    kind: str
    inputs: tuple[Input, ...]
    make: Callable[[str], Operator]
    schema: pa.Schema | None  # of its main output, when known
    stateful: bool = False
    is_sink: bool = False
    guarantee: str = ""
    global_committer: bool = False
    commit_every_ms: int = 0  # see `OperatorSpec`
    describe: str = ""
    definition: str = ""  # see `OperatorSpec`
    makes_watermarks: bool = False  # whatever its input has
    begins_chain: bool = False  # it has rows to give without any input, for which the first of a chain is asked
    detail: Detail = "none"  # how closely it follows event time
    whole_batches: bool = False  # it never takes a batch in parts of one event time: see `graph/event_time`
    event_times: frozenset[str] | None = None  # columns of its rows that the watermark behind it is of; None: not known
    within: frozenset[Within] = frozenset()  # columns whose times lie within the window that a row is a result of
    timeless: bool = False  # has state, and no watermark changes what comes of it
    by_wall_clock: str = ""  # why a replay may make other rows; empty: it makes the same
    side_outputs: Mapping[str, pa.Schema | None] = field(default_factory=dict)  # tag -> schema, when known
    keys: str = ""  # see `OperatorSpec`
    states: Mapping[str, StateDescription] = field(default_factory=dict)  # see `OperatorSpec`
    sink_kind: str = ""  # see `OperatorSpec`
    target: str = ""  # see `OperatorSpec`
    places: tuple[str, ...] = ()  # of a sink: what it writes, see `TwoPhaseCommitSink.places`
    batch_call: "BatchCall | None" = None  # a function that the program calls for what this sink has decided
    reads: frozenset[str] | None = None  # columns of its input that it needs itself; None: all
    updates: frozenset[str] = frozenset()  # columns that go out anew with every row, see `updates`
    made_of: Mapping[str, frozenset[str] | None] | None = None  # a select's: new name -> columns; None: not known
    counts_updates: str = ""  # what it does with every update of a step before it, for `explain`; empty: nothing
    renames: Mapping[str, str] | None = None  # its rows are those of its input, with these columns: new name -> column
    keeps: Mapping[str, str] | None = None  # the same, and it computes other columns beside them


Node: TypeAlias = SourceNode | StepNode

T = TypeVar("T")
_Of: TypeAlias = Callable[[Node], frozenset[T] | None]
_Renamed: TypeAlias = Callable[[frozenset[T], Mapping[str, str]], Iterator[T]]  # by new name -> column
_SAME_ROWS = frozenset(  # kinds of steps that keep rows and columns
    {"filter", "union", "broadcast_join", "one key", "deduplicate", "running aggregate", "lookup", "dead letters"}
)
_BATCHES = frozenset({"map_batches", "process_groups"})  # whose functions nearly always keep the time of a row


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
    """The nodes of the dataflow `name`; a node's number is its place. Names are checked as they come."""

    def __init__(self, name: str) -> None:
        self.name = check_job_id(name)
        self.program = ""  # the file and the name of the flow in it, app.py:flow, where that is known
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
        """Sources above node `number` (itself included) whose rows come to it without watermarks."""
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
        """Columns of the rows of node `number` that its watermark is of; None: not known."""
        return self._of_rows(number, _event_times, _renamed)

    def event_times_of_batches(self, number: int) -> frozenset[str] | None:
        """The same if functions of batches keep these columns, which they check while they run."""
        return self._of_rows(number, _event_times, _renamed, batches=True)

    def within(self, number: int) -> frozenset[Within]:
        """See `StepNode`."""
        return self._of_rows(number, _within, _renamed_within) or frozenset()

    def _of_rows(self, number: int, of: _Of[T], renamed: _Renamed[T], batches: bool = False) -> frozenset[T] | None:
        """What holds for all rows of node `number`, given what each node says `of` the rows that it makes."""
        same = _SAME_ROWS | _BATCHES if batches else _SAME_ROWS
        found: list[frozenset[T] | None] = []  # by node: inputs come before what takes them
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
        """Steps above node `number` (itself included) of which a replay may make other rows: name and why."""
        found, todo, seen = [], [number], set()
        while todo:
            at = todo.pop()
            node = self.nodes[at]
            if at in seen or not isinstance(node, StepNode):
                continue
            seen.add(at)
            todo += [input.node for input in node.inputs]
            if node.by_wall_clock:
                found.append((node.name or node.kind, node.by_wall_clock))
        return found

    def set_watermarks(self, number: int, column: str, max_out_of_orderness_ms: int) -> None:
        """Watermarks of source `number`, made per split."""
        node = self.nodes[number]
        assert isinstance(node, SourceNode)
        self.nodes[number] = replace(node, event_time=column, max_out_of_orderness_ms=max_out_of_orderness_ms)
