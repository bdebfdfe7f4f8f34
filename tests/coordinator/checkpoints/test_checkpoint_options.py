"""Checkpoint options in a complete job, with Flink's meaning: triggers, records and kept checkpoints."""

import pytest
from coordinator_world import keys_of, kinds, log_of, options, spec, started

from barrier_runtime.coordinator.wire.messages import AbortCheckpoint, CheckpointComplete, Trigger
from barrier_runtime.state.store.memory import MemoryStore

LONG = {"slot_timeout_ms": 10_000_000}


def triggers(slot):
    return [message.checkpoint for message in slot.got(Trigger)]


def moments(coordinator, slot, ms, answer):
    """Returns (moment, id) of each trigger within `ms`, in steps of 50 ms.

    Each step calls `answer(id, age_ms)` for every trigger so far."""
    start, seen, born = coordinator.now_ms, [], {}
    while coordinator.now_ms - start < ms:
        coordinator.later(50)
        for number in triggers(slot):
            if number not in born:
                born[number] = coordinator.now_ms
                seen.append((coordinator.now_ms - start, number))
            answer(number, coordinator.now_ms - born[number])
    return seen


def acknowledged_after(coordinator, slots, delay_ms):
    done = set()

    def answer(number, age_ms):
        if age_ms >= delay_ms and number not in done:
            done.add(number)
            for slot in slots:
                slot.ack(number)
            coordinator.settle()

    return answer


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"interval_ms": 500}, [500, 1_000, 1_500, 2_000]),  # acked after 100 ms: the interval decides
        ({"interval_ms": 500, "min_pause_ms": 450}, [500, 1_050, 1_600, 2_150]),  # 100 + 450 from each trigger
        ({"interval_ms": 100, "min_pause_ms": 900}, [900, 1_900]),  # the interval is as long as the pause
    ],
)
def test_interval_and_min_pause_space_the_triggers(changes, expected):
    """C10: ids and moments strictly rise, the pause counts from the end of the last checkpoint."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(**changes), **LONG))
    seen = moments(coordinator, a, 2_200, acknowledged_after(coordinator, (a, b), 100))
    assert [moment for moment, _ in seen] == expected
    assert [number for _, number in seen] == list(range(1, len(expected) + 1))


@pytest.mark.parametrize(("max_concurrent", "most"), [(1, 1), (2, 2), (3, 3)])
def test_no_more_than_max_concurrent_are_under_way(max_concurrent, most):
    """C10."""
    checkpoints = options(interval_ms=100, max_concurrent=max_concurrent)
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=checkpoints, **LONG))
    open_at_once = []

    def answer(number, age_ms):
        open_at_once.append(len(coordinator.status.checkpoints.in_progress))

    moments(coordinator, a, 2_000, answer)
    assert max(open_at_once) == most
    assert triggers(b) == list(range(1, most + 1))


def test_after_a_stop_nothing_is_triggered_any_more():
    """C10."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(interval_ms=100), **LONG))
    coordinator.stop("checkpoint")
    number = a.highest
    for slot in (a, b):
        slot.ack(number)
    coordinator.settle()
    coordinator.later(10_000)
    assert triggers(a) == [number]


def test_of_two_under_way_each_completes_on_its_own_last_ack():
    """C4, C5: interleaved acks of 1 and 2; a notice per slot, and the next notice replaces the last."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(interval_ms=100, max_concurrent=2), **LONG))
    coordinator.later(200)
    a.ack(1)
    b.ack(2)
    b.ack(1)
    coordinator.settle()
    assert a.got(CheckpointComplete) == b.got(CheckpointComplete) == [CheckpointComplete(1, 1)]
    a.ack(2)
    coordinator.settle()
    assert (
        a.got(CheckpointComplete) == b.got(CheckpointComplete) == [CheckpointComplete(1, 1), CheckpointComplete(1, 2)]
    )
    assert [record.checkpoint for record in log_of(coordinator.store)[1:]] == [1, 2]


def test_a_decline_of_the_first_leaves_the_second_untouched():
    """C2, C3: acks, a duplicate, the decline, the decline again: dropped once, and 2 completes."""
    checkpoints = options(interval_ms=100, max_concurrent=2, tolerable_failures=1)
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=checkpoints, **LONG))
    coordinator.later(200)
    a.ack(1)
    a.ack(1)
    for _ in range(3):
        b.decline(1)
    assert [message.checkpoint for message in a.got(AbortCheckpoint)] == [1]
    assert coordinator.status.checkpoints.in_progress[0] == 2
    for slot in (a, b):
        slot.ack(2)
    coordinator.settle()
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE"]
    assert log_of(coordinator.store)[-1].checkpoint == 2


def test_a_late_ack_of_a_subsumed_checkpoint_changes_nothing():
    """C6, C9: 2 completes first; 1 is dropped, and the manifest of 1 is never written."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(interval_ms=100, max_concurrent=2), **LONG))
    coordinator.later(200)
    a.ack(1)
    for slot in (a, b):
        slot.ack(2)
    coordinator.settle()
    before = keys_of(coordinator.store)
    b.ack(1)
    coordinator.settle()
    assert keys_of(coordinator.store) == before
    history = coordinator.status.checkpoints.history
    assert [(entry.checkpoint, entry.outcome) for entry in history] == [(1, "subsumed"), (2, "complete")]
    assert coordinator.status.checkpoints.failed == 0


