"""Requests of simulated processes to the simulated servers of sinks and sources.

Requests have latency, fail, take effect without an answer, or take effect long after the sender has given up."""

from collections.abc import Callable
from typing import Any

from barrier_runtime.testing.simulation.loop import Simulation

_TRAVEL_US = (200, 3_000)
_TURN_US = 50  # between two looks of a job that waits for its turn
_GIVE_UP_US = (100_000, 3_000_000)
_LATE_US = 20_000_000
_SLOW_US = 10_000_000
_FATES = ("lost", "no answer", "late", "slow", "ok", "ok", "ok")


class Turns:
    """Lock of blocking jobs, which share one thread: a waiting job yields, so that the holder can go on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._simulation.jobs.block(_TURN_US)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class Doorway:
    """Entrance of a server. `troubled()` returns whether requests may fail now."""

    def __init__(self, simulation: Simulation, troubled: Callable[[], bool]) -> None:
        self._simulation = simulation
        self._troubled = troubled
        self.seen: dict[str, int] = {}

    def turns(self) -> Turns:
        return Turns(self._simulation)

    def ask(self, what: str, effect: Callable[[], Any], lost: Callable[[str], Exception]) -> Any:
        """Sends a request from a blocking job, and returns the result of `effect`, or raises its exception.

        `effect` happens at the server atomically or not at all. `lost(why)` makes the client library's exception for a
        missing answer."""
        simulation = self._simulation
        fate = simulation.rng.choice(_FATES) if self._troubled() else "ok"
        simulation.trace("server", what, fate)
        self.seen[fate] = self.seen.get(fate, 0) + 1
        if fate == "lost":
            simulation.jobs.block(simulation.between_us(*_GIVE_UP_US))
            raise lost("the request was lost")
        if fate == "late":
            simulation.jobs.running(what)
            simulation.after(simulation.between_us(0, _LATE_US), self._land, effect)
            simulation.jobs.block(simulation.between_us(*_GIVE_UP_US))
            raise lost("no answer in time")
        if fate == "slow":
            simulation.jobs.block(simulation.between_us(0, _SLOW_US))
        answer = simulation.jobs.request(simulation.between_us(*_TRAVEL_US), effect, simulation.between_us(*_TRAVEL_US))
        if fate == "no answer":
            raise lost("the answer was lost")
        return answer

    def _land(self, effect: Callable[[], Any]) -> None:
        try:
            effect()
        except Exception as error:  # no sender waits for the answer
            self._simulation.trace("landed late", type(error).__name__)
