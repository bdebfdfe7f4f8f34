"""Subtask: a chain of operators behind aligned input channels. Sans-io: callers pass the time.

Restored rows in flight (`replay`) precede arriving rows and are never late. Rows left at the next snapshot are in
flight again.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import (
    WATERMARK_MAX,
    Barrier,
    Batch,
    CancelBarrier,
    Idle,
    Watermark,
    within,
)
from barrier_runtime.operators.base import Capture, Operator
from barrier_runtime.runtime.aligner import (
    Aborted,
    Aligner,
    AlignmentEffect,
    Block,
    InFlightComplete,
    StartTimer,
    TakeSnapshot,
    Unblock,
)
from barrier_runtime.runtime.barrier_tracker import BarrierTracker
from barrier_runtime.runtime.in_flight import InFlightData, InFlightWriter
from barrier_runtime.runtime.network.channels import InputChannel, ResultPartition
from barrier_runtime.runtime.network.flow_control import CHUNK_NS, SourceChunk
from barrier_runtime.runtime.network.input_queues import InputQueues
from barrier_runtime.runtime.operator_chain import OperatorChain
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes

_ELEMENTS_PER_STEP = 16
_ELEMENTS_PER_WIDE_STEP = 256
_FEW = 128  # rows of a batch after which a source is asked for no more to gather
_STEP_NS = 2_000_000
_HELD_UP_MS = 10  # after this time a barrier overtakes rows that wait for timers


class SubtaskHost(Protocol):
    def now_ms(self) -> float: ...
    def now_ns(self) -> int: ...
    def starved_ns(self) -> int: ...  # waiting for a processor; a call costs some microseconds
    def source_ns(self) -> int: ...  # as `now_ns`, but never jumps

    def captured(
        self, subtask: "Subtask", barrier: Barrier, captures: dict[str, Capture], times: SnapshotTimes, recording: bool
    ) -> None:
        """`times` lacks `async_ms`. `recording`: `recorded` follows."""
        ...

    def recorded(self, subtask: "Subtask", checkpoint: int, in_flight: InFlightData) -> None: ...
    def start_timer(self, subtask: "Subtask", delay_ms: int, callback: Callable[[], None]) -> None:
        """Replaces an earlier timer of `subtask`."""
        ...

    def snapshot_aborted(self, subtask: "Subtask", checkpoint: int, reason: str) -> None: ...
    def ended(self, subtask: "Subtask") -> None: ...


class Subtask:
    def __init__(
        self,
        id: SubtaskId,
        token: int,
        operators: list[tuple[str, Operator]],
        inputs: list[InputChannel],
        outputs: list[ResultPartition],
        aligner: Aligner | BarrierTracker,
        host: SubtaskHost,
        source: tuple[str, SourceDriver] | None = None,
        replay: Iterable[tuple[int, Batch]] = (),
    ) -> None:
        self.id = id
        self.token = token
        self.chain = OperatorChain(operators, outputs, host.now_ns)
        self.inputs = inputs
        self.source = source
        self.rows_in = 0
        self.last_checkpoint = 0  # highest id captured or aborted
        self._wanted: Barrier | None = None  # trigger to answer if the inputs end before its barriers
        self._aligner = aligner
        self.queues = InputQueues(inputs)
        self._merger = self.queues.merger
        self.announcements = self.queues.announcements
        self.said_idle = False
        self._chunk = SourceChunk()
        self._ahead = False  # rows were taken without room
        self._all_in = False
        self._host = host
        self._replay = deque(replay)
        self._in_flight = InFlightWriter(inputs)
        self._paused = 0  # the checkpoint after which the source emits nothing
        self._stands = 0  # the checkpoint after which no wall-clock timer fires
        self._overtaking = 0  # the last checkpoint whose barriers need not wait for event time
        # checkpoint whose barriers all wait for event time, and since when (ms)
        self._held_up: tuple[int, float] | None = None
        self._ending = False  # event time is advancing to the end
        self.chain.first.stops = source is None
        self._gathers_ns = 0
        self._send_at_ns = 0  # when gathered rows leave
        self._polled = 0  # rows of the last poll of the source

    def gather_for(self, seconds: float) -> None:
        """Lets rows for many slots wait for other rows within a step."""
        self._gathers_ns = min(int(seconds * 1e9), CHUNK_NS) if self.chain.wide else 0

    @property
    def ended(self) -> bool:
        return self.chain.ended

    @property
    def writable(self) -> bool:
        return not self._paused and self.chain.has_room

    @property
    def at_rest(self) -> bool:
        """Returns whether all received elements are processed; rows not yet emitted do not count."""
        return not (self.chain.is_under_way or self._replay or self.announcements or self.has_input)

    @property
    def has_input(self) -> bool:
        for channel in self.inputs:  # noqa: SIM110
            if channel.readable:
                return True
        return False

    @property
    def may_go_on(self) -> bool:
        """Returns whether a step may find work although no element arrives and no time passes."""
        if self.chain.ended:
            return False
        chain = self.chain
        return self.has_input or chain.first.by_clock or self._all_in or bool(self._replay) or chain.is_under_way

    def step(self) -> bool:
        """Does a bounded piece of work; returns whether there was any."""
        if not self._gathers_ns:
            return self._step()
        self._send_at_ns = self._host.source_ns() + self._gathers_ns
        self.chain.gather(True)
        worked = self._step()
        self.chain.gather(False)
        return worked

    def _step(self) -> bool:
        chain = self.chain
        if chain.ended:
            return False
        if self.source is not None:
            worked = self._step_source(self.source[1])
            for _ in range(_ELEMENTS_PER_WIDE_STEP if self._gathers_ns else 0):
                if self._polled <= _FEW or self._host.source_ns() >= self._send_at_ns:
                    break
                self._step_source(self.source[1])
            return worked
        if self.announcements:
            self.take_announcements()
        by_clock = chain.first.by_clock and not (self._ending or 0 < self._stands <= self.last_checkpoint)
        worked = by_clock and chain.may_emit and chain.by_wall_clock()
        if chain.is_under_way:
            return (chain.may_emit and self._go_on()) or worked
        if self._all_in:
            return self._end_if_finished() or worked
        if self._ahead and chain.has_room:
            self._ahead = False
            for each in self.inputs:
                each.settle()
        if not self._replay and not self.has_input:
            return worked
        clock_ns = self._host.source_ns if self._gathers_ns else self._host.now_ns
        now_ns = clock_ns()
        until_ns = now_ns + max(_STEP_NS, self._gathers_ns)
        for _ in range(_ELEMENTS_PER_WIDE_STEP if self._gathers_ns else _ELEMENTS_PER_STEP):
            channel = None if self._replay else self.queues.next_readable()
            if channel is None and not self._replay:
                return worked
            ahead = not chain.has_room
            if ahead:
                if not self._may_take_ahead():
                    return worked
                channel = None if self._replay else self.queues.next_awaited(self.last_checkpoint, self._wanted_id)
                if channel is None and not self._replay:
                    return worked
            worked = True
            if channel is None:
                port, batch = self._replay.popleft()
                self._batch(batch, port)
            else:
                channel.chunk.begin(self._host.starved_ns)
                self._take(channel, ahead)
            before_ns, now_ns = now_ns, clock_ns()
            if channel is not None:
                channel.chunk.worked(now_ns - before_ns, self._host.starved_ns)
            if self._gathers_ns and now_ns >= self._send_at_ns:
                self._send_at_ns = now_ns + self._gathers_ns
                self.chain.send_gathered()
            if chain.ended or now_ns >= until_ns or chain.is_under_way:
                return True
        return worked

    def _go_on(self) -> bool:
        """Advances event time; barriers come after rows that the operator gave back, or in queues."""
        self._advance_further()
        if self._ending:
            return True
        if not self._replay:
            for channel in self.inputs:
                while channel.readable and isinstance(channel.next, Barrier | CancelBarrier):
                    self._take(channel)
        if self.chain.is_under_way:
            self._overtake()
        return True

    def _overtake(self) -> None:
        wanted = self._wanted
        if wanted is None or not self.last_checkpoint < wanted.id == self._overtaking:
            return
        for channel in self.inputs:
            is_here = self.queues.has_in_queue(channel, wanted.id)
            if not is_here and channel.index not in self._aligner.blocked:
                return
        now_ms = self._host.now_ms()
        if self._held_up is None or self._held_up[0] != wanted.id:
            self._held_up = wanted.id, now_ms
        elif now_ms - self._held_up[1] >= _HELD_UP_MS:
            self._apply(self._aligner.overtake(wanted, now_ms))

    def _advance_further(self) -> None:
        self.chain.advance_further()
        if self._ending and self.chain.advancing is None:
            self._finish()

    def _may_take_ahead(self) -> bool:
        if not self.chain.first.takes_rows_before_barriers:
            return False
        done, wanted = self.last_checkpoint, self._wanted_id
        return any(self.queues.is_awaited(channel, done, wanted) for channel in self.inputs) and self.chain.may_emit

    @property
    def _wanted_id(self) -> int:
        return self._wanted.id if self._wanted is not None else 0

    def _take(self, channel: InputChannel, ahead: bool = False) -> None:
        element = channel.pop(ahead)
        self._ahead = self._ahead or ahead
        if isinstance(element, Batch):
            self._merger.on_activity(channel.index)
            batch = element if element.reached is None else self._as_far_as_all(element, channel.index)
            if batch.few is not None and batch.reached is None and not ahead:
                batch = self.queues.gathered(batch, batch.few.count, channel)
            self._batch(batch, channel.port)
        elif isinstance(element, Watermark):
            self._on_merged(self._merger.on_watermark(channel.index, element.ms))
        elif isinstance(element, Barrier):
            self.queues.read_barrier(channel.index, element.id)
            self._apply(self._aligner.on_barrier(channel.index, element, self._host.now_ms()))
        elif isinstance(element, Idle):
            self._on_merged(self._merger.on_idle(channel.index))
        elif isinstance(element, CancelBarrier):
            self._apply(self._aligner.on_cancel(channel.index, element))
        else:
            self.queues.live -= 1
            self._apply(self._aligner.on_end(channel.index, self._host.now_ms()))
            if self.queues.live:
                self._on_merged(self._merger.on_end(channel.index))
            else:
                self._all_in = True
                if not self._end_if_finished() and self._wanted is not None:
                    self.on_trigger(self._wanted)

    def _step_source(self, source: SourceDriver) -> bool:
        self._polled = 0
        if not self.writable or self.chain.ended:
            return False
        if self.chain.advancing is not None:
            self._advance_further()
            return True
        now_ns = self._host.source_ns()
        source.takes_more = self.chain.takes_more
        batch = self.chain.load.poll(source, now_ns, self._host.source_ns, self._chunk.rows(self._host.starved_ns))
        if batch is not None:
            self._polled = batch.count
            batch.emit_ns += self._host.now_ns() - self._host.source_ns()  # latencies are of the wall clock
            self._batch(batch, 0)
            self.chain.took(source.reached)
            self._chunk.worked_rows(batch.count, self._host.source_ns() - now_ns, self._host.starved_ns)
        watermark = source.watermark_to_tell(self.chain.heard, now_ns)
        if watermark is not None:
            self.chain.advance(watermark)
        if source.finished:
            self._end()
            return True
        if batch is not None or watermark is not None:
            self.said_idle = False  # rows end the idleness of a channel, also those of a file that is read in one step
        if source.idle != self.said_idle:
            self.said_idle = source.idle
            if self.said_idle and not self.chain.makes_event_time:
                self.chain.control(Idle())
        return batch is not None

    def _batch(self, batch: Batch, port: int) -> None:
        if not batch.count:
            return
        self.rows_in += batch.count
        rest = self.chain.process(batch, port)
        if rest is not None:
            self.rows_in -= len(rest)
            self._replay.appendleft((port, rest))
        elif port in self.queues.timeless:
            self._on_merged(self._merger.after_timeless_rows())

    def _as_far_as_all(self, batch: Batch, channel: int) -> Batch:
        return within(batch, self._merger.others(channel), self.chain.heard)

    def _on_merged(self, said: Watermark | Idle | None) -> None:
        if isinstance(said, Watermark):
            if said.ms != WATERMARK_MAX:  # otherwise `_end` advances, after the wall-clock work
                self.chain.advance(said.ms)
        elif said is not None:
            self.chain.idle()

    @property
    def highest_seen(self) -> int:
        return max(self.last_checkpoint, self._aligner.aligning or 0)

    def on_trigger(self, barrier: Barrier, pause: bool = False, overtakes_timers: bool = False) -> None:
        """Triggers a checkpoint: sources inject the barrier, ended subtasks answer at once.

        `pause`: until an abort, a source reads nothing more, and no wall-clock timer fires. `overtakes_timers`: after
        `_HELD_UP_MS` barriers overtake rows that wait for event time.
        """
        if barrier.token != self.token or barrier.id <= self.last_checkpoint:
            return
        if pause:
            self._stands = barrier.id
        if pause and self.source is not None:
            self._paused = barrier.id
        if self.ended or self.source is not None or self._all_in:
            self._capture(TakeSnapshot(barrier, max(0.0, self._host.now_ms() - barrier.triggered_at_ms), 0.0))
        else:
            self._wanted = barrier
            if overtakes_timers:
                self._overtaking = barrier.id
            self._apply(self._aligner.on_trigger(barrier, self._host.now_ms()))

    def end_source(self) -> None:
        if self.source is not None and not self.ended:
            self._paused = self._stands = 0
            self.source[1].end()

    def take_announcements(self) -> None:
        while self.announcements:
            index, element = self.queues.next_announcement()
            self._apply(self._aligner.on_arrival(index, element, self._host.now_ms()))

    def _on_timeout(self, checkpoint: int) -> None:
        self._apply(self._aligner.on_timeout(checkpoint, self._host.now_ms()))

    def on_complete(self, checkpoint: int) -> None:
        if self.source is not None:
            self.source[1].completed(checkpoint)
        self.chain.completed(checkpoint)

    def on_abort(self, checkpoint: int) -> None:
        if self._wanted is not None and self._wanted.id <= checkpoint:
            self._wanted = None
        if checkpoint >= self._stands:
            self._paused = self._stands = 0
        for effect in self._aligner.on_order_to_abort(checkpoint):
            if isinstance(effect, Unblock):
                self._unblock(effect)
            elif isinstance(effect, Aborted):
                self._aborted(effect)
        self.chain.aborted(checkpoint)

    def _apply(self, effects: list[AlignmentEffect]) -> None:
        for effect in effects:
            if isinstance(effect, TakeSnapshot):
                self._capture(effect)
            elif isinstance(effect, Block):
                self.inputs[effect.channel].blocked = True
            elif isinstance(effect, Unblock):
                self._unblock(effect)
            elif isinstance(effect, InFlightComplete):
                self._host.recorded(self, effect.id, self._in_flight.finish(effect.id))
            elif isinstance(effect, StartTimer):
                self._host.start_timer(self, effect.delay_ms, partial(self._on_timeout, effect.id))
            else:
                self.last_checkpoint = max(self.last_checkpoint, effect.id)
                self._aborted(effect)
                self._host.snapshot_aborted(self, effect.id, effect.reason)

    def _aborted(self, aborted: Aborted) -> None:
        self._in_flight.drop(aborted.id)
        self.chain.control(CancelBarrier(aborted.id, self.token))

    def _unblock(self, effect: Unblock) -> None:
        for channel in effect.channels:
            self.inputs[channel].unblock()

    def _capture(self, snapshot: TakeSnapshot) -> None:
        barrier = snapshot.barrier
        if barrier.id <= self.last_checkpoint:
            return
        began_ns = self._host.now_ns()
        self.last_checkpoint = barrier.id
        if snapshot.recorded:
            self._in_flight.begin(barrier.id, self._replay, snapshot.recorded, self._merger.others)
        if not self.ended:
            self.chain.forward(barrier)  # first, so that downstream aligns during the capture
        captures: dict[str, Capture] = {}
        if self.source is not None:
            captures[self.source[0]] = self.source[1].snapshot(barrier.id)
        captures |= self.chain.capture(barrier.id)
        sync_ms = (self._host.now_ns() - began_ns) / 1e6
        read = 0 if self.source is None else self.source[1].records
        times = SnapshotTimes(snapshot.start_delay_ms, snapshot.alignment_ms, sync_ms, read=read)
        self._host.captured(self, barrier, captures, times, bool(snapshot.recorded))

    def _end_if_finished(self) -> bool:
        if self.chain.first.unfinished:
            return False
        self._end()
        return True

    def _end(self) -> None:
        if self.chain.first.by_clock:
            self.chain.by_wall_clock(last=True)
        self._ending = True
        self.chain.advance_to_the_end()
        if self.chain.advancing is None:
            self._finish()
        elif self._wanted is not None:
            self.on_trigger(self._wanted)

    def _finish(self) -> None:
        self.chain.end()
        self._host.ended(self)
        if self._wanted is not None:
            self.on_trigger(self._wanted)
