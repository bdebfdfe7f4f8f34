"""What a job's last decided checkpoint leaves to be committed, from its checkpoints alone: no flow, no coordinator.

The edge of `barrier-runtime transactions`: it reads the decision log, the manifest and, through the sinks that it makes
from what snapshots say of them, settles. A commit does what a stalled process of the last generation might do at any
later time: it is idempotent, and harms no job that starts meanwhile. Dropping is not: it needs a generation of its own
(`coordinator.maintenance.in_doubt`), so that what is dropped is out of reach of whoever ran the job and below whoever
starts it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_value import SINK_VALUE, SinkValue, decode_sink, make_sink
from barrier_runtime.coordinator.log.decided import load_manifest
from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView, complete_of
from barrier_runtime.coordinator.log.lease_record import decode_lease
from barrier_runtime.coordinator.log.manifest import check_files
from barrier_runtime.coordinator.log.reader import LogReader
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.runtime.sinks.global_committer import entries_of_all
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, PendingEntry, decode_pending
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.stored_values import with_values
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths

_POLL_S = 0.1
_READS_AT_ONCE = 8
_WATCH_S = 2.0  # at least, for a run without a lease: two checkpoints should be in its log by then


@dataclass(frozen=True)
class PendingSink:
    """One sink's share. Every entry is decided, and not known to be visible."""

    name: str
    value: SinkValue | None  # None: written by a release that did not say
    entries: tuple[PendingEntry, ...]  # oldest first

    @property
    def kind(self) -> str:
        return (self.value.kind or self.value.class_name) if self.value is not None else "unknown"


@dataclass(frozen=True)
class PendingJob:
    job: str
    checkpoint: int  # the newest that is decided; 0: none
    lineage: str
    token: int  # of the last generation
    log: LogView  # as it was read, not empty
    ended: str  # how the last run ended; "" when nothing says that it did
    interval_s: float  # between its checkpoints
    sinks: tuple[PendingSink, ...]

    @property
    def head(self) -> int:
        """Position of the log's newest record."""
        assert self.log.head is not None
        return self.log.head.position


def read_pending(store: ObjectStore, job: str) -> PendingJob:
    """Raises `InvalidJob` when there is no such job or a newer release wrote it, `Corrupt` when log or manifest are
    damaged."""
    paths = Paths(job)
    view = _read_log(store, paths)
    if view.head is None or view.fence is None:
        raise InvalidJob(
            f"there is no job {job} below {store.url}: give the URL that the job has as checkpoints=, and its name"
        )
    fence = view.fence.record
    assert isinstance(fence, Fence)
    log = DecisionLog(job, view)
    finish = log.finish
    entry = None if finish is not None and finish.discarded else log.restore_point
    if entry is None:
        sinks: tuple[PendingSink, ...] = ()
        checkpoint = 0
    else:
        record = complete_of(entry)
        checkpoint = record.checkpoint
        manifest = load_manifest(record, partial(get_or_none, store))
        if manifest is None:
            raise Corrupt(
                f"manifest {record.manifest} of checkpoint {checkpoint} is gone from {store.url}: restore it from a "
                "backup of the store"
            )
        check_files(record.manifest, manifest, paths)
        sinks = tuple(_sinks(with_values(store, manifest.operators, _READS_AT_ONCE), job))
        if finish is not None and finish.outcome == "finished":  # which is said when all of them are visible
            sinks = tuple(replace(sink, entries=()) for sink in sinks)
    return PendingJob(
        job=job,
        checkpoint=checkpoint,
        lineage=fence.lineage,
        token=fence.token,
        log=view,
        ended=finish.outcome if finish else "",
        interval_s=fence.spec.checkpoints.interval_ms / 1000,
        sinks=sinks,
    )


def _read_log(store: ObjectStore, paths: Paths) -> LogView:
    return LogReader(store, paths).read()


def _sinks(operators: Sequence[OperatorSnapshot], job: str) -> Iterator[PendingSink]:
    for name in sorted({each.operator for each in operators if PENDING_VALUE in each.values}):
        mine = [each for each in operators if each.operator == name and PENDING_VALUE in each.values]
        where = f"job {job!r}, sink {name!r}"
        sets = [decode_pending(each.values[PENDING_VALUE], f"{where}, subtask {each.subtask}") for each in mine]
        said = next((each.values[SINK_VALUE] for each in mine if SINK_VALUE in each.values), None)
        yield PendingSink(name, None if said is None else decode_sink(said, where), entries_of_all(sets))


