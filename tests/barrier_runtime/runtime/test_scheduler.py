"""The scheduler sleeps and wakes by itself: a paced source needs no other events."""

import asyncio
import subprocess
import sys

import pyarrow as pa
import pytest
from operator_harness import World

from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.connectors.memory.rate import GeneratedRows
from barrier_runtime.connectors.source import Polled
from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import Edge, SourceSpec
from barrier_runtime.operators.base import Operator
from barrier_runtime.runtime.aligner import Aligner
from barrier_runtime.runtime.host.clock import LoopTimer
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, ResultPartition
from barrier_runtime.runtime.scheduler import Scheduler
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.subtask import Subtask

_PROGRAM = """
import asyncio, sys
import uvloop
from barrier_runtime import Dataflow, JsonlSink

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
flow = Dataflow("paced")
flow.rate("numbers", 700, 1_000).sink("out", JsonlSink(sys.argv[1]))
print(flow.run_local(parallelism=1, checkpoint_interval=3_600.0).records)
"""


@pytest.mark.slow
def test_a_source_goes_on_although_nothing_but_its_own_timer_ever_wakes_the_slot(tmp_path):
    """uvloop, which slots on Spark use, fires timers slightly early. Without a checkpoint for an hour, or while the
    coordinator is away, no other event wakes the slot.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1000"


class HandClock:
    """Clock that advances only on command. Also serves as the subtask's host."""

    now = 100.0

    def monotonic_s(self):
        return self.now

    def wall_ns(self):
        return int(self.now * 1e9)

    now_ns = wall_ns

    def starved_ns(self):
        return 0

    timer = LoopTimer


class Slow(Operator):
    """Operator that advances the clock by a given time per batch."""

    def __init__(self, clock, batch_s, batch_done):
        self.clock, self.batch_s, self.batch_done = clock, batch_s, batch_done

    def process(self, batch, emit, port=0):
        self.clock.now += self.batch_s
        self.batch_done()


def slices_per_pass(batch_s, slice_s, batches=200):
    """How many slices of the work between passes each pass begins with, all but the first and the last."""
    clock, slices, errors = HandClock(), [0], []

    def between():
        slices[-1] += 1
        clock.now += slice_s
        return True

    async def run():
        scheduler = Scheduler(asyncio.get_running_loop(), between, lambda _, error: errors.append(error), clock)
        channel = InputChannel(0, 0, scheduler.wake)
        slow = Slow(clock, batch_s, lambda: slices.append(0))
        subtask = Subtask(SubtaskId(0, 0), 1, [("slow", slow)], [channel], [], Aligner(1, 1), host=clock)
        for _ in range(batches):
            channel.push(Batch(pa.record_batch({"n": [1]}), 0), 10)
        scheduler.start([subtask])
        while channel.readable and not errors:
            await asyncio.sleep(0)
        scheduler.stop()

    asyncio.run(run())
    assert not errors
    return [count for count in slices if count][1:-1]


def test_work_between_passes_gets_a_slice_of_short_and_a_share_of_long_passes():
    """A slice must not delay the rows of an idle slot by more than the slice's length; and in a busy slot, whose passes
    are long, a snapshot must still finish.
    """
    assert set(slices_per_pass(batch_s=0.000001, slice_s=0.0003)) == {1}
    assert set(slices_per_pass(batch_s=0.030, slice_s=0.00101)) == {15}


def test_pass_moves_rows_from_source_to_sink_of_the_slot_and_leaves_no_work():
    """A turn of the loop, not a turn per subtask."""
    clock, passes, errors = HandClock(), [], []
    source = GeneratedRows("ticks", 1_000, 3, None, 1)
    clock.source_ns = clock.now_ns
    driver = SourceDriver()
    driver.open(World().context("ticks"), SourceSpec("ticks", source, tuple(source.splits(1))))

    async def run():
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(
            loop, lambda: passes.append(len(arrived)) or False, lambda _, e: errors.append(e), clock, 1.0
        )
        arrived = []
        channel = InputChannel(0, 0, scheduler.wake_by_input)
        edge = ResultPartition(Edge(0, 0, 1, "forward"), [LocalOutput(channel, scheduler.wake)], 0, 8)
        first = Subtask(SubtaskId(0, 0), 1, [], [], [edge], Aligner(0, 1), host=clock, source=("ticks", driver))
        sink = Slow(clock, 0.0, lambda: arrived.append(clock.now))
        last = Stepped(SubtaskId(1, 0), 1, [("sink", sink)], [channel], [], Aligner(1, 1), host=clock)
        scheduler.start([first, last])
        while not arrived and not errors:
            await asyncio.sleep(0)
        scheduler.stop()
        assert last.steps == 1  # a subtask known to have no work gets no second step

    asyncio.run(run())
    assert not errors
    assert passes == [0, 1]  # work between passes, before and after the only pass


