"""Chain of operators: passes rows, event time and barriers on, and out."""

from collections.abc import Callable

from barrier_runtime.data.elements import (
    WATERMARK_MAX,
    WATERMARK_MIN,
    Barrier,
    Batch,
    CancelBarrier,
    EndOfInput,
    Idle,
    Watermark,
)
from barrier_runtime.operators.base import Capture, Emit, Operator, SplitPosition
from barrier_runtime.runtime.load import Load
from barrier_runtime.runtime.network.channels import ResultPartition


class OperatorChain:
    def __init__(
        self,
        operators: list[tuple[str, Operator]],
        outputs: list[ResultPartition],
        clock_ns: Callable[[], int] | None = None,
    ) -> None:
        self.operators = operators
        self.outputs = outputs
        self.watermark = WATERMARK_MIN  # sent to the outputs
        self.heard = WATERMARK_MIN  # from the inputs; differs if an operator makes event time
        self.ended = False
        self.load = Load()
        self._clock_ns = clock_ns
        self.first = operators[0][1] if operators else Operator()
        self._own_sink = self._timed(self.first)
        self._bounded = [operator for _, operator in operators if type(operator).has_room is not Operator.has_room]
        self.inputs_idle = False
        self._told_idle = False
        if type(self.first).on_wall_clock is Operator.on_wall_clock:
            self.first.by_clock = False
        self._takes_positions = bool(operators) and operators[-1][1].takes_positions
        self._gives_back = type(self.first).take_rest is not Operator.take_rest
        self._goes_far = type(self.first).going_to_ms is not Operator.going_to_ms
        self.wide = [output for output in outputs if output.is_wide]
        self._main = [output for output in outputs if not output.tag]
        self._emits: list[Emit] = [self._emit_from(position) for position in range(len(operators) + 1)]
        self._assigners = [at for at, (_, operator) in enumerate(operators) if not operator.forwards_watermarks]
        holders = [at for at, (_, operator) in enumerate(operators) if operator.holds_watermarks]
        # position of an operator with its own watermark -> the watermark sent on
        self._own = dict.fromkeys(sorted([*self._assigners, *holders]), WATERMARK_MIN)
        self.makes_event_time = bool(self._assigners)  # in place of the event time of the inputs
        self.advancing: tuple[int, int] | None = None  # operator that is still at work, and its next watermark

    def look(self, since_last_s: float) -> bool:
        if self.ended:
            self.load.looked(since_last_s, False, False)
            return False
        blocked = False
        for output in self.outputs:
            if not output.writable:
                blocked = True
                break
        held = False
        for operator in self._bounded:
            held = held or not operator.has_room
        load = self.load
        if blocked or held or load.blocked or load.held:
            load.looked(since_last_s, blocked, held)
        return blocked or held

    @property
    def has_room(self) -> bool:
        for output in self.outputs:
            if not output.writable:
                return False
        for operator in self._bounded:  # noqa: SIM110
            if not operator.has_room:
                return False
        return True

    @property
    def may_emit(self) -> bool:
        return all(output.writable for output in self.outputs) and all(
            operator.has_room for operator in self._bounded if operator is not self.first
        )

    @property
    def takes_more(self) -> bool:
        """Returns whether larger batches cost less per row: a combiner is at work."""
        return any(output.takes_more for output in self._main)

    def process(self, batch: Batch, port: int) -> Batch | None:
        """Rows that the first operator gave back, or None."""
        rest = None
        if self.operators:
            if self._own_sink is None:
                self.first.process(batch, self._emits[1], port)
            else:
                self._own_sink(batch, self._emits[1], port)
            if self._gives_back:
                rest = self.first.take_rest()
        else:
            self._output(batch)
        self.inputs_idle = False
        for at in self._own:
            self._tell_own(at)
        if self._told_idle:
            self._end_idleness()
        return rest

    def gather(self, on: bool) -> None:
        """Lets rows for many slots wait for other rows, until turned off or the next control element."""
        for output in self.wide:
            output.gathers = on
        if not on:
            self.send_gathered()

    def send_gathered(self) -> None:
        for output in self.wide:
            output.send_gathered()

    def watch(self, position: int, seen: Callable[[Batch], None]) -> Callable[[], None]:
        """Calls `seen` with batches for operator `position` until the result is called.

        Allows a single watcher.
        """
        if position:
            return self._emits[position].watch(seen)
        process = self.process

        def watched(batch: Batch, port: int) -> Batch | None:
            seen(batch)
            return process(batch, port)

        self.process = watched  # type: ignore[method-assign]
        return lambda: vars(self).pop("process", None)

    def took(self, reached: Callable[[], tuple[str, SplitPosition]]) -> None:
        if self._takes_positions:
            self.operators[-1][1].reached(*reached())

    def _emit_from(self, position: int) -> Emit:
        name = self.operators[position - 1][0] if position else ""
        side: dict[str, list[Callable[[Batch], None]]] = {}
        for output in self.outputs:
            if output.tag and output.operator == name:
                side.setdefault(output.tag, []).append(output.emit)
        if position == len(self.operators):
            return Emit(self._output, side)
        operator = self.operators[position][1]
        own_sink = self._timed(operator)

        def process(batch: Batch) -> None:
            if own_sink is None:
                operator.process(batch, self._emits[position + 1])
            else:
                own_sink(batch, self._emits[position + 1], 0)

        return Emit(process, side)

    def _timed(self, operator: Operator) -> Callable[[Batch, Emit, int], None] | None:
        """`process` of a sink of this package, which adds to the load; None for other operators."""
        if self._clock_ns is None or not operator.is_own_sink:
            return None
        return self.load.timed(operator, self._clock_ns)

    def _output(self, batch: Batch) -> None:
        for output in self._main:
            output.emit(batch)

    @property
    def is_under_way(self) -> bool:
        """Returns whether event time is advancing: no row may be taken meanwhile."""
        return self.advancing is not None or (self._goes_far and self.first.going_to_ms is not None)

    def advance(self, watermark_ms: int) -> None:
        self.inputs_idle = False
        self.heard = watermark_ms
        self._advance(0, watermark_ms)

    def advance_to_the_end(self) -> None:
        self._advance(0, WATERMARK_MAX)

    def advance_further(self) -> None:
        first = self.first
        if (going_to_ms := first.going_to_ms) is not None:
            first.toward(going_to_ms, self._emits[1])
            self._tell_idle()  # wall-clock windows emit in idle subtasks: announce idleness again
            if first.going_to_ms is not None:
                return
        if self.advancing is not None:
            self._advance(*self.advancing)

    def idle(self) -> None:
        if not self.makes_event_time:
            self.inputs_idle = True
            self._tell_idle()

    def by_wall_clock(self, last: bool = False) -> bool:
        """Does due wall-clock work of the first operator, whose rows do not end idleness."""
        if not self.first.on_wall_clock(self._emits[1], last):
            return False
        if self.advancing is None:
            for at in self._own:
                self._tell_own(at)
        self._tell_idle()
        return True

    def _tell_idle(self) -> None:
        if self.inputs_idle and not self.first.unfinished:
            self._told_idle = True
            self.control(Idle())

    def _end_idleness(self) -> None:
        """Ends announced idleness, also for rows that the first operator still holds.

        Otherwise event time of other subtasks could pass these rows.
        """
        self._told_idle = False
        if self.first.unfinished:
            self.control(Watermark(self.watermark))

    def _tell_own(self, at: int) -> None:
        reached = self.operators[at][1].own_watermark()
        if reached is not None and reached > self._own[at]:
            self._own[at] = reached
            self._advance(at + 1, reached)

    def _advance(self, first: int, watermark_ms: int) -> None:
        for position in range(first, len(self.operators)):
            operator = self.operators[position][1]
            if not operator.forwards_watermarks and watermark_ms != WATERMARK_MAX:
                self.advancing = None
                return
            if not operator.toward(watermark_ms, self._emits[position + 1]):
                self.advancing = position, watermark_ms
                return
            if operator.output_delay_ms and watermark_ms != WATERMARK_MAX:
                watermark_ms = max(WATERMARK_MIN, watermark_ms - operator.output_delay_ms)
            if operator.holds_watermarks:
                self.advancing = None
                self._tell_own(position)
                return
        self.advancing = None
        self.watermark = watermark_ms
        self.control(Watermark(watermark_ms))

    def control(self, element: Watermark | Idle | Barrier | CancelBarrier | EndOfInput) -> None:
        for output in self.outputs:
            output.control(element)

    def forward(self, barrier: Barrier) -> None:
        for at, (_, operator) in enumerate(self.operators, 1):
            operator.before_barrier(self._emits[at])
        self.control(barrier)

    def capture(self, checkpoint: int) -> dict[str, Capture]:
        return {name: operator.snapshot(checkpoint) for name, operator in self.operators}

    def completed(self, checkpoint: int) -> None:
        for _, operator in self.operators:
            operator.on_complete(checkpoint)

    def aborted(self, checkpoint: int) -> None:
        for _, operator in self.operators:
            operator.on_abort(checkpoint)

    def end(self) -> None:
        for at, (_, operator) in enumerate(self.operators, 1):
            operator.on_end(self._emits[at])
        self.control(EndOfInput())
        self.ended = True
