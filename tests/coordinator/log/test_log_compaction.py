"""Compaction of the decision log: what stays, crashes at each step, gaps that no process takes for the end."""

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

import msgspec
import pytest
from coordinator_world import Coordinator, FakeSlot, checkpoint, keys_of, new_generation, spec, started

from barrier_runtime.coordinator.log import records
from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign
from barrier_runtime.coordinator.log.reader import Hint, LogReader, is_behind, read_log
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import (
    BASE_FROM,
    Complete,
    Fence,
    Lead,
    decode_record,
    encode_record,
    is_milestone,
    milestone_after,
)
from barrier_runtime.coordinator.log.restore_choice import continue_run
from barrier_runtime.coordinator.maintenance.fsck_store import check_store
from barrier_runtime.coordinator.store_calls import append_record, check_permit, compact_log
from barrier_runtime.state.errors import Fenced, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

PATHS = Paths("flights")


@pytest.fixture
def small_steps() -> Iterator[None]:
    with patch.object(records, "MILESTONE_STEP", 8):
        yield


def positions(store: MemoryStore) -> list[int]:
    return [at for key in keys_of(store) if (at := PATHS.log_position(key)) is not None]


def record(store: MemoryStore, position: int):
    key = PATHS.log_record(position)
    return decode_record(key, store.get(key))


def damage(store: MemoryStore) -> tuple[object, ...]:
    (found,) = check_store(store, "flights", 0, 10**12)
    return found.report.damage


def long_job(store: MemoryStore, checkpoints: int = 60) -> tuple[Coordinator, list]:
    """Returns a job with two generations; each checkpoint has a file."""
    coordinator, *slots = started(store)
    for number in range(checkpoints):
        checkpoint(coordinator, *slots, files=f"f{number}")
        for slot in slots:
            slot.commit(slot.highest)
        if number == 10:
            new_generation(coordinator, *slots)
    return coordinator, slots


# ---------------------------------------------------------------- what stays


@pytest.mark.slow
def test_compacted_log_keeps_its_end_fences_milestones_and_kept_decisions(
    store: MemoryStore, small_steps: None
) -> None:
    long_job(store)
    view = read_log(store, PATHS, kept=True)
    assert view.head is not None
    assert view.fence is not None
    base, head = view.head.record.base, view.head.position
    assert head - 3 * 8 < base <= head - 8
    stay = positions(store)
    assert set(range(base, head + 1)) <= set(stay)
    for position in stay:
        below = position < base and not is_milestone(position) and position not in (view.kept or ())
        assert not below or isinstance(record(store, position), Fence | Lead), position
    assert len(stay) < head
    assert not damage(store)


@pytest.mark.slow
@pytest.mark.parametrize("hint", ["none", "fresh", "old", "in a gap", "beyond the end"])
def test_every_hint_leads_to_the_end_of_a_compacted_log(store: MemoryStore, small_steps: None, hint: str) -> None:
    long_job(store)
    head = max(positions(store))
    gap = next(position for position in range(2, head) if position not in positions(store))
    at = {"none": None, "fresh": head - 2, "old": gap - 1, "in a gap": gap, "beyond the end": head + 100}[hint]
    store.delete([PATHS.log_hint])
    if at is not None:
        store.put(PATHS.log_hint, msgspec.json.encode(Hint(at, 1)))
    view = read_log(store, PATHS, completes=3, kept=True)
    assert view.head is not None
    assert view.head.position == head
    assert [entry.record.checkpoint for entry in view.completes] == [60, 59, 58]


@pytest.mark.slow
def test_decisions_that_a_sink_has_not_committed_stay(store: MemoryStore, small_steps: None) -> None:
    coordinator, *slots = started(
        store, spec(checkpoints=msgspec.structs.replace(spec().checkpoints, max_commits_behind=900))
    )
    for _ in range(40):
        coordinator.checkpoint(*slots)
    assert positions(store) == list(range(1, 42))
    for slot in slots:
        slot.commit(slot.highest)
    coordinator.checkpoint(*slots)
    assert len(positions(store)) < 42


@pytest.mark.slow
def test_records_of_a_compacted_log_are_refused_by_earlier_releases(store: MemoryStore, small_steps: None) -> None:
    long_job(store)
    head = max(positions(store))
    assert record(store, head).version == BASE_FROM == 5
    assert record(store, 1).version < BASE_FROM


# ---------------------------------------------------------------- crashes


