"""Plan of a `Dataflow`: sources and steps as plain values, connected by their numbers."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.source import Source
from barrier_runtime.coordinator.wire.messages import STABLE_KIND
from barrier_runtime.data.event_time import Detail, is_event_time
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.graph.job_graph import Combines, Partitioning
from barrier_runtime.operators.base import Operator
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id, check_operator_name
from barrier_runtime.state.snapshots.snapshot import StateDescription

if TYPE_CHECKING:
    from barrier_runtime.connectors.memory.batch_function import BatchCall


@dataclass(frozen=True)
class Input:
    node: int
    partitioning: Partitioning = "forward"
    keys: tuple[str, ...] = ()
    tag: str = ""
    aligned: bool = False


@dataclass(frozen=True)
class Within:
    """Column of a result row of `windows`: their start, their end, or a time of their rows.
    The row is emitted after the end.
    """

    column: str
    windows: WindowAssigner
    of: Literal["start", "start of pair", "end", "row"]  # start of pair: stored windows do not count by it


@dataclass(frozen=True)
class SourceNode:
    name: str
    source: Source
    event_time: str | None = None
    max_out_of_orderness_ms: int = 0
    idle_timeout_ms: int | None = None
    max_rows_per_second: float | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepNode:
    """A step. `make` gets the final name; unnamed steps have no state. Fields without a comment are those of
    `OperatorSpec` and `Edge`.
    """

    name: str | None
    kind: str
    inputs: tuple[Input, ...]
    make: Callable[[str], Operator]
    schema: pa.Schema | None
    stateful: bool = False
    is_sink: bool = False
    guarantee: str = ""
    global_committer: bool = False
    commit_every_ms: int = 0
    shows_early: bool = False
    is_idempotent: bool = False
    last_row_wins: bool = False
    describe: str = ""
    definition: str = ""
    makes_watermarks: bool = False  # without regard to watermarks of the input
    begins_chain: bool = False  # emits rows without input, which only the first step of a chain can
    detail: Detail = "none"
    whole_batches: bool = False  # never takes a batch in parts of one event time
    event_times: frozenset[str] | None = None  # columns that the watermark is based on; None: unknown
    within: frozenset[Within] = frozenset()  # columns whose times are of the window of a result row
    timeless: bool = False
    by_wall_clock: str = ""  # why a replay may produce other rows, or empty
    side_outputs: Mapping[str, pa.Schema | None] = field(default_factory=dict)
    row_classes: Mapping[str, RowClass] = field(default_factory=dict)  # of outputs by tag, see `RowClass`
    keys: str = ""
    states: Mapping[str, StateDescription] = field(default_factory=dict)
    sink_kind: str = ""
    target: str = ""
    places: tuple[str, ...] = ()  # places that a sink writes, see `TwoPhaseCommitSink.places`
    batch_call: "BatchCall | None" = None  # called by the program with decided batches
    reads: frozenset[str] | None = None  # input columns that the step itself needs; None: all
    updates: frozenset[str] = frozenset()  # columns that are emitted again with every row, see `updates`
    made_of: Mapping[str, frozenset[str] | None] | None = None  # of a select: new name -> columns; None: unknown
    counts_updates: str = ""  # use of every update of an earlier step, for `explain`
    renames: Mapping[str, str] | None = None  # rows of the input with these columns: new name -> column
    keeps: Mapping[str, str] | None = None  # as `renames`, plus computed columns
    combiner: Callable[[], Combines] | None = None

    @property
    def stable(self) -> bool:
        """Returns whether a replay produces the same rows, whatever earlier steps produce."""
        return self.kind == STABLE_KIND


Node: TypeAlias = SourceNode | StepNode

T = TypeVar("T")
_Of: TypeAlias = Callable[[Node], frozenset[T] | None]
_Renamed: TypeAlias = Callable[[frozenset[T], Mapping[str, str]], Iterator[T]]
_Merged: TypeAlias = Callable[[list[frozenset[T]]], frozenset[T]]
_SAME_ROWS = frozenset(  # kinds of steps that keep rows and columns
    {
        *("filter", "inspect", "union", "broadcast_join", "one key", "deduplicate", "running aggregate", "lookup"),
        *("dead letters", STABLE_KIND),
    }
)
_FUNCTIONS = frozenset({"map", "flat_map", "map_batches", "process", "process_groups", "connect"})
BROADCAST = "broadcast"  # kind of the step before a connect that orders the rows of all broadcast inputs
_BATCHES = frozenset({"map_batches", "process_groups"})  # their functions nearly always keep a row's time


def _event_times(node: Node) -> frozenset[str] | None:
    if isinstance(node, StepNode):
        return node.event_times
    return None if node.event_time is None else frozenset([node.event_time])


def _renamed(columns: frozenset[str], names: Mapping[str, str]) -> Iterator[str]:
    return (name for name, column in names.items() if column in columns)


@dataclass(frozen=True)
class _Inherited:
    """Column `name` with the event time of rows."""

    name: str
    first: str  # if there is a column of this name, too, then `name` is a copy
    root: str  # name before the functions


_Times: TypeAlias = frozenset[_Inherited]


def _of_schema(names: Iterable[str], schema: pa.Schema) -> frozenset[str]:
    return frozenset(name for name in names if name in schema.names and is_event_time(schema.field(name).type))


def _first_names(names: frozenset[str], times: _Times) -> frozenset[str]:
    """Returns `names` without copies of others of them."""
    own = {each.name for each in times if each.name == each.first}
    copies = {each.name for each in times if each.first in names} - own
    return names - copies


def _of_function(times: _Times, above: frozenset[str], schema: pa.Schema | None) -> _Times:
    """Event times behind a function, by name. A name in `above` counts again if its column was renamed and
    the new name is gone.
    """
    if schema is None:
        return times
    kept = _Times(each for each in times if each.name in schema.names)
    lost = above - {column for each in kept for column in (each.root, each.name)}
    return kept | _Times(_Inherited(name, name, name) for name in lost if name in schema.names)


def _of_select(times: _Times, node: StepNode, known: bool) -> _Times:
    named = (node.keeps if node.renames is None else node.renames) or {}
    copied = _Times(replace(each, name=new) for each in times for new, column in named.items() if column == each.name)
    computed = _Times() if node.renames is not None else _computed(times, copied, node, set(named))
    found = _with_moved_firsts(copied | computed)
    return _Times(replace(each, root=each.first) for each in found) if known else found


def _computed(times: _Times, copied: _Times, node: StepNode, named: set[str]) -> _Times:
    """Event times that a select computes anew under the same name.

    If the select keeps a copy of an event time, a column computed of other columns is no event time.
    """
    kept = {each.root for each in copied}

    def made_of_its_time(time: _Inherited) -> bool:
        used = (node.made_of or {}).get(time.name)
        return used is None or any(each.root == time.root and each.name in used for each in times)

    return _Times(
        each
        for each in times
        if each.name not in named
        and (node.schema is None or each.name in node.schema.names)
        and (each.root not in kept or made_of_its_time(each))
    )


def _with_moved_firsts(times: _Times) -> _Times:
    """Makes the only name left of a first column that is gone the first name."""
    names: dict[str, set[str]] = {}
    for each in times:
        names.setdefault(each.first, set()).add(each.name)
    moved = {first: its.pop() for first, its in names.items() if first not in its and len(its) == 1}
    return _Times(replace(each, first=moved.get(each.first, each.first)) for each in times)


def timeless(nodes: Sequence[Node]) -> list[bool]:
    """Returns by number of the node whether no source of the node's rows has event time."""
    found: list[bool] = []
    for node in nodes:
        if isinstance(node, SourceNode):
            found.append(node.event_time is None)
        else:
            found.append(not node.makes_watermarks and all(found[input.node] for input in node.inputs))
    return found


