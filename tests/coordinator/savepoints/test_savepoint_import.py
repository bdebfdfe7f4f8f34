"""Starts of a job from a savepoint: the log decides.

A process that dies at any call of the store leaves the choice to the next start."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from coordinator_world import FILE, Coordinator, checkpoint, kinds, log_of, spec, started

from barrier_runtime.coordinator import savepoint_import
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.log.manifest import decode_manifest
from barrier_runtime.coordinator.log.records import Complete, Fence
from barrier_runtime.coordinator.savepoint_files import delete_savepoint, missing_objects, read_savepoint
from barrier_runtime.coordinator.savepoint_import import begin_with_savepoint
from barrier_runtime.coordinator.status.status import SavepointStatus
from barrier_runtime.coordinator.wire.messages import Deploy, JobSpec
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo, PutOutcome
from barrier_runtime.state.store.open import open_store

OTHER = "departures"


def taken(stops: bool = False) -> tuple[str, Coordinator, MemoryStore]:
    """A savepoint of job flights, whose coordinator and store these are."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    committed = checkpoint(coordinator, a, b, files="f g")
    url = f"memory://savepoint-{uuid.uuid4().hex}"
    request = SavepointRequest(uuid.uuid4().hex, url, stops)
    if stops:
        coordinator.stop("checkpoint", request)
        coordinator.settle()  # the log says so
    else:
        coordinator.savepoint(request)
    committed += 1
    for slot in (a, b):
        slot.ack(committed, files="f g")
    coordinator.settle()
    for slot in (a, b):
        slot.commit(committed)
    coordinator.settle()
    assert read_savepoint(url).taken.checkpoint == committed
    return url, coordinator, store


def other(**changes: object) -> JobSpec:
    return spec(**{"job": OTHER, "run_id": "run-other", **changes})


def begun(store: MemoryStore, job: JobSpec | None = None) -> Deploy:
    """Starts and stops the job; returns the checkpoint that slot 0 has to restore."""
    coordinator, a, _ = started(store, job or other(), leader=uuid.uuid4().hex)
    deploy: Deploy = a.last(Deploy)
    coordinator.stop("now")
    coordinator.settle()
    return deploy


def begin(store: MemoryStore, url: str, job: JobSpec | None = None, mode: str = "no_claim") -> str:
    return begin_with_savepoint(
        store,
        url,
        job or other(),
        mode,
        now_ms=lambda: 5_000_000,
        sleep=lambda seconds: None,  # type: ignore[arg-type]
    )


def test_another_job_begins_with_it_as_with_a_checkpoint_of_its_own():
    url, _, _ = taken()
    store = MemoryStore()
    assert "it is checkpoint 2 of job departures now" in begin(store, url)
    assert [type(record).__name__ for record in log_of(store, OTHER)] == ["Fence", "Complete", "Finish"]
    delete_savepoint(url)
    deploy = begun(store)
    assert deploy.checkpoint == 2
    files = [ref for snapshot in deploy.operators for ref in snapshot.files]
    assert files
    assert all(store.get(ref.key) == FILE for ref in files)
    assert {snapshot.values.get("position") for snapshot in deploy.operators} >= {b"2"}


def test_it_goes_on_with_higher_numbers_and_in_a_lineage_of_its_own():
    url, origin, _ = taken()
    store = MemoryStore()
    begin(store, url)
    coordinator, a, b = started(store, other())
    assert checkpoint_of_other(coordinator, a, b) == 3
    complete = next(record for record in log_of(store, OTHER) if isinstance(record, Complete))
    assert complete.lineage != origin.protocol._job.led.lineage


def checkpoint_of_other(coordinator: Coordinator, *slots) -> int:
    coordinator.trigger()
    number = coordinator.status.checkpoints.in_progress[-1]
    for slot in slots:
        slot.ack(number)
    coordinator.settle()
    return number


def test_the_same_command_again_goes_on_from_what_the_job_has_reached():
    url, _, _ = taken()
    store = MemoryStore()
    begin(store, url)
    coordinator, a, b = started(store, other())
    reached = checkpoint_of_other(coordinator, a, b)
    coordinator.stop("now")
    coordinator.settle()
    records = len(log_of(store, OTHER))
    assert "has reached checkpoint 3" in begin(store, url)
    assert len(log_of(store, OTHER)) == records, "nothing is written"
    assert begun(store, other(run_id="run-again")).checkpoint == reached


def test_where_the_savepoint_was_deleted_the_job_is_told_how_it_goes_on(tmp_path):
    for folder in (str(tmp_path / "gone"), "memory://gone"):  # a missing folder, and an empty folder
        url, _, _ = taken()
        store = MemoryStore()
        begin(store, url)
        with pytest.raises(InvalidJob, match=r"gone.*Job departures has completed checkpoint 2 .*without restore="):
            begin(store, folder)


