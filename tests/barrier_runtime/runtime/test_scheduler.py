"""The scheduler sleeps and wakes by itself: nothing else may be needed to keep a paced source going."""

import asyncio
import subprocess
import sys

import pyarrow as pa

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Operator
from barrier_runtime.runtime.alignment.aligner import Aligner
from barrier_runtime.runtime.host.timer import LoopTimer
from barrier_runtime.runtime.network.channels import InputChannel
from barrier_runtime.runtime.scheduler import Scheduler
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


def test_a_source_goes_on_although_nothing_but_its_own_timer_ever_wakes_the_slot(tmp_path):
    """uvloop, which slots on Spark use, fires timers a little early. With no checkpoint for an hour nobody else would
    wake the slot; while a coordinator is away nobody does."""
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
    """Time passes only when somebody says so. Also all that a subtask asks of its host here."""

    now = 100.0

    def monotonic_s(self):
        return self.now

    def wall_ns(self):
        return int(self.now * 1e9)

    now_ns = wall_ns
    timer = LoopTimer


class Slow(Operator):
    """Takes a given time of the clock per batch."""

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


def test_work_between_passes_gets_one_slice_of_short_passes_and_its_share_of_long_ones():
    """A slice must not delay the rows of an idle slot by more than itself; and in a busy slot, whose passes are long,
    a snapshot must not take for ever."""
    assert set(slices_per_pass(batch_s=0.00001, slice_s=0.0003)) == {1}
    assert set(slices_per_pass(batch_s=0.030, slice_s=0.00101)) == {15}
