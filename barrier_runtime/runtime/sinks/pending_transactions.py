"""Transactions left to commit by a job's last decided checkpoint, read from checkpoints alone.

A commit is idempotent, and harmless to a job that starts meanwhile. Dropping needs a separate generation
(`coordinator.maintenance.in_doubt`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView, complete_of
from barrier_runtime.coordinator.log.lease import decode_lease
from barrier_runtime.coordinator.log.manifest import check_files, load_manifest
from barrier_runtime.coordinator.log.reader import LogReader
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.status.history import decode_history, past_status
from barrier_runtime.runtime.sinks.global_committer import entries_of_all
from barrier_runtime.runtime.sinks.pending_set import (
    PENDING_VALUE,
    SINK_VALUE,
    PendingEntry,
    SinkValue,
    decode_pending,
    decode_sink,
    make_sink,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import with_values
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths

_POLL_S = 0.1
_READS_AT_ONCE = 8
_WATCH_S = 2.0  # minimum, for a run without a lease: its log should get two checkpoints by then


@dataclass(frozen=True)
class PendingSink:
    """Decided transactions of a sink, not known to be visible."""

    name: str
    value: SinkValue | None  # None: written by a release that did not describe sinks
    entries: tuple[PendingEntry, ...]

    @property
    def kind(self) -> str:
        return (self.value.kind or self.value.class_name) if self.value is not None else "unknown"


@dataclass(frozen=True)
class PendingJob:
    job: str
    checkpoint: int  # newest decided; 0: none
    lineage: str
    token: int
    log: LogView
    ended: str  # outcome of the last run; "" if the log has none
    interval_s: float  # between checkpoints
    sinks: tuple[PendingSink, ...]

    @property
    def head(self) -> int:
        assert self.log.head is not None
        return self.log.head.position


def read_pending(store: ObjectStore, job: str) -> PendingJob:
    """Raises `InvalidJob` for an unknown job or newer format, `Corrupt` for damage."""
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
        if finish is not None and finish.shows(checkpoint):
            sinks = tuple(replace(sink, entries=()) for sink in sinks)
    return PendingJob(
        job=job,
        checkpoint=checkpoint,
        lineage=fence.lineage,
        token=fence.token,
        log=view,
        ended=_outcome(store, paths, view),
        interval_s=fence.spec.checkpoints.interval_ms / 1000,
        sinks=sinks,
    )


def _read_log(store: ObjectStore, paths: Paths) -> LogView:
    return LogReader(store, paths).read()


def _outcome(store: ObjectStore, paths: Paths, view: LogView) -> str:
    stored, history = get_or_none(store, paths.history), None
    if stored is not None:
        with suppress(Corrupt, InvalidJob):
            history = decode_history(paths.history, stored)
    past = past_status(view, history, None)
    return "" if past is None else past.outcome or ""


def _sinks(operators: Sequence[OperatorSnapshot], job: str) -> Iterator[PendingSink]:
    for name in sorted({each.operator for each in operators if PENDING_VALUE in each.values}):
        mine = [each for each in operators if each.operator == name and PENDING_VALUE in each.values]
        where = f"job {job!r}, sink {name!r}"
        sets = [decode_pending(each.values[PENDING_VALUE], f"{where}, subtask {each.subtask}") for each in mine]
        said = next((each.values[SINK_VALUE] for each in mine if SINK_VALUE in each.values), None)
        yield PendingSink(name, None if said is None else decode_sink(said, where), entries_of_all(sets))


def rows_told(committable: bytes) -> int | None:
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


def running(store: ObjectStore, pending: PendingJob, sleep: Callable[[float], None] = time.sleep) -> str:
    """Leader of the job, by log and lease; "" if nobody seems to lead.

    Misses a job that takes no checkpoints and only waits for the last commits.
    """
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


@dataclass(frozen=True)
class InDoubtResolver:
    """`factories`: by name, for users' sinks. `overrides`: settings by sink, over the snapshot's."""

    store: ObjectStore
    pending: PendingJob
    factories: Mapping[str, Callable[[], TwoPhaseCommitSink]]
    overrides: Mapping[str, Mapping[str, Any]]

    def opened(self, sink: PendingSink, token: int) -> TwoPhaseCommitSink:
        """Opens the only subtask, which owns all entries. Raises `InvalidJob` if no sink can be made."""
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
        """Commits all entries, oldest first; may be repeated. Raises the sink's errors."""
        made = self.opened(sink, self.pending.token)
        try:
            for entry in sink.entries:
                made.commit(entry.committable)
                told(entry)
            self._show(made, sink)
        finally:
            made.close()

    def clean_up(self, sink: PendingSink, token: int) -> None:
        """Commits decided entries, drops others. `token`: of a generation that fenced the last."""
        made = self.opened(sink, token)
        try:
            made.recover([entry.committable for entry in sink.entries])
            self._show(made, sink)
        finally:
            made.close()

    def drop(self, sink: PendingSink, token: int, told: Callable[[PendingEntry], None]) -> None:
        """Aborts decided entries: their rows are lost, unless visible. `token`: as for `clean_up`."""
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
