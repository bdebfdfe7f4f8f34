"""Snapshots that a slot restores. Reading a manifest blocks."""

from barrier_runtime.coordinator.log.decided import inline_data
from barrier_runtime.coordinator.log.manifest import check_files, verified_manifest
from barrier_runtime.coordinator.log.records import Complete, decode_record
from barrier_runtime.coordinator.log.restore_choice import snapshots_for_slot
from barrier_runtime.coordinator.wire.messages import CommitGlobally, ManifestRef
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, without_own
from barrier_runtime.state.snapshots.stored_values import with_values
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths


def snapshots_in(store: ObjectStore, paths: Paths, ref: ManifestRef, checkpoint: int) -> tuple[OperatorSnapshot, ...]:
    """Raises `Corrupt` if the manifest is missing or of another checkpoint."""
    data = get_or_none(store, ref.key)
    if data is not None and paths.log_position(ref.key) is not None:
        data = _inside(ref.key, data)
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


def _inside(key: str, data: bytes) -> bytes | None:
    record = decode_record(key, data)
    return inline_data(record) if isinstance(record, Complete) else None


def restored_in(
    store: ObjectStore, paths: Paths, ref: ManifestRef, checkpoint: int, graph: JobGraph, slot: int
) -> tuple[OperatorSnapshot, ...]:
    found = snapshots_in(store, paths, ref, checkpoint)
    sources = {chain.source.name for chain in graph.chains if chain.source is not None}
    present = sources | {spec.name for chain in graph.chains for spec in chain.operators}
    known = tuple(each for each in found if each.operator in present)
    return snapshots_for_slot(known, slot, graph.parallelism)


def committables(store: ObjectStore, paths: Paths, at_once: int, order: CommitGlobally) -> list[OperatorSnapshot]:
    snapshots = order.snapshots
    if order.manifest is not None:
        found = snapshots_in(store, paths, order.manifest, order.checkpoint)
        snapshots = tuple(without_own(each) for each in found if each.operator == order.operator)
    return with_values(store, snapshots, at_once)
