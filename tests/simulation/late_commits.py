"""Late commits: the judge counts decided checkpoints that are not committed, and asks that the status tells of
a sink that stays behind. A coordinator answers for what was decided while it led."""

import random
from collections.abc import Callable

from facts import Facts
from schedule import Schedule

from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.testing.simulation.loop import Simulation

LATE_MS = 1_000  # at least; else two intervals
_SLACK_MS = 1_500  # a commit is reported, the condition is looked at, a coordinator is stalled


class LateCommits:
    def __init__(
        self,
        schedule: Schedule,
        simulation: Simulation,
        facts: Facts,
        wrong: Callable[[str, str], None],
        note: Callable[[str], None],
    ) -> None:
        self._schedule = schedule
        self._simulation = simulation
        self._facts = facts
        self._wrong = wrong
        self._note = note
        self.bound = random.Random(f"commits behind {schedule.seed}").choice((1, 2, 3, 10))
        self._decided_ms: dict[int, int] = {}  # log position -> when it was seen first
        self._runs: tuple[JobRunner, int] | None = None  # this generation, as this runner leads it …
        self._since_ms = 0  # … runs since

    def look(self, runner: JobRunner, *, asked: int) -> None:
        """At each poll of a coordinator that leads. `asked`: checkpoints that were wanted by somebody so far."""
        now_ms = self._simulation.now_us // 1000
        for decision in self._facts.decisions:
            self._decided_ms.setdefault(decision.position, now_ms)
        status = runner.status()
        if status.phase != "running" or status.token is None or status.token != self._token():
            self._runs = None
            return
        if self._runs != (runner, status.token):
            self._runs, self._since_ms = (runner, status.token), now_ms
        told = {each.sink for each in status.commits.slow} | {
            each.sink.rpartition("/")[0] for each in status.commits.troubles
        }
        late_ms = max(2 * self._schedule.interval_ms, LATE_MS) + _SLACK_MS
        through: dict[str, int] = {}
        for key, checkpoint in status.commits.through.items():
            sink = key.rpartition("/")[0]
            through[sink] = min(checkpoint, through.get(sink, checkpoint))
        own = [
            each
            for each in self._facts.decisions
            if each.position > status.token and self._decided_ms[each.position] >= self._since_ms
        ]
        for sink, reached in through.items():
            behind = [each for each in own if each.record.checkpoint > reached]
            most = self.bound + self._schedule.max_concurrent + asked
            if len(behind) > most:
                self._wrong("CommitsKeepUp", f"sink {sink} has {len(behind)} checkpoints to commit, {most} are allowed")
            seen_ms = [self._decided_ms[each.position] for each in behind]
            if self._schedule.clocks_jump:
                continue  # so do ages
            if seen_ms and now_ms - min(seen_ms) > late_ms:
                self._note("a commit was late, and told")
                if sink not in told and status.condition in ("RUNNING", "WAITING_SINK"):
                    waited = now_ms - min(seen_ms)
                    self._wrong("SlowCommitIsTold", f"sink {sink} has not committed for {waited} ms; told: {told}")

    def _token(self) -> int:
        return 0 if self._facts.fence is None else self._facts.fence.token