def decide_without_compaction(coordinator: Coordinator, *slots: FakeSlot) -> None:
    with patch("coordinator_world.compact_log"):  # decided, and not carried out
        for _ in range(30):
            coordinator.checkpoint(*slots)
            for slot in slots:
                slot.commit(slot.highest)


@pytest.mark.slow
def test_crash_after_any_deletion_leaves_a_whole_log_that_is_compacted_later(small_steps: None) -> None:
    def life(deletions: int) -> tuple[MemoryStore, int]:
        """Returns the store, and how many deletions the last compaction needs. Crashes after `deletions`."""
        store = MemoryStore()
        coordinator, *slots = started(store)
        decide_without_compaction(coordinator, *slots)
        view = read_log(store, PATHS, kept=True)
        assert view.head is not None
        done = 0
        delete = store.delete

        def crashing(keys: list[str]) -> None:
            nonlocal done
            for key in keys:
                if done == deletions:
                    raise Unavailable("power is gone")
                done += 1
                delete([key])

        with patch.object(store, "delete", crashing), contextlib.suppress(Unavailable):
            compact_log(store, PATHS, view.head.record.base, view.kept or (), view.first_sha256, set())
        return store, done

    whole = life(10_000)[1]
    assert whole > 8
    for crash in range(whole + 1):
        store, done = life(crash)
        assert done == crash
        store.delete([PATHS.log_hint])
        view = read_log(store, PATHS, kept=True)
        assert view.head is not None
        assert view.head.position == 31
        assert not damage(store)
        successor = Coordinator(store, leader="leader-b", now_ms=3_000_000).begin().settle()
        slots = successor.slot(0, "x"), successor.slot(1, "y")
        successor.run_with(*slots)
        for _ in range(24):
            successor.checkpoint(*slots)
            for slot in slots:
                slot.commit(slot.highest)
        assert not damage(store)
        base = read_log(store, PATHS).head.record.base
        below = [each for each in positions(store) if each < base and not is_milestone(each)]
        assert all(isinstance(record(store, each), Fence | Lead) for each in below), (crash, below)


def test_unreadable_record_below_the_base_stays_and_the_rest_is_deleted(store: MemoryStore, small_steps: None) -> None:
    decide_without_compaction(*started(store))
    store.damage(PATHS.log_record(5), b"rotten")
    view = read_log(store, PATHS, kept=True)
    assert view.head is not None
    base, known = view.head.record.base, set[int]()

    def compact() -> str:
        return compact_log(store, PATHS, base, view.kept or (), view.first_sha256, known)

    assert PATHS.log_record(5) in compact()
    assert [each for each in positions(store) if each < base and not is_milestone(each)] == [5]
    assert compact() == "", "reported once"
    assert not damage(store)


# ---------------------------------------------------------------- stalled processes


def compact_on(store: MemoryStore) -> None:
    """A new run goes on with the job until the log is compacted beyond its start."""
    coordinator = Coordinator(store, spec(run_id="run-2"), leader="leader-c", now_ms=9_000_000).begin()
    slots = coordinator.slot(0, "p"), coordinator.slot(1, "q")
    coordinator.run_with(*slots)
    for _ in range(40):
        coordinator.checkpoint(*slots)
        for slot in slots:
            slot.commit(slot.highest)


@pytest.mark.slow
def test_fence_in_a_gap_is_overtaken(store: MemoryStore, small_steps: None) -> None:
    """A process reads the log and stalls, while its next position is written and compacted away."""
    coordinator, *slots = started(store)
    coordinator.checkpoint(*slots)
    view = read_log(store, PATHS, kept=True)
    coordinator.checkpoint(*slots)
    compact_on(store)
    log = DecisionLog("flights", view)
    assert log.next_position not in positions(store)
    fence = RecordBuilder(spec(run_id="run-9"), Identity("leader-z", "host")).fence(
        log, continue_run(log), "late", 0, 0
    )
    answer = append_record(store, "flights", log, fence, lambda seconds: None)
    assert isinstance(answer, Foreign)
    assert answer.entry.position == milestone_after(log.next_position)
    assert not damage(store)  # the record in the gap harms nobody


