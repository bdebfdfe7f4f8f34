"""What a replay reads: of each source, from the positions of one checkpoint to those of a later one.

Before anything is read it is asked whether all of that can be had again; what cannot is named, part by part.
"""

from collections.abc import Collection, Mapping, Sequence

from barrier_runtime.connectors.read_range import OpenRange, ReadRange
from barrier_runtime.connectors.source import RedeliveringSource, RetainingSource
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.graph.job_graph import Chain, JobGraph, SourceSpec
from barrier_runtime.runtime.sources.progress import RestoredSource
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.stored_values import with_values
from barrier_runtime.state_tables.finding import StoredCheckpoint

_READS_AT_ONCE = 8


def read_ranges(
    graph: JobGraph,
    before: StoredCheckpoint | None,
    until: StoredCheckpoint | None,
    needed: Collection[str] | None = None,
) -> dict[str, ReadRange]:
    """By source, of those `needed` (None: all) in the whole flow's graph. `before` None: from the first row on; `until`
    None: as far as there is. Raises `InvalidJob` with all that cannot be read again."""
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
    """A line per part that cannot be read again."""
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
