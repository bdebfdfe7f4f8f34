"""Scheduler of a slot's subtasks on the event loop: short passes, sinks before sources, never waiting.
Design: docs/design/scheduling-of-a-slot.md.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from barrier_runtime.operators.user_code import came_by_signal, stray_error
from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK, Clock, SourceTime
from barrier_runtime.runtime.load import LongSteps
from barrier_runtime.runtime.subtask import Subtask

_ASK_AGAIN_NS = 1_000_000  # for a source whose next due time is unknown
_PASS_BUDGET_S = 0.002
_ROUNDS_S = 0.0005  # of a pass; a begun round is finished
_MOST_ROUNDS = 4
_LONG_STEP_S = 2.0  # reported: no socket or timer was served meanwhile
_BETWEEN_SHARE = 0.5  # of the last pass, for small work between passes
_REST = 4.0  # durations of a pass for which rows gather
_LEAST_REST = 0.5  # share of the latency target: the least time to gather; the rest is for the way to a sink
_JOINS = 0.5  # share of the gathering time, after which rows join rows of other slots
_SMOOTHING = 0.2  # of the duration of a pass
_LOOK_S = 0.001  # between looks at blocked subtasks


@dataclass(frozen=True)
class LongestStep:
    """`reading`: mostly in a reader or sink of this package. `starved_s`: without a core."""

    seconds: float
    subtask: Subtask
    reading: bool
    starved_s: float = 0.0

    @property
    def starved(self) -> bool:
        return 2 * self.starved_s > self.seconds


class Scheduler:
    """`on_error(subtask, error)` gets each error of a pass, and must stop the scheduler.

    `subtask` is None outside a step. After an error that is only logged, a stopped slot would look alive.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        between: Callable[[], bool],
        on_error: Callable[[Subtask | None, Exception], None],
        clock: Clock = SYSTEM_CLOCK,
        latency_target_s: float = 0.0,
    ) -> None:
        self._loop = loop
        self._latency_target_s = latency_target_s
        self._source_pass_s = 0.0
        self._gathering_ns = self._gathering()
        self._now_s = clock.monotonic_s
        self.source_time = SourceTime(clock)
        self._between = between
        self._on_error = on_error
        self._subtasks: list[Subtask] = []  # from the last to the first
        self._downwards: list[Subtask] = []
        self._stepping: Subtask | None = None
        self._scheduled = False
        self._woken = False  # since the last round of a pass began
        self._came = False  # as `_woken`, by an element in a channel
        self._stopped = False
        self._timer = clock.timer(loop, self._rang)
        self._rings_ns: int | None = None
        self._last_pass_s = 0.0
        self.busy_s = 0.0
        self.backpressured_s = 0.0
        self.long_steps = LongSteps()
        self._looked_s: float | None = None
        self._held = False
        self._longest: LongestStep | None = None
        self._starved_s = 0.0  # total at the last `take_longest`

    def start(self, subtasks: list[Subtask]) -> None:
        """Starts `subtasks`, given in topological order."""
        self._subtasks = list(reversed(subtasks))
        self._downwards = list(subtasks)
        self.wake()

    def wake(self) -> None:
        self._woken = True
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._pass)

    def wake_by_input(self) -> None:
        self._came = True
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._pass)

    def _rang(self) -> None:
        self._rings_ns = None
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._pass()

    def stop(self) -> None:
        self._stopped = True
        self._timer.close()

    def _pass(self) -> None:
        again = False
        self._stepping = None
        try:
            again = not self._stopped and self._work()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the loop would log a BaseException and continue without the rows
            if isinstance(error, SystemExit) and came_by_signal(error):
                raise
            again = self._woken
            self._on_error(self._stepping, error if isinstance(error, Exception) else stray_error(error))
        finally:
            self._scheduled = False
        if again:
            self.wake()

    def _work(self) -> bool:
        """True if another pass is due at once."""
        started = self._now_s()
        more = self._work_between(started)
        stepped = now = self._now_s()
        deadline = stepped + _PASS_BUDGET_S
        worked = polled = False
        # Sinks first make room. Quick passes leave room, so rows go all the way in one round.
        subtasks = self._downwards if self._last_pass_s < _ROUNDS_S else self._subtasks
        for _ in range(_MOST_ROUNDS):
            self._woken = self._came = False
            round_worked, round_polled = self._round(subtasks, now, deadline)
            subtasks = self._subtasks
            if self._stopped:
                return False
            worked, polled = worked or round_worked, polled or round_polled
            now = self._now_s()
            left = (round_worked or self._came) and (now > deadline or self._is_left(round_polled))
            if not left or now - stepped > _ROUNDS_S:
                break
        self._last_pass_s = now - stepped
        if polled:
            self._source_pass_s += _SMOOTHING * (self._last_pass_s - self._source_pass_s)
            self._gathering_ns = self._gathering()
        if self._last_pass_s >= _LONG_STEP_S and self._stepping is not None:
            self._note_long(self._last_pass_s, self._stepping)
        if worked or more:
            self.busy_s += now - started
        self._came = False
        # work that a round created starts before the slot sleeps
        if left or more or self._work_between(now) or self._woken or self._came:
            if self._looked_s is None or now - self._looked_s >= _LOOK_S:
                self._look(now)
            return True
        self._sleep()
        self._look(now)
        return False

    def _round(self, subtasks: list[Subtask], now: float, deadline: float) -> tuple[bool, bool]:
        """Returns whether a subtask worked (or time is over), and whether a source did."""
        worked = polled = False
        for subtask in subtasks:
            self._stepping = subtask
            subtask.chain.load.connector_s = 0.0
            if subtask.source is None:
                stepped = subtask.step()
            else:
                stepped = self._is_due(subtask) and subtask.step()
                polled = polled or stepped
            if self._stopped:
                break
            before, now = now, self._now_s()
            if stepped:
                worked = True
                subtask.chain.load.busy_s += now - before
            if now > deadline:
                self.long_steps.note(
                    now, now - before, subtask.id.chain, 2 * subtask.chain.load.connector_s > now - before
                )
                return True, polled
        return worked, polled

    def _is_left(self, polled: bool) -> bool:
        """`polled`: the last round polled rows of a source."""
        for subtask in self._subtasks:
            if subtask.may_go_on or (polled and subtask.source is not None and self._is_due(subtask)):
                return True
        return False

    def _gathering(self) -> int:
        target_s = self._latency_target_s
        return int(1e9 * min(target_s, max(_REST * self._source_pass_s, _LEAST_REST * target_s)))

    def _is_due(self, subtask: Subtask) -> bool:
        if subtask.source is None or not self._latency_target_s:
            return True
        gathering_ns = self._gathering_ns
        due_ns = subtask.source[1].next_due_ns(gathering_ns)
        if due_ns is None:
            return True
        early_ns = due_ns - self.source_time.now_ns()
        return early_ns <= 0 or (early_ns <= gathering_ns * _JOINS and self._rows_wait)

    @property
    def _rows_wait(self) -> bool:
        for subtask in self._subtasks:  # noqa: SIM110
            if subtask.has_input:
                return True
        return False

    def _note_long(self, seconds: float, subtask: Subtask) -> None:
        if self._longest is None or seconds > self._longest.seconds:
            self._longest = LongestStep(seconds, subtask, 2 * subtask.chain.load.connector_s > seconds)

    def take_longest(self, starved_s: float = 0.0) -> LongestStep | None:
        """`starved_s`: the loop's total. Read here and not in each step, because a reading costs too much."""
        longest, self._longest = self._longest, None
        since_s, self._starved_s = starved_s - self._starved_s, starved_s
        return longest and replace(longest, starved_s=min(since_s, longest.seconds))

    def _work_between(self, started: float) -> bool:
        """Drains more slices if passes are long: snapshots under load end a hundred times sooner."""
        until = started + self._last_pass_s * _BETWEEN_SHARE
        while self._between():
            if self._now_s() >= until:
                return True
        return False

    def _look(self, now: float) -> None:
        since_s = 0.0 if self._looked_s is None else now - self._looked_s
        self._looked_s = now
        if self._held:
            self.backpressured_s += since_s
        self._held = False
        for subtask in self._subtasks:
            if subtask.chain.look(since_s):
                self._held = True

    def _sleep(self) -> None:
        now_ns, gathering_ns = self.source_time.now_ns(), self._gathering_ns
        rings_ns: int | None = None
        for subtask in self._subtasks:
            if subtask.source is None or subtask.ended or not subtask.writable:
                continue
            self._stepping = subtask
            due_ns = subtask.source[1].next_due_ns(gathering_ns)
            if due_ns is None:
                due_ns = now_ns + _ASK_AGAIN_NS
            rings_ns = due_ns if rings_ns is None else min(rings_ns, due_ns)
        if rings_ns is not None and rings_ns != self._rings_ns:
            self._rings_ns = rings_ns
            self._timer.set((rings_ns - now_ns) / 1e9)
