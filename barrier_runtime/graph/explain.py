"""A flow for people: plan as SVG, job graph as text with settings."""

from collections.abc import Mapping
from html import escape

import pyarrow as pa

from barrier_runtime.coordinator.metric_table import UNREAD_SIDE_ROWS
from barrier_runtime.coordinator.option_types import OptionValues
from barrier_runtime.coordinator.wire.messages import STABLE_KIND
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph, OperatorSpec
from barrier_runtime.graph.logical import Node, Plan, SourceNode
from barrier_runtime.state.texts import counted, shortened

_BOX_W, _BOX_H, _GAP_X, _GAP_Y, _MARGIN = 184, 44, 44, 16, 8
_NAME, _KIND = 22, 26
_LOOK = (
    "<style>.bn rect{fill:#fff;stroke:#667;stroke-width:1.2}.bn.at rect{stroke:#06c;stroke-width:2.4}"
    ".bn.end rect{fill:#eef3f8}.bn text{font:13px sans-serif;fill:#223}.bn .kind{font-size:11px;fill:#667}"
    ".be{fill:none;stroke:#889;stroke-width:1.4}</style>"
)


def drawn(plan: Plan, at: int | None = None) -> str:
    """Draws SVG. `at`: a node to mark, with only the steps before; None: all."""
    shown = range(len(plan.nodes)) if at is None else _leading_to(plan, at)
    column: dict[int, int] = {}
    rows: dict[int, int] = {}
    place: dict[int, tuple[int, int]] = {}
    for number in shown:
        column[number] = 1 + max((column[each] for each in _inputs(plan, number)), default=-1)
        row = rows.get(column[number], 0)
        rows[column[number]] = row + 1
        x, y = _MARGIN + column[number] * (_BOX_W + _GAP_X), _MARGIN + row * (_BOX_H + _GAP_Y)
        place[number] = x, y
    width = 2 * _MARGIN + len(rows) * (_BOX_W + _GAP_X) - (_GAP_X if rows else 0)
    height = 2 * _MARGIN + max(rows.values(), default=0) * (_BOX_H + _GAP_Y) - (_GAP_Y if rows else 0)
    edges = [_arrow(place[each], place[number]) for number in shown for each in _inputs(plan, number)]
    boxes = [_box(plan, number, place[number], marked=number == at) for number in shown]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = escape(f"dataflow {plan.name}: {len(place)} of {len(plan.nodes)} steps")
    return f'{head} role="img" aria-label="{label}">{_LOOK}{"".join(edges)}{"".join(boxes)}</svg>'


def name_of(node: Node) -> str:
    return node.name or ("source" if isinstance(node, SourceNode) else node.kind)


def told(plan: Plan, at: int, schema: pa.Schema | None) -> str:
    columns = "columns not known yet" if schema is None else ", ".join(f"{each.name}: {each.type}" for each in schema)
    return f"{name_of(plan.nodes[at])} of {plan.name} ({columns})"


def _inputs(plan: Plan, number: int) -> list[int]:
    node = plan.nodes[number]
    return [] if isinstance(node, SourceNode) else list(dict.fromkeys(each.node for each in node.inputs))


def _leading_to(plan: Plan, at: int) -> list[int]:
    found, waiting = {at}, [at]
    while waiting:
        new = set(_inputs(plan, waiting.pop())) - found
        found |= new
        waiting += new
    return sorted(found)