def test_the_job_that_stopped_with_it_just_goes_on():
    url, _, store = taken(stops=True)
    records = len(log_of(store))
    assert "is a copy of checkpoint 2" in begin(store, url, spec(run_id="run-2"))
    assert len(log_of(store)) == records
    assert begun(store, spec(run_id="run-2")).checkpoint == 2


def test_a_job_that_went_on_would_write_rows_again():
    url, coordinator, store = taken()
    slots = list(coordinator.links.values())[-2:]
    checkpoint(coordinator, *slots, files="f")
    with pytest.raises(InvalidJob, match=r"completed checkpoint 3; to begin with the savepoint.*checkpoint 2.*again"):
        begin(store, url, spec(run_id="run-2"))
    assert kinds(store).count("FENCE") == 1
    assert "it is checkpoint 4 of job flights now" in begin(store, url, spec(run_id="run-2", allow_replay=True))
    deploy = begun(store, spec(run_id="run-2"))
    assert deploy.checkpoint == 4
    assert {snapshot.values.get("position") for snapshot in deploy.operators} >= {b"2"}


def test_what_does_not_fit_is_refused_before_anything_is_written():
    url, _, _ = taken()
    store = MemoryStore()
    chains = other().chains
    without = msgspec.structs.replace(chains[1], operators=("out",), stateful=())
    with pytest.raises(InvalidJob, match=r"the savepoint memory://.*state of operators.*missing: count"):
        begin(store, url, other(chains=(chains[0], without)))
    with pytest.raises(InvalidJob, match=r"max_parallelism 128, the job now has 64: set 128"):
        begin(store, url, other(max_parallelism=64))
    assert store.keys() == ()


def test_no_savepoint_and_a_damaged_one():
    store = MemoryStore()
    with pytest.raises(InvalidJob, match=r"there is no savepoint in memory://nothing: savepoint\.json is missing"):
        begin(store, "memory://nothing")
    url, _, _ = taken()
    target = open_store(url)
    target.put("savepoint.json", target.get("savepoint.json").replace(b'"data/', b'"../data/'))
    with pytest.raises(Corrupt, match="which is none of its own"):
        begin(store, url)
    assert store.keys() == ()


def test_a_file_that_is_missing_is_found_before_the_job_has_a_checkpoint():
    url, _, _ = taken()
    target, store = open_store(url), MemoryStore()
    lost = next(info.key for info in target.list("data/"))
    target.delete([lost])
    assert missing_objects(url, read_savepoint(url)) == (lost,)
    with pytest.raises(InvalidJob, match=r"lacks 1 of its \d files, e\.g\. data/"):
        begin(store, url)
    assert store.keys() == ()


@pytest.mark.parametrize("mode", ["no_claim", "claim"])
def test_a_file_that_is_damaged_is_not_taken_over_and_the_savepoint_stays(mode: str, tmp_path: Path):
    """The copy checks the file's bytes: with "claim", the savepoint would be deleted in favour of damaged state."""
    url, _, _ = taken()
    target = open_store(url)
    damaged = next(info.key for info in target.list("data/"))
    target.put(damaged, target.get(damaged)[:-1] + b"?")
    store = LocalStore(tmp_path)
    with pytest.raises(Corrupt, match=f"{damaged} is not what was written"):
        begin(store, url, mode=mode)
    assert not [info for info in store.list("") if info.key.endswith("manifest.json")], "it has no checkpoint"
    assert target.get(damaged)
    target.put(damaged, FILE)
    assert "departures" in begin(store, url, mode=mode)


# ---------------------------------------------------------------- whose it is


def test_claimed_it_is_the_jobs_and_goes_when_it_has_a_copy():
    url, _, _ = taken()
    store = MemoryStore()
    begin(store, url, mode="claim")
    assert [info.key for info in open_store(url).list("")] == ["claimed-by"]
    assert begun(store).checkpoint == 2
    assert "claimed the savepoint" in begin(store, url, mode="claim"), "the same command again"
    for mode in ("claim", "no_claim"):
        with pytest.raises(
            InvalidJob, match=r"no savepoint in .* any more: job 'departures' claimed it, and deleted it"
        ):
            begin(MemoryStore(), url, mode=mode)


def test_a_second_claimer_is_refused():
    url, _, _ = taken()
    open_store(url).put_if_absent("claimed-by", b"somebody")
    store = MemoryStore()
    with pytest.raises(InvalidJob, match="was claimed by job 'somebody'"):
        begin(store, url, mode="claim")
    assert store.keys() == ()
    begin(store, url)


def test_where_another_job_claimed_a_savepoint_no_other_is_written():
    """A restart of the claiming job with the same command would take the new savepoint for the claimed one."""
    url, coordinator, _ = taken()
    store = MemoryStore()
    begin(store, url, mode="claim")

    def again() -> SavepointStatus:
        slots = list(coordinator.links.values())[-2:]
        coordinator.savepoint(SavepointRequest(uuid.uuid4().hex, url, False))
        number = coordinator.status.checkpoints.in_progress[-1]
        for slot in slots:
            slot.ack(number, files="f g")
        coordinator.settle()
        for slot in slots:
            slot.commit(number)
        coordinator.settle()
        return coordinator.status.savepoints[-1]

    said = again()
    assert said.state == "failed"
    assert "had a savepoint that job 'departures' claimed" in said.error
    assert [info.key for info in open_store(url).list("")] == ["claimed-by"]
    assert "claimed the savepoint" in begin(store, url, mode="claim"), "the same command again"
    open_store(url).put("claimed-by", b"flights")
    assert again().state == "done", "its own folder"


