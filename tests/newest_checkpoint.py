"""The checkpoint that a job's next run restores, by the job's log. The newest manifest file is no evidence: the times
of two files may be equal, or go back with the clock, and the text "9-1" sorts after "10-1".
"""

from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths


def newest_manifest(store: ObjectStore, job: str) -> Manifest:
    view = read_log(store, Paths(job))
    manifest = load_manifest(complete_of(view.completes[0]), store.get)
    assert manifest is not None
    return manifest
