"""Preparation of a slot for a move: fetches files of future key groups, lets compactions end.

The slot answers when running compactions have ended, or after `_REST_S`: their output would be new files in the last
checkpoint. Design: docs/design/rescaling.md.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from barrier_runtime.coordinator.log.manifest import check_files, inline_data, verified_manifest
from barrier_runtime.coordinator.log.records import Complete, decode_record
from barrier_runtime.coordinator.log.restore_choice import snapshots_for_slot
from barrier_runtime.coordinator.wire.messages import CommitGlobally, ManifestRef, Prefetch
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.runtime.host.clock import GenerationTimers
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt
from barrier_runtime.state.keys.key_groups import key_group_range
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot, without_own
from barrier_runtime.state.snapshots.transfer import download_verified, in_parallel, with_values
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths

log = logging.getLogger("barrier_runtime.slot")

_LOOK_S = 0.05
_REST_S = 20.0  # longest wait for a compaction


class Preparing:
    """For the loop's thread. `tell` is called when `done` changes."""

    def __init__(self, resources: SlotResources, tell: Callable[[], None]) -> None:
        self._res = resources
        self._tell = tell
        self._is_fetching = False
        self._following: tuple[Prefetch, GenerationTimers | None] | None = None
        self._parallelism = 0
        self._ended = threading.Event()  # set: no further file of the current order is fetched
        self._forgotten = self._ended  # files of this order are dropped on arrival
        self.done = 0  # newest checkpoint whose files were fetched

    def order(self, order: Prefetch, timers: GenerationTimers | None) -> None:
        if timers is not None:
            timers.move_is_near()
        if self._parallelism != order.parallelism:
            self.done = 0
        if self._is_fetching:
            self._following = order, timers
            return
        self._is_fetching = True
        res = self._res
        at_once = res.transfers_at_once if timers is None else 1  # beside the work of a generation
        folder = res.local_dir / "prefetched"
        self._ended = ended = threading.Event()
        work = partial(prefetch, res.store, res.paths, res.copies, folder, res.slot, order, at_once, ended.is_set)
        until_s = res.clock.monotonic_s() + _REST_S
        res.workers.submit(work, partial(self._fetched, order, timers, until_s, ended))

    def end(self) -> None:
        """Begins no further file, but finishes this one."""
        self._ended.set()
        self._following = None

    def forget(self) -> None:
        self._res.copies.keep_fetched()
        self.done, self._forgotten = 0, self._ended

    def _fetched(
        self,
        order: Prefetch,
        timers: GenerationTimers | None,
        until_s: float,
        ended: threading.Event,
        fetched: int,
        error: BaseException | None,
    ) -> None:
        if error is not None:
            log.warning("slot %d could not fetch ahead: %s", self._res.slot, error)
        if ended is self._forgotten:
            self._res.copies.keep_fetched()
        self._answer(order, timers, until_s, ended)

    def _answer(self, order: Prefetch, timers: GenerationTimers | None, until_s: float, ended: threading.Event) -> None:
        if timers is not None and not timers.at_rest and self._res.clock.monotonic_s() < until_s:
            timers.move_is_near()
            self._res.loop.call_later(_LOOK_S, self._answer, order, timers, until_s, ended)
            return
        self._is_fetching, following, self._following = False, self._following, None
        if not ended.is_set():
            self._parallelism, self.done = order.parallelism, order.checkpoint
            self._tell()
        if following is not None:
            self.order(*following)


def prefetch(
    store: ObjectStore,
    paths: Paths,
    copies: LocalCopies,
    directory: Path,
    slot: int,
    order: Prefetch,
    at_once: int = 1,
    ended: Callable[[], bool] = lambda: False,
) -> int:
    """Returns the number of bytes. Blocks.

    The restore fetches files that failed, or were not begun when `ended()` became true.
    """
    try:
        snapshots = snapshots_in(store, paths, order.manifest, order.checkpoint)
    except BarrierRuntimeError as error:  # this checkpoint may be deleted: a newer one is complete
        log.info("slot %d fetches nothing of checkpoint %d: %s", slot, order.checkpoint, error)
        return 0
    number = slot if order.slot < 0 else order.slot
    wanted = list(wanted_files(snapshots, number, order.parallelism, order.max_parallelism))
    copies.keep_fetched(wanted)
    missing = {(ref.sha256, ref.size): ref for ref in wanted if copies.place_of(ref) is None}
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def fetch(ref: FileRef) -> int:
        if ended():
            return 0
        path = directory / f"{ref.sha256}-{order.checkpoint}"
        path.unlink(missing_ok=True)
        with copies.fetching(ref):
            try:
                download_verified(store, ref, path)
            except (BarrierRuntimeError, OSError) as error:
                path.unlink(missing_ok=True)  # possibly partial, on a full disk
                log.info("slot %d cannot fetch %s yet: %s", slot, ref.name, error)
                return 0
            copies.fetched(ref, path)
        return ref.size

    return sum(in_parallel(fetch, list(missing.values()), at_once))


def wanted_files(
    snapshots: Iterable[OperatorSnapshot], slot: int, parallelism: int, max_parallelism: int
) -> Iterable[FileRef]:
    """Files with key groups of `slot`; no files if the slot leaves."""
    if slot >= parallelism:
        return
    first, last = key_group_range(slot, parallelism, max_parallelism)
    for snapshot in snapshots:
        keyed = snapshot.keyed
        if keyed is not None and keyed.key_group_first <= last and keyed.key_group_last >= first:
            yield from (ref for ref in keyed.files if ref.inline is None)


# Snapshots that a slot restores. Reading a manifest blocks.


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
