"""Prefetching before a job moves: a slot fetches the missing files of the new key groups, once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from barrier_runtime import CollectSink, Dataflow, collect_list
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.wire.messages import ManifestRef, Prefetch
from barrier_runtime.runtime.prefetching import prefetch, snapshots_in, wanted_files
from barrier_runtime.state.backend.restore import RestoreSite, restore
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import plan_restore
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.snapshots.transfer import download_verified
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths

MAX_PARALLELISM = 16


@pytest.fixture
def order(tmp_path: Path) -> Prefetch:
    """Prefetch order for three slots, from a checkpoint of two slots whose files are objects."""
    flow = Dataflow("job")
    rows = flow.rate("rows", 1e6, 20_000, keys=2_000)
    rows.key_by("key").aggregate("lists", values=collect_list("value", limit=1_000)).sink("out", CollectSink())
    flow.run_local(checkpoints=str(tmp_path / "store"), parallelism=2, max_parallelism=MAX_PARALLELISM)
    store, paths = open_store(str(tmp_path / "store")), Paths("job")
    view = read_log(store, paths)
    record = complete_of(view.completes[0])
    where = paths.log_record(view.completes[0].position) if record.inline else record.manifest
    return Prefetch(record.checkpoint, ManifestRef(where, record.sha256), 3, MAX_PARALLELISM)


@pytest.mark.slow
def test_files_are_fetched_once_and_a_restore_has_them(tmp_path: Path, order: Prefetch) -> None:
    store, paths, copies, folder = open_store(str(tmp_path / "store")), Paths("job"), LocalCopies(), tmp_path / "ahead"
    snapshots = snapshots_in(store, paths, order.manifest, order.checkpoint)
    wanted = [list(wanted_files(snapshots, slot, 3, MAX_PARALLELISM)) for slot in range(3)]
    assert len(wanted[1]) > len(wanted[0]), "the second of three gets key groups of both"
    assert list(wanted_files(snapshots, 3, 3, MAX_PARALLELISM)) == [], "it leaves"
    assert prefetch(store, paths, copies, folder, 2, order) == sum(ref.size for ref in wanted[2]) > 0
    assert prefetch(store, paths, copies, folder, 2, order) == 0, "it has them"
    more = prefetch(store, paths, copies, folder, 1, order)
    known = {ref.sha256 for ref in wanted[2]}
    assert more == sum(ref.size for ref in wanted[1] if ref.sha256 not in known)
    assert isinstance(store, LocalStore)
    for ref in wanted[1]:
        assert ref.key is not None
        store.delete([ref.key])  # any later read fails
    plan = plan_restore("lists", 1, 3, MAX_PARALLELISM, snapshots)
    site = RestoreSite("lists", store, copies, tmp_path / "incarnation", SlotMemory(1 << 24))
    site.directory.mkdir()
    restore("rocksdb", plan, site).kv.close()
    copies.keep_fetched()
    copies.delete_unwanted()
    assert list(folder.iterdir()) == []


def test_files_are_those_of_the_number_in_the_order(tmp_path: Path, order: Prefetch) -> None:
    """The driver starts the successor of a former spare under a number beyond the parallelism."""
    store, paths, copies, folder = open_store(str(tmp_path / "store")), Paths("job"), LocalCopies(), tmp_path / "ahead"
    wanted = list(wanted_files(snapshots_in(store, paths, order.manifest, order.checkpoint), 2, 3, MAX_PARALLELISM))
    assert prefetch(store, paths, copies, folder, 4, order) == 0
    assert prefetch(store, paths, copies, folder, 4, replace(order, slot=2)) == sum(ref.size for ref in wanted) > 0


@pytest.mark.slow
def test_a_restore_waits_for_files_that_are_coming_and_does_not_fetch_them_too(tmp_path: Path, order: Prefetch) -> None:
    store, paths, copies, folder = open_store(str(tmp_path / "store")), Paths("job"), LocalCopies(), tmp_path / "ahead"
    snapshots = snapshots_in(store, paths, order.manifest, order.checkpoint)
    assert prefetch(store, paths, copies, folder, 0, order, 1, lambda: True) == 0, "it had ended before it began"
    wanted = {ref.sha256: ref for ref in wanted_files(snapshots, 0, 3, MAX_PARALLELISM)}
    folder.mkdir(exist_ok=True)
    for ref in wanted.values():
        download_verified(store, ref, folder / ref.sha256)
        assert ref.key is not None
    store.delete([ref.key for ref in wanted.values() if ref.key is not None])  # any later read fails
    plan = plan_restore("lists", 0, 3, MAX_PARALLELISM, snapshots)
    site = RestoreSite("lists", store, copies, tmp_path / "incarnation", SlotMemory(1 << 24))
    site.directory.mkdir()
    with ThreadPoolExecutor(1) as pool, ExitStack() as coming:
        for ref in wanted.values():
            coming.enter_context(copies.fetching(ref))
        restored = pool.submit(restore, "rocksdb", plan, site)
        for ref in wanted.values():
            copies.fetched(ref, folder / ref.sha256)
        coming.close()
        restored.result().kv.close()


@pytest.mark.slow
def test_a_part_of_a_file_does_not_stay_on_a_full_disk(
    tmp_path: Path, order: Prefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, paths, copies, folder = open_store(str(tmp_path / "store")), Paths("job"), LocalCopies(), tmp_path / "ahead"
    wanted = list(wanted_files(snapshots_in(store, paths, order.manifest, order.checkpoint), 0, 3, MAX_PARALLELISM))
    full = wanted[0]

    def download(store: ObjectStore, ref: FileRef, path: Path) -> None:
        if ref.sha256 != full.sha256:
            return download_verified(store, ref, path)
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("barrier_runtime.runtime.prefetching.download_verified", download)
    others = {ref.sha256: ref.size for ref in wanted if ref.sha256 != full.sha256}
    assert prefetch(store, paths, copies, folder, 0, order) == sum(others.values()), "they are of use"
    assert {path.name.split("-")[0] for path in folder.iterdir()} == set(others)


def test_what_is_gone_is_left_to_the_restore(tmp_path: Path, order: Prefetch) -> None:
    """A newer checkpoint has completed, and this checkpoint was dropped."""
    store, paths, copies, folder = open_store(str(tmp_path / "store")), Paths("job"), LocalCopies(), tmp_path / "ahead"
    for ref in wanted_files(snapshots_in(store, paths, order.manifest, order.checkpoint), 0, 3, MAX_PARALLELISM):
        assert ref.key is not None
        store.delete([ref.key])
    assert prefetch(store, paths, copies, folder, 0, order) == 0
    store.delete([order.manifest.key])
    assert prefetch(store, paths, copies, folder, 0, order) == 0
