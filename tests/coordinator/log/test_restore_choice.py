"""Choice of the checkpoint that a new run restores, and the compatibility."""

import msgspec
import pytest
from coordinator_world import CHAINS, Coordinator, keys_of, kinds, log_of, options, spec, started

from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.records import Complete, decode_record, encode_record
from barrier_runtime.coordinator.log.restore_choice import check_manifest
from barrier_runtime.coordinator.wire.messages import ChainSpec, Deploy
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import DEFINITION, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore


def stored(checkpoints=3, **changes):
    store = MemoryStore()
    first, a, b = started(store, spec(checkpoints=options(retained=3), **changes))
    for number in range(1, checkpoints + 1):
        first.checkpoint(a, b, files=f"f{number}")
    return store


def second_run(store, **changes):
    base = {"run_id": "run-2", "checkpoints": options(retained=3)}
    return Coordinator(store, spec(**{**base, **changes}), leader="leader-b").begin().settle()


def restored_by(coordinator):
    slots = [coordinator.slot(index) for index in range(coordinator.protocol.spec.parallelism)]
    coordinator.run_with(*slots)
    return slots[0].last(Deploy)


def test_latest_is_the_last_completed_checkpoint():
    assert restored_by(second_run(stored())).checkpoint == 3


def test_latest_of_an_empty_log_starts_empty():
    assert restored_by(second_run(MemoryStore())).checkpoint == 0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"restore": "none"}, "has completed checkpoint 3"),
        ({"restore": "2"}, "older than the last completed one, 3"),
        ({"restore": "9"}, "no completed checkpoint 9"),
        ({"max_parallelism": 64}, "max_parallelism 128, the job now has 64"),
    ],
)
def test_what_would_lose_or_double_rows_is_refused_and_the_running_job_is_left_alone(changes, match):
    """R4, R5."""
    store = stored()
    coordinator = second_run(store, **changes)
    assert coordinator.ended.outcome == "failed"
    assert match in coordinator.ended.reason
    assert kinds(store) == ["FENCE", "COMPLETE", "COMPLETE", "COMPLETE"]


@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_a_mode_that_replays_after_at_most_once_needs_permission(mode):
    store = MemoryStore()
    first, a, b = started(store, spec(checkpoints=options(mode="at_most_once")))
    first.checkpoint(a, b)
    refused = second_run(store, checkpoints=options(mode=mode))
    assert "would write them again" in refused.ended.reason
    assert restored_by(second_run(store, checkpoints=options(mode="at_most_once"), run_id="run-3")).checkpoint == 1
    allowed = second_run(store, checkpoints=options(mode=mode), run_id="run-4", allow_replay=True)
    assert restored_by(allowed).checkpoint == 1


@pytest.mark.parametrize(("restore", "expected"), [("none", 0), ("2", 2), ("1", 1), ("3", 3)])
def test_a_replay_is_possible_by_express_wish_and_begins_a_new_lineage(restore, expected):
    """R4, rK7."""
    store = stored()
    coordinator = second_run(store, restore=restore, allow_replay=True)
    assert restored_by(coordinator).checkpoint == expected
    fences = [record for record in log_of(store) if hasattr(record, "lineage") and hasattr(record, "spec")]
    assert (fences[0].lineage == fences[1].lineage) == (restore == "3")


@pytest.mark.parametrize(
    ("commits", "restore", "settled"),
    [(True, "latest", True), (False, "latest", False), (True, "3", True), (True, "2", False), (True, "none", False)],
)
def test_only_what_a_finished_job_ended_with_is_known_to_be_visible(commits, restore, settled, store):
    """I10: FINISH is written after the last commit of every sink; a start from an older checkpoint proves nothing."""
    first, a, b = started(store, spec(checkpoints=options(retained=3)))
    first.checkpoint(a, b)
    first.checkpoint(a, b)
    a.end()
    b.end()
    a.ack(3, ended=True)
    b.ack(3, ended=True)
    first.settle()
    if commits:
        a.commit(3)
        b.commit(3)
        first.settle()
        assert first.ended.outcome == "finished"
    coordinator = second_run(store, restore=restore, allow_replay=True)
    deploy = restored_by(coordinator)
    assert deploy.settled is settled
    slot = coordinator.slot(0)
    slot.fail()
    coordinator.settle()
    coordinator.run_with(slot, coordinator.slot(1))
    assert slot.last(Deploy).settled is settled, "the next generation of the run knows it too"


def stopped(store):
    first, a, b = started(store)
    first.stop("checkpoint")
    for slot in (a, b):
        slot.ack(1)
    first.settle()
    assert first.ended is None
    for slot in (a, b):
        slot.commit(1)
    first.settle()
    assert first.ended.outcome == "cancelled"


def test_a_stop_with_a_checkpoint_leaves_nothing_to_commit(store):
    stopped(store)
    deploy = restored_by(second_run(store))
    assert (deploy.checkpoint, deploy.settled) == (1, True)


