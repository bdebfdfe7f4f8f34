"""Manifests inside log records, and the log's list of kept checkpoints.

A dropped checkpoint is not restored, although the record with the manifest stays for ever."""

import random
import zlib

import msgspec
import pytest
from coordinator_world import Coordinator, checkpoint, keys_of, log_of, options, spec, started

from barrier_runtime.coordinator.job.effects import Append, Delete
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import (
    INLINE_BYTES,
    inline_data,
    kept_by_complete,
    kept_by_fence,
    load_manifest,
    packed,
)
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import Complete, decode_record, encode_record
from barrier_runtime.coordinator.maintenance.fsck_store import check_store
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.drawn import seeds

PATHS = Paths("flights")
OLD = 20 * 60 * 1000  # ms, older than all objects that the sweep spares


def run(store, name, restore="latest", retained=1, **arguments):
    job = spec(run_id=name, restore=restore, allow_replay=True, checkpoints=options(retained=retained))
    return Coordinator(store, job, leader=name, **arguments).begin().settle()


def decided_by(store, retained, count):
    """Returns a job that has decided checkpoints 1 to `count`, each with a new file, and the slots."""
    coordinator, *slots = started(store, spec(checkpoints=options(retained=retained)))
    for number in range(1, count + 1):
        checkpoint(coordinator, *slots, files=f"f{number}")
    return coordinator, slots


def completes(store):
    return [record for record in log_of(store) if isinstance(record, Complete)]


# ---------------------------------------------------------------- the manifest


def test_a_small_manifest_is_decided_by_one_put(store):
    coordinator, slots = decided_by(store, 1, 1)
    writes = store.calls.get("put", 0), store.calls.get("put_if_absent", 0)
    coordinator.checkpoint(*slots)
    assert (store.calls.get("put", 0), store.calls.get("put_if_absent", 0)) == (writes[0], writes[1] + 1)
    assert not [key for key in keys_of(store) if key.startswith(PATHS.checkpoints_prefix)]
    assert load_manifest(completes(store)[-1], store.get).checkpoint == 2


def test_a_manifest_that_is_too_large_is_an_object_of_its_own():
    noise = random.Random(1).randbytes(INLINE_BYTES)
    assert zlib.decompress(packed(noise[:-100])) == noise[:-100]
    assert packed(noise) == b"", "no shorter when it is compressed"
    assert packed(bytes(1 << 20)) == b"", "too large for a message, however short it is here"


@pytest.mark.parametrize(
    "inside",
    [b"rubbish", zlib.compress(b"a manifest")[:-1], zlib.compress(b"a manifest") + b"x", zlib.compress(bytes(1 << 22))],
)
def test_what_is_no_packed_manifest_is_damage(store, inside):
    decided_by(store, 1, 1)
    record = msgspec.structs.replace(completes(store)[0], inline=inside)
    with pytest.raises(Corrupt, match="inside the log record of checkpoint 1 is damaged"):
        inline_data(record)


def test_the_manifest_inside_has_to_be_the_decided_one(store):
    decided_by(store, 1, 2)
    first, second = completes(store)
    with pytest.raises(Corrupt, match="expected sha256"):
        load_manifest(msgspec.structs.replace(second, inline=first.inline), store.get)


# ---------------------------------------------------------------- kept checkpoints


@pytest.mark.parametrize(
    ("known", "restored", "retained", "kept"),
    [
        ((), -1, 2, ()),
        ((2, 3), 3, 1, (3,)),
        ((2, 3), 3, 2, (2, 3)),
        ((2, 3, 4), 4, 2, (3, 4)),
        ((2, 3, 4), 2, 3, (3, 4, 2)),
        ((2, 3, 4), 2, 1, (4, 2)),  # the newest is kept until a newer checkpoint exists
        ((4, 2), 2, 1, (4, 2)),
        ((4, 2), 4, 1, (4,)),
        ((4, 2), -1, 1, (4, 2)),
        ((2, 3, 4), -1, 2, (3, 4)),
    ],
)
def test_a_fence_keeps_the_newest_and_what_it_restores(known, restored, retained, kept):
    assert kept_by_fence(known, restored, retained) == kept


