"""Savepoints inside the folder of their own job, at any place.

The job deletes no file of the savepoint in any sweep or end, and deleting the savepoint deletes no file of the job."""

from pathlib import Path
from typing import Any

import pytest
from coordinator_world import Coordinator, FakeSlot, checkpoint, keys_of, options, spec, started

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.maintenance.fsck_store import check_store, delete_orphans
from barrier_runtime.coordinator.savepoint_files import (
    delete_savepoint,
    find_savepoint,
    missing_objects,
    read_savepoint,
)
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, Trigger
from barrier_runtime.state.store.open import open_store

NOW_MS = 10_000_000
FOLDERS = ["savepoints/one", "data/1/one", "checkpoints/1-1", "write-ahead/out", "log", ""]


class Kept:
    """A running job with a savepoint in the job's folder."""

    def __init__(self, root: Path, folder: str, how: CheckpointOptions | None = None) -> None:
        self.store: Any = open_store(str(root))
        self.store.keys = lambda: tuple(sorted(info.key for info in self.store.list("")))
        self.url = str(root / "flights" / folder)
        self.coordinator, self.a, self.b = started(self.store, spec(checkpoints=how or options(retained=1)))
        checkpoint(self.coordinator, self.a, self.b, files="f g")
        self.coordinator.savepoint(SavepointRequest("wish", self.url))
        self.commit(self.checkpointed("f g"))
        self.keys = {key for key in keys_of(self.store) if "wish" in key or key.endswith("savepoint.json")}
        assert len(self.keys) == 5

    def checkpointed(self, files: str) -> int:
        number = self.a.last(Trigger).checkpoint
        for slot in self.slots:
            slot.ack(number, files=files)
        self.coordinator.settle()
        return number

    def commit(self, number: int) -> None:
        for slot in self.slots:
            slot.commit(number)
        self.coordinator.settle()

    @property
    def slots(self) -> tuple[FakeSlot, FakeSlot]:
        return self.a, self.b

    def check_savepoint(self) -> None:
        assert self.keys <= set(keys_of(self.store))
        assert missing_objects(self.url, read_savepoint(self.url)) == ()


@pytest.mark.parametrize("folder", FOLDERS)
def test_fsck_tells_of_it_and_deletes_orphans_around_it(folder: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path, folder)
    for files in ("h", "i"):
        kept.commit(checkpoint(kept.coordinator, *kept.slots, files=files))
    Coordinator(kept.store, spec(run_id="run-2", checkpoints=options(retained=1)), now_ms=NOW_MS).begin().settle()
    orphan = kept.a.data_key("left")
    kept.store.put(orphan, b"left")
    (found,) = delete_orphans(kept.store, check_store(kept.store, None, 0, NOW_MS + 10**15))
    assert found.report.damage == ()
    assert orphan not in keys_of(kept.store)
    kept.check_savepoint()
    assert any("is a savepoint of checkpoint 2 of job flights" in note for note in found.report.notes)
    assert not kept.keys & {each.key for each in found.report.unreferenced}


@pytest.mark.parametrize("folder", FOLDERS)
def test_neither_retention_nor_the_sweep_nor_the_jobs_end_deletes_it(folder: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path, folder, options(retained=1, on_cancel="delete"))
    for files in ("h", "i", "j"):
        kept.commit(checkpoint(kept.coordinator, *kept.slots, files=files))
    kept.coordinator.later(10_000)
    kept.coordinator.settle()
    kept.check_savepoint()
    kept.coordinator.stop("now")
    kept.coordinator.settle()
    assert kept.a.data_key("j") not in keys_of(kept.store), "the job's own are dropped"
    kept.check_savepoint()


@pytest.mark.parametrize("folder", FOLDERS)
def test_deleting_it_takes_nothing_from_the_job(folder: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path, folder)
    before = set(keys_of(kept.store)) - kept.keys
    delete_savepoint(kept.url)
    assert set(keys_of(kept.store)) == before
    assert find_savepoint(kept.url) is None
    kept.commit(checkpoint(kept.coordinator, *kept.slots, files="f g h"))
    assert check_store(kept.store, None, 0, NOW_MS)[0].report.damage == ()


def test_fsck_finds_what_it_lacks(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "savepoints/one")
    lost = next(key for key in sorted(kept.keys) if key.endswith("/1"))
    kept.store.delete([lost])
    (found,) = check_store(kept.store, None, 0, NOW_MS)
    assert [(each.object, each.found) for each in found.report.damage] == [(lost, "nothing")]
