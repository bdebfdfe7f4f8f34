"""Finds a stored checkpoint or savepoint by its URL, for readers. Blocking."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from barrier_runtime.coordinator.log.decision_log import LogEntry, LogView, complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, is_kept, load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import FIRST_POSITION, Complete, base_of
from barrier_runtime.coordinator.log.restore_choice import shown_kept
from barrier_runtime.coordinator.pins import CheckpointPin, pins_of
from barrier_runtime.coordinator.savepoint_files import find_savepoint
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.read_only import ReadOnlyStore
from barrier_runtime.state.store.urls import shown

log = logging.getLogger("barrier_runtime.state_tables")


@dataclass(frozen=True)
class StoredCheckpoint:
    """Checkpoint in a read-only `store`. `decided`: the record; None: a savepoint."""

    store: ObjectStore
    manifest: Manifest
    what: str
    decided: LogEntry | None = None


def find_checkpoint(url: str, job: str = "", checkpoint: int | None = None) -> StoredCheckpoint:
    """Finds the savepoint in `url`, or checkpoint `checkpoint` (None: the newest) of `job`.

    Raises `InvalidJob` if there is none, `Corrupt` if it is damaged.
    """
    store = ReadOnlyStore(open_existing_store(url))
    if not job:
        savepoint = find_savepoint(url)
        if savepoint is None:
            raise InvalidJob(f"{shown(url)} is not a savepoint: for a checkpoint give the job's name as well")
        return StoredCheckpoint(store, savepoint.taken, f"savepoint {shown(url)}")
    return _read(store, job, _completed(store, url, job, checkpoint))


def pinned_checkpoint(
    url: str, job: str, checkpoint: int | None = None
) -> tuple[StoredCheckpoint, CheckpointPin | None]:
    """Finds a checkpoint of a job that may run, and pins its files.

    The pin is None without permission to write.
    """
    store = ReadOnlyStore(open_existing_store(url))
    return _pinned(store, url, job, lambda: _completed(store, url, job, checkpoint))


def pinned_again(url: str, job: str, decided: LogEntry) -> tuple[StoredCheckpoint, CheckpointPin | None]:
    """Pins a checkpoint that another process pinned, even if the log lacks the record by now."""
    store = ReadOnlyStore(open_existing_store(url))
    return _pinned(store, url, job, lambda: _still_readable(store, job, decided))


def _pinned(
    store: ObjectStore, url: str, job: str, find: Callable[[], LogEntry]
) -> tuple[StoredCheckpoint, CheckpointPin | None]:
    known = find()
    try:
        pin = CheckpointPin(open_existing_store(url), Paths(job), complete_of(known).checkpoint)
    except InvalidJob as error:
        log.warning("what is read of job %s is not pinned, and may be dropped meanwhile: %s", job, error)
        return _read(store, job, known), None
    try:
        return _read(store, job, find()), pin  # the newest now is pinned
    except BaseException:
        pin.release()
        raise


def _completed(store: ObjectStore, url: str, job: str, checkpoint: int | None) -> LogEntry:
    paths = Paths(check_job_id(job))
    view = read_log(store, paths, restore=checkpoint, dropped=checkpoint is not None)
    entry = next((each for each in view.completes if checkpoint in (None, complete_of(each).checkpoint)), None)
    if entry is None:
        raise _missing(view, store, url, job, checkpoint)
    _check_readable(store, job, entry, view)
    return entry


def _missing(view: LogView, store: ObjectStore, url: str, job: str, checkpoint: int | None) -> InvalidJob:
    newest = complete_of(view.completes[0]).checkpoint if view.completes else 0
    if checkpoint is not None and checkpoint < newest and view.head and base_of(view.head.record) > FIRST_POSITION:
        return _not_kept(store, job, checkpoint)
    wanted, known = "" if checkpoint is None else f" {checkpoint}", f"; its newest is {newest}" if newest else ""
    return InvalidJob(f"job {job} has no completed checkpoint{wanted} in {shown(url)}{known}")


def _still_readable(store: ObjectStore, job: str, decided: LogEntry) -> LogEntry:
    _check_readable(store, job, decided, read_log(store, Paths(check_job_id(job))))
    return decided


def _check_readable(store: ObjectStore, job: str, entry: LogEntry, view: LogView) -> None:
    record = complete_of(entry)
    if not is_kept(entry.position, view.kept) and not _is_pinned(store, job, record):
        raise _not_kept(store, job, record.checkpoint)


def _is_pinned(store: ObjectStore, job: str, record: Complete) -> bool:
    """Returns whether the checkpoint, or an older one, was pinned before the drop: then the files exist."""
    now_ms = time.time_ns() // 1_000_000
    return any(pin.checkpoint <= record.checkpoint and pin.until_ms >= now_ms for pin in pins_of(store, Paths(job)))


def _named(job: str, checkpoint: int) -> str:
    return f"checkpoint {checkpoint} of job {job}"


def _not_kept(store: ObjectStore, job: str, checkpoint: int) -> InvalidJob:
    kept = shown_kept(read_log(store, Paths(job), kept=True))
    return InvalidJob(
        f"{_named(job, checkpoint)} is not kept any more{kept}: read a newer one, keep more with retained=, or a "
        "savepoint"
    )


def _read(store: ObjectStore, job: str, entry: LogEntry) -> StoredCheckpoint:
    record = complete_of(entry)
    what = _named(job, record.checkpoint)
    manifest = load_manifest(record, partial(get_or_none, store))
    if manifest is None:
        raise _not_kept(store, job, record.checkpoint)
    return StoredCheckpoint(store, manifest, what, entry)
