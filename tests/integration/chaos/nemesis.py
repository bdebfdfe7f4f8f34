"""Carries out a plan: waits for the right moment, finds the victim, strikes, and undoes temporary faults.

The nemesis also drives the supervisor, so that one thread makes all decisions in one order.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.integration.chaos.disk import SmallDisk
from tests.integration.chaos.plan import Action
from tests.integration.chaos.processes import Found, family, send
from tests.integration.chaos.reader import Reader
from tests.integration.chaos.store_proxy import Fault, ProxyControl
from tests.integration.chaos.supervisor import Start, Supervisor

_TICK_S = 0.02
_VICTIM_PATIENCE_S = 5.0
_RECOVERING_PATIENCE_S = 8.0


@dataclass
class Strike:
    action: Action
    at_ns: int  # wall clock
    kills: int  # processes that got SIGKILL
    detail: str
    phase: str  # status of the job at the strike
    healthy_before: bool
    over_ns: int = 0  # when the temporary fault was undone


class StuckJob(Exception):
    """The job did not become healthy in time although no fault was in force."""


class Nemesis:
    def __init__(
        self,
        run: str,
        supervisor: Supervisor,
        reader: Reader,
        proxy: ProxyControl,
        disk: SmallDisk,
        patience_s: float,
        say: Callable[[str], None],
        housekeeping: Callable[[], None],
    ) -> None:
        self._run = run
        self._supervisor = supervisor
        self._reader = reader
        self._proxy = proxy
        self._disk = disk
        self._patience_s = patience_s
        self._say = say
        self._housekeeping = housekeeping
        self._pause = threading.Event()
        self._releases: list[tuple[float, Callable[[], None], Strike]] = []
        self.strikes: list[Strike] = []
        self.unavailable: dict[str, int] = {}  # kinds that could not be done here, and how often they were due

    @property
    def kills(self) -> int:
        return sum(strike.kills for strike in self.strikes)

    def torment(self, actions: Iterator[Action], over: Callable[[], bool]) -> None:
        """Strikes until `over`. Raises `StuckJob`."""
        for action in actions:
            if action.kind == "fill disk" and not self._disk.mounted:
                self.unavailable[action.kind] = self.unavailable.get(action.kind, 0) + 1
                continue
            healthy = self._await_moment(action)
            if over():
                return
            self._strike(action, healthy)

    def relent(self) -> int:
        """Undo everything that lasts. Gives the wall-clock ns of the end of the last fault."""
        for _, undo, strike in self._releases:
            undo()
            strike.over_ns = time.time_ns()
        self._releases = []
        self._proxy.set(Fault())
        self._disk.free()
        for process in family(self._run):
            if process.stopped:
                send(process, signal.SIGCONT)
        return time.time_ns()

    def await_healthy(self, since_ns: int) -> None:
        """Waits until rows due after `since_ns` are committed, of every split in every sink. Raises `StuckJob`."""
        if not self.wait(lambda: self._reader.committed_after(since_ns) is not None, self._patience_s):
            status = self._supervisor.status()
            known = "no status" if status is None else f"phase {status.phase}, {status.reason or status.error}"
            raise StuckJob(f"not healthy {self._patience_s:.0f} s after the last fault: {known}")

    def wait(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Waits until `condition`, while supervisor and faults go on. False after the timeout."""
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._tick()
            self._pause.wait(_TICK_S)
        return True

    # ------------------------------------------------------------ the right moment

    def _await_moment(self, action: Action) -> bool:
        """True when the job was healthy right before."""
        healthy = False
        if action.when == "healthy":
            self.wait(lambda: not self._releases, self._patience_s)
            last = max((max(strike.at_ns, strike.over_ns) for strike in self.strikes), default=0)
            self.await_healthy(last)
            healthy = True
        elif action.when == "recovering":
            self.wait(self._recovering, _RECOVERING_PATIENCE_S)
        until = time.monotonic() + action.gap_s
        self.wait(lambda: time.monotonic() >= until, action.gap_s + 1)
        return healthy

    def _recovering(self) -> bool:
        status = self._supervisor.status()
        return status is not None and status.phase != "running"

    def _tick(self) -> None:
        self._supervisor.tick()
        self._housekeeping()
        now = time.monotonic()
        due = [release for release in self._releases if release[0] <= now]
        self._releases = [release for release in self._releases if release[0] > now]
        for _, undo, strike in due:
            undo()
            strike.over_ns = time.time_ns()
        if self._reader.error is not None:
            raise self._reader.error

    # ------------------------------------------------------------ strikes

    def _strike(self, action: Action, healthy: bool) -> None:
        status = self._supervisor.status()
        phase = "unknown" if status is None else status.phase
        strike = Strike(action, time.time_ns(), 0, "", phase, healthy)
        verb, _, what = action.kind.partition(" ")
        undo: Callable[[], None] | None = None
        if verb == "kill":
            self._kill(what, strike)
        elif verb == "stall":
            undo = self._stall(what, strike)
        elif verb == "store":
            strike.at_ns = time.time_ns()
            self._proxy.set(Fault(what, action.share, action.path, seed=len(self.strikes)))  # type: ignore[arg-type]
            undo = self._end_store_fault
        elif action.kind == "fill disk":
            strike.detail = f"{self._disk.fill() >> 20} MiB"
            undo = self._disk.free
        elif action.kind == "restart":
            self._supervisor.stop()
            self._await_end(self._supervisor.current, strike)
        else:
            old = self._supervisor.current
            self._supervisor.start()
            self._await_end(old, strike)
        self.strikes.append(strike)
        if undo is not None:
            self._releases.append((time.monotonic() + action.hold_s, undo, strike))
        self._say(f"{action}: {strike.detail or 'done'} (was {phase})")

    def _await_end(self, start: Start, strike: Strike) -> None:
        """Waits for the end of the run that is stopped or fenced; recovery counts from that end, as the run works until
        then.
        """
        self.wait(lambda: start.code is not None, self._patience_s)
        strike.at_ns = time.time_ns()
        strike.detail = f"run {start.number} ended with {start.code}"

    def _end_store_fault(self) -> None:
        self._proxy.set(Fault())

    def _kill(self, what: str, strike: Strike) -> None:
        if what == "all":
            self._supervisor.current.killed = True
            for start in self._supervisor.starts:
                start.killed = start.killed or start.code is None
            victims = family(self._run)
            strike.at_ns = time.time_ns()
            strike.kills = min(1, sum(send(victim, signal.SIGKILL) for victim in victims))
            strike.detail = f"{len(victims)} processes"
            return
        victim = self._victim(what, strike.action.choice)
        if victim is None:
            strike.detail = "nobody there"
            return
        if what in ("driver", "jvm"):
            self._supervisor.current.killed = True
        strike.at_ns = time.time_ns()
        strike.kills = int(send(victim, signal.SIGKILL))
        strike.detail = f"process {victim.pid}"

    def _stall(self, what: str, strike: Strike) -> Callable[[], None] | None:
        victim = self._victim(what, strike.action.choice)
        if victim is None:
            strike.detail = "nobody there"
            return None
        strike.at_ns = time.time_ns()
        send(victim, signal.SIGSTOP)
        strike.detail = f"process {victim.pid}"
        return lambda: send(victim, signal.SIGCONT) and None

    def _victim(self, role: str, choice: float) -> Found | None:
        """A process of the current run; waits a moment until there is a candidate."""
        found: list[Found] = []

        def there() -> bool:
            found[:] = [each for each in family(self._run, self._supervisor.current.number) if each.role == role]
            return bool(found)

        self.wait(there, _VICTIM_PATIENCE_S)
        return found[min(int(choice * len(found)), len(found) - 1)] if found else None