def test_append_outside_of_a_coordinator_repeats_reads_that_fail(store: MemoryStore, small_steps: None) -> None:
    """The FENCE has landed, and the store does not answer the next read."""
    coordinator, *slots = started(store)
    coordinator.checkpoint(*slots)
    log = DecisionLog("flights", read_log(store, PATHS, kept=True))
    fence = RecordBuilder(spec(run_id="run-9"), Identity("leader-z", "host")).fence(log, continue_run(log), "", 0, 0)
    failures, read = [Unavailable("no answer")], store.get

    def get(key: str, *range_of: object) -> bytes:
        if failures:
            raise failures.pop()
        return read(key, *range_of)

    with patch.object(store, "get", get):
        assert isinstance(append_record(store, "flights", log, fence, lambda seconds: None), Appended)
    assert isinstance(record(store, 3), Fence)


@pytest.mark.slow
def test_deposed_leader_finds_a_fence_at_its_next_position_for_ever(store: MemoryStore, small_steps: None) -> None:
    coordinator, *slots = started(store)
    coordinator.checkpoint(*slots)
    deposed = coordinator.protocol.next_position
    permit = coordinator.protocol.facts.led.permit
    compact_on(store)
    assert isinstance(record(store, deposed), Fence)
    with pytest.raises(Fenced):
        check_permit(store, PATHS, permit)


@pytest.mark.slow
def test_permit_is_void_once_its_own_records_are_compacted(store: MemoryStore, small_steps: None) -> None:
    coordinator, *slots = started(store)
    permit = coordinator.protocol.facts.led.permit
    for _ in range(3):
        coordinator.checkpoint(*slots)
    answered = coordinator.protocol.next_position - 1
    compact_on(store)
    assert permit.position + 2 not in positions(store)
    with pytest.raises(Fenced, match="compacted away"):
        check_permit(store, PATHS, permit, answered)


@pytest.mark.slow
def test_reader_that_meets_a_compaction_between_two_reads_looks_again(store: MemoryStore, small_steps: None) -> None:
    coordinator, slots = long_job(store, 30)
    read = store.get
    for moment in range(12):
        calls = 0

        def get(key: str, *range_of: object) -> bytes:
            nonlocal calls
            calls += 1
            if calls == moment:  # noqa: B023 - the loop does not outlive the value
                for _ in range(20):
                    coordinator.checkpoint(*slots)
                    for slot in slots:
                        slot.commit(slot.highest)
            return read(key, *range_of)

        with patch.object(store, "get", get):
            view = LogReader(store, PATHS).read(completes=2, kept=True)
        assert view.head is not None
        assert view.head.position >= max(positions(store)) - 20


@pytest.mark.slow
def test_stalled_compaction_spares_a_new_log_in_the_folder_of_a_deleted_job(
    store: MemoryStore, small_steps: None
) -> None:
    decide_without_compaction(*started(store))
    view = read_log(store, PATHS, kept=True)
    assert view.head is not None
    listed = list(store.list(PATHS.log_prefix))

    def stall(prefix: str) -> list[ObjectInfo]:
        """The user deletes the folder and starts the job anew, which writes the listed positions again."""
        if not renewed:
            renewed.append(prefix)
            store.delete(list(keys_of(store)))
            coordinator, *slots = started(store, spec(run_id="anew"), leader="leader-anew")
            for _ in range(10):
                coordinator.checkpoint(*slots)
            return listed
        return list(lists(prefix))

    renewed: list[str] = []
    lists = store.list
    with patch.object(store, "list", stall), pytest.raises(Fenced, match="not the first record read"):
        compact_log(store, PATHS, view.head.record.base, view.kept or (), view.first_sha256, set())
    assert positions(store) == list(range(1, 12))


# ---------------------------------------------------------------- fsck


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["in reach", "the FENCE of the generation", "a kept decision"])
def test_fsck_reports_records_that_compaction_would_not_delete(
    store: MemoryStore, small_steps: None, lost: str
) -> None:
    job = spec(checkpoints=msgspec.structs.replace(spec().checkpoints, retained=3))
    coordinator, *slots = started(store, job)
    for _ in range(40):
        coordinator.checkpoint(*slots)
        for slot in slots:
            slot.commit(slot.highest)
    head = read_log(store, PATHS).head
    assert head is not None
    assert isinstance(head.record, Complete)
    position = {"in reach": head.position - 3, "the FENCE of the generation": head.record.token}.get(lost)
    if position is None:
        position = 3  # as if the newest decision listed an old one, which is gone
        later = msgspec.structs.replace(head.record, kept=(position, *head.record.kept))
        store.damage(PATHS.log_record(head.position), encode_record(later))
    else:
        store.delete([PATHS.log_record(position)])
    assert PATHS.log_record(position) in {each.object for each in damage(store)}


