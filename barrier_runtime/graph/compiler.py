"""Compiles the plan of a flow to the graph of slots: chains of steps, and edges that exchange rows.

A step joins the chain of its input if it is the only reader of the input's main output and rows are only forwarded.
Exceptions: steps that emit rows without input (lookups), and steps that make watermarks of a main output whose side
output is also read, since a chain has one watermark for all its edges.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.source import (
    DiscoveringSource,
    Ending,
    EndingSplits,
    Pausing,
    Projecting,
    Rereading,
    SeveralFiles,
    Source,
    Split,
)
from barrier_runtime.coordinator.wire.messages import STABLE_KIND
from barrier_runtime.data.event_time import Detail
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.graph.at_most_once import AT_MOST_ONCE, check_at_most_once, refuse_sinks_without_mode
from barrier_runtime.graph.event_time import StepBehind, divides, followers_of, said_of
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph, OperatorSpec, SourceSpec
from barrier_runtime.graph.logical import BROADCAST, Input, Node, Plan, SourceNode, StepNode, timeless, users_line
from barrier_runtime.operators.base import Operator
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.keys.key_groups import MAX_PARALLELISM_LIMIT
from barrier_runtime.state.outside_errors import told

_INTERVAL_MS = 10  # of watermarks in flows without steps in event time
_IN_ARRIVAL_ORDER = frozenset({"union", "deduplicate", "lookup", STABLE_KIND})
_MODES = ("exactly_once", "at_least_once", AT_MOST_ONCE)
ListSplits: TypeAlias = Callable[[Source, int], Sequence[Split]]
_List: TypeAlias = Callable[[Source], Sequence[Split]]


def _list_splits(source: Source, parallelism: int) -> Sequence[Split]:
    return source.splits(parallelism)


def compile_plan(
    plan: Plan,
    parallelism: int,
    max_parallelism: int = 128,
    *,
    mode: str = "exactly_once",
    list_splits: ListSplits = _list_splits,
    sinks_run: bool = True,
) -> JobGraph:
    """Checks the plan and builds the graph. Raises `InvalidJob`.

    `list_splits` reads folders and asks servers. `sinks_run`: False if the sinks are only described, as in a replay."""
    if not 1 <= parallelism <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise InvalidJob(
            f"flow {plan.name!r}: parallelism {parallelism} with max_parallelism {max_parallelism}: "
            f"use 1 <= parallelism <= max_parallelism <= {MAX_PARALLELISM_LIMIT}"
        )
    if mode not in _MODES:
        raise InvalidJob(f"flow {plan.name!r}: mode {mode!r}: use one of {', '.join(_MODES)}")
    nodes = _reading(_named(plan.nodes))
    readers = _readers(nodes)
    _check_ends(plan.name, nodes, readers)
    _check_circles(nodes)
    _check_pauses(nodes)
    _check_order(nodes)
    if mode == AT_MOST_ONCE:
        check_at_most_once(nodes)
    elif sinks_run:
        refuse_sinks_without_mode(nodes)
    if mode == "exactly_once":
        _check_guarantees(nodes)
    chains, edges = _chained(nodes, readers, lambda source: list_splits(source, parallelism), combines=sinks_run)
    return JobGraph(plan.name, parallelism, max_parallelism, chains, edges)


def _named(nodes: list[Node]) -> list[Node]:
    """Makes names `<kind>-<n>`, under which no state is stored."""
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


def _reading(nodes: list[Node]) -> list[Node]:
    """Sources omit columns that no later step needs, as far as declared."""

    def wanted(number: int) -> frozenset[str] | None:
        columns = frozenset[str]()
        for at, step in enumerate(nodes):
            if isinstance(step, StepNode) and any(input.node == number for input in step.inputs):
                passed_on = wanted(at) if step.kind == "filter" else frozenset[str]()
                if step.reads is None or passed_on is None:
                    return None
                columns |= step.reads | passed_on
        return columns

    found: list[Node] = []
    for number, node in enumerate(nodes):
        if isinstance(node, SourceNode) and isinstance(node.source, Projecting):
            columns = wanted(number)
            if columns:
                every = columns if node.event_time is None else columns | {node.event_time}
                node = replace(node, source=node.source.reading(every))
        elif isinstance(node, StepNode) and node.kind == "filter" and node.schema is not None:
            given = _schema(found[node.inputs[0].node], node.inputs[0].tag)
            if given is not None:
                node = replace(node, schema=pa.schema([field for field in node.schema if field.name in given.names]))
        found.append(node)
    return found


def _readers(nodes: list[Node]) -> dict[int, list[Input]]:
    readers: dict[int, list[Input]] = {number: [] for number in range(len(nodes))}
    for node in nodes:
        if isinstance(node, StepNode):
            for input in node.inputs:
                readers[input.node].append(input)
    return readers


def _check_ends(flow: str, nodes: list[Node], readers: dict[int, list[Input]]) -> None:
    if not any(isinstance(node, SourceNode) for node in nodes):
        raise InvalidJob(f"flow {flow!r} has no source: begin with read_parquet(), rate() or another source")
    if not any(isinstance(node, StepNode) and node.is_sink for node in nodes):
        raise InvalidJob(f"flow {flow!r} has no sink: end a stream with .sink(name, …)")
    for number, node in enumerate(nodes):
        if not readers[number] and not (isinstance(node, StepNode) and node.is_sink):
            warnings.warn(
                f"flow {flow!r}: nothing reads the output of {node.name!r}: end it with .sink(…), or remove it",
                stacklevel=users_line(),
            )


def _sources_above(nodes: list[Node]) -> list[dict[str, SourceNode]]:
    above: list[dict[str, SourceNode]] = []  # by node: inputs have lower numbers
    for node in nodes:
        if isinstance(node, SourceNode):
            above.append({node.name: node})
        else:
            above.append({name: each for input in node.inputs for name, each in above[input.node].items()})
    return above


def _holds_back(node: SourceNode) -> bool:
    """Returns whether pauses of the source decide the event time of other inputs."""
    source = node.source
    pauses = source.pauses if isinstance(source, Pausing) else None
    if not isinstance(pauses, bool):  # a user's attribute may mean something else
        pauses = isinstance(source, Ending) and source.endless
    return pauses and node.event_time is not None and node.idle_timeout_ms is None


def _check_circles(nodes: list[Node]) -> None:
    for node, above in zip(nodes, _sources_above(nodes), strict=True):
        if isinstance(node, SourceNode):
            continue
        for each in above.values():
            source = each.source
            if not isinstance(source, Rereading) or not any(map(source.reads_from, node.places)):
                continue
            said = f"sink {node.name!r} ({node.describe}) writes where source {each.name!r} ({source!r}) reads"
            if source.endless:
                raise InvalidJob(f"{said}, so its rows would come in again for ever: write to another place")
            warnings.warn(
                f"{said}, so a new start of the flow reads its rows too: write to another place",
                stacklevel=users_line(),
            )


def _check_pauses(nodes: list[Node]) -> None:
    """Warns of each source that, without rows, holds back the event time of other inputs, or lags behind."""
    todo = {node.name for node in nodes if isinstance(node, SourceNode) and _holds_back(node)}
    above, followers, without_time = _sources_above(nodes), followers_of(nodes), timeless(nodes)
    in_turn = {step for node in nodes if isinstance(node, SourceNode) for step in node.after}
    for number, node in enumerate(nodes):
        if isinstance(node, SourceNode) or len(node.inputs) < 2 or node.name in in_turn:
            continue
        if node.detail == "none" and followers[number].detail == "none":
            continue
        before = [above[input.node].keys() for input in node.inputs if not without_time[input.node]]
        for name, each in above[number].items():
            if name in todo and any(names != {name} for names in before):
                todo.remove(name)
                warnings.warn(
                    f"{node.kind} {node.name!r}: {_effect_of_pauses(name, each.source)}", stacklevel=users_line()
                )


def _effect_of_pauses(name: str, source: Source) -> str:
    if isinstance(source, EndingSplits) and source.splits_end is True:  # a user's attribute may mean something else
        return (
            f"between two files of source {name!r} ({source!r}) event time follows the other inputs, so rows of a "
            f"later file may be late: read {name!r} with idle_timeout= longer than the time between files"
        )
    return (
        f"while nothing new arrives in source {name!r} ({source!r}), event time of the other inputs stands still too, "
        f"and later windows, timers and joins wait: read {name!r} with idle_timeout= (rows after a longer pause may be "
        "late)"
    )


def _check_order(nodes: list[Node]) -> None:
    """Warns of files, read side by side, whose rows reach a step where the last row of a key wins."""
    unordered: list[dict[str, SourceNode]] = []  # by node: no step that keeps state since the source
    warned = set[str]()
    for node in nodes:
        if isinstance(node, SourceNode):
            source = node.source
            several = isinstance(source, SeveralFiles) and source.several is True
            unordered.append({node.name: node} if several else {})
            continue
        above = {name: each for input in node.inputs for name, each in unordered[input.node].items()}
        passes = node.kind in _IN_ARRIVAL_ORDER or not (node.stateful or len(node.inputs) > 1)
        unordered.append(above if passes else {})
        if node.kind == BROADCAST:
            above = {name: each for name, each in above.items() if each.event_time is None}
        elif not node.last_row_wins:
            continue
        for name in above.keys() - warned:
            warned.add(name)
            warnings.warn(
                f"{node.kind} {node.name!r}: rows of a key in different files of source {name!r} "
                f"({above[name].source!r}) arrive in any order, as files are read side by side, so an older row may "
                f'replace a newer one: read {name!r} with file_order="name" (files one after another), keep the newest '
                "row by a version column first (aggregate with arg_max), or put the rows into one file or a Kafka "
                "topic. Ignore this if each key is in a single file",
                stacklevel=users_line(),
            )


def _check_guarantees(nodes: list[Node]) -> None:
    for node, above in zip(nodes, _sources_above(nodes), strict=True):
        if isinstance(node, SourceNode) or not node.is_sink or node.guarantee != "exactly_once":
            continue
        unstable = sorted(name for name, each in above.items() if not each.source.exactly_once)
        if unstable:
            source = unstable[0]
            raise InvalidJob(
                f"sink {node.name!r} is exactly-once, but source {source!r} has no stable positions: a replay after a "
                "failure may give other rows. Use a source that replays, a sink that declares at_least_once, "
                'or mode="at_least_once"'
            )


def _chained(
    nodes: list[Node], readers: dict[int, list[Input]], list_splits: _List, combines: bool
) -> tuple[tuple[Chain, ...], tuple[Edge, ...]]:
    members: list[list[int]] = []
    chain_of: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if isinstance(node, StepNode) and len(node.inputs) == 1:
            input = node.inputs[0]
            alone = sum(not each.tag for each in readers[input.node]) == 1
            shared = node.makes_watermarks and _has_read_sides(members[chain_of[input.node]], readers)
            if input.partitioning == "forward" and not input.tag and alone and not (shared or node.begins_chain):
                chain_of[number] = chain_of[input.node]
                members[chain_of[number]].append(number)
                continue
        chain_of[number] = len(members)
        members.append([number])
    followers = followers_of(nodes)
    interval_ms = 0 if any(map(_follows_time, nodes)) else _INTERVAL_MS
    chains = tuple(
        _chain(id, {number: nodes[number] for number in numbers}, followers, list_splits, interval_ms)
        for id, numbers in enumerate(members)
    )
    edges: list[Edge] = []
    without_time = timeless(nodes)
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
                    _schema(nodes[input.node], input.tag),
                    (nodes[input.node].name or "") if input.tag else "",
                    input.tag,
                    input.aligned,
                    first.combiner if combines else None,
                    without_time[input.node] and (_is_broadcast(first) or _is_broadcast(nodes[input.node])),
                )
            )
    return chains, tuple(edges)


def _is_broadcast(node: Node) -> bool:
    return isinstance(node, StepNode) and node.kind == BROADCAST


def _has_read_sides(chain: list[int], readers: dict[int, list[Input]]) -> bool:
    return any(input.tag for number in chain for input in readers[number])


def _schema(node: Node, tag: str) -> pa.Schema | None:
    if isinstance(node, SourceNode):
        schema = node.source.schema
    else:
        schema = node.side_outputs[tag] if tag else node.schema
    return None if schema is None else plain_schema(schema)


def _chain(
    id: int, nodes: dict[int, Node], followers: Sequence[StepBehind], list_splits: _List, interval_ms: int
) -> Chain:
    (first, source), *_ = nodes.items()
    spec = None
    if isinstance(source, SourceNode):
        spec = _source(source, list_splits, followers[first].detail, interval_ms)
    operators = [_operator(node, followers[at]) for at, node in nodes.items() if isinstance(node, StepNode)]
    return Chain(id, tuple(operators), spec)


def _follows_time(node: Node) -> bool:
    return isinstance(node, StepNode) and node.stateful and not (node.is_sink or node.timeless)


def _source(node: SourceNode, list_splits: _List, detail: Detail, interval_ms: int) -> SourceSpec:
    splits = tuple(_listed(node, list_splits))
    if not splits and not isinstance(node.source, DiscoveringSource):
        raise InvalidJob(f"source {node.name!r} has no splits: there is nothing to read")
    if len({split.id for split in splits}) != len(splits):
        raise InvalidJob(
            f"source {node.name!r}: two splits have the same id: positions are kept by id, make them unique"
        )
    return SourceSpec(
        node.name,
        node.source,
        splits,
        node.event_time,
        node.max_out_of_orderness_ms,
        node.idle_timeout_ms,
        detail=detail if node.event_time is not None else "none",
        watermark_interval_ms=interval_ms,
        max_rows_per_second=node.max_rows_per_second,
        after=node.after,
    )


def _listed(node: SourceNode, list_splits: _List) -> Sequence[Split]:
    """Errors of a connector's library get the source's name."""
    try:
        return list_splits(node.source)
    except BarrierRuntimeError:
        raise
    except Exception as error:
        kind = type(node.source)
        if not kind.__module__.startswith("barrier_runtime."):
            raise
        where = f"source {node.name!r} ({kind.__name__}): what there is to read cannot be listed"
        raise told(error, where, "Correct the source's arguments, or what is there") from error


def _operator(node: StepNode, behind: StepBehind) -> OperatorSpec:
    assert node.name is not None
    make: Callable[[], Operator] = partial(node.make, node.name)
    if (is_followed := divides(node, behind)) is not None:
        make = partial(_dividing, make, is_followed)
    return OperatorSpec(
        node.name,
        node.kind,
        make,
        node.stateful,
        node.is_sink,
        node.guarantee,
        node.global_committer,
        (f"{node.describe}; {node.counts_updates}" if node.counts_updates else node.describe) + said_of(node, behind),
        node.definition,
        tuple(node.side_outputs),
        node.keys,
        node.states,
        node.sink_kind,
        node.target,
        _columns(node, node.name),
        node.commit_every_ms,
        node.shows_early,
        node.is_idempotent,
    )


def _columns(node: StepNode, name: str) -> Mapping[str, str]:
    if not node.stateful or node.is_sink:
        return {}
    made = node.make(name)
    return made.column_types if isinstance(made, KeyedOperator) else {}


def _dividing(make: Callable[[], Operator], is_followed: bool) -> Operator:
    operator = make()
    operator.is_followed = is_followed
    return operator