def test_a_decision_drops_the_first_of_the_list():
    assert kept_by_complete((4, 2), 1) == ()
    assert kept_by_complete((3, 4, 2), 2) == (2,)
    assert kept_by_complete((3, 4), 1_000) == (3, 4)


# ---------------------------------------------------------------- retention


def test_a_dropped_checkpoint_is_not_restored_although_its_manifest_is_in_the_log(store):
    decided_by(store, 2, 4)
    assert [load_manifest(each, store.get).checkpoint for each in completes(store)] == [1, 2, 3, 4]
    for number, fits in ((1, False), (2, False), (3, True), (4, True)):
        other = MemoryStore()
        for key in keys_of(store):
            other.put(key, store.get(key))
        before = keys_of(other)
        new = run(other, "again", str(number), retained=2)
        assert (new.ended is None) == fits, number
        if not fits:
            assert f"checkpoint {number} of job flights is not kept any more" in new.ended.reason
            assert keys_of(other) == before, "it has written nothing"


def test_readers_of_a_dropped_checkpoint_are_told_that_it_is_not_kept(tmp_path):
    store = MemoryStore()
    decided_by(store, 1, 2)
    folder = open_store(str(tmp_path))
    for key in keys_of(store):
        folder.put(key, store.get(key))
    assert find_checkpoint(str(tmp_path), "flights").manifest.checkpoint == 2
    with pytest.raises(InvalidJob, match="checkpoint 1 of job flights is not kept any more"):
        find_checkpoint(str(tmp_path), "flights", 1)


def test_a_run_that_keeps_more_brings_no_dropped_checkpoint_back(store):
    decided_by(store, 1, 3)
    new = run(store, "more", retained=3)
    slots = new.slot(0), new.slot(1)
    new.run_with(*slots)
    new.checkpoint(*slots)
    assert read_log(store, PATHS).kept == (4, 6), "checkpoints 3 and 4"
    assert "not kept" in run(store, "older", "2", retained=3).ended.reason


@pytest.mark.parametrize("outcome", [Fault.APPLY_THEN_FAIL, Fault.LAND_LATE, Fault.FAIL_BEFORE])
def test_nothing_is_deleted_before_the_record_that_drops_it_is_certain(store, outcome):
    """I9: each time the put of the decision that drops checkpoint 1 has no answer."""
    coordinator, slots = decided_by(store, 1, 1)
    for slot in slots:
        slot.upload("f2")
    coordinator.trigger()
    for slot in slots:
        slot.ack(2, files="f2")
    coordinator.run_until(Append)
    store.inject(outcome, "put_if_absent")
    coordinator.step()
    assert slots[0].data_key("f1") in keys_of(store)
    assert not any(isinstance(effect, Delete) for effect in coordinator.todo)
    coordinator.settle()
    assert read_log(store, PATHS).kept == (3,)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_who_dies_between_two_steps_of_dropping_leaves_no_half_checkpoint(store, is_dropped):
    """Dies before the record that drops checkpoint 1, or between this record and the first delete."""
    coordinator, slots = decided_by(store, 2, 2)
    for slot in slots:
        slot.upload("f3")
    coordinator.trigger()
    for slot in slots:
        slot.ack(3, files="f3")
    coordinator.run_until(Append)
    if is_dropped:
        coordinator.answer(coordinator.todo.popleft())
    one, three = (slots[0].data_key(f"f{number}") for number in (1, 3))
    assert {one, three} <= set(keys_of(store))
    refused = run(store, "older", "1", retained=2)
    assert (refused.ended is not None) == is_dropped
    if is_dropped:
        new = run(store, "next", retained=2, now_ms=OLD)
        others = new.slot(0, "n-0"), new.slot(1, "n-1")
        new.run_with(*others)
        new.checkpoint(*others)
        new.settle()
        assert {one, three} & set(keys_of(store)) == {three}


def test_the_newest_decision_outlives_a_replay_that_decides_nothing(store):
    """A run that replays from an older checkpoint and dies leaves the newest checkpoint to the next run."""
    decided_by(store, 2, 3)
    replay = run(store, "replay", "2", retained=1)
    slots = replay.slot(0, "r-0"), replay.slot(1, "r-1")
    replay.run_with(*slots)
    assert read_log(store, PATHS).kept == (4, 3)
    replay.now_ms += OLD
    replay.settle()
    again = run(store, "again", now_ms=replay.now_ms)
    others = again.slot(0, "a-0"), again.slot(1, "a-1")
    again.run_with(*others)
    assert again.status.restored_checkpoint == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20))
