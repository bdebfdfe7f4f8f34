"""Accounting of a subtask's time, and the input counts between two snapshots."""

import asyncio

from subtask_bench import Bench, rows

from barrier_runtime.runtime.load import Load, LoadSince, LongSteps
from barrier_runtime.runtime.scheduler import Scheduler
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes


def test_the_time_between_two_looks_counts_as_it_was_at_the_first_of_them() -> None:
    load = Load()
    load.looked(5.0, blocked=True, held=False)  # nothing is known of the time before
    assert (load.blocked_s, load.held_s) == (0.0, 0.0)
    load.looked(2.0, blocked=False, held=True)
    load.looked(3.0, blocked=True, held=True)
    load.looked(1.0, blocked=False, held=False)
    assert (load.blocked_s, load.held_s) == (3.0, 4.0)


def test_a_snapshot_has_what_came_since_the_one_before() -> None:
    load, steps, since = Load(busy_s=0.4, blocked_s=0.1), LongSteps(), LoadSince(100.0, starved_s=7.0)
    steps.note(100.5, 0.3, chain=4, reading=True)
    first = since.add_to(SnapshotTimes(1.0, 2.0, 3.0), load, 50, 7.25, steps, 101.0)
    assert (first.start_delay_ms, first.alignment_ms, first.sync_ms) == (1.0, 2.0, 3.0)
    assert (first.rows, first.busy_ms, first.blocked_ms, first.starved_ms) == (50, 400.0, 100.0, 250.0)
    assert (first.step_ms, first.step_chain, first.step_reading) == (300.0, 4, True)
    load.busy_s, load.held_s = 0.45, 0.2
    second = since.add_to(SnapshotTimes(), load, 60, 7.25, steps, 102.0)
    assert (second.rows, second.busy_ms, second.blocked_ms, second.held_ms, second.starved_ms) == (10, 50, 0, 200, 0)
    assert (second.step_ms, second.step_chain, second.step_reading) == (0.0, -1, False)


def test_rows_that_an_operator_gave_back_are_never_a_negative_count() -> None:
    since = LoadSince(0.0, 0.0)
    since.add_to(SnapshotTimes(), Load(), 10, 0.0, LongSteps(), 1.0)
    assert since.add_to(SnapshotTimes(), Load(), 8, 0.0, LongSteps(), 2.0).rows == 0


def test_longest_of_many_long_steps_is_reported_and_short_steps_are_not_kept() -> None:
    steps = LongSteps()
    for ended_s, seconds, chain in ((1.0, 0.9, 1), (2.0, 0.05, 2), (3.0, 0.2, 3), (4.0, 0.001, 4)):
        steps.note(ended_s, seconds, chain)
    assert steps.longest_since(0.0) == (0.9, 1, False)
    assert steps.longest_since(1.0) == (0.2, 3, False)
    assert steps.longest_since(3.0) == (0.0, -1, False)


class SteppedClock:
    """Clock under which a step of the subtask takes a time chosen by the test."""

    now = 10.0

    def monotonic_s(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return int(self.now * 1e9)

    def timer(self, loop, ring):
        from barrier_runtime.runtime.host.clock import LoopTimer

        return LoopTimer(loop, ring)


async def test_a_slow_step_is_busy_time_of_its_subtask_and_a_full_receiver_is_blocked_time() -> None:
    clock, bench = SteppedClock(), Bench(inputs=1, room=1)
    process = bench.operator.process

    def slow(batch, emit, port=0):
        clock.now += 0.25
        process(batch, emit, port)

    bench.operator.process = slow
    errors: list[Exception] = []
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(loop, lambda: False, lambda _, error: errors.append(error), clock)
    bench.inputs[0].push(rows(1), 8)
    scheduler.start([bench.subtask])
    while not bench.subtask.chain.load.blocked:  # the receiver has room for a byte only
        await asyncio.sleep(0)
    assert bench.subtask.chain.load.busy_s == 0.25
    assert scheduler.long_steps.longest_since(0.0) == (0.25, 0, False)
    clock.now += 2.0
    scheduler.wake()
    while not bench.subtask.chain.load.blocked_s:
        await asyncio.sleep(0)
    assert (bench.subtask.chain.load.blocked_s, bench.subtask.chain.load.held_s) == (2.0, 0.0)
    assert scheduler.backpressured_s == 2.0
    scheduler.stop()
    assert errors == []
