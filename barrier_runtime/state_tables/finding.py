"""Finds a stored checkpoint or savepoint by its URL, for readers. Blocking."""

import logging
import time
from dataclasses import dataclass
from functools import partial

from barrier_runtime.coordinator.log.decided import is_kept, load_manifest
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import Complete
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
    """A checkpoint in a read-only `store`. `what`: name for messages."""

    store: ObjectStore
    manifest: Manifest
    what: str


def find_checkpoint(url: str, job: str = "", checkpoint: int | None = None) -> StoredCheckpoint:
    """Finds a savepoint in `url`, or with `job` the job's newest checkpoint, or number `checkpoint`.

    Raises `InvalidJob` if there is none, `Corrupt` if it is damaged."""
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
    """Finds a checkpoint of a job that may run, and pins it: its files are kept until the pin is released.

    The pin is None if this process may not write there."""
    store = ReadOnlyStore(open_existing_store(url))
    known = _completed(store, url, job, checkpoint)
    try:
        pin = CheckpointPin(open_existing_store(url), Paths(job), known.checkpoint)
    except InvalidJob as error:
        log.warning("what is read of job %s is not pinned, and may be dropped meanwhile: %s", job, error)
        return _read(store, job, known), None
    try:
        return _read(store, job, _completed(store, url, job, checkpoint)), pin  # the newest now is pinned
    except BaseException:
        pin.release()
        raise


def _completed(store: ObjectStore, url: str, job: str, checkpoint: int | None) -> Complete:
    view = read_log(store, Paths(check_job_id(job)), restore=checkpoint)
    found = [complete_of(entry) for entry in view.completes]
    entry = next((each for each in view.completes if checkpoint in (None, complete_of(each).checkpoint)), None)
    if entry is None:
        newest = f"; its newest is {found[0].checkpoint}" if found else ""
        wanted = "" if checkpoint is None else f" {checkpoint}"
        raise InvalidJob(f"job {job} has no completed checkpoint{wanted} in {shown(url)}{newest}")
    if not is_kept(entry.position, view.kept) and not _is_pinned(store, job, complete_of(entry)):
        raise _not_kept(_named(job, complete_of(entry)))
    return complete_of(entry)


def _is_pinned(store: ObjectStore, job: str, record: Complete) -> bool:
    """True if a reader pinned the checkpoint, or an older one, before the drop: the files still exist."""
    now_ms = time.time_ns() // 1_000_000
    return any(pin.checkpoint <= record.checkpoint and pin.until_ms >= now_ms for pin in pins_of(store, Paths(job)))


def _named(job: str, record: Complete) -> str:
    return f"checkpoint {record.checkpoint} of job {job}"


def _not_kept(what: str) -> InvalidJob:
    return InvalidJob(f"{what} is not kept any more: read a newer one, keep more with retained=, or a savepoint")


def _read(store: ObjectStore, job: str, record: Complete) -> StoredCheckpoint:
    what = _named(job, record)
    manifest = load_manifest(record, partial(get_or_none, store))
    if manifest is None:
        raise _not_kept(what)
    return StoredCheckpoint(store, manifest, what)