def _within(node: Node) -> frozenset[Within] | None:
    return node.within if isinstance(node, StepNode) else None


def _in_all(known: list[frozenset[Within]]) -> frozenset[Within]:
    """Columns of windows that all inputs have, with the windows of each input."""
    columns = set.intersection(*({(each.column, each.of) for each in found} for found in known))
    return frozenset(each for found in known for each in found if (each.column, each.of) in columns)


def _renamed_within(found: frozenset[Within], names: Mapping[str, str]) -> Iterator[Within]:
    return (replace(each, column=name) for each in found for name, column in names.items() if column == each.column)


class Plan:
    """Nodes of a dataflow. A node's number is the index."""

    def __init__(self, name: str) -> None:
        self.name = check_job_id(name)
        self.program = ""  # file and name of the flow, as app.py:flow, if known
        self.nodes: list[Node] = []
        self._kinds: dict[str, str] = {}

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
        """Sources at or above node `number` without watermarks."""
        ignored = timeless(self.nodes[:number])

        def inputs(at: int) -> list[int]:
            node, before = self.nodes[at], self._inputs(at)[::-1]
            if not isinstance(node, StepNode) or node.makes_watermarks:
                return []
            return [each for each in before if node.kind != BROADCAST or not ignored[each]]

        nodes = (self.nodes[at] for at in self._upwards([number], inputs))
        sources = (node.name for node in nodes if isinstance(node, SourceNode) and node.event_time is None)
        return list(dict.fromkeys(sources))

    def _inputs(self, number: int) -> list[int]:
        node = self.nodes[number]
        return [input.node for input in node.inputs] if isinstance(node, StepNode) else []

    def _upwards(self, begin: Sequence[int], inputs: Callable[[int], list[int]] | None = None) -> Iterator[int]:
        """Yields `begin` and all nodes above, each once. `inputs`: those to visit; None: all."""
        todo, seen = list(begin), set[int]()
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                yield at
                todo += (inputs or self._inputs)(at)

    def is_timeless(self, number: int) -> bool:
        return timeless(self.nodes[: number + 1])[number]

    def event_times(self, number: int) -> frozenset[str] | None:
        """Columns of node `number` that the watermark is based on; None: unknown."""
        return self._of_rows(number, _event_times, _renamed)[number]

    def event_times_of_rows(self, number: int, tag: str, schema: pa.Schema | None) -> frozenset[str]:
        """As `event_times`, of an output, without copies of existing columns; empty: unknown.

        Behind a function: the columns of `schema` with the names of those that the watermark is based on before the
        function, under the names that later renames gave them.
        """
        known = None if tag else self.event_times(number)
        if known is None and schema is None:
            return frozenset()
        found = self._inherited(number, tag)
        if known is None:
            assert schema is not None
            return _first_names(_of_schema({each.name for each in found}, schema), found)
        return _first_names(known, found)

    def event_times_of_older_builds(self, number: int, tag: str, schema: pa.Schema | None) -> frozenset[str]:
        """As `event_times_of_rows` by builds that followed no renames behind functions."""
        known = None if tag else self.event_times(number)
        if known is None:
            return frozenset() if schema is None else _of_schema(self.event_times_above(number), schema)
        return known

    def function_before(self, number: int) -> str:
        """The function that made the rows of node `number`; empty: no function."""
        node = self.nodes[number]
        while isinstance(node, StepNode) and (node.kind in _SAME_ROWS or node.renames is not None):
            if len(node.inputs) != 1 or node.inputs[0].tag:
                return ""
            node = self.nodes[node.inputs[0].node]
        if not isinstance(node, StepNode) or node.kind not in _FUNCTIONS:
            return ""
        return f"{node.kind} {node.name!r}" if node.name else f"a {node.kind}"

    def event_times_above(self, number: int) -> set[str]:
        """The watermark's columns before the functions above node `number`."""
        of_rows = self._of_rows(number, _event_times, _renamed)
        visited = self._upwards(self._inputs(number), lambda at: self._inputs(at) if of_rows[at] is None else [])
        return set[str]().union(*(of_rows[at] or () for at in visited))

    def inherited_event_times(self, number: int) -> frozenset[str]:
        """As `event_times_above`, under names given behind the functions."""
        return frozenset(each.name for each in self._inherited(number, ""))

    def _inherited(self, number: int, tag: str) -> frozenset[_Inherited]:
        known, above, found = self._of_rows(number, _event_times, _renamed), list[frozenset[str]](), list[_Times]()

        def before(node: StepNode) -> _Times:
            return _Times().union(*(output(input.node, input.tag) for input in node.inputs))

        def output(at: int, tag: str) -> _Times:
            node = self.nodes[at]
            if not tag or isinstance(node, SourceNode):
                return found[at]
            names = frozenset[str]().union(*(above[input.node] for input in node.inputs))
            return _of_function(before(node), names, node.side_outputs.get(tag))

        for node, columns in zip(self.nodes, known, strict=False):
            inputs = node.inputs if isinstance(node, StepNode) else ()
            names = frozenset[str]().union(*(above[input.node] for input in inputs))
            above.append(names if columns is None else columns)
            if isinstance(node, StepNode) and (node.keeps if node.renames is None else node.renames) is not None:
                found.append(_of_select(before(node), node, columns is not None))
            elif isinstance(node, StepNode) and node.kind in _SAME_ROWS:
                found.append(before(node))
            elif columns is None and isinstance(node, StepNode):
                found.append(_of_function(before(node), names, node.schema))
            else:
                found.append(_Times(_Inherited(name, name, name) for name in columns or ()))
        return output(number, tag)

    def event_times_of_batches(self, number: int) -> frozenset[str] | None:
        """As `event_times`, if functions of batches keep these columns, which a running step checks."""
        return self._of_rows(number, _event_times, _renamed, batches=True)[number]

    def within(self, number: int, computed: bool = True) -> frozenset[Within]:
        """Returns times of windows that made the rows of node `number`.
        `computed`: also behind computed columns.
        """
        found = self._of_rows(number, _within, _renamed_within, computed=computed, merged=_in_all)
        return found[number] or frozenset()

    def _of_rows(
        self,
        number: int,
        of: _Of[T],
        renamed: _Renamed[T],
        batches: bool = False,
        computed: bool = False,
        merged: _Merged[T] = lambda known: frozenset.intersection(*known),
    ) -> list[frozenset[T] | None]:
        """`of`: property of rows that a node makes; `merged`: of the rows of several inputs."""
        same = _SAME_ROWS | _BATCHES if batches else _SAME_ROWS
        found: list[frozenset[T] | None] = []
        for node in self.nodes[: number + 1]:
            names = None
            if isinstance(node, StepNode):
                names = node.renames if node.renames is not None or not (batches or computed) else node.keeps
            if isinstance(node, SourceNode) or not (node.kind in same or names is not None):
                found.append(of(node))
                continue
            before = [None if input.tag else found[input.node] for input in node.inputs]
            known = [each for each in before if each is not None]
            both = merged(known) if len(known) == len(before) else None
            found.append(both if both is None or names is None else frozenset(renamed(both, names)))
        return found

    def by_wall_clock(self, number: int) -> list[tuple[str, str]]:
        """Returns name and reason of each step at or above node `number` whose replay may give other rows."""

        def unstable(at: int) -> StepNode | None:
            node = self.nodes[at]
            return node if isinstance(node, StepNode) and not node.stable else None

        steps = map(unstable, self._upwards([number], lambda at: self._inputs(at) if unstable(at) else []))
        return [(step.name or step.kind, step.by_wall_clock) for step in steps if step and step.by_wall_clock]

    def sources_above(self, number: int) -> frozenset[int]:
        return frozenset(at for at in self._upwards([number]) if isinstance(self.nodes[at], SourceNode))

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
        node = self.nodes[number]
        assert isinstance(node, SourceNode)
        self.nodes[number] = replace(node, after=(*node.after, step))

    def set_watermarks(self, number: int, column: str, max_out_of_orderness_ms: int) -> None:
        """Watermarks are made per split."""
        node = self.nodes[number]
        assert isinstance(node, SourceNode)
        self.nodes[number] = replace(node, event_time=column, max_out_of_orderness_ms=max_out_of_orderness_ms)


_PACKAGE = __name__.partition(".")[0]


def users_line() -> int:
    """Number of calls up to the user's program, as `warnings` counts them."""
    call, level = sys._getframe(1), 1  # `inspect.stack` would read the sources of all calls
    while call.f_back is not None and call.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        call, level = call.f_back, level + 1
    return level
