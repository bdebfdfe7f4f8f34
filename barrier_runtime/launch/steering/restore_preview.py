"""What a start of a job would restore, and whether it would be refused. Writes nothing. Blocking; for people."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial

from barrier_runtime.connectors.source import MeasuringSource
from barrier_runtime.coordinator.log.decided import load_manifest
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.restore_choice import Lineage, not_kept, start_run
from barrier_runtime.coordinator.log.restore_diff import RestoreDiff
from barrier_runtime.coordinator.log.savepoint_choice import Import
from barrier_runtime.coordinator.savepoints.files import check_whole, find_savepoint, named
from barrier_runtime.coordinator.savepoints.importing import WantedSavepoint, wanted_savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.steering.savepoints import is_savepoint_url
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, decode_pending
from barrier_runtime.runtime.sources.assignment import check_none_lost
from barrier_runtime.runtime.sources.progress import (
    NO_POSITION,
    SPLITS_VALUE,
    RestoredSource,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.stored_values import with_values
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.open import open_as_found, open_existing_store
from barrier_runtime.state.store.paths import Paths

_READS_AT_ONCE = 8
_SHOWN = 3  # splits of a source, those of which the fewest rows were read


def restore_preview(spec: JobSpec, options: JobOptions, sources: Sequence[SourceSpec]) -> tuple[str, bool]:
    """A page, and whether the job would start. `sources`: those of the flow, with what they list now. Raises
    `InvalidJob` where there is nothing to restore."""
    if options.checkpoints is None:
        raise InvalidJob("what a start would restore is in the job's folder: give checkpoints=")
    store = open_as_found(options.checkpoints)
    paths = Paths(spec.job)
    if is_savepoint_url(options.restore):
        begins = _begins_with(options.restore, store, spec)
        if isinstance(begins, str):
            return begins, False
        if isinstance(begins.choice, Import):
            assert begins.savepoint is not None
            taken, folder = begins.savepoint.taken, open_existing_store(options.restore)
            return _page(RestoreDiff(spec, taken, begins.what), begins.what, taken, folder, sources)
    wanted = int(options.restore) if options.restore.isdigit() else None
    view = read_log(store, paths, restore=wanted, run_id=spec.run_id)
    start = start_run(spec, view)
    entry = start.entry
    if entry is None:
        return "restore: nothing; the job begins without state\n", True
    record = complete_of(entry)
    what = f"checkpoint {record.checkpoint} of job {spec.job}"
    manifest = load_manifest(record, partial(get_or_none, store))
    if manifest is None:
        if start.lineage is Lineage.NEW:
            raise InvalidJob(not_kept(spec.job, record.checkpoint))
        raise Corrupt(f"manifest {record.manifest} of {what} is missing: restore it from a backup")
    return _page(
        RestoreDiff(spec, manifest, what, settled=start.settled), what, manifest, store, sources, settled=start.settled
    )


def _begins_with(url: str, store: ObjectStore, spec: JobSpec) -> WantedSavepoint | str:
    """What the savepoint in `url` means for the job, or the page that says why it is refused."""
    try:
        wanted = wanted_savepoint(store, url, spec)
        if isinstance(wanted.choice, Import):
            assert wanted.savepoint is not None
            check_whole(url, wanted.savepoint)
    except InvalidJob as error:
        savepoint = find_savepoint(url)
        if savepoint is None:
            raise
        return f"restore: {named(url, savepoint)}\nrefused: {error}\n"
    return wanted


def _page(
    diff: RestoreDiff,
    what: str,
    manifest: Manifest,
    store: ObjectStore,
    sources: Sequence[SourceSpec],
    *,
    settled: bool = False,
) -> tuple[str, bool]:
    ago = timedelta(seconds=max(0, round(time.time() - manifest.created_wall_ms / 1000)))
    restored = restored_sources(store, manifest)
    read = _sources(restored, {each.name: each for each in sources})
    left = () if settled else _transactions(store, manifest)
    lines = "".join(f"  {line}\n" for line in (*read, *(left or ("transactions to commit: none",))))
    page, refused = str(diff), bool(diff.refused)
    try:
        check_splits(restored, sources)
    except InvalidJob as error:
        page, refused = page if refused else f"{page}refused: {what}: {error}\n", True
    return f"restore: {what}, {ago} old\n{lines}{page}", not refused


def check_splits(restored: Mapping[str, RestoredSource], sources: Sequence[SourceSpec]) -> None:
    """Raises `InvalidJob` when one of `sources` lists what cannot be gone on with."""
    for spec in sources:
        if spec.name in restored:
            check_none_lost(spec.source, spec.splits, restored[spec.name], f"source {spec.name!r}")


def restored_sources(store: ObjectStore, manifest: Manifest) -> Mapping[str, RestoredSource]:
    """By name, as one subtask would go on with all."""
    having: dict[str, list[OperatorSnapshot]] = {}
    for snapshot in _having(store, manifest, SPLITS_VALUE):
        having.setdefault(snapshot.operator, []).append(snapshot)
    return {
        source: RestoredSource(tuple(snapshots), 0, 1, f"source {source!r}")
        for source, snapshots in sorted(having.items())
    }


def _sources(sources: Mapping[str, RestoredSource], specs: Mapping[str, SourceSpec]) -> Iterator[str]:
    """How far each was read, and how much there is to be read where the source can tell."""
    for source, restored in sources.items():
        read = restored.done_rows + sum(each.rows for each in restored.splits.values())
        reached = max([restored.done_ms, *(each.greatest_ms for each in restored.splits.values() if each.rows)])
        at = f", event time {_time(reached)}" if reached > 0 else ""
        ended, left = len(restored.finished), _left(specs.get(source), restored)
        going = sorted((each.rows, split) for split, each in restored.splits.items())
        yield f"source {source}: {read:,} rows read, splits that go on: {len(going)}, that ended: {ended}{at}{left}"
        for rows, split in going[:_SHOWN]:
            yield f"  {split}: {rows:,} rows, position {bytes(restored.splits[split].position).decode()}"
        if len(going) > _SHOWN:
            yield f"  and {len(going) - _SHOWN} more, each with as many rows or more"


def _left(spec: SourceSpec | None, restored: RestoredSource) -> str:
    """How much has come since, or was not read then."""
    if spec is None or not isinstance(spec.source, MeasuringSource):
        return ""
    going = [split for split in spec.splits if split.id not in restored.finished]
    positions = {id: bytes(at.position) for id, at in restored.splits.items() if at.position != NO_POSITION}
    try:
        left = spec.source.left(going, positions)
    except Unavailable as error:
        return f", what is left is not known ({error})"
    told = [] if left.rows is None else [f"{left.rows:,} rows"]
    told += [] if left.bytes is None else [f"{left.bytes:,} bytes"]
    return f", to be read: at most {' or '.join(told)}" if told else ""


def _transactions(store: ObjectStore, manifest: Manifest) -> tuple[str, ...]:
    """Of a checkpoint. A savepoint has none."""
    found: dict[str, list[int]] = {}
    for each in _having(store, manifest, PENDING_VALUE):
        where = f"sink {each.operator!r}, subtask {each.subtask}"
        entries = decode_pending(each.values[PENDING_VALUE], where).entries
        found.setdefault(each.operator, []).extend(entry.checkpoint for entry in entries)
    return tuple(
        f"transactions to commit: {len(of)} of sink {sink}, of checkpoints {min(of)} to {max(of)}"
        for sink, of in sorted(found.items())
        if of
    )


def _having(store: ObjectStore, manifest: Manifest, value: str) -> tuple[OperatorSnapshot, ...]:
    having = [each for each in manifest.operators if value in each.values or value in each.objects]
    return tuple(with_values(store, having, _READS_AT_ONCE))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
