"""What the coordinator gives a slot of a checkpoint: the snapshots themselves, or the manifest that holds them.

Reading a manifest blocks: on worker threads only.
"""

from barrier_runtime.coordinator.log.manifest import check_files, verified_manifest
from barrier_runtime.coordinator.wire.messages import ManifestRef
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths


def snapshots_in(store: ObjectStore, paths: Paths, ref: ManifestRef, checkpoint: int) -> tuple[OperatorSnapshot, ...]:
    """All snapshots of the manifest of `checkpoint` that the coordinator named. Raises `Corrupt` naming the object when
    it is gone, not what was decided, or another checkpoint's."""
    data = get_or_none(store, ref.key)
    if data is None:
        raise Corrupt(
            f"manifest {store.url}/{ref.key} of checkpoint {checkpoint} is gone: restore it from a backup of the store"
        )
    manifest = verified_manifest(ref.key, data, ref.sha256)
    if (manifest.job, manifest.checkpoint) != (paths.job, checkpoint):
        raise Corrupt(
            f"manifest {store.url}/{ref.key} is of job {manifest.job}, checkpoint {manifest.checkpoint}, and not of "
            f"job {paths.job}, checkpoint {checkpoint}: restore it from a backup of the store"
        )
    check_files(ref.key, manifest, paths)
    return manifest.operators
