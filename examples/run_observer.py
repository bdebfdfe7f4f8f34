"""Observer of a run: polls the status, kills processes, and waits for the effect of each kill."""

import os
import signal
import sys
import time
from collections.abc import Callable

from barrier_runtime.coordinator.status.health import described
from barrier_runtime.coordinator.status.status import JobStatus, LatencyStatus
from barrier_runtime.launch.job_handle import JobHandle
from examples.run_progress import Display
from examples.servers import Server

_LOOK_S = 0.1
_PATIENCE_S = 240.0  # for the effect of a kill


class Observer:
    def __init__(self, handle: JobHandle, show: Display) -> None:
        self._handle = handle
        self._show = show
        self.recovery_ms: list[float] = []
        self.checkpoint_ms: dict[int, float] = {}
        self.latency: dict[str, LatencyStatus] = {}  # with most rows: a new coordinator lacks departed slots
        self.slot_kills = 0
        self.coordinator_kills = 0
        self.server_kills = 0

    def look(self) -> JobStatus:
        status = self._handle.status()
        for checkpoint in status.checkpoints.history:
            if checkpoint.outcome == "complete":
                self.checkpoint_ms[checkpoint.checkpoint] = checkpoint.duration_ms
        for name, latency in status.latency.items():
            if name not in self.latency or latency.count >= self.latency[name].count:
                self.latency[name] = latency
        self._show.update(status)
        return status

    def until(
        self,
        what: str,
        reached: Callable[[JobStatus], bool],
        patience_s: float = _PATIENCE_S,
        known: Callable[[], str] = str,
    ) -> JobStatus:
        """Polls until `reached`; exits if the job ends before or the wait is too long.

        The message includes `known()`."""
        deadline = time.monotonic() + patience_s
        while True:
            status = self.look()
            if reached(status):
                return status
            if status.outcome is not None:
                because = status.error or status.reason
                sys.exit(f"the job ended ({status.outcome}) before there was {what}. {because} {known()}".rstrip())
            if time.monotonic() > deadline:
                told = f"{status.records:,} records read, checkpoint {_last_completed(status)} completed. {known()}"
                condition = described(status.condition, status.condition_reason)
                sys.exit(f"no {what} within {patience_s:.0f} s. Phase {status.phase}, {condition}; {told}".rstrip())
            time.sleep(_LOOK_S)

    def kill_slot(self) -> None:
        """Sends SIGKILL to the Python process of a slot; returns when a new generation runs with the replacement."""
        before = self.look()
        victim = before.slots[-1]
        self._show.say(f"SIGKILL to slot {victim.slot}, process {victim.pid}")
        killed_ms = time.time() * 1000
        os.kill(victim.pid, signal.SIGKILL)
        self.slot_kills += 1

        def recovered(status: JobStatus) -> bool:
            pids = {slot.slot: slot.pid for slot in status.slots}
            newer = (status.token or 0) > (before.token or 0)
            return newer and status.phase == "running" and pids.get(victim.slot) not in (None, victim.pid)

        status = self.until("new generation after the kill of a slot", recovered)
        running_ms = next((r.running_ms for r in status.recoveries if r.token == status.token), None)
        self.recovery_ms.append((running_ms or time.time() * 1000) - killed_ms)
        self._show.say(f"generation {status.token} runs {self.recovery_ms[-1]:.0f} ms after the kill")

    def kill_coordinator(self) -> None:
        """Sends SIGKILL to the coordinator; returns when a new coordinator has completed a checkpoint."""
        before, pid = self.look(), self._handle.coordinator_pid
        if pid is None:
            sys.exit("this job's coordinator is not the driver's child: there is nothing of ours to kill")
        self._show.say(f"SIGKILL to the coordinator, process {pid}")
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.coordinator_kills += 1

        def resumed(status: JobStatus) -> bool:
            return self._handle.coordinator_pid not in (None, pid) and _last_completed(status) > _last_completed(before)

        status = self.until("checkpoint under a new coordinator", resumed)
        self.recovery_ms.append((time.monotonic() - killed) * 1000)
        self._show.say(
            f"coordinator is process {self._handle.coordinator_pid}; checkpoint {_last_completed(status)} completed "
            f"{self.recovery_ms[-1]:.0f} ms after the kill, generation {status.token} (before: {before.token})"
        )

    def kill_server(self, server: Server, away_s: float) -> None:
        """Kills and restarts a server; returns when a checkpoint that began after the restart is complete."""
        self._show.say(f"SIGKILL to {server.name}, processes {', '.join(map(str, server.pids))}")
        killed = time.monotonic()
        server.kill()
        self.server_kills += 1
        while time.monotonic() < killed + away_s:
            self.look()
            time.sleep(_LOOK_S)
        server.start()
        back_ms = time.time() * 1000

        def resumed(status: JobStatus) -> bool:
            last = status.checkpoints.last_completed
            return last is not None and last.triggered_ms > back_ms

        self.until(f"checkpoint after {server.name} had come back", resumed)
        self.recovery_ms.append(time.time() * 1000 - back_ms)
        self._show.say(f"{server.name} was away {away_s:.0f} s; checkpoint {self.recovery_ms[-1]:.0f} ms after that")


def _last_completed(status: JobStatus) -> int:
    last = status.checkpoints.last_completed
    return last.checkpoint if last is not None else 0