def _arrow(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _BOX_W, source[1] + _BOX_H // 2
    x2, y2 = target[0], target[1] + _BOX_H // 2
    middle = (x1 + x2) // 2
    return f'<path class="be" d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"/>'


def _box(plan: Plan, number: int, place: tuple[int, int], *, marked: bool) -> str:
    node = plan.nodes[number]
    is_source = isinstance(node, SourceNode)
    kind = type(node.source).__name__ if isinstance(node, SourceNode) else node.kind
    ends = " end" if is_source or getattr(node, "is_sink", False) else ""
    x, y = place
    return (
        f'<g class="bn{ends}{" at" if marked else ""}"><title>{escape(f"{node.name or kind} ({kind})")}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" rx="6"/>'
        f'<text x="{x + 9}" y="{y + 19}">{escape(shortened(node.name or kind, _NAME))}</text>'
        f'<text class="kind" x="{x + 9}" y="{y + 35}">{escape(shortened(kind, _KIND))}</text></g>'
    )


_EDGE = {
    "forward": "same slot",
    "same": "same slot, and the end of the input to all",
    "hash": "by key",
    "rebalance": "round robin",
    "broadcast": "to all",
    "single": "to one, for one order",
}
_SHOWN_EARLY = ", rows are visible as they arrive; a restart writes those after the last checkpoint again"
_STORED_BEFORE = ", rows are visible after the decision of their checkpoint; a restart writes them again"
_UPSERTS = "; exactly once with after_decision=True, or with stable() before the sink and deterministic=True"
_OVERTAKEN = ("hash", "rebalance")  # edges whose rows an unaligned barrier overtakes


def explain_graph(graph: JobGraph, settings: Mapping[str, str], options: OptionValues, *, left_out: int = 0) -> str:
    """`settings`: effective settings, by name. `left_out`: number of other settings."""
    lines = [
        f"job {graph.name}: {counted(graph.parallelism, 'slot')}, {counted(len(graph.chains), 'chain')}, "
        f"{counted(len(graph.edges), 'edge')}",
        "",
    ]
    for chain in graph.chains:
        lines += _chain(chain, graph)
    lines.append("settings")
    lines += [f"  {name}: {value}" for name, value in settings.items()]
    if left_out:
        lines.append(f"  {counted(left_out, 'option')} at the default (--all or defaults=True shows all)")
    lines += ["", "delivery"]
    for chain in graph.chains:
        if chain.source is not None:
            stable = chain.source.source.exactly_once
            lines.append(f"  source {chain.source.name}: " + ("replays the same rows" if stable else "cannot replay"))
        for operator in chain.operators:
            if operator.is_sink:
                early = _said_of_early(operator, chain) if operator.shows_early else ""
                lines.append(f"  sink {operator.name}: {operator.guarantee.replace('_', '-')}{early}")
    if options.unaligned and any(edge.partitioning in _OVERTAKEN and not edge.aligned for edge in graph.edges):
        lines.append(
            "  unaligned: what is visible while the job runs may lack rows that a barrier overtook and have later "
            "ones of the same split; they follow, and at the end nothing is missing"
        )
    return "\n".join(lines) + "\n"


def _chain(chain: Chain, graph: JobGraph) -> list[str]:
    lines = [f"chain {chain.id} x {graph.parallelism}: {chain.name}"]
    lines += [f"  ← {_edge(edge)}" for edge in graph.inputs(chain.id)]
    if chain.source is not None:
        source = chain.source
        lines.append(f"    {source.name} [source] {source.source!r}, {counted(len(source.splits), 'split')}")
        if source.event_time is not None:
            lines.append(
                f"      event time {source.event_time}, up to {source.max_out_of_orderness_ms} ms out of order"
            )
        if source.after:
            lines.append(f"      read after the first input of {', '.join(map(repr, source.after))} has ended")
        if source.max_rows_per_second is not None:
            lines.append(f"      at most {source.max_rows_per_second:,.10g} rows per second, over all subtasks")
    for operator in chain.operators:
        marks = operator.kind + (", state" if operator.stateful and not operator.is_sink else "")
        lines.append(f"    {operator.name} [{marks}] {operator.describe}".rstrip())
        lines += [f"      side output {tag}: {_readers(operator.name, tag, graph)}" for tag in operator.side_outputs]
    lines.append("")
    return lines


def _said_of_early(sink: OperatorSpec, chain: Chain) -> str:
    if chain.operators[0].kind == STABLE_KIND:
        return _STORED_BEFORE
    proposal = _UPSERTS if sink.guarantee == "at_least_once" and sink.is_idempotent else ""
    return _SHOWN_EARLY + proposal


def _readers(operator: str, tag: str, graph: JobGraph) -> str:
    read = [f"chain {edge.target_chain}" for edge in graph.edges if (edge.operator, edge.tag) == (operator, tag)]
    return (
        f"to {', '.join(read)}"
        if read
        else f"nothing reads it: its rows are counted ({UNREAD_SIDE_ROWS.name}) and dropped"
    )


def _edge(edge: Edge) -> str:
    keys = f" ({', '.join(edge.keys)})" if edge.keys else ""
    schema = "" if edge.schema is None else ": " + ", ".join(f"{field.name} {field.type}" for field in edge.schema)
    side = f", {edge.tag} of {edge.operator}" if edge.tag else ""
    return f"chain {edge.source_chain}{side}, {edge.partitioning}{keys}, {_EDGE[edge.partitioning]}{schema}"
