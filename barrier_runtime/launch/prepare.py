"""Preparation of a plan before a run, and the work afterwards, on Spark and in a local run.
Blocking; for the driver.

Order of calls: `prove`, `resolve_in_doubt`, `begin_with_savepoint`, `stage`; `batch_functions` while the job runs;
`unstage` once the job has finished.
"""

import logging
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial

from barrier_runtime.connectors.memory.batch_function import MakeFrame
from barrier_runtime.connectors.source import MeasuringSource, Source, Split, StagedSource
from barrier_runtime.coordinator.checkpoints.failures import RestartPolicy
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import FIRST_POSITION
from barrier_runtime.coordinator.log.restore_choice import Import, Lineage, not_kept, start_run
from barrier_runtime.coordinator.log.restore_diff import RestoreDiff
from barrier_runtime.coordinator.savepoint_files import check_whole, find_savepoint, named
from barrier_runtime.coordinator.savepoint_import import WantedSavepoint, begin_with_savepoint, wanted_savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.compiler import ListSplits, compile_plan
from barrier_runtime.graph.job_graph import JobGraph, SourceSpec
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.batch_functions import BatchFunctions, has_batch_functions
from barrier_runtime.launch.options import JobOptions, is_savepoint_url, job_spec, restart_options
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, decode_pending
from barrier_runtime.runtime.sinks.pending_transactions import InDoubtResolver, PendingJob, PendingSink, read_pending
from barrier_runtime.runtime.sources.assignment import check_none_lost
from barrier_runtime.runtime.sources.progress import (
    NO_POSITION,
    SPLITS_VALUE,
    RestoredSource,
)
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import with_values
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.open import open_as_found, open_existing_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.probe import prove_once
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.texts import counted

log = logging.getLogger("barrier_runtime.job")

_AGAIN_S = 0.2  # before splits are listed again; doubles, …
_AGAIN_MOST_S = 10.0  # … up to this
_TELL_AGAIN_S = 60.0
_READS_AT_ONCE = 8
_SHOWN = 3


class PreparedJob:
    """`graph` is for the slots, `spec` is submitted to the coordinator."""

    def __init__(self, plan: Plan, options: JobOptions) -> None:
        self._plan = plan
        self._options = options
        self._list_splits = patient_listing(options)
        self.graph: JobGraph = self._compiled()
        self.spec: JobSpec = job_spec(self.graph, options)

    def prove(self, store: ObjectStore) -> None:
        prove_once(store, Paths(self.spec.job).probe_prefix, time.time_ns() // 1_000_000)

    def resolve_in_doubt(self, store: ObjectStore) -> None:
        commit_removed_sinks(self.graph, store, self._options)

    def begin_with_savepoint(self, store: ObjectStore) -> None:
        options = self._options
        if is_savepoint_url(options.restore):
            done = begin_with_savepoint(
                store, options.restore, self.spec, options.restore_mode, fits=self._check_splits
            )
            log.info("%s", done)

    def _check_splits(self, store: ObjectStore, manifest: Manifest) -> None:
        sources = [chain.source for chain in self.graph.chains if chain.source is not None]
        check_splits(restored_sources(store, manifest), sources)

    def stage(self, storage_url: str) -> None:
        if stage_sources(self.graph, storage_url, fresh=self._options.restore == "none"):
            self.graph = self._compiled()

    def unstage(self, storage_url: str) -> None:
        unstage_sources(self.graph, storage_url)

    def batch_functions(self, store: ObjectStore, make_frame: MakeFrame) -> BatchFunctions:
        return BatchFunctions(self._plan, store, make_frame)

    @property
    def loaded_from(self) -> str:
        """File and flow that a command has loaded, as "app.py:flow"; else ""."""
        return self._plan.program

    @property
    def has_batch_functions(self) -> bool:
        return has_batch_functions(self._plan)

    def _compiled(self) -> JobGraph:
        options = self._options
        graph = compile_plan(
            self._plan,
            options.parallelism,
            options.max_parallelism,
            mode=options.mode,
            list_splits=self._list_splits,
        )
        return replace(graph, replay=_replay_begins(self._plan, options))


def _replay_begins(plan: Plan, options: JobOptions) -> str:
    if options.checkpoints is None:
        return ""
    program, url = shlex.quote(program_of(plan)), shlex.quote(shown(options.checkpoints))
    return f"barrier-runtime replay {program} --checkpoints {url}"


def program_of(plan: Plan) -> str:
    """ "app.py:flow" if unknown."""
    if plan.program:
        return plan.program
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    named = (name for name, value in list(vars(main).items()) if getattr(value, "plan", None) is plan)
    name = next(named, None) if file else None
    return "app.py:flow" if name is None else f"{file}:{name}"


def patient_listing(options: JobOptions) -> ListSplits:
    """Function that lists splits, waiting for servers as the restart strategy allows."""
    wait_limit_ms = RestartPolicy(restart_options(options)).wait_limit_ms
    allowed = "sets no end" if wait_limit_ms is None else f"allows {wait_limit_ms / 1000:g} s"

    def list_splits(source: Source, parallelism: int) -> Sequence[Split]:
        began_s, told_s, pause_s = time.monotonic(), float("-inf"), _AGAIN_S
        while True:
            try:
                return source.splits(parallelism)
            except Unavailable as error:
                now_s = time.monotonic()
                if wait_limit_ms is not None and now_s - began_s + pause_s > wait_limit_ms / 1000:
                    raise
                if now_s - told_s >= _TELL_AGAIN_S:
                    waited = f"{now_s - began_s:.0f} s so far, restart={options.restart!r} {allowed}"
                    log.warning("the job waits to begin (%s): %s", waited, error)
                    told_s = now_s
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_MOST_S)

    return list_splits