def test_a_timeout_drops_the_checkpoint_and_tells_nobody_that_it_is_complete():
    """C7: the first of two acks arrives before the timeout; the next checkpoint is triggered and completes."""
    checkpoints = options(interval_ms=1_000, timeout_ms=300, tolerable_failures=1)
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=checkpoints, **LONG))
    coordinator.later(1_000)
    a.ack(1)
    coordinator.later(299)
    assert coordinator.status.checkpoints.in_progress == (1,)
    coordinator.later(1)
    assert coordinator.status.checkpoints.in_progress == ()
    assert a.got(CheckpointComplete) == []
    coordinator.later(700)
    for slot in (a, b):
        slot.ack(2)
    coordinator.settle()
    assert a.got(CheckpointComplete) == [CheckpointComplete(1, 2)]


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_as_many_failures_in_a_row_as_are_tolerable_keep_the_generation(tolerable):
    """C11."""
    checkpoints = options(interval_ms=100, tolerable_failures=tolerable)
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=checkpoints, **LONG))
    for _ in range(tolerable):
        coordinator.later(100)
        b.decline(b.highest)
        coordinator.settle()
    assert kinds(coordinator.store) == ["FENCE"]
    coordinator.later(100)
    b.decline(b.highest)
    coordinator.settle()
    assert kinds(coordinator.store) == ["FENCE", "FENCE"]
    assert f"tolerable_failures = {tolerable} is exceeded" in log_of(coordinator.store)[-1].reason
    assert a.highest == tolerable + 1


@pytest.mark.parametrize("retained", [1, 2, 3])
@pytest.mark.usefixtures("manifests_are_objects")
def test_given_number_of_checkpoints_is_kept_and_older_go_after_newer_is_durable(retained):
    """C14. A slot may still reuse files of the last dropped checkpoint, which the next decision deletes."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(retained=retained), **LONG))
    for number in range(1, 6):
        before = [key for key in keys_of(coordinator.store) if key.endswith("manifest.json")]
        coordinator.trigger()
        for slot in (a, b):
            slot.ack(number)
        coordinator.step()  # the manifest is written
        assert set(before) <= set(keys_of(coordinator.store)), "nothing goes before the decision"
        coordinator.settle()
    kept = [key for key in keys_of(coordinator.store) if key.endswith("manifest.json")]
    assert kept == [coordinator.paths.manifest(number, 1) for number in range(5 - retained, 6)]


def test_the_options_in_force_are_in_the_status():
    checkpoints = options(interval_ms=100, min_pause_ms=700, max_concurrent=5, retained=2, on_cancel="delete")
    coordinator, *_ = started(MemoryStore(), spec(checkpoints=checkpoints, progress_timeout_ms=9_000))
    shown = coordinator.status.options
    assert {name: shown[name] for name in ("interval_ms", "max_concurrent", "retained", "on_cancel")} == {
        "interval_ms": 700,
        "max_concurrent": 1,
        "retained": 2,
        "on_cancel": "delete",
    }
    assert shown["progress_timeout_ms"] == 9_000
    assert str(shown["restart"]).startswith("exponential_delay: ")


@pytest.mark.parametrize(
    ("changes", "timeout_ms"),
    [({}, None), ({"unaligned": True}, 0), ({"unaligned": True, "aligned_timeout_ms": 300}, 300)],
)
def test_a_trigger_says_how_long_its_barriers_may_be_aligned_and_says_it_again(changes, timeout_ms):
    """U6"""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(**changes), **LONG))
    coordinator.later(1_000)
    assert [each.aligned_timeout_ms for each in a.got(Trigger)] == [timeout_ms]
    assert [each.overtakes_timers for each in a.got(Trigger)] == [not changes], "others overtake what they like"
    b.connect()
    coordinator.settle()
    assert b.got(Trigger) == a.got(Trigger) * 2


@pytest.mark.parametrize("unaligned", [True, False])
def test_the_checkpoint_that_a_job_stops_with_is_aligned(unaligned):
    """U9: any version and parallelism of the program can restore an aligned checkpoint."""
    coordinator, a, _ = started(MemoryStore(), spec(checkpoints=options(unaligned=unaligned), **LONG))
    coordinator.stop("checkpoint")
    coordinator.settle()
    assert a.got(Trigger)[-1].aligned_timeout_ms is None
    assert not a.got(Trigger)[-1].overtakes_timers, "nor may it have rows that waited for timers"
