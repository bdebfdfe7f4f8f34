"""What a slot fetches of a checkpoint before the job moves to it: files of the key groups that it is going to have.

Fetched files stay beside the local copies and are found by what is in them, so a restore fetches only what came since.
It is a saving, nothing else: what cannot be had now is fetched by the restore. Blocking; on worker threads.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from barrier_runtime.coordinator.wire.messages import Prefetch
from barrier_runtime.runtime.given import snapshots_in
from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.state.keys.key_groups import key_group_range
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.snapshots.verified import download_verified
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths

log = logging.getLogger("barrier_runtime.slot")


def prefetch(
    store: ObjectStore, paths: Paths, copies: LocalCopies, directory: Path, slot: int, order: Prefetch, at_once: int = 1
) -> int:
    """Returns how many bytes were fetched, `at_once` files at a time. What fails is left to the restore."""
    try:
        snapshots = snapshots_in(store, paths, order.manifest, order.checkpoint)
    except BarrierRuntimeError as error:  # a newer checkpoint is complete, and this one may be gone
        log.info("slot %d fetches nothing of checkpoint %d: %s", slot, order.checkpoint, error)
        return 0
    wanted = list(wanted_files(snapshots, slot, order.parallelism, order.max_parallelism))
    copies.keep_fetched(wanted)
    missing = {(ref.sha256, ref.size): ref for ref in wanted if copies.place_of(ref) is None}
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def fetch(ref: FileRef) -> int:
        path = directory / f"{ref.sha256}-{order.checkpoint}"
        path.unlink(missing_ok=True)  # of an attempt that failed
        try:
            download_verified(store, ref, path)
        except BarrierRuntimeError as error:
            log.info("slot %d cannot fetch %s yet: %s", slot, ref.name, error)
            return 0
        copies.fetched(ref, path)
        return ref.size

    return sum(in_parallel(fetch, list(missing.values()), at_once))


def wanted_files(
    snapshots: Iterable[OperatorSnapshot], slot: int, parallelism: int, max_parallelism: int
) -> Iterable[FileRef]:
    """Of keyed state, those that hold key groups of subtask `slot`."""
    first, last = key_group_range(slot, parallelism, max_parallelism)
    for snapshot in snapshots:
        keyed = snapshot.keyed
        if keyed is not None and keyed.key_group_first <= last and keyed.key_group_last >= first:
            yield from (ref for ref in keyed.files if ref.inline is None)