def commit_removed_sinks(graph: JobGraph, store: ObjectStore, options: JobOptions) -> None:
    """Commits the decided transactions of sinks that `graph` lacks, before the job forgets them.

    `allow_non_restored` may not drop decided transactions: their rows count upstream, and no other sink will write
    them. Idempotent, even beside a living run. Raises `InvalidJob` if the commit fails.
    """
    if not options.allow_non_restored or options.restore == "none":
        return
    if get_or_none(store, Paths(graph.name).log_record(FIRST_POSITION)) is None:
        return
    pending = read_pending(store, graph.name)
    present = {name for chain in graph.chain_specs() for name in chain.operators}
    for sink in pending.sinks:
        if sink.entries and sink.name not in present:
            _settle(store, pending, sink, present)


def _settle(store: ObjectStore, pending: PendingJob, sink: PendingSink, present: Collection[str]) -> None:
    try:
        InDoubtResolver(store, pending, {}, {}).commit(sink, lambda entry: None)
    except Exception as error:  # the target's library may raise anything
        raise InvalidJob(
            f"job {pending.job} no longer has sink {sink.name!r} (it has: {', '.join(sorted(present))}). Checkpoint "
            f"{pending.checkpoint} decided transactions of it which are not known to be visible: {len(sink.entries)}. "
            f"They could not be committed: {error}. Keep the sink in the program, fed by nothing, until one more "
            "checkpoint has completed; then leave it out"
        ) from error


def stage_sources(graph: JobGraph, storage: str, *, fresh: bool) -> bool:
    """Returns whether to compile again, for the splits of staged sources."""
    sources = list(_staged(graph))
    for source in sources:
        source.stage(graph.name, storage, fresh=fresh)
    return bool(sources)


def unstage_sources(graph: JobGraph, storage: str) -> None:
    """Errors are only logged: the job's result stands."""
    for source in _staged(graph):
        try:
            source.unstage(graph.name, storage)
        except BarrierRuntimeError as error:
            log.warning("job %s: the staged rows of a source stay behind: %s", graph.name, error)


def has_staged_sources(graph: JobGraph) -> bool:
    return any(True for _ in _staged(graph))


def _staged(graph: JobGraph) -> Iterator[StagedSource]:
    for chain in graph.chains:
        if chain.source is not None and isinstance(chain.source.source, StagedSource):
            yield chain.source.source


def restore_preview(spec: JobSpec, options: JobOptions, sources: Sequence[SourceSpec]) -> tuple[str, bool]:
    """Page for people about a restore, and whether the job would start. Writes nothing.

    Raises `InvalidJob` if there is nothing to restore.
    """
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
    view = read_log(store, paths, restore=wanted, run_id=spec.run_id, kept=True)
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
        page, refused = f"{page}refused: {what}: {error}\n", True
    return f"restore: {what}, {ago} old\n{lines}{page}", not refused


def check_splits(restored: Mapping[str, RestoredSource], sources: Sequence[SourceSpec]) -> None:
    for spec in sources:
        if spec.name in restored:
            check_none_lost(spec.source, spec.splits, restored[spec.name], f"source {spec.name!r}")


def restored_sources(store: ObjectStore, manifest: Manifest) -> Mapping[str, RestoredSource]:
    having: dict[str, list[OperatorSnapshot]] = {}
    for snapshot in _having(store, manifest, SPLITS_VALUE):
        having.setdefault(snapshot.operator, []).append(snapshot)
    return {
        source: RestoredSource(tuple(snapshots), 0, 1, f"source {source!r}")
        for source, snapshots in sorted(having.items())
    }


def _sources(sources: Mapping[str, RestoredSource], specs: Mapping[str, SourceSpec]) -> Iterator[str]:
    for source, restored in sources.items():
        read = restored.done_rows + sum(each.rows for each in restored.splits.values())
        reached = max([restored.done_ms, *(each.greatest_ms for each in restored.splits.values() if each.rows)])
        at = f", event time {_time(reached)}" if reached > 0 else ""
        ended, left = len(restored.finished), _left(specs.get(source), restored)
        going = sorted((each.rows, split) for split, each in restored.splits.items())
        rows_read = counted(read, "row")
        yield f"source {source}: {rows_read} read, splits that go on: {len(going)}, that ended: {ended}{at}{left}"
        for rows, split in going[:_SHOWN]:
            yield f"  {split}: {counted(rows, 'row')}, position {bytes(restored.splits[split].position).decode()}"
        if len(going) > _SHOWN:
            yield f"  and {len(going) - _SHOWN} more, each with as many rows or more"


def _left(spec: SourceSpec | None, restored: RestoredSource) -> str:
    if spec is None or not isinstance(spec.source, MeasuringSource):
        return ""
    going = [split for split in spec.splits if split.id not in restored.finished]
    positions = {id: bytes(at.position) for id, at in restored.splits.items() if at.position != NO_POSITION}
    try:
        left = spec.source.left(going, positions)
    except Unavailable as error:
        return f", what is left is not known ({error})"
    told = [] if left.rows is None else [counted(left.rows, "row")]
    told += [] if left.bytes is None else [f"{left.bytes:,} bytes"]
    return f", to be read: at most {' or '.join(told)}" if told else ""


def _transactions(store: ObjectStore, manifest: Manifest) -> tuple[str, ...]:
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
