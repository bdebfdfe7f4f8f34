"""One subtask: a chain of operators behind aligned input channels. Sans-io: it is told the time and asked to step.

It owns: alignment and blocking of its inputs, the watermark, the order *forward the barrier, then capture state*, and
the end of its input. It never waits, opens a socket or reads a clock; captures that need more work go to the host.

What was in flight in the restored checkpoint (`replay`) is processed before anything that comes in: so rows keep their
order and are not late, also when they come from other subtasks than before. What of it is left when a snapshot is taken
is in flight again.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import (
    WATERMARK_MAX,
    WATERMARK_MIN,
    Barrier,
    Batch,
    CancelBarrier,
    EndOfInput,
    Idle,
    Watermark,
    within,
)
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows
from barrier_runtime.data.watermarks import WatermarkMerger
from barrier_runtime.operators.base import Capture, Emit, Operator
from barrier_runtime.runtime.alignment.aligner import Aligner
from barrier_runtime.runtime.alignment.effects import (
    Aborted,
    AlignmentEffect,
    Announced,
    Block,
    InFlightComplete,
    StartTimer,
    TakeSnapshot,
    Unblock,
)
from barrier_runtime.runtime.alignment.tracker import BarrierTracker
from barrier_runtime.runtime.in_flight.writer import InFlightData, InFlightWriter
from barrier_runtime.runtime.load import Load
from barrier_runtime.runtime.network.channels import SMALL_ROW_BYTES, InputChannel, ResultPartition
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes

_ELEMENTS_PER_STEP = 16  # then other subtasks and the sockets get their turn,
_STEP_NS = 2_000_000  # also after this time
_HELD_UP_MS = 10  # a barrier waits so long for timers; then rows behind them are stored instead


class SubtaskHost(Protocol):
    """What a subtask needs of the slot around it."""

    def now_ms(self) -> float: ...
    def now_ns(self) -> int: ...
    def starved_ns(self) -> int: ...  # how long this thread has waited for a processor; asking takes some microseconds
    def source_ns(self) -> int:
        """What sources are told: as `now_ns`, but it does not jump."""
        ...

    def captured(
        self, subtask: "Subtask", barrier: Barrier, captures: dict[str, Capture], times: SnapshotTimes, recording: bool
    ) -> None:
        """State at `barrier` is captured; finish the snapshot and acknowledge it. `times`: all but `async_ms`.
        `recording`: in-flight data belong to it; `recorded` follows."""
        ...

    def recorded(self, subtask: "Subtask", checkpoint: int, in_flight: InFlightData) -> None: ...
    def start_timer(self, subtask: "Subtask", delay_ms: int, callback: Callable[[], None]) -> None:
        """`callback` after `delay_ms`, unless another one is started for `subtask` before."""
        ...

    def snapshot_aborted(self, subtask: "Subtask", checkpoint: int, reason: str) -> None: ...
    def ended(self, subtask: "Subtask") -> None: ...


class Subtask:
    """`operators`: (name, operator) in chain order, opened. `source` is set for source chains, which have no inputs.
    `replay`: (port, batch) that were in flight in the restored checkpoint."""

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
        self.operators = operators
        self.inputs = inputs
        self.outputs = outputs
        self.source = source
        self.ended = False
        self.rows_in = 0
        self.load = Load()
        self.watermark = WATERMARK_MIN
        self.last_checkpoint = 0  # highest id captured or aborted
        self._wanted: Barrier | None = None  # last trigger heard of, for when the input ends first
        self._aligner = aligner
        self._merger = _merger_of(inputs)
        self._live_inputs = len(inputs)
        self._said_idle = False
        self._inputs_idle = False  # they said so last
        self._first = operators[0][1] if operators else Operator()
        self._by_clock = type(self._first).on_wall_clock is not Operator.on_wall_clock
        self._barrier_behind = [0] * len(inputs)  # by channel, the last barrier in its queue
        self._end_behind: set[int] = set()  # channels whose end is in the queue
        self._ahead = False  # rows were taken without room
        self._all_in = False  # the inputs have ended
        self._next_input = 0
        self._host = host
        self._bounded = [operator for _, operator in operators if type(operator).has_room is not Operator.has_room]
        self._replay = deque(replay)
        self._in_flight = InFlightWriter(inputs)
        self._paused = 0  # the checkpoint behind which the source gives nothing
        self._announcements: deque[tuple[int, Announced]] = deque()
        for channel in inputs:
            channel.announcements = self._announcements
        self._main = [output for output in outputs if not output.tag]
        self._emits: list[Emit] = [self._emit_from(position) for position in range(len(operators) + 1)]
        self._assigners = [at for at, (_, operator) in enumerate(operators) if not operator.forwards_watermarks]
        holders = [at for at, (_, operator) in enumerate(operators) if operator.holds_watermarks]
        self._own = dict.fromkeys(sorted([*self._assigners, *holders]), WATERMARK_MIN)  # told behind these
        self._advancing: tuple[int, int] | None = None  # which operator is on its way to which watermark
        self._overtaking = 0  # the last checkpoint whose barriers need not wait for that
        self._held_up: tuple[int, float] | None = None  # a checkpoint whose barriers all wait for that, since when (ms)
        self._ending = False  # event time is on its way to its end
        self._first.stops = source is None

    # ------------------------------------------------------------ stepping

    @property
    def writable(self) -> bool:
        """There is room for what a step may bring forth. A source that is to give nothing has none."""
        if self._paused:
            return False
        for output in self.outputs:
            if not output.writable:
                return False
        return all(operator.has_room for operator in self._bounded)

    def look(self, since_last_s: float) -> bool:
        """Note what it waits for now; see `Load.looked`. True when something has no room."""
        if self.ended:
            self.load.looked(since_last_s, False, False)
            return False
        blocked = False
        for output in self.outputs:
            if not output.writable:
                blocked = True
                break
        held = bool(self._bounded) and not all(operator.has_room for operator in self._bounded)
        load = self.load
        if blocked or held or load.blocked or load.held:
            load.looked(since_last_s, blocked, held)
        return blocked or held

    @property
    def has_input(self) -> bool:
        """Something in a queue may be read."""
        return any(channel.readable for channel in self.inputs)

    @property
    def _may_emit(self) -> bool:
        """There is room for what the first operator gives."""
        return all(output.writable for output in self.outputs) and all(
            operator.has_room for operator in self._bounded if operator is not self._first
        )

    def step(self) -> bool:
        """Do a bounded piece of work. True when something was done."""
        if self.ended:
            return False
        if self.source is not None:
            return self._step_source(self.source[1])
        if self._announcements:
            self.take_announcements()
        worked = self._by_clock and not self._ending and self._may_emit and self._by_wall_clock()
        if self._is_under_way:
            return (self._may_emit and self._go_on()) or worked
        if self._all_in:
            return self._end_if_finished() or worked
        if self._ahead and self.writable:
            self._settle()
        now_ns = self._host.now_ns()
        until_ns = now_ns + _STEP_NS
        for _ in range(_ELEMENTS_PER_STEP):
            channel = None if self._replay else self._next_readable()
            if channel is None and not self._replay:
                return worked
            ahead = not self.writable
            if ahead:
                if not self._may_take_ahead():
                    return worked
                channel = None if self._replay else self._next_readable(ahead)
                if channel is None and not self._replay:
                    return worked
            worked = True
            if channel is None:
                port, batch = self._replay.popleft()
                self._batch(batch, port)
            else:
                channel.chunk.begin(self._host.starved_ns)
                self._take(channel, ahead)
            before_ns, now_ns = now_ns, self._host.now_ns()
            if channel is not None:
                channel.chunk.worked(now_ns - before_ns, self._host.starved_ns)
            if self.ended or now_ns >= until_ns or self._is_under_way:
                return True
        return worked

    @property
    def _is_under_way(self) -> bool:
        """Event time is on its way to what it was told: until it is there no row is taken, only barriers are."""
        return self._advancing is not None or self._first.going_to_ms is not None

    def _go_on(self) -> bool:
        """A slice on that way, then barriers that come next on their channels. Rows that the operator has given back
        come before those, as do others that wait: then an aligned barrier waits a little, and overtakes them."""
        self._advance_further()
        if self._ending:
            return True
        if not self._replay:
            for channel in self.inputs:
                while channel.readable and isinstance(channel.next, Barrier | CancelBarrier):
                    self._take(channel)
        if self._is_under_way:
            self._overtake()
        return True

    def _overtake(self) -> None:
        """Take the snapshot that is wanted if its barriers are all in the queues, and have been for a while."""
        wanted = self._wanted
        if wanted is None or not self.last_checkpoint < wanted.id == self._overtaking:
            return
        for channel in self.inputs:
            is_here = self._barrier_behind[channel.index] == wanted.id or channel.index in self._end_behind
            if not is_here and channel.index not in self._aligner.blocked:
                return
        now_ms = self._host.now_ms()
        if self._held_up is None or self._held_up[0] != wanted.id:
            self._held_up = wanted.id, now_ms
        elif now_ms - self._held_up[1] >= _HELD_UP_MS:
            self._apply(self._aligner.overtake(wanted, now_ms))

    def _advance_further(self) -> None:
        first = self._first
        if (going_to_ms := first.going_to_ms) is not None:
            first.toward(going_to_ms, self._emits[1])
            self._tell_idle()  # rows of windows by the wall clock, which an idle subtask gives, too
            if first.going_to_ms is not None:
                return
        if self._advancing is not None:
            self._advance(*self._advancing)
            if self._ending and self._advancing is None:
                self._finish()

    def _may_take_ahead(self) -> bool:
        """There is no room, but rows before a barrier are taken all the same."""
        return self._first.takes_rows_before_barriers and any(map(self._is_awaited, self.inputs)) and self._may_emit

    def _is_awaited(self, channel: InputChannel) -> bool:
        """A barrier is in its queue, or the end, and a checkpoint is wanted for which no barrier comes any more."""
        if self._barrier_behind[channel.index] > self.last_checkpoint:
            return True
        wanted = self._wanted
        return channel.index in self._end_behind and wanted is not None and wanted.id > self.last_checkpoint

    def _settle(self) -> None:
        self._ahead = False
        for channel in self.inputs:
            channel.settle()

    def _next_readable(self, ahead: bool = False) -> InputChannel | None:
        """Round robin, so that no input starves another. `ahead`: those with a barrier in their queue alone."""
        count = len(self.inputs)
        for offset in range(count):
            channel = self.inputs[(self._next_input + offset) % count]
            if channel.readable and (not ahead or self._is_awaited(channel)):
                self._next_input = (channel.index + 1) % count
                return channel
        return None

    def _take(self, channel: InputChannel, ahead: bool = False) -> None:
        element = channel.pop(ahead)
        self._ahead = self._ahead or ahead
        if isinstance(element, Batch):
            self._merger.on_activity(channel.index)
            batch = self._as_far_as_all(element, channel.index)
            if batch.few is not None and batch.reached is None and not ahead:
                batch = self._gathered(batch, batch.few.count, channel)
            self._batch(batch, channel.port)
        elif isinstance(element, Watermark):
            self._on_merged(self._merger.on_watermark(channel.index, element.ms))
        elif isinstance(element, Barrier):
            if self._barrier_behind[channel.index] == element.id:
                self._barrier_behind[channel.index] = 0
            self._apply(self._aligner.on_barrier(channel.index, element, self._host.now_ms()))
        elif isinstance(element, Idle):
            self._on_merged(self._merger.on_idle(channel.index))
        elif isinstance(element, CancelBarrier):
            self._apply(self._aligner.on_cancel(channel.index, element))
        else:
            self._live_inputs -= 1
            self._apply(self._aligner.on_end(channel.index, self._host.now_ms()))
            if self._live_inputs:
                self._on_merged(self._merger.on_end(channel.index))
            else:
                self._all_in = True
                if not self._end_if_finished() and self._wanted is not None:
                    self.on_trigger(self._wanted)

    def _gathered(self, batch: Batch, count: int, channel: InputChannel) -> Batch:
        """A small batch from `channel` together with those that are next in the queues of its port, as long as all of
        them are one small batch: operators cost as much for each, whatever the number of its rows."""
        parts = [batch]
        most = min(MOST_ROWS, count + channel.chunk.left // SMALL_ROW_BYTES)
        for other in self.inputs:
            if other.port != channel.port:
                continue
            while count < most and (part := other.pop_along(batch, most - count)) is not None:
                self._merger.on_activity(other.index)
                count += len(part)
                parts.append(part)
        if len(parts) == 1:
            return batch
        channel.chunk.taken_along((count - len(batch)) * SMALL_ROW_BYTES)
        few = FewRows.joined([part.few for part in parts if part.few is not None])
        return Batch(few, min(part.emit_ns for part in parts))

    def _step_source(self, source: SourceDriver) -> bool:
        if not self.writable:
            return False
        if self._advancing is not None:
            self._advance_further()
            return True
        now_ns = self._host.source_ns()
        batch = source.poll(now_ns)
        if batch is not None:
            jumped_ns = self._host.now_ns() - self._host.source_ns()
            batch.emit_ns += jumped_ns  # latencies are told by the wall clock
            self._batch(batch, 0)
        watermark = source.watermark_to_tell(self.watermark, now_ns)
        if watermark is not None:
            self._advance(0, watermark)
        if source.finished:
            self._end()
            return True
        if source.idle != self._said_idle:
            self._said_idle = source.idle
            if self._said_idle and not self._assigners:
                self._control(Idle())  # the next rows or watermark end it
        return batch is not None

    # ------------------------------------------------------------ rows and time

    def _emit_from(self, position: int) -> Emit:
        """What operator `position - 1` emits into: operator `position`, or the edges after the last one."""
        name = self.operators[position - 1][0] if position else ""
        side: dict[str, list[Callable[[Batch], None]]] = {}
        for output in self.outputs:
            if output.tag and output.operator == name:
                side.setdefault(output.tag, []).append(output.emit)
        if position == len(self.operators):
            return Emit(self._output, side)
        operator = self.operators[position][1]

        def process(batch: Batch) -> None:
            operator.process(batch, self._emits[position + 1])

        return Emit(process, side)

    def _output(self, batch: Batch) -> None:
        for output in self._main:
            output.emit(batch)

    def _batch(self, batch: Batch, port: int) -> None:
        count = len(batch)
        if not count:
            return
        self.rows_in += count
        if self.operators:
            self._first.process(batch, self._emits[1], port)
            rest = self._first.take_rest()
            if rest is not None:
                self.rows_in -= len(rest)
                self._replay.appendleft((port, rest))
        else:
            self._output(batch)
        self._inputs_idle = False
        self._assign()

    def _by_wall_clock(self, last: bool = False) -> bool:
        """What is due in the first operator. Rows of it do not make an idle subtask one that event time waits for."""
        if not self._first.on_wall_clock(self._emits[1], last):
            return False
        if self._advancing is None:
            self._assign()
        self._tell_idle()
        return True

    def _tell_idle(self) -> None:
        if self._inputs_idle and not self._first.unfinished:
            self._control(Idle())

    def _assign(self) -> None:
        for at in self._own:
            self._tell_own(at)

    def _tell_own(self, at: int) -> None:
        reached = self.operators[at][1].own_watermark()
        if reached is not None and reached > self._own[at]:
            self._own[at] = reached
            self._advance(at + 1, reached)

    def _as_far_as_all(self, batch: Batch, channel: int) -> Batch:
        """Event time at the rows of one channel is no further than the other channels let it be."""
        return batch if batch.reached is None else within(batch, self._merger.others(channel), self.watermark)

    def _on_merged(self, said: Watermark | Idle | None) -> None:
        if isinstance(said, Watermark):
            self._inputs_idle = False
            self._advance(0, said.ms)
        elif said is not None and not self._assigners:
            self._inputs_idle = True
            self._tell_idle()

    def _advance(self, first: int, watermark_ms: int) -> None:
        """Event time reached `watermark_ms` at operator `first`: each works it off before the next one hears of it."""
        for position in range(first, len(self.operators)):
            operator = self.operators[position][1]
            if not operator.forwards_watermarks and watermark_ms != WATERMARK_MAX:
                self._advancing = None
                return
            if not operator.toward(watermark_ms, self._emits[position + 1]):
                self._advancing = position, watermark_ms
                return
            if operator.output_delay_ms and watermark_ms != WATERMARK_MAX:
                watermark_ms = max(WATERMARK_MIN, watermark_ms - operator.output_delay_ms)
            if operator.holds_watermarks:
                self._advancing = None
                self._tell_own(position)
                return
        self._advancing = None
        self.watermark = watermark_ms
        self._control(Watermark(watermark_ms))

    def _control(self, element: Watermark | Idle | Barrier | CancelBarrier | EndOfInput) -> None:
        for output in self.outputs:
            output.control(element)

    # ------------------------------------------------------------ checkpoints

    @property
    def highest_seen(self) -> int:
        """The highest checkpoint whose barrier came here."""
        return max(self.last_checkpoint, self._aligner.aligning or 0)

    def on_trigger(self, barrier: Barrier, pause: bool = False, overtakes_timers: bool = False) -> None:
        """The coordinator wants checkpoint `barrier.id`. Sources inject it, ended subtasks answer at once. `pause`:
        a source reads nothing after it, unless it is aborted. `overtakes_timers`: its barriers do not wait long where
        event time is on its way; the rows that do are in flight then."""
        if barrier.token != self.token or barrier.id <= self.last_checkpoint:
            return
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
        """The input ends here, also of a source that was to give nothing until the job has moved."""
        if self.source is not None and not self.ended:
            self._paused = 0
            self.source[1].end()

    def take_announcements(self) -> None:
        """Hear of the barriers that came in, wherever they stand in the queues and also while nothing may be sent."""
        while self._announcements:
            index, element = self._announcements.popleft()
            if isinstance(element, Barrier):
                self._barrier_behind[index] = element.id
            elif isinstance(element, EndOfInput):
                self._end_behind.add(index)
            self._apply(self._aligner.on_arrival(index, element, self._host.now_ms()))

    def _on_timeout(self, checkpoint: int) -> None:
        self._apply(self._aligner.on_timeout(checkpoint, self._host.now_ms()))

    def on_complete(self, checkpoint: int) -> None:
        if self.source is not None:
            self.source[1].completed(checkpoint)
        for _, operator in self.operators:
            operator.on_complete(checkpoint)

    def on_abort(self, checkpoint: int) -> None:
        """The coordinator aborted `checkpoint`."""
        if self._wanted is not None and self._wanted.id <= checkpoint:
            self._wanted = None
        if checkpoint >= self._paused:
            self._paused = 0
        for effect in self._aligner.on_order_to_abort(checkpoint):
            if isinstance(effect, Unblock):
                self._unblock(effect)
            elif isinstance(effect, Aborted):
                self._aborted(effect)
        for _, operator in self.operators:
            operator.on_abort(checkpoint)

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
        self._control(CancelBarrier(aborted.id, self.token))

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
            for at, (_, operator) in enumerate(self.operators, 1):
                operator.before_barrier(self._emits[at])
            self._control(barrier)  # first: downstream aligns while we capture
        captures: dict[str, Capture] = {}
        if self.source is not None:
            captures[self.source[0]] = self.source[1].snapshot(barrier.id)
        for name, operator in self.operators:
            captures[name] = operator.snapshot(barrier.id)
        sync_ms = (self._host.now_ns() - began_ns) / 1e6
        times = SnapshotTimes(snapshot.start_delay_ms, snapshot.alignment_ms, sync_ms)
        self._host.captured(self, barrier, captures, times, bool(snapshot.recorded))

    # ------------------------------------------------------------ the end

    def _end_if_finished(self) -> bool:
        """All inputs have ended, perhaps the first operator, too. Triggers are answered already: no barrier comes."""
        if self._first.unfinished:
            return False
        self._end()
        return True

    def _end(self) -> None:
        """The last element is behind us. From now on the subtask only answers triggers."""
        if self._by_clock:
            self._by_wall_clock(last=True)
        self._ending = True
        self._advance(0, WATERMARK_MAX)
        if self._advancing is None:
            self._finish()
        elif self._wanted is not None:
            self.on_trigger(self._wanted)

    def _finish(self) -> None:
        for position, (_, operator) in enumerate(self.operators):
            operator.on_end(self._emits[position + 1])
        self._control(EndOfInput())
        self.ended = True
        self._host.ended(self)
        if self._wanted is not None:
            self.on_trigger(self._wanted)


def _merger_of(inputs: list[InputChannel]) -> WatermarkMerger:
    edges = sorted({channel.together for channel in inputs if channel.together is not None})
    together = [[channel.index for channel in inputs if channel.together == edge] for edge in edges]
    return WatermarkMerger(len(inputs), [channel.index for channel in inputs if channel.empty], together)