def rows_told(committable: bytes) -> int | None:
    """How many rows a committable says it holds; None when it does not say."""
    try:
        said = msgspec.json.decode(committable)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    if isinstance(said.get("rows"), int):
        return int(said["rows"])
    parts = [part["rows"] for value in said.values() if isinstance(value, list) for part in value if _tells_rows(part)]
    return sum(parts) if parts else None


def _tells_rows(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("rows"), int)


# ---------------------------------------------------------------- who is running


def running(store: ObjectStore, pending: PendingJob, sleep: Callable[[float], None] = time.sleep) -> str:
    """Who leads the job now, as far as watching its log and lease for a while tells; "" when nobody seems to.

    A job that takes no checkpoints, because it only waits for its last commits, is not noticed."""
    if pending.ended:
        return ""
    paths = Paths(pending.job)
    first = get_or_none(store, paths.lease)
    watch_s, leader = max(_WATCH_S, 2 * pending.interval_s), "a coordinator"
    if first is not None:
        try:
            lease = decode_lease(paths.lease, first)
        except (Corrupt, InvalidJob):
            lease = None
        if lease is not None and not lease.released:
            watch_s, leader = lease.lease_ms / 1000, f"daemon {lease.leader} at {lease.http}"
    deadline = time.monotonic() + watch_s
    while time.monotonic() < deadline:
        if get_or_none(store, paths.log_record(pending.head + 1)) is not None:
            return leader
        if get_or_none(store, paths.lease) != first:
            return leader
        sleep(_POLL_S)
    return ""


# ---------------------------------------------------------------- settling


@dataclass(frozen=True)
class InDoubtResolver:
    """Settles one job's pending transactions. `factories`: for sinks that are none of ours, by name; `overrides`:
    settings by sink, in place of or beside what the snapshot says."""

    store: ObjectStore
    pending: PendingJob
    factories: Mapping[str, Callable[[], TwoPhaseCommitSink]]
    overrides: Mapping[str, Mapping[str, Any]]

    def opened(self, sink: PendingSink, token: int) -> TwoPhaseCommitSink:
        """As the only subtask: then all entries are its own. Raises `InvalidJob` when it cannot be made."""
        made = self._made(sink)
        made.open(
            SinkContext(
                job=self.pending.job,
                sink=sink.name,
                token=token,
                subtask=0,
                parallelism=1,
                make_store=open_store,
                job_store=self.store,
                lineage=self.pending.lineage,
            )
        )
        return made

    def _made(self, sink: PendingSink) -> TwoPhaseCommitSink:
        if sink.name in self.factories:
            return self.factories[sink.name]()
        if sink.value is None or not sink.value.kind:
            raise InvalidJob(
                f"sink {sink.name!r} is a {sink.kind}, which is none of ours: say how to make one with "
                f"--sink {sink.name}=file.py:factory"
            )
        return make_sink(sink.value.kind, {**sink.value.settings, **self.overrides.get(sink.name, {})})

    def commit(self, sink: PendingSink, told: Callable[[PendingEntry], None]) -> None:
        """Make all of it visible, oldest first. Raises what the sink raises; repeating it does no harm."""
        made = self.opened(sink, self.pending.token)
        try:
            for entry in sink.entries:
                made.commit(entry.committable)
                told(entry)
            self._show(made, sink)
        finally:
            made.close()

    def clean_up(self, sink: PendingSink, token: int) -> None:
        """Commit all that is decided and drop what was left undecided, as the job's next generation would. `token`: of
        a generation that fenced the last one."""
        made = self.opened(sink, token)
        try:
            made.recover([entry.committable for entry in sink.entries])
            self._show(made, sink)
        finally:
            made.close()

    def drop(self, sink: PendingSink, token: int, told: Callable[[PendingEntry], None]) -> None:
        """Abort what is decided: its rows are lost, unless they are visible already. `token`: as for `clean_up`."""
        made = self.opened(sink, token)
        try:
            for entry in sink.entries:
                made.abort(entry.committable)
                told(entry)
        finally:
            made.close()

    def _show(self, made: TwoPhaseCommitSink, sink: PendingSink) -> None:
        if made.global_committer and sink.entries:
            made.commit_globally(self.pending.checkpoint, [entry.committable for entry in sink.entries])
