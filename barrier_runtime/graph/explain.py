"""A job graph as text for people: chains, edges, settings and what is guaranteed from end to end."""

from collections.abc import Mapping

from barrier_runtime.coordinator.metric_table import UNREAD_SIDE_ROWS
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph

_EDGE = {
    "forward": "same slot",
    "hash": "by key",
    "rebalance": "round robin",
    "broadcast": "to all",
    "single": "to one, for one order",
}
_OVERTAKEN = ("hash", "rebalance")  # edges whose rows an unaligned barrier overtakes


def explain_graph(graph: JobGraph, settings: Mapping[str, str], *, unaligned: bool = False) -> str:
    """The job in a page. `settings`: the effective ones, by name."""
    lines = [f"job {graph.name}: {graph.parallelism} slots, {len(graph.chains)} chains, {len(graph.edges)} edges", ""]
    for chain in graph.chains:
        lines += _chain(chain, graph)
    lines.append("settings")
    lines += [f"  {name}: {value}" for name, value in settings.items()]
    lines += ["", "delivery"]
    for chain in graph.chains:
        if chain.source is not None:
            stable = chain.source.source.exactly_once
            lines.append(f"  source {chain.source.name}: " + ("replays the same rows" if stable else "cannot replay"))
        for operator in chain.operators:
            if operator.is_sink:
                lines.append(f"  sink {operator.name}: {operator.guarantee.replace('_', '-')}")
    if unaligned and any(edge.partitioning in _OVERTAKEN and not edge.aligned for edge in graph.edges):
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
        lines.append(f"    {source.name} [source] {source.source!r}, {len(source.splits)} splits")
        if source.event_time is not None:
            lines.append(
                f"      event time {source.event_time}, up to {source.max_out_of_orderness_ms} ms out of order"
            )
    for operator in chain.operators:
        marks = operator.kind + (", state" if operator.stateful and not operator.is_sink else "")
        lines.append(f"    {operator.name} [{marks}] {operator.describe}".rstrip())
        lines += [f"      side output {tag}: {_readers(operator.name, tag, graph)}" for tag in operator.side_outputs]
    lines.append("")
    return lines


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