def test_a_stop_at_once_may_leave_transactions_to_commit(store):
    first, a, b = started(store)
    first.checkpoint(a, b)
    first.stop("now")
    assert first.ended.outcome == "cancelled"
    deploy = restored_by(second_run(store))
    assert (deploy.checkpoint, deploy.settled) == (1, False)


def test_the_end_of_a_stop_by_an_earlier_release_is_read_and_proves_nothing():
    store = MemoryStore()
    stopped(store)
    (key,) = [key for key in keys_of(store) if key.endswith("/log/00000000000000000003.json")]
    end = decode_record(key, store.get(key))
    assert (end.version, end.visible) == (4, 1)
    earlier = encode_record(msgspec.structs.replace(end, version=1, visible=msgspec.UNSET))
    assert b"visible" not in earlier
    store.damage(key, earlier)
    deploy = restored_by(second_run(store))
    assert (deploy.checkpoint, deploy.settled) == (1, False)


def test_replaying_run_replays_again_when_recovering_before_its_first_checkpoint():
    """R4: does not restore the newest decision of the abandoned lineage."""
    store = stored()
    coordinator = second_run(store, restore="1", allow_replay=True)
    a, b = coordinator.slot(0), coordinator.slot(1)
    coordinator.run_with(a, b)
    a.fail()
    coordinator.settle()
    assert a.last(Deploy).checkpoint == 1
    coordinator.run_with(a, b)
    number = coordinator.checkpoint(a, b)
    assert number == 4
    a.fail()
    coordinator.settle()
    coordinator.later(1_000)  # the back-off of a second restart in a row
    assert a.last(Deploy).checkpoint == 4


def test_an_id_in_an_empty_log_is_refused():
    assert "no completed checkpoint" in second_run(MemoryStore(), restore="4").ended.reason


def test_changed_names_are_listed_as_matched_missing_and_new():
    chains = (CHAINS[0], ChainSpec(1, ("tally", "out"), stateful=("tally",), sinks=("out",)))
    coordinator = second_run(stored(), chains=chains)
    assert coordinator.ended.outcome == "failed"
    assert "matched: numbers; missing: count; new: out, tally" in coordinator.ended.reason
    assert "allow_non_restored" in coordinator.ended.reason


def test_missing_state_may_be_dropped_by_express_wish():
    chains = (CHAINS[0], ChainSpec(1, ("tally", "out"), stateful=("tally",), sinks=("out",)))
    deploy = restored_by(second_run(stored(), chains=chains, allow_non_restored=True))
    assert {snapshot.operator for snapshot in deploy.operators} == {"numbers"}


def test_the_order_of_the_graph_does_not_matter():
    chains = tuple(msgspec.structs.replace(chain, chain=1 - chain.chain) for chain in reversed(CHAINS))
    assert restored_by(second_run(stored(), chains=chains)).checkpoint == 3


@pytest.mark.parametrize(
    ("stored", "now", "refused"),
    [
        (None, {"count": "tumbling 1 s"}, None),  # by a release that did not say
        ("tumbling 1 s", {"count": "tumbling 1 s"}, None),
        ("tumbling 1 s", {"count": "tumbling 5 s"}, "as tumbling 1 s, but the job now has it as tumbling 5 s"),
        ("tumbling 1 s", {}, "as tumbling 1 s, but the job now has it as something else"),
    ],
)
def test_state_is_restored_only_as_what_it_was_defined(stored, now, refused):
    """R5."""
    values = {"progress": b"far"} | ({DEFINITION: stored.encode()} if stored else {})
    job = spec(chains=(CHAINS[0], msgspec.structs.replace(CHAINS[1], definitions=now)))
    manifest = Manifest(
        job=job.job,
        lineage="l",
        checkpoint=1,
        token=1,
        created_wall_ms=0,
        parallelism=2,
        max_parallelism=128,
        operators=(OperatorSnapshot("count", 0, 2, values),),
        parent_position=1,
        parent_sha256="",
    )
    record = Complete(
        put_id="p",
        parent_sha256="",
        token=1,
        writer="ann",
        wall_ms=0,
        checkpoint=1,
        lineage="l",
        manifest="m",
        sha256="",
    )
    if refused is None:
        assert check_manifest(job, record, manifest) == manifest.operators
    else:
        with pytest.raises(InvalidJob, match=refused):
            check_manifest(job, record, manifest)


def test_each_slot_gets_its_own_keyed_state_and_all_state_on_a_new_parallelism():
    """Small state (positions, committables) it always gets from all: a changed list of splits moves splits."""
    store = stored()

    def owners(deploy, operator):
        return {snapshot.subtask for snapshot in deploy.operators if snapshot.operator == operator}

    same = restored_by(second_run(store))
    assert (owners(same, "count"), owners(same, "numbers")) == ({0}, {0, 1})
    other = restored_by(second_run(store, run_id="run-3", parallelism=3))
    assert (owners(other, "count"), owners(other, "numbers")) == ({0, 1}, {0, 1})