class Stepped(Subtask):
    steps = 0

    def step(self):
        self.steps += 1
        return super().step()


def test_what_a_pass_leaves_is_done_without_another_wake():
    """Covers rows passed to a subtask after the turn of this subtask, and rows of a channel unblocked later: their
    senders do not wake the slot again.
    """
    clock, arrived, errors, unblocked = HandClock(), [], [], []

    async def run(unblock):
        def between():
            if unblock and arrived and not unblocked:
                unblocked.append(channels[1])
                channels[1].unblock()
            return False

        scheduler = Scheduler(asyncio.get_running_loop(), between, lambda _, error: errors.append(error), clock)
        channels = [InputChannel(index, 0, scheduler.wake_by_input) for index in range(2)]
        channels[1].blocked = unblock

        def taken():
            arrived.append(clock.now)
            if len(arrived) == 1:
                channels[1].push(batch, 10)

        batch = Batch(pa.record_batch({"n": [1]}), 0)
        inner, sink = Slow(clock, 0.0, taken), Slow(clock, 0.0, lambda: arrived.append(clock.now))
        first = Subtask(SubtaskId(0, 0), 1, [("inner", inner)], channels[:1], [], Aligner(1, 1), host=clock)
        channels[1].index = 0
        last = Subtask(SubtaskId(1, 0), 1, [("sink", sink)], channels[1:], [], Aligner(1, 1), host=clock)
        scheduler._last_pass_s = 1.0  # so that the sink's turn is first
        channels[0].push(batch, 10)
        scheduler.start([first, last])
        for _ in range(20):  # turns of the loop
            await asyncio.sleep(0)
        scheduler.stop()

    for unblock in (False, True):
        arrived.clear()
        asyncio.run(run(unblock))
        assert not errors
        assert len(arrived) == 2


class HandTimer:
    """Timer whose setting advances time at once to the due time; nothing else happens before."""

    def __init__(self, clock, loop, ring):
        self.clock, self.loop, self.ring = clock, loop, ring

    def set(self, delay_s):
        self.clock.now += max(delay_s, 1e-6)
        self.loop.call_soon(self.ring)

    def close(self):
        """Nothing is open."""


