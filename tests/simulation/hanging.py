"""Hanging opens of a source or sink, on every slot, with a checker.

The job's condition has to name the hanging operator once the job has waited longer than its progress timeout."""

from collections.abc import Callable
from dataclasses import dataclass

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.testing.simulation.loop import SimProcess, Simulation

PROGRESS_TIMEOUT_MS = 3_000
_SLACK_MS = 3_000  # time for a heartbeat, and until the next look at the condition
_AWAKE_US = (1_000, 500_000)


@dataclass(frozen=True)
class Hang:
    """Every open of `operator` that starts between `from_ms` and `until_ms` hangs until `until_ms`."""

    operator: str
    from_ms: int
    until_ms: int


class HangingOpens:
    def __init__(
        self,
        simulation: Simulation,
        hang: Hang,
        wrong: Callable[[str, str], None],
        note: Callable[[str], None],
    ) -> None:
        self._simulation = simulation
        self._hang = hang
        self._wrong = wrong
        self._note = note
        self._waiting: dict[SimProcess, int] = {}  # hanging process -> start, µs
        self._restoring: tuple[JobRunner, int] | None = None  # runner and token of the restoring generation
        self._since_us = 0
        self.calm = False  # True: no further open hangs

    def opening(self, operator: str) -> None:
        """Blocks the open of `operator` if it hangs now; returns at once outside of blocking jobs."""
        simulation, job = self._simulation, self._simulation.jobs.current
        until_us = self._hang.until_ms * 1000
        if job is None or operator != self._hang.operator or self.calm:
            return
        if not self._hang.from_ms * 1000 <= simulation.now_us < until_us:
            return
        simulation.trace("hangs", operator, job.process.name)
        self._note("an open hung")
        self._waiting[job.process] = simulation.now_us
        simulation.jobs.block(until_us - simulation.now_us + simulation.between_us(*_AWAKE_US))
        self._waiting.pop(job.process, None)

    @property
    def anybody(self) -> bool:
        return any(process.running for process in self._waiting)

    def look(self, runner: JobRunner, slot_timeout_ms: int) -> None:
        """Judges the job's condition; called regularly while the coordinator of `runner` lives.

        The coordinator's knowledge of a slot is at most `slot_timeout_ms` old: later the slot counts as lost."""
        status, now_us = runner.status(), self._simulation.now_us
        hanging = [process for process in self._waiting if process.running]
        if status.phase != "restoring" or status.token is None or not hanging:
            self._restoring = None
            return
        if self._restoring != (runner, status.token):
            self._restoring, self._since_us = (runner, status.token), now_us
        waited_ms = (now_us - self._since_us) // 1000
        if waited_ms < PROGRESS_TIMEOUT_MS + slot_timeout_ms + _SLACK_MS:
            return
        shown = f"{status.condition}: {status.condition_reason}"
        if status.condition == "WAITING_STORE":
            return
        if status.condition != "WAITING_RESTORE" or f"opening {self._hang.operator} for" not in shown:
            who = f"{self._hang.operator} hangs in its open for {waited_ms} ms"
            self._wrong("TroubleIsTold", f"{who}, told is: {shown}")
        self._note("a hanging open was waited for, and told")


class HangingJsonlSink(JsonlSink):
    def __init__(self, url: str, opening: Callable[[str], None]) -> None:
        super().__init__(url)
        self._opening = opening

    def __deepcopy__(self, memo: dict[int, object]) -> "HangingJsonlSink":
        return HangingJsonlSink(self.url, self._opening)

    def open(self, context: SinkContext) -> None:
        self._opening(context.sink)
        super().open(context)
