"""From a URL to a checkpoint or savepoint as it is stored, for those who only look. Blocking."""

from dataclasses import dataclass

from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, verified_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.savepoints.files import find_savepoint
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.read_only import ReadOnlyStore
from barrier_runtime.state.store.urls import shown


@dataclass(frozen=True)
class StoredCheckpoint:
    """`what`: for messages. Nothing can be written to `store`."""

    store: ObjectStore
    manifest: Manifest
    what: str


def find_checkpoint(url: str, job: str = "", checkpoint: int | None = None) -> StoredCheckpoint:
    """A savepoint's folder, or with `job` the checkpoints that it keeps in `url`, the newest or number `checkpoint`.
    Raises `InvalidJob` when there is none, `Corrupt` when it is damaged."""
    store = ReadOnlyStore(open_existing_store(url))
    if not job:
        savepoint = find_savepoint(url)
        if savepoint is None:
            raise InvalidJob(f"{shown(url)} is no savepoint: for a checkpoint give the job's name as well")
        return StoredCheckpoint(store, savepoint.taken, f"savepoint {shown(url)}")
    paths = Paths(check_job_id(job))
    view = read_log(store, paths.log_record, completes=1, restore=checkpoint, run_id="")
    found = [complete_of(entry) for entry in view.completes]
    record = next((each for each in found if checkpoint in (None, each.checkpoint)), None)
    if record is None:
        newest = f"; its newest is {found[0].checkpoint}" if found else ""
        wanted = "" if checkpoint is None else f" {checkpoint}"
        raise InvalidJob(f"job {job} has no completed checkpoint{wanted} in {shown(url)}{newest}")
    manifest = verified_manifest(record.manifest, store.get(record.manifest), record.sha256)
    return StoredCheckpoint(store, manifest, f"checkpoint {record.checkpoint} of job {job}")
