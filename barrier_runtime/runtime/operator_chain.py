"""A chain of operators: rows and event time go through it, from each operator to the next, and out at its end.

It owns what the operators emit into, how far event time has come in it, and what waits on that way: an operator may
take several turns to get to a watermark, and the next one hears of it only then.
"""

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
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.runtime.load import Load
from barrier_runtime.runtime.network.channels import ResultPartition


class OperatorChain:
    """`operators`: (name, operator) in chain order, opened; `outputs`: all edges out of it."""

    def __init__(self, operators: list[tuple[str, Operator]], outputs: list[ResultPartition]) -> None:
        self.operators = operators
        self.outputs = outputs
        self.watermark = WATERMARK_MIN  # told behind the chain
        self.ended = False
        self.load = Load()
        self._first = operators[0][1] if operators else Operator()
        self._bounded = [operator for _, operator in operators if type(operator).has_room is not Operator.has_room]
        self._inputs_idle = False  # they said so last
        self._main = [output for output in outputs if not output.tag]
        self._emits: list[Emit] = [self._emit_from(position) for position in range(len(operators) + 1)]
        self._assigners = [at for at, (_, operator) in enumerate(operators) if not operator.forwards_watermarks]
        holders = [at for at, (_, operator) in enumerate(operators) if operator.holds_watermarks]
        self._own = dict.fromkeys(sorted([*self._assigners, *holders]), WATERMARK_MIN)  # told behind these
        self._advancing: tuple[int, int] | None = None  # which operator is on its way to which watermark

    # ------------------------------------------------------------ room

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
    def _may_emit(self) -> bool:
        """There is room for what the first operator gives."""
        return all(output.writable for output in self.outputs) and all(
            operator.has_room for operator in self._bounded if operator is not self._first
        )

    # ------------------------------------------------------------ rows

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

    # ------------------------------------------------------------ event time

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