@pytest.mark.slow
@pytest.mark.parametrize("retained", [1, 2, 3, 10, 30])
def test_fsck_accepts_lists_of_decisions_deleted_below_the_base(
    store: MemoryStore, small_steps: None, retained: int
) -> None:
    """The record at the base lists decisions that later lists drop, and compaction deletes."""
    coordinator, *slots = started(
        store, spec(checkpoints=msgspec.structs.replace(spec().checkpoints, retained=retained))
    )
    for _ in range(60):
        coordinator.checkpoint(*slots)
        for slot in slots:
            slot.commit(slot.highest)
    assert len(positions(store)) < 61
    assert not damage(store)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["after the list", "while files are read"])
def test_fsck_of_a_job_that_compacts_its_log_meanwhile(store: MemoryStore, small_steps: None, moment: str) -> None:
    coordinator, slots = long_job(store, 30)
    read, lists, before = store.get, store.list, max(positions(store))
    once = iter([range(30, 70)])  # fsck reads on several threads

    def go_on() -> None:
        for number in next(once, ()):
            checkpoint(coordinator, *slots, files=f"f{number}")
            for slot in slots:
                slot.commit(slot.highest)

    def list_first(prefix: str) -> list[ObjectInfo]:
        found = list(lists(prefix))
        if moment == "after the list":
            go_on()
        return found

    def get(key: str, *range_of: object) -> bytes:
        if key.startswith(PATHS.data_prefix):
            go_on()
        return read(key, *range_of)

    with patch.object(store, "list", list_first), patch.object(store, "get", get):
        (found,) = check_store(store, "flights", 0, 10**12)
    assert not found.report.damage
    assert found.report.records == max(positions(store)) == before + 40


# ---------------------------------------------------------------- the cost of a start


class LongLog(MemoryStore):
    """Log with `length` records, of which only those are real that a start needs. Counts reads."""

    def __init__(self, length: int) -> None:
        super().__init__("long")
        self.reads = 0
        small = MemoryStore()
        coordinator, *slots = started(small)
        coordinator.checkpoint(*slots)
        fence, decision = record(small, 1), record(small, 2)
        self._set(PATHS.log_record(1), encode_record(fence))
        self.base = length - 1_500 - (length - 1_500) % records.MILESTONE_STEP
        parent = "0" * 64
        for position in range(self.base, length + 1):
            checkpoint = position - 1
            data = encode_record(
                msgspec.structs.replace(
                    decision,
                    version=BASE_FROM,
                    put_id=f"leader-a-{position}",
                    parent_sha256=parent,
                    prior_complete=position - 1,
                    checkpoint=checkpoint,
                    manifest=PATHS.manifest(checkpoint, 1),
                    kept=(),
                    base=self.base,
                )
            )
            self._set(PATHS.log_record(position), data)
            parent = sha256_hex(data)

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        self.reads += 1
        position = PATHS.log_position(key)
        if position is not None and 1 < position < self.base and is_milestone(position):
            return b"a milestone"
        return super().get(key, offset, size)


def reads_of_a_start(store: LongLog) -> int:
    store.reads = 0
    view = read_log(store, PATHS, completes=2, run_id="run-1", kept=True)
    assert view.head is not None
    assert view.restored is None
    return store.reads


def test_start_reads_as_much_after_ten_million_checkpoints_as_after_five_thousand() -> None:
    few, many = LongLog(5_000), LongLog(10_000_000)
    for store, length in ((few, 5_000), (many, 10_000_000)):
        store.put(PATHS.log_hint, msgspec.json.encode(Hint(length - 3, 1)))
    assert reads_of_a_start(many) == reads_of_a_start(few) <= 16
    for store in (few, many):
        store.delete([PATHS.log_hint])
    assert reads_of_a_start(few) <= 40
    assert reads_of_a_start(many) <= 60  # two searches by halves


@pytest.mark.parametrize("run_id", ["run-1", "another"])
def test_start_from_an_old_checkpoint_reads_only_kept_decisions_of_a_long_log(run_id: str) -> None:
    store = LongLog(10_000)
    store.put(PATHS.log_hint, msgspec.json.encode(Hint(9_997, 1)))
    store.reads = 0
    read_log(store, PATHS, completes=2, run_id=run_id, kept=True, restore=5)
    assert store.reads <= 16


def test_only_a_milestone_proves_that_a_position_was_left_behind(store: MemoryStore, small_steps: None) -> None:
    long_job(store, 20)
    head = max(positions(store))
    assert is_behind(store, PATHS, head) is None
    assert is_behind(store, PATHS, head - 8) is not None
