"""What a start of a job would restore, and whether it would be refused. Writes nothing. Blocking; for people."""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import msgspec

from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, verified_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.restore_choice import start_run
from barrier_runtime.coordinator.log.restore_diff import RestoreDiff
from barrier_runtime.coordinator.log.savepoint_choice import GoOn, import_run_id, savepoint_choice
from barrier_runtime.coordinator.savepoints.files import check_whole, named, read_savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.steering.savepoints import is_savepoint_url
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, decode_pending
from barrier_runtime.runtime.sources.progress import SPLITS_VALUE, SourceProgress, SplitProgress
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.stored_values import with_values
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_as_found, open_existing_store
from barrier_runtime.state.store.paths import Paths

_READS_AT_ONCE = 8
_SHOWN = 3  # splits of a source, those of which the fewest rows were read
_PROGRESS = msgspec.json.Decoder(SourceProgress)


def restore_preview(spec: JobSpec, options: JobOptions) -> tuple[str, bool]:
    """A page, and whether the job would start. Raises `InvalidJob` where there is nothing to restore."""
    if options.checkpoints is None:
        raise InvalidJob("what a start would restore is in the job's folder: give checkpoints=")
    store = open_as_found(options.checkpoints)
    paths = Paths(spec.job)
    if is_savepoint_url(options.restore):
        savepoint = read_savepoint(options.restore)
        taken = savepoint.taken
        what = named(options.restore, savepoint)
        view = read_log(store, paths.log_record, completes=1, restore=None, run_id=import_run_id(savepoint))
        try:
            check_whole(options.restore, savepoint)
            choice = savepoint_choice(spec, savepoint, view)
        except InvalidJob as error:
            return f"restore: {what}\nrefused: {error}\n", False
        if not isinstance(choice, GoOn):
            return _page(RestoreDiff(spec, taken, what), what, taken, open_existing_store(options.restore))
    wanted = int(options.restore) if options.restore.isdigit() else None
    view = read_log(store, paths.log_record, completes=1, restore=wanted, run_id=spec.run_id)
    start = start_run(spec, view)
    entry = start.entry
    if entry is None:
        return "restore: nothing; the job begins without state\n", True
    record = complete_of(entry)
    what = f"checkpoint {record.checkpoint} of job {spec.job}"
    manifest = verified_manifest(record.manifest, store.get(record.manifest), record.sha256)
    return _page(RestoreDiff(spec, manifest, what), what, manifest, store, settled=start.settled)


def _page(
    diff: RestoreDiff, what: str, manifest: Manifest, store: ObjectStore, *, settled: bool = False
) -> tuple[str, bool]:
    ago = timedelta(seconds=max(0, round(time.time() - manifest.created_wall_ms / 1000)))
    read, left = _sources(store, manifest), () if settled else _transactions(store, manifest)
    lines = "".join(f"  {line}\n" for line in (*read, *(left or ("transactions to commit: none",))))
    return f"restore: {what}, {ago} old\n{lines}{diff}", not diff.refused


def _sources(store: ObjectStore, manifest: Manifest) -> Iterator[str]:
    """How far each was read. What has come there since, only its server knows."""
    splits: dict[str, dict[str, SplitProgress]] = {}
    ended: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for snapshot in _having(store, manifest, SPLITS_VALUE):
        progress = _PROGRESS.decode(snapshot.values[SPLITS_VALUE])
        splits.setdefault(snapshot.operator, {}).update(progress.splits)
        ended[snapshot.operator] += progress.finished + len(progress.done)
        rows[snapshot.operator] += progress.done_rows
    for source, known in sorted(splits.items()):
        finished = ended[source] + sum(each.finished for each in known.values())
        read = rows[source] + sum(each.rows for each in known.values())
        reached = max((each.greatest_ms for each in known.values() if each.rows), default=0)
        at = f", event time {_time(reached)}" if reached > 0 else ""
        going = sorted((each.rows, split) for split, each in known.items() if not each.finished)
        yield f"source {source}: {read:,} rows read, splits that go on: {len(going)}, that ended: {finished}{at}"
        for _, split in going[:_SHOWN]:
            yield f"  {split}: {known[split].rows:,} rows, position {bytes(known[split].position).decode()}"
        if len(going) > _SHOWN:
            yield f"  and {len(going) - _SHOWN} more, each with as many rows or more"


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
