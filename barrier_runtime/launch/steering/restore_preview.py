"""What a start of a job would restore, and whether it would be refused. Writes nothing. Blocking; for people."""

from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import verified_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.restore_choice import start_run
from barrier_runtime.coordinator.log.restore_diff import RestoreDiff
from barrier_runtime.coordinator.log.savepoint_choice import GoOn, import_run_id, savepoint_choice
from barrier_runtime.coordinator.savepoints.files import check_whole, named, read_savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.steering.savepoints import is_savepoint_url
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.paths import Paths


def restore_preview(spec: JobSpec, options: JobOptions) -> tuple[str, bool]:
    """A page, and whether the job would start. Raises `InvalidJob` where there is nothing to restore."""
    if options.checkpoints is None:
        raise InvalidJob("what a start would restore is in the job's folder: give checkpoints=")
    store = open_existing_store(options.checkpoints)
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
            return _page(RestoreDiff(spec, taken, what), what)
    wanted = int(options.restore) if options.restore.isdigit() else None
    view = read_log(store, paths.log_record, completes=1, restore=wanted, run_id=spec.run_id)
    entry = start_run(spec, view).entry
    if entry is None:
        return "restore: nothing; the job begins without state\n", True
    record = complete_of(entry)
    what = f"checkpoint {record.checkpoint} of job {spec.job}"
    manifest = verified_manifest(record.manifest, store.get(record.manifest), record.sha256)
    return _page(RestoreDiff(spec, manifest, what), what)


def _page(diff: RestoreDiff, what: str) -> tuple[str, bool]:
    return f"restore: {what}\n{diff}", not diff.refused
