"""Requests to the object store from checkpoint to checkpoint, and their price."""

from coordinator_world import started

from barrier_runtime.coordinator.status.status import CheckpointStatus, StoreUseStatus
from barrier_runtime.coordinator.status.store_use import Prices, StoreUseBetween, store_rate
from barrier_runtime.coordinator.wire.messages import Heartbeat, Trigger
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.use import StoreCounts, with_own_use


def metrics(writes: int, reads: int = 0) -> dict[str, float]:
    return {"store_writes": float(writes), "store_reads": float(reads), "store_sent_bytes": 10.0 * writes}


def test_what_a_process_did_before_it_was_first_heard_of_is_not_counted() -> None:
    """A successor receives sums over hours."""
    use = StoreUseBetween()
    assert use.since_last() is None
    use.tell_slots([("a", metrics(5_000))])
    use.tell_own(StoreCounts(2, 1, 300, 40))
    assert use.since_last() == StoreUseStatus(2, 1, 300, 40)
    use.tell_slots([("a", metrics(5_007, 3)), ("b", metrics(4))])
    assert use.since_last() == StoreUseStatus(7, 3, 70, 0)


def test_a_new_process_begins_anew_and_one_that_has_gone_is_forgotten() -> None:
    use = StoreUseBetween()
    for slots in (
        [("a", metrics(5))],
        [("b", metrics(1))],
        [("b", metrics(4))],
        [("a", metrics(90)), ("b", metrics(4))],
    ):
        use.tell_slots(slots)
        last = use.since_last()
    assert last == StoreUseStatus(0, 0, 0, 0)


def test_the_rate_is_a_mean_and_a_price_for_a_day() -> None:
    history = [
        CheckpointStatus(
            checkpoint=number,
            token=1,
            outcome="complete",
            triggered_ms=1_000 * number,
            duration_ms=100,
            store=None if number < 3 else StoreUseStatus(1_000 if number == 3 else 10, 5, 2_000, 100),
        )
        for number in range(1, 14)
    ]
    assert store_rate(history[:5], Prices(5.0, 0.4)) is None, "of too few"
    rate = store_rate(history, Prices(5.0, 0.4))
    assert rate is not None
    assert (rate.checkpoints, rate.writes, rate.reads, rate.sent_bytes) == (10, 10, 5, 2_000)
    assert abs(rate.cost - (10 * 5.0 + 5 * 0.4) / 1e6) < 1e-12
    assert abs(rate.cost_per_day - 86_400 * rate.cost) < 1e-9


def test_a_checkpoint_tells_the_requests_of_slots(store) -> None:
    coordinator, a, b = started(store)
    for number, writes in enumerate((100, 103, 110)):
        for slot in (a, b):
            slot.say(Heartbeat(slot.token, metrics(writes)))
        coordinator.trigger()
        for slot in (a, b):
            slot.ack(slot.last(Trigger).checkpoint)
        coordinator.settle()
        assert coordinator.status.checkpoints.completed == number + 1
    told = [each.store.writes for each in coordinator.status.checkpoints.history if each.store is not None]
    assert told == [0, 6, 14]


def test_stores_that_do_not_count_are_as_they_are() -> None:
    store = MemoryStore()
    assert with_own_use(store) is store
