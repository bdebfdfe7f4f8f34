"""Manifests too large for messages: sent by reference, bounded, kept for as long as a reader needs them."""

import msgspec
import pytest
from coordinator_world import CHAINS, SINK, SOURCE, Coordinator, options, spec, started

from barrier_runtime.coordinator.checkpoints import commits
from barrier_runtime.coordinator.checkpoints.commits import MAX_PENDING_BYTES, CommitTracker
from barrier_runtime.coordinator.log.manifest import verified_manifest
from barrier_runtime.coordinator.log.restore_choice import snapshots_for_slot
from barrier_runtime.coordinator.wire import codec
from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES, encode
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CommitGlobally,
    Committed,
    Deploy,
    ManifestRef,
    SubtaskId,
    Trigger,
)
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.versioned import sha256_hex

INLINE = b"x" * 18_000
GLOBAL = spec(chains=(CHAINS[SOURCE], msgspec.structs.replace(CHAINS[SINK], global_sinks=("out",))))


def with_state(slot, checkpoint, operators, size=INLINE):
    """The slot's acks: `operators` keyed snapshots, each with a file inside the manifest."""
    for chain in (SOURCE, SINK):
        snapshots = ()
        if chain == SINK:
            ref = FileRef("000001.sst", len(size), sha256_hex(size), inline=size)
            keyed = KeyedSnapshot("rocksdb", 128, 0, 127, {"count": 1}, (ref,), len(size), len(size))
            snapshots = tuple(OperatorSnapshot("count", slot.index, 2, keyed=keyed) for _ in range(operators))
        slot.say(Ack(slot.token, checkpoint, SubtaskId(chain, slot.index), snapshots))


def decided_with_state(coordinator, a, b, operators):
    coordinator.trigger()
    number = a.last(Trigger).checkpoint
    for slot in (a, b):
        with_state(slot, number, operators)
    coordinator.settle()
    return number


@pytest.mark.slow
@pytest.mark.parametrize("operators", [3, 600])
def test_a_deployment_carries_what_is_small_and_names_the_manifest_of_what_is_large(operators, store):
    """R4: also at another parallelism, where every slot gets all state: 128 subtasks of 8 operators are as large."""
    coordinator, a, b = started(store)
    number = decided_with_state(coordinator, a, b, operators)
    rescaled = msgspec.structs.replace(spec(), run_id="run-2", parallelism=3)
    later = Coordinator(store, rescaled, leader="leader-b").begin().settle()
    slots = [later.slot(index, attempt=1).connect() for index in range(3)]
    later.settle()
    for slot in slots:
        deploy = slot.last(Deploy)
        assert deploy.checkpoint == number
        assert len(encode(deploy)) < codec.MAX_CARRIED_BYTES + 10_000
        if operators == 3:
            assert (len(deploy.operators), deploy.manifest) == (6, None)
            continue
        assert deploy.operators == ()
        data = store.get(deploy.manifest.key)
        assert len(data) > MAX_MESSAGE_BYTES
        manifest = verified_manifest(deploy.manifest.key, data, deploy.manifest.sha256)
        assert len(snapshots_for_slot(manifest.operators, slot.index, 3)) == 2 * operators


def test_unrestorable_checkpoint_is_not_decided_and_names_the_operator(monkeypatch):
    """R4: refused at the checkpoint, not at the restore."""
    monkeypatch.setattr(codec, "MAX_MANIFEST_BYTES", 100_000)
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(tolerable_failures=1)))
    decided_with_state(coordinator, a, b, 10)
    checkpoints = coordinator.status.checkpoints
    assert (checkpoints.completed, checkpoints.failed) == (0, 1)
    reason = checkpoints.history[-1].reason
    for part in (
        "its manifest of",
        "over the bound of 100,000",
        "operator 'count' (0 values, 20 files)",
        "parallelism",
    ):
        assert part in reason
    decided_with_state(coordinator, a, b, 1)
    assert coordinator.status.checkpoints.completed == 1


# ---------------------------------------------------------------- global committers