def batches_of(rows_per_second, pass_s, target_s, batches=60):
    """Returns the rows per batch of a scheduled source in a slot whose passes take `pass_s`, and the wait of each
    batch's first row after the due time, once the slot knows the passes.
    """
    clock, sizes, waits, errors = HandClock(), [], [], []
    clock.timer = lambda loop, ring: HandTimer(clock, loop, ring)
    clock.source_ns = clock.now_ns
    source = GeneratedRows("ticks", rows_per_second, None, None, 1)
    driver = SourceDriver()
    driver.open(World().context("ticks"), SourceSpec("ticks", source, tuple(source.splits(1))))

    class Sized(Slow):
        def process(self, batch, emit, port=0):
            sizes.append(len(batch))
            waits.append(clock.now - batch.emit_ns / 1e9)
            super().process(batch, emit, port)

    async def run():
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(loop, lambda: False, lambda _, error: errors.append(error), clock, target_s)
        slow = Sized(clock, pass_s, lambda: None)
        aligner = Aligner(0, 1)
        subtask = Subtask(SubtaskId(0, 0), 1, [("slow", slow)], [], [], aligner, host=clock, source=("ticks", driver))
        scheduler.start([subtask])
        while len(sizes) < batches and not errors:
            await asyncio.sleep(0)
        scheduler.stop()

    asyncio.run(run())
    assert not errors
    return sizes[batches // 2 :], max(waits[batches // 2 :])


def test_scheduled_rows_wait_for_others_a_pass_long_and_never_beyond_the_target():
    sizes, wait_s = batches_of(1_000, pass_s=0.010, target_s=0.060)
    assert set(sizes) <= {40, 41}  # the slot rests three quarters of the time
    assert wait_s < 0.0415
    sizes, wait_s = batches_of(1_000, pass_s=0.010, target_s=0.100)
    assert set(sizes) <= {50, 51}  # a larger target makes the slot wait longer
    assert wait_s < 0.0515
    sizes, wait_s = batches_of(1_000, pass_s=0.010, target_s=0.015)
    assert set(sizes) <= {15, 16}
    assert wait_s < 0.0165
    sizes, _ = batches_of(1_000, pass_s=0.010, target_s=0.005)
    assert set(sizes) <= {9, 10, 11}  # rows that arrived during the last pass are already late
    sizes, wait_s = batches_of(1_000, pass_s=0.010, target_s=0.0)
    assert set(sizes) <= {9, 10, 11}
    sizes, wait_s = batches_of(1_000, pass_s=0.00001, target_s=0.001)
    assert set(sizes) == {1}
    assert wait_s < 0.0006


def rows_polled_when_others_come(after_s):
    """Returns the number of rows polled from a source whose rows may wait 40 ms, when rows of another slot arrive
    `after_s` after the first due row.
    """
    clock, calls, sizes, errors = HandClock(), [], [], []

    class HandRung(HandTimer):
        def set(self, delay_s):
            """Does nothing: the test rings the timer."""

    clock.timer = lambda loop, ring: HandRung(clock, loop, ring)
    clock.source_ns = clock.now_ns
    source = GeneratedRows("ticks", 1_000, None, None, 1)
    driver = SourceDriver()
    driver.open(World().context("ticks"), SourceSpec("ticks", source, tuple(source.splits(1))))

    class Sized(Slow):
        def process(self, batch, emit, port=0):
            sizes.append(len(batch))
            super().process(batch, emit, port)

    async def run():
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(loop, lambda: False, lambda _, error: errors.append(error), clock, 0.060)
        slow = Sized(clock, 0.010, lambda: None)
        aligner = Aligner(0, 1)
        first = Subtask(SubtaskId(0, 0), 1, [("slow", slow)], [], [], aligner, host=clock, source=("ticks", driver))
        channel = InputChannel(0, 0, scheduler.wake)
        sink = Slow(clock, 0.0, lambda: calls.append(clock.now))
        last = Subtask(SubtaskId(1, 0), 1, [("sink", sink)], [channel], [], Aligner(1, 1), host=clock)
        scheduler.start([first, last])
        for _ in range(40):  # until the slot knows the passes
            clock.now += 0.1
            scheduler.wake()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        clock.now = driver.next_due_ns() / 1e9 + after_s
        sizes.clear()
        channel.push(Batch(pa.record_batch({"n": [1]}), 0), 10)
        while not calls and not errors:
            await asyncio.sleep(0)
        scheduler.stop()

    asyncio.run(run())
    assert not errors
    return sum(sizes)


def test_rows_that_waited_half_of_the_time_join_rows_that_come_from_elsewhere():
    """The same pass serves both. A row that is just due does not join, or two slots would wake each other forever."""
    assert rows_polled_when_others_come(after_s=0.022) == 23
    assert rows_polled_when_others_come(after_s=0.018) == 0


class WakesInAPass:
    """Has a row for the second poll, and wakes the slot during the first poll; no later wake-up follows."""

    finished = False

    def __init__(self, wake):
        self.wake, self.polls = wake, 0

    def next_due_ns(self):
        return None

    def poll(self, max_rows, now_ns):
        self.polls += 1
        if self.polls == 1:
            self.wake()
        return Polled(pa.record_batch({"n": [1]}), now_ns) if self.polls == 2 else None

    def position(self):
        return b"0"

    def close(self):
        """Nothing is open."""


def test_a_wake_within_a_pass_that_finds_nothing_leads_to_another_pass():
    """The slot sleeps as long as the sources allow; a wake-up during a pass is not repeated."""
    clock, batches, errors = HandClock(), [], []

    class NeverRings(HandTimer):
        def set(self, delay_s):
            """Does nothing: only the slot's own passes count."""

    clock.timer = lambda loop, ring: NeverRings(clock, loop, ring)
    clock.source_ns = clock.now_ns

    async def run():
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(loop, lambda: False, lambda _, error: errors.append(error), clock)
        source = GeneratedRows("one", 1, 1, None, 1)
        source.reader = lambda split: WakesInAPass(scheduler.wake)
        driver = SourceDriver()
        driver.open(World().context("one"), SourceSpec("one", source, tuple(source.splits(1))))
        sink = Slow(clock, 0.0, lambda: batches.append(clock.now))
        subtask = Subtask(
            SubtaskId(0, 0), 1, [("sink", sink)], [], [], Aligner(0, 1), host=clock, source=("one", driver)
        )
        scheduler.start([subtask])
        for _ in range(20):  # turns of the loop
            await asyncio.sleep(0)
        scheduler.stop()

    asyncio.run(run())
    assert not errors
    assert len(batches) == 1


def test_work_between_passes_that_a_pass_brings_is_begun_before_the_slot_sleeps():
    """For example a snapshot captured in a pass: an idle slot has no other pass that would drain it."""
    clock, waiting, drained, errors = HandClock(), [], [], []

    def between():
        if waiting:
            drained.append(waiting.pop())
        return bool(waiting)

    async def run():
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(loop, between, lambda _, error: errors.append(error), clock)
        channel = InputChannel(0, 0, scheduler.wake)

        def captured():
            waiting.extend(range(3))
            scheduler.wake()

        slow = Slow(clock, 0.0, captured)
        subtask = Subtask(SubtaskId(0, 0), 1, [("slow", slow)], [channel], [], Aligner(1, 1), host=clock)
        channel.push(Batch(pa.record_batch({"n": [1]}), 0), 10)
        scheduler.start([subtask])
        for _ in range(20):  # turns of the loop
            await asyncio.sleep(0)
        scheduler.stop()

    asyncio.run(run())
    assert not errors
    assert len(drained) == 3


def test_a_slot_that_cannot_keep_up_never_rests():
    sizes, _ = batches_of(1_000_000, pass_s=0.010, target_s=1.0, batches=30)
    assert min(sizes) >= 1_024  # full batches


@pytest.mark.parametrize(
    ("module", "read_s", "step_s", "reading"),
    [
        ("barrier_runtime.connectors.delta.source", 3.0, 0.1, True),
        ("barrier_runtime.connectors.delta.source", 0.1, 3.0, False),  # a later step of the chain
        ("barrier_runtime.connectors.kafka.source.source", 3.0, 0.1, True),  # deserialisers run in another thread
        ("barrier_runtime.connectors.memory.iterator", 3.0, 0.1, False),  # calls a function of the program
        ("users_program", 3.0, 0.1, False),
    ],
)
def test_long_steps_tell_readers_of_this_package_from_the_code_of_users(module, read_s, step_s, reading):
    clock, errors, batches = HandClock(), [], []
    clock.source_ns = clock.now_ns

    def reader(self, split):
        made = GeneratedRows.reader(self, split)
        poll = made.poll

        def slow(max_rows, now_ns):
            clock.now += read_s
            return poll(max_rows, now_ns)

        made.poll = slow
        return made

    source = type("SlowRows", (GeneratedRows,), {"reader": reader, "__module__": module})("ticks", 1_000, 3, None, 1)
    driver = SourceDriver()
    driver.open(World().context("ticks"), SourceSpec("ticks", source, tuple(source.splits(1))))
    slow = Slow(clock, step_s, lambda: batches.append(1))

    async def run():
        scheduler = Scheduler(asyncio.get_running_loop(), lambda: False, lambda _, error: errors.append(error), clock)
        aligner = Aligner(0, 1)
        subtask = Subtask(SubtaskId(0, 0), 1, [("slow", slow)], [], [], aligner, host=clock, source=("ticks", driver))
        clock.captured = clock.ended = lambda *_: None
        scheduler.start([subtask])
        while not batches and not errors:
            await asyncio.sleep(0)
        scheduler.stop()
        return scheduler.take_longest(), scheduler.long_steps.longest_since(0.0)

    longest, (_, _, noted) = asyncio.run(run())
    assert not errors
    assert longest is not None
    assert (longest.reading, noted) == (reading, reading)


class SlowFunction(Slow):
    """Function of the program before a sink."""

    def process(self, batch, emit, port=0):
        super().process(batch, emit, port)
        emit(batch)


@pytest.mark.parametrize(
    ("module", "write_s", "step_s", "own"),
    [
        ("barrier_runtime.connectors.redis.sink", 3.0, 0.1, True),
        ("barrier_runtime.connectors.redis.sink", 0.1, 3.0, False),  # an earlier step of the chain
        ("barrier_runtime.connectors.memory.callable", 3.0, 0.1, False),  # calls a function of the program
        ("users_program", 3.0, 0.1, False),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_long_steps_tell_sinks_of_this_package_from_the_code_of_users(module, write_s, step_s, own, alone):
    clock, errors, written = HandClock(), [], []
    clock.source_ns = clock.now_ns

    def write(self, transaction, rows):
        clock.now += write_s
        written.append(rows)

    out = SinkOperator("out", type("SlowSink", (CollectSink,), {"write": write, "__module__": module}))
    out.open(World().context("out"))
    slow = SlowFunction(clock, step_s, lambda: None)
    operators = [("out", out)] if alone else [("slow", slow), ("out", out)]

    async def run():
        scheduler = Scheduler(asyncio.get_running_loop(), lambda: False, lambda _, error: errors.append(error), clock)
        channel = InputChannel(0, 0, scheduler.wake)
        subtask = Subtask(SubtaskId(0, 0), 1, operators, [channel], [], Aligner(1, 1), host=clock)
        channel.push(Batch(pa.record_batch({"n": [1]}), 0), 10)
        scheduler.start([subtask])
        while not written and not errors:
            await asyncio.sleep(0)
        scheduler.stop()
        return scheduler.take_longest(), scheduler.long_steps.longest_since(0.0)

    longest, (_, _, noted) = asyncio.run(run())
    assert not errors
    if alone and write_s < 1.0:
        assert longest is None
    else:
        assert (longest.reading, noted) == (own, own)


def rows_of_steps(batch_s, row_s, batches):
    """Returns the rows per batch of a source that is far behind. A batch takes `batch_s`, and `row_s` for each row."""
    clock, sizes, errors = HandClock(), [], []
    clock.source_ns = clock.now_ns
    driver = SourceDriver()
    source = GeneratedRows("ticks", 10_000_000, None, None, 1)
    driver.open(World().context("ticks"), SourceSpec("ticks", source, tuple(source.splits(1))))

    class Sized(Slow):
        def process(self, batch, emit, port=0):
            sizes.append(len(batch))
            clock.now += len(batch) * (row_s() if callable(row_s) else row_s)
            super().process(batch, emit, port)

    async def run():
        scheduler = Scheduler(asyncio.get_running_loop(), lambda: False, lambda _, e: errors.append(e), clock)
        sized = Sized(clock, batch_s, lambda: None)
        aligner = Aligner(0, 1)
        subtask = Subtask(SubtaskId(0, 0), 1, [("sized", sized)], [], [], aligner, host=clock, source=("ticks", driver))
        scheduler.start([subtask])
        while len(sizes) < batches and not errors:
            clock.now += 0.05  # more rows become due than a batch may have
            await asyncio.sleep(0)
        scheduler.stop()

    asyncio.run(run())
    assert not errors
    return sizes


def test_batches_of_a_source_behind_grow_up_to_20_ms_of_work():
    quick = rows_of_steps(batch_s=0.002, row_s=0.0, batches=30)
    assert quick[0] <= 128  # rows may be slow
    assert quick[-1] == 65_536
    medium = rows_of_steps(batch_s=0.0, row_s=0.000_002, batches=30)
    assert 9_000 <= max(medium) <= 10_000  # 20 ms of work


@pytest.mark.parametrize(("row_s", "most"), [(0.001, 20), (0.1, 1)])
def test_batches_of_slow_rows_take_20_ms_or_have_one_row(row_s, most):
    slow = rows_of_steps(batch_s=0.0, row_s=row_s, batches=64)
    assert max(slow) <= 128
    usual = sorted(slow[8:])[:-4]
    assert max(usual) <= most
    assert max(slow[8:]) <= 2 * most  # now and then a larger batch shows whether size matters


@pytest.mark.parametrize("row_s", [0.0, 0.000_001])
def test_fixed_cost_of_a_batch_does_not_shrink_batches(row_s):
    sizes = rows_of_steps(batch_s=0.05, row_s=row_s, batches=60)
    assert min(sizes[40:]) >= 4_096


def test_rows_that_turn_slow_or_quick_change_the_size_of_batches():
    costs = iter([0.000_001] * 50 + [0.001] * 50 + [0.000_001] * 50)
    sizes = rows_of_steps(batch_s=0.025, row_s=lambda: next(costs), batches=150)
    assert min(sizes[40:50]) >= 4_096
    assert max(sizes[60:100]) <= 80
    assert min(sizes[140:]) >= 4_096


@pytest.mark.parametrize(("total_s", "starved"), [(12.5, True), (11.0, False)])
def test_long_step_reports_time_without_a_core_since_the_last_heartbeat(total_s, starved):
    clock, errors, stepped = HandClock(), [], []
    clock.source_ns = clock.now_ns

    async def run():
        scheduler = Scheduler(asyncio.get_running_loop(), lambda: False, lambda _, error: errors.append(error), clock)
        channel = InputChannel(0, 0, scheduler.wake)
        slow = Slow(clock, 3.0, lambda: stepped.append(1))
        subtask = Subtask(SubtaskId(0, 0), 1, [("slow", slow)], [channel], [], Aligner(1, 1), host=clock)
        assert scheduler.take_longest(10.0) is None
        channel.push(Batch(pa.record_batch({"n": [1]}), 0), 10)
        scheduler.start([subtask])
        while not stepped and not errors:
            await asyncio.sleep(0)
        scheduler.stop()
        return scheduler.take_longest(total_s)

    longest = asyncio.run(run())
    assert not errors
    assert (longest.starved, longest.starved_s, longest.seconds) == (starved, total_s - 10.0, 3.0)