def test_program_that_stalls_before_it_deletes_leaves_the_jobs_next_savepoint() -> None:
    """Another start of the job claimed and deleted the first savepoint, and the job stopped with one in its place."""
    url, _, _ = taken()
    store, delete, later = MemoryStore(), savepoint_import.delete_claimed, []

    def stalls(*of: Any) -> None:
        delete(*of)
        coordinator, *slots = started(store, other(), leader=uuid.uuid4().hex)
        coordinator.savepoint(SavepointRequest(uuid.uuid4().hex, url))
        number = coordinator.status.checkpoints.in_progress[-1]
        for slot in slots:
            slot.upload("h")
            slot.ack(number, files="h")
        coordinator.settle()
        for slot in slots:
            slot.commit(number)
        coordinator.settle()
        later.append(read_savepoint(url))
        delete(*of)

    with patch.object(savepoint_import, "delete_claimed", stalls):
        begin(store, url, mode="claim")
    assert read_savepoint(url) == later[0]
    assert missing_objects(url, later[0]) == ()


# ---------------------------------------------------------------- dying at any call


class Dies(Exception):
    """Death of the process."""


class Mortal:
    """A store whose process dies before or after a call."""

    def __init__(self, store: MemoryStore, calls: int, after: bool) -> None:
        self._store = store
        self._left = calls
        self._after = after

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, key: str, data: bytes) -> None:
        self._call(lambda: self._store.put(key, data))

    def put_file(self, key: str, path: object) -> None:
        self._call(lambda: self._store.put_file(key, path))  # type: ignore[arg-type]

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        outcome: PutOutcome = self._call(lambda: self._store.put_if_absent(key, data))
        return outcome

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._store.get(key, offset, size)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def _call(self, call):
        self._left -= 1
        if self._left < 0:
            raise Dies
        if self._left == 0 and not self._after:
            self._left = -1
            raise Dies
        answer = call()
        if self._left == 0:
            self._left = -1
            raise Dies
        return answer


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("calls", range(1, 10))
@pytest.mark.usefixtures("manifests_are_objects")
def test_a_start_that_dies_at_any_write_leaves_the_choice_to_the_next(calls: int, after: bool):
    """The start has 8 writes: FENCE, four files, the manifest, COMPLETE, FINISH; a ninth does not happen."""
    url, _, _ = taken()
    store = MemoryStore()
    died = False
    try:
        begin(Mortal(store, calls, after), url)  # type: ignore[arg-type]
    except Dies:
        died = True
    assert died is (calls < 9)
    decided = [record for record in log_of(store, OTHER) if isinstance(record, Complete)]
    begin(store, url)
    completes = [record for record in log_of(store, OTHER) if isinstance(record, Complete)]
    assert len(completes) == 1
    if decided:
        assert completes == decided
    manifest = decode_manifest("m", store.get(completes[0].manifest))
    assert all(store.get(ref.key) == FILE for each in manifest.operators for ref in each.files if ref.key)
    assert begun(store).checkpoint == 2


@pytest.mark.usefixtures("manifests_are_objects")
def test_who_stalled_over_the_copy_loses_to_who_came_after():
    """Another FENCE follows the stalled start's FENCE, so its COMPLETE finds the position taken."""
    url, _, _ = taken()
    store = MemoryStore()

    class Stalls(Mortal):
        def put(self, key: str, data: bytes) -> None:
            if "manifest" in key and len(log_of(store, OTHER)) == 1:
                begin(store, url)
            self._store.put(key, data)

    done = begin(Stalls(store, 1_000, False), url)  # type: ignore[arg-type]
    assert "has reached checkpoint 2" in done
    records = log_of(store, OTHER)
    assert [type(record).__name__ for record in records] == ["Fence", "Fence", "Complete", "Finish"]
    assert isinstance(records[1], Fence)
    assert records[2].token == records[1].token


def test_the_log_is_read_once_and_what_was_found_is_what_is_done():
    url, _, _ = taken()
    store, reads = MemoryStore(), []

    class Counts(Mortal):
        def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
            reads.append(key)
            return super().get(key, offset, size)

    counted = Counts(store, 1_000, False)
    assert "it is checkpoint 2 of job departures now" in begin(counted, url)  # type: ignore[arg-type]
    assert len([key for key in reads if "/log/" in key]) == 2, "that it is empty, and no milestone follows"
    reads.clear()
    assert "has reached checkpoint 2" in begin(counted, url)  # type: ignore[arg-type]
    assert len(reads) == len(set(reads)), "nothing is read twice"