def pending(slot, checkpoint, key):
    """Acknowledges a checkpoint of a sink whose pending set is an object."""
    ref = FileRef("pending", 5_000, "aa", key=slot.data_key(key))
    slot.coordinator.store.put(ref.key, b"x")
    slot.say(Ack(slot.token, checkpoint, SubtaskId(SOURCE, slot.index), ()))
    out = OperatorSnapshot("out", slot.index, 2, objects={"pending": ref})
    slot.say(Ack(slot.token, checkpoint, SubtaskId(SINK, slot.index), (out,)))
    return ref.key


def decided_with_pending(coordinator, a, b, name):
    coordinator.trigger()
    number = a.last(Trigger).checkpoint
    keys = [pending(slot, number, name) for slot in (a, b)]
    coordinator.settle()
    return number, keys


def there(store, keys):
    found = {info.key for info in store.list("")}
    return [key in found for key in keys]


@pytest.mark.usefixtures("manifests_are_objects")
def test_what_a_global_committer_has_to_read_stays_until_it_is_done(monkeypatch, store):
    """S1: although newer checkpoints have long been decided."""
    coordinator, a, b = started(store, GLOBAL)
    first, keys = decided_with_pending(coordinator, a, b, "one")
    a.commit(first)
    b.commit(first)
    assert a.last(CommitGlobally).checkpoint == first
    for name in ("two", "three", "four"):
        decided_with_pending(coordinator, a, b, name)
    manifest = coordinator.paths.manifest(first, a.token)
    assert there(store, [*keys, manifest]) == [True] * 3
    a.commit_globally(first)
    coordinator.settle()
    assert there(store, [*keys, manifest]) == [False] * 3


@pytest.mark.usefixtures("manifests_are_objects")
def test_global_committer_gets_the_manifests_place_if_a_message_is_too_small(monkeypatch, store):
    monkeypatch.setattr(commits, "MAX_CARRIED_BYTES", 10)
    coordinator, a, b = started(store, GLOBAL)
    first, _ = decided_with_pending(coordinator, a, b, "one")
    a.commit(first)
    b.commit(first)
    told = a.last(CommitGlobally)
    assert told.snapshots == ()
    assert told.manifest.key == coordinator.paths.manifest(first, a.token)
    assert sha256_hex(store.get(told.manifest.key)) == told.manifest.sha256


def test_no_checkpoint_is_taken_while_too_many_bytes_wait_to_be_committed():
    tracker = CommitTracker(spec())
    entry = OperatorSnapshot("out", 0, 2, {"sink": b"{}"}, objects={"pending": FileRef("pending", 1, "aa", "k")})
    for number, size in enumerate((MAX_PENDING_BYTES // 2, MAX_PENDING_BYTES + 1), start=1):
        ref = FileRef("pending", size, "aa", "k")
        tracker.decided(number, (msgspec.structs.replace(entry, objects={"pending": ref}),), ManifestRef("m", "00"))
        tracker.completed(number, number)
    assert "takes 33,554,435 bytes of checkpoint 2, 33,554,432 are allowed" in tracker.too_far_behind
    for subtask in range(2):
        tracker.committed(Committed(1, 2, "out", subtask))
    assert tracker.too_far_behind == "", "they are large, but nothing waits"


def test_checkpoint_due_to_a_global_committer_is_held_until_a_newer_is_due():
    """R4: however many checkpoints complete meanwhile. It retries for minutes while the target is down."""
    tracker = CommitTracker(GLOBAL)

    def decided(number: int) -> None:
        ref = FileRef("pending", 5_000, "aa", f"k-{number}")
        entry = OperatorSnapshot("out", 0, 2, {"sink": b"{}"}, objects={"pending": ref})
        tracker.decided(number, (entry,), ManifestRef("m", "00"))
        tracker.completed(number, number)

    for number in range(1, 13):
        decided(number)
    for subtask in range(2):
        tracker.committed(Committed(1, 12, "out", subtask))
    assert [due.checkpoint for due in tracker.due_globally()] == [12]
    for number in range(13, 60):
        decided(number)
        assert 12 in tracker.held
        assert [due.checkpoint for due in tracker.due_globally()] == [12], "the subtasks are not further"
    assert len(tracker.held) < 20
    for subtask in range(2):
        tracker.committed(Committed(1, 59, "out", subtask))
    assert [due.checkpoint for due in tracker.due_globally()] == [59]
    decided(60)
    assert 59 in tracker.held
