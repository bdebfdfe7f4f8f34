"""A subtask between real channels, with a manual clock, and a record of captured, recorded
and emitted elements.
"""

import pyarrow as pa

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Barrier, Batch
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.operators.base import Capture, Operator
from barrier_runtime.runtime.aligner import Aligner
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, ResultPartition
from barrier_runtime.runtime.subtask import Subtask

TOKEN = 4


def rows(*values):
    return Batch(pa.record_batch({"v": pa.array(values, pa.int64())}), 1)


def barrier(id, aligned_timeout_ms=None):
    return Barrier(id, TOKEN, 0, aligned_timeout_ms)


def values(batches):
    return [value for batch in batches for value in batch.rows.column(0).to_pylist()]


class Summing(Operator):
    """Forwards rows and sums them; emits the sum as a row at the end of the input."""

    def __init__(self):
        self.total = 0
        self.completed = []
        self.aborted = []

    def process(self, batch, emit, port=0):
        self.total += sum(batch.rows.column(0).to_pylist())
        emit(batch)

    def on_end(self, emit):
        emit(rows(self.total))

    def snapshot(self, checkpoint):
        return Capture(values={"total": str(self.total).encode()})

    def on_complete(self, checkpoint):
        self.completed.append(checkpoint)

    def on_abort(self, checkpoint):
        self.aborted.append(checkpoint)


class CapturedCalls:
    """Callable list: the host method `captured`, remembered."""

    def __init__(self):
        self.calls = []

    def __call__(self, subtask, barrier, captures, times, recording):
        self.calls.append((barrier, captures))


class Bench:
    """A subtask between real channels; acts as the slot."""

    def __init__(
        self,
        inputs=2,
        aligner=Aligner,
        room=1 << 20,
        ports=None,
        aligned_only=(),
        replay=(),
        operator=None,
        timeless=(),
        outputs=None,
        latency_target_s=0.0,
        source=None,
    ):
        self.captured = CapturedCalls()
        self.declined = []
        self.ended_subtasks = []
        self.clock_ms = self.steady_ms = 0.0
        self.timers = []  # (due_ms, callback)
        self.in_flight = {}  # checkpoint -> port -> values
        self.operator = operator or Summing()
        self.inputs = [InputChannel(i, ports[i] if ports else 0, lambda: None) for i in range(inputs)]
        for index in timeless:
            self.inputs[index].timeless = True
        self.out = InputChannel(0, 0, lambda: None, room)
        edge = Edge(0, 0, 1, "forward")
        self.subtask = Subtask(
            SubtaskId(0, 0),
            TOKEN,
            [("sum", self.operator)],
            self.inputs,
            outputs or [ResultPartition(edge, [LocalOutput(self.out, lambda: None)], 0, 128)],
            aligner(inputs, TOKEN, aligned_only) if aligned_only else aligner(inputs, TOKEN),
            self,
            source,
            replay,
        )
        self.subtask.gather_for(latency_target_s)

    # SubtaskHost
    def now_ms(self):
        return self.clock_ms

    def now_ns(self):
        return int(self.clock_ms * 1e6)

    def source_ns(self):
        return int(self.steady_ms * 1e6)

    def starved_ns(self):
        return 0

    def recorded(self, subtask, checkpoint, in_flight):
        assert checkpoint not in self.in_flight
        self.in_flight[checkpoint] = {port: values(batches) for port, batches in in_flight.items()}
        self.recorded_batches = [(port, batch) for port, batches in in_flight.items() for batch in batches]

    def start_timer(self, subtask, delay_ms, callback):
        self.timers = [(self.clock_ms + delay_ms, callback)]

    def captured_totals(self):
        return [(b.id, int(c["sum"].values["total"])) for b, c in self.captured.calls]

    def snapshot_aborted(self, subtask, checkpoint, reason):
        self.declined.append(checkpoint)

    def ended(self, subtask):
        self.ended_subtasks.append(subtask.id)

    # events from outside
    def queue(self, *pairs):
        """Adds elements to the channels without processing them; barriers are announced."""
        for channel, element in pairs:
            self.inputs[channel].push(element, 10)
            self.subtask.take_announcements()

    def pass_time(self, ms):
        self.clock_ms += ms
        self.steady_ms += ms
        due = [timer for timer in self.timers if timer[0] <= self.clock_ms]
        self.timers = [timer for timer in self.timers if timer[0] > self.clock_ms]
        for _, callback in due:
            callback()

    def work(self):
        while self.subtask.step():
            pass

    def feed(self, *pairs):
        for channel, element in pairs:
            self.inputs[channel].push(element, 10)
            while self.subtask.step():
                pass

    def emitted(self):
        elements = []
        while self.out.readable:
            element = self.out.pop()
            elements.append(element.rows.column(0).to_pylist() if isinstance(element, Batch) else element)
        return elements