def test_files_of_kept_checkpoints_are_there_through_runs_and_replays(store, seed):
    """I7: runs that keep more or fewer, restore the newest or an older kept one, and die anywhere."""
    rng = random.Random(seed)
    now_ms, names = 0, iter(range(10_000))
    for number in range(8):
        retained = rng.choice((1, 1, 2, 3))
        view = read_log(store, PATHS, kept=True)
        kept = [complete_of(entry).checkpoint for entry in view.kept_entries]
        restore = str(rng.choice(kept)) if kept and rng.random() < 0.5 else "latest"
        coordinator = run(store, f"run-{number}", restore, retained, now_ms=now_ms)
        assert coordinator.ended is None, coordinator.ended
        slots = coordinator.slot(0, f"{number}-0"), coordinator.slot(1, f"{number}-1")
        coordinator.run_with(*slots)
        for _ in range(rng.randrange(4)):
            checkpoint(coordinator, *slots, files=f"f{next(names)}")
            coordinator.now_ms += rng.choice((0, OLD))
        if rng.random() < 0.3:
            coordinator.trigger()
            for slot in slots:
                slot.ack(slot.highest)
            coordinator.run_until(Append)
            if rng.random() < 0.5:
                coordinator.answer(coordinator.todo.popleft())
        now_ms = coordinator.now_ms
        [found] = check_store(store, "flights", 0, now_ms)
        assert found.report.damage == ()
        kept = [complete_of(entry).checkpoint for entry in read_log(store, PATHS, kept=True).kept_entries]
        assert set(found.report.verified) == set(kept)


# ---------------------------------------------------------------- fsck


def rewritten(store, *positions, **changes):
    """Changes fields of the records at `positions`, and chains all later records again."""
    parent = ""
    for each in range(1, len(log_of(store)) + 1):
        key = PATHS.log_record(each)
        record = decode_record(key, store.get(key))
        record = msgspec.structs.replace(record, parent_sha256=parent, **(changes if each in positions else {}))
        data = encode_record(record)
        store.damage(key, data)
        parent = sha256_hex(data)


@pytest.mark.parametrize(
    ("kept", "found"),
    [((2,), "also 2"), ((1,), "1"), ((9,), "9")],
)
def test_fsck_finds_a_list_that_brings_a_dropped_checkpoint_back(store, kept, found):
    decided_by(store, 1, 3)
    rewritten(store, 4, kept=kept)
    [checked] = check_store(store, "flights", 0, 0)
    assert any(harm.object == PATHS.log_record(4) and harm.found == found for harm in checked.report.damage)


def test_fsck_misses_nothing_where_the_folder_of_manifests_is_gone(store):
    decided_by(store, 2, 3)
    store.delete([key for key in keys_of(store) if key.startswith(PATHS.checkpoints_prefix)])
    [checked] = check_store(store, "flights", 0, 0)
    assert (checked.report.damage, checked.report.verified) == ((), (2, 3))


def test_fsck_tells_whose_a_file_was_by_the_manifest_in_the_log(store):
    _, slots = decided_by(store, 1, 3)
    run(store, "next")
    files = {slot.data_key("f2") for slot in slots} & set(keys_of(store))
    assert files, "they wait until slots have heard of a later checkpoint"
    [checked] = check_store(store, "flights", 0, OLD)
    reasons = {each.key: each.reason for each in checked.report.unreferenced}
    assert all(
        "file of checkpoint 2 of generation 1, which was complete and is dropped" in reasons[key] for key in files
    )


# ---------------------------------------------------------------- earlier releases


def test_a_log_of_an_earlier_release_keeps_what_is_in_the_store(store, manifests_are_objects):
    decided_by(store, 2, 3)
    rewritten(store, *range(1, 5), version=1, kept=())
    assert read_log(store, PATHS).kept is None
    new = run(store, "next", retained=2)
    slots = new.slot(0, "n-0"), new.slot(1, "n-1")
    new.run_with(*slots)
    assert read_log(store, PATHS).kept == (3, 4)
    new.checkpoint(*slots)
    assert read_log(store, PATHS).kept == (4, 6)
