"""Gives the subtasks of one slot their turns on the event loop: short passes, sinks before sources, never waiting.

A pass runs every subtask that has input and room for its output, a few times over when something is left and that is
quick, the first time sources before sinks: what a source gave is with a sink of the same slot at the end of it. Between
passes sockets, timers and messages are served. When nothing is left it sleeps until a channel, a trigger or a source's
schedule wakes it.

A pass costs about the same for one row as for fifty. So rows of a source that says when they are due wait a while for
others: four times as long as a pass takes, but at least half of the latency target (the other half is for the passes
on the way to a sink), and never longer than it; half of that time when rows of another slot are there to be processed.
What is late is polled at once.
"""

import asyncio
from collections.abc import Callable

from barrier_runtime.operators.user_code import came_by_signal, stray_error
from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK, Clock, SourceTime
from barrier_runtime.runtime.load import LongSteps
from barrier_runtime.runtime.subtask import Subtask

_ASK_AGAIN_NS = 1_000_000  # a source that does not know when its next rows are due
_PASS_BUDGET_S = 0.002
_ROUNDS_S = 0.0005  # of a pass; a round that began is ended
_MOST_ROUNDS = 4
_LONG_STEP_S = 2.0  # nothing else was served meanwhile: worth telling
_BETWEEN_SHARE = 0.5  # of the time the last pass took, for the small work between passes
_REST = 4.0  # passes' time that rows wait for others
_LEAST_REST = 0.5  # of the latency target
_JOINS = 0.5  # of that time; then they join rows that came from elsewhere
_SMOOTHING = 0.2  # of the time that a pass takes
_LOOK_S = 0.001  # between two looks at what waits for room; the last pass before a pause looks, too


class Scheduler:
    """`on_error(subtask, error)` is called for whatever a pass raised (None: not in a subtask's step); the owner stops
    the scheduler then. Nothing may be left to the loop's logger: a slot that no longer runs would look alive."""

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
        self._source_pass_s = 0.0  # of passes with rows of a source, smoothed
        self._gathering_ns = self._gathering()
        self._now_s = clock.monotonic_s
        self.source_time = SourceTime(clock)
        self._between = between  # other small work between passes (draining snapshots); True when more is left
        self._on_error = on_error
        self._subtasks: list[Subtask] = []  # the last first
        self._downwards: list[Subtask] = []
        self._stepping: Subtask | None = None
        self._scheduled = False  # for a pass, or in one
        self._woken = False  # since the last round of a pass began
        self._came = False  # the same, by what came into a channel
        self._stopped = False
        self._timer = clock.timer(loop, self._rang)
        self._rings_ns: int | None = None  # when the timer is to ring that was set last, by the time of sources
        self._last_pass_s = 0.0
        self.busy_s = 0.0
        self.backpressured_s = 0.0
        self.long_steps = LongSteps()
        self._looked_s: float | None = None  # what waits for room, and since when that is known
        self._held = False
        self._longest: tuple[float, Subtask] | None = None  # step since it was taken, if it was long

    def start(self, subtasks: list[Subtask]) -> None:
        """`subtasks` in topological order; they are served from the last to the first."""
        self._subtasks = list(reversed(subtasks))
        self._downwards = list(subtasks)
        self.wake()

    def wake(self) -> None:
        self._woken = True
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._pass)

    def wake_by_input(self) -> None:
        """Something came into a channel. A pass that is under way looks for that before it ends."""
        self._came = True
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._pass)

    def _rang(self) -> None:
        """A callback of the loop itself: the pass may begin here."""
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
        except BaseException as error:  # a loop logs one that is no Exception and goes on, and its rows would be gone
            if isinstance(error, SystemExit) and came_by_signal(error):
                raise
            again = self._woken
            self._on_error(self._stepping, error if isinstance(error, Exception) else stray_error(error))
        finally:
            self._scheduled = False
        if again:
            self.wake()

    def _work(self) -> bool:
        """True: another pass is due at once. What wakes the slot before the last round is done by that one."""
        started = self._now_s()
        more = self._work_between(started)
        stepped = now = self._now_s()
        deadline = stepped + _PASS_BUDGET_S
        worked = polled = False
        # Sinks first, so that there is room; where a pass is quick there is, and rows go all the way in one round.
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
        # What a round brought for the work between passes (a captured snapshot) is begun before the slot sleeps.
        if left or more or self._work_between(now) or self._woken or self._came:
            if self._looked_s is None or now - self._looked_s >= _LOOK_S:
                self._look(now)
            return True
        self._sleep()
        self._look(now)
        return False

    def _round(self, subtasks: list[Subtask], now: float, deadline: float) -> tuple[bool, bool]:
        """Each of `subtasks` once. Whether something was done (or is left because time is over), and by a source."""
        worked = polled = False
        for subtask in subtasks:
            self._stepping = subtask
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
                self.long_steps.note(now, now - before, subtask.id.chain)
                return True, polled
        return worked, polled

    def _is_left(self, polled: bool) -> bool:
        """Another round finds something to do at once. `polled`: the last one was also of rows of a source."""
        for subtask in self._subtasks:
            if subtask.may_go_on or (polled and subtask.source is not None and self._is_due(subtask)):
                return True
        return False

    def _gathering(self) -> int:
        """How long (ns) rows wait for others."""
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
        """A pass takes place anyway, for rows that came from elsewhere."""
        for subtask in self._subtasks:  # noqa: SIM110
            if subtask.has_input:
                return True
        return False

    def _note_long(self, seconds: float, subtask: Subtask) -> None:
        """A pass ends with the step that is over its budget: that one was long."""
        if self._longest is None or seconds > self._longest[0]:
            self._longest = seconds, subtask

    def take_longest(self) -> tuple[float, Subtask] | None:
        """The longest step of seconds since this was asked last, and its subtask."""
        longest, self._longest = self._longest, None
        return longest

    def _work_between(self, started: float) -> bool:
        """A slice; more of them where passes are long, so that under full load a snapshot does not take a hundred times
        as long as on an idle slot."""
        until = started + self._last_pass_s * _BETWEEN_SHARE
        while self._between():
            if self._now_s() >= until:
                return True
        return False

    def _look(self, now: float) -> None:
        """What waits for room now; until the next look it counts as waiting."""
        since_s = 0.0 if self._looked_s is None else now - self._looked_s
        self._looked_s = now
        if self._held:
            self.backpressured_s += since_s
        self._held = False
        for subtask in self._subtasks:
            if subtask.chain.look(since_s):
                self._held = True

    def _sleep(self) -> None:
        """Sources need to be asked in time; everything else is woken by its channels."""
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
