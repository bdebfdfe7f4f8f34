"""Input and graph of a replay between two checkpoints.

The graph has no sinks and no steps after the observed operator.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from barrier_runtime.connectors.read_range import OpenRange, ReadRange
from barrier_runtime.connectors.source import RedeliveringSource, RetainingSource
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph, OperatorPlace, OperatorSpec, SourceSpec
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.runtime.sources.progress import RestoredSource
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import with_values
from barrier_runtime.state_tables.finding import StoredCheckpoint

_READS_AT_ONCE = 8


def read_ranges(
    graph: JobGraph,
    before: StoredCheckpoint | None,
    until: StoredCheckpoint | None,
    needed: Collection[str] | None = None,
) -> dict[str, ReadRange]:
    """Ranges by source; `needed` None: all.

    `before`, `until`: as in `Stretch`. Raises `InvalidJob` with everything that cannot be read again.
    """
    ranges: dict[str, ReadRange] = {}
    missing: list[str] = []
    for chain in graph.chains:
        if chain.source is None or (needed is not None and chain.source.name not in needed):
            continue
        name = chain.source.name
        begun = _progress(before, name)
        reached = None if until is None else _progress(until, name)
        missing += _missing(chain.source, begun, reached)
        ranges[name] = OpenRange() if reached is None else _between(name, begun, reached, _ended(until, chain))
    if missing:
        raise InvalidJob("this cannot be replayed, because rows of it are gone:\n  " + "\n  ".join(missing))
    return ranges


def _progress(at: StoredCheckpoint | None, source: str) -> RestoredSource:
    snapshots: list[OperatorSnapshot] = []
    if at is not None:
        own = [each for each in at.manifest.operators if each.operator == source]
        snapshots = with_values(at.store, own, _READS_AT_ONCE)
    return RestoredSource(tuple(snapshots), 0, 1, f"source {source!r}")


def _ended(until: StoredCheckpoint | None, chain: Chain) -> list[int]:
    manifest: Manifest | None = None if until is None else until.manifest
    return [] if manifest is None else [each.index for each in manifest.ended if each.chain == chain.id]


def _between(name: str, begun: RestoredSource, reached: RestoredSource, ended: Sequence[int]) -> ReadRange:
    rows_then = {id: split.rows for id, split in begun.splits.items()}
    rows = {id: split.rows for id, split in reached.splits.items()}
    for id, before in rows_then.items():
        if rows.get(id, before) < before:
            raise InvalidJob(
                f"source {name!r}: split {id!r} was read further at the first checkpoint ({before} rows) than at the "
                f"second ({rows[id]} rows): give the earlier checkpoint first"
            )
    return ReadRange(rows_then, rows, reached.finished, len(reached.finished) - len(begun.finished), ended)


def _missing(spec: SourceSpec, begun: RestoredSource, reached: RestoredSource | None) -> list[str]:
    source, where = spec.source, f"source {spec.name!r}"
    if isinstance(source, RedeliveringSource):
        return [f"{where}: its broker forgets what was acknowledged, so nothing of it can be read again"]
    if not source.exactly_once:
        return [f"{where}: it has no stable positions, so the same rows cannot be read again"]
    listed = {split.id for split in spec.splits}
    wanted: Mapping[str, object] = begun.splits if reached is None else {**begun.splits, **reached.splits}
    lines = []
    for id in sorted(wanted):
        known = begun.splits.get(id) or (None if reached is None else reached.splits.get(id))
        done = reached is not None and id in reached.splits and reached.splits[id].rows == _rows(begun, id)
        if id not in listed and not done and not (known is not None and known.payload):
            lines.append(f"{where}: split {id!r} is not there any more")
    if not lines and isinstance(source, RetainingSource):
        positions = {
            split.id: bytes(begun.splits[split.id].position) if split.id in begun.splits else None
            for split in spec.splits
            if split.id not in begun.finished and (reached is None or split.id in wanted)
        }
        lines = [f"{where}: {line}" for line in source.no_longer_there(positions)]
    return lines


def _rows(progress: RestoredSource, id: str) -> int:
    return progress.splits[id].rows if id in progress.splits else 0


class RecordingSink(Operator):
    def __init__(self, name: str, told: Callable[[str, Batch], None]) -> None:
        self._name = name
        self._told = told

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if len(batch):
            self._told(self._name, batch)


def without_sinks(graph: JobGraph, told: Callable[[str, Batch], None]) -> JobGraph:
    def harmless(spec: OperatorSpec) -> OperatorSpec:
        if not spec.is_sink:
            return spec
        make = partial(RecordingSink, spec.name, told)
        return OperatorSpec(spec.name, spec.kind, make, describe="records what comes to it")

    chains = tuple(replace(chain, operators=tuple(map(harmless, chain.operators))) for chain in graph.chains)
    return replace(graph, chains=chains)


def up_to(graph: JobGraph, target: OperatorPlace, watch: Callable[[Operator], Operator]) -> JobGraph:
    """Graph of the steps that lead to the `watch`ed target."""
    needed = {target.chain.id}
    todo = [target.chain.id]
    while todo:
        for edge in graph.inputs(todo.pop()):
            if edge.source_chain not in needed:
                needed.add(edge.source_chain)
                todo.append(edge.source_chain)
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    chains = []
    for chain in graph.chains:
        if chain.id not in needed:
            continue
        operators: Sequence[OperatorSpec] = chain.operators
        if chain.id == target.chain.id:
            spec = chain.operators[target.place]
            watched = replace(spec, make=partial(_watched, spec.make, watch))
            operators = (*chain.operators[: target.place], watched)
        chains.append(replace(chain, id=numbers[chain.id], operators=tuple(operators)))
    kept = [edge for edge in graph.edges if edge.target_chain in needed]
    edges: list[Edge] = [
        replace(edge, id=id, source_chain=numbers[edge.source_chain], target_chain=numbers[edge.target_chain])
        for id, edge in enumerate(kept)
    ]
    return replace(graph, chains=tuple(chains), edges=tuple(edges))


def _watched(make: Callable[[], Operator], watch: Callable[[Operator], Operator]) -> Operator:
    return watch(make())


def reading(graph: JobGraph, ranges: Mapping[str, ReadRange]) -> JobGraph:
    chains = tuple(
        chain if chain.source is None else replace(chain, source=replace(chain.source, range=ranges[chain.source.name]))
        for chain in graph.chains
    )
    return replace(graph, chains=chains)
