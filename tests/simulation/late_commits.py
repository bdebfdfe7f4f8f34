"""Late commits: the checker counts decided uncommitted checkpoints; the status must report a sink that lags.

A coordinator answers only for checkpoints that were decided while it led. In some jobs `commit_every` delays global
commits: they may be later by that time, and until then the status reports no slow sink."""

import random
from collections.abc import Callable, Mapping

import msgspec
from facts import Decision, Facts
from schedule import Schedule

from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import ChainSpec
from barrier_runtime.testing.simulation.loop import Simulation

LATE_MS = 1_000  # minimum; otherwise two intervals
_SLACK_MS = 1_500  # for the report of a commit, the check of the condition, and a stalled coordinator
_FOR_EVER_MS = 3_600_000  # longer than any run: only an end or move of the job commits
_GLOBAL = "/global"
_LAST = 3  # checkpoints that the end of a job requests


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
        self.every_ms = random.Random(f"commit every {schedule.seed}").choice((0, 0, 400, 4_000, _FOR_EVER_MS))
        if schedule.shares_files:
            self.bound, self.every_ms = 10, 0
        self._shown: dict[str, tuple[int, int]] = {}  # global committer -> (visible checkpoint, since when)
        self._decided_ms: dict[int, int] = {}  # log position -> time when first seen
        self._runs: tuple[JobRunner, int] | None = None  # this generation, as this runner leads it …
        self._since_ms = 0  # … runs since

    def holding(self, chains: tuple[ChainSpec, ...]) -> tuple[ChainSpec, ...]:
        every = ((each, dict.fromkeys(each.global_sinks, self.every_ms) if self.every_ms else {}) for each in chains)
        return tuple(msgspec.structs.replace(each, commit_every_ms=held) for each, held in every)

    @property
    def held_for_ever(self) -> bool:
        """Returns whether rows that wait for a global commit stay invisible while the job just continues."""
        return self.every_ms == _FOR_EVER_MS

    def reached(self, through: Mapping[str, int]) -> int:
        """Returns the newest checkpoint that every sink has committed, without sinks that are delayed forever."""
        held = self.held_for_ever
        return min((each for key, each in through.items() if not (held and key.endswith(_GLOBAL))), default=0)

    def look(self, runner: JobRunner, *, asked: int, ends: bool) -> None:
        """Called at each poll of a leading coordinator. `asked`: number of checkpoints requested so far.
        `ends`: the job may end at any time, so no commit is delayed."""
        now_ms = self._simulation.now_us // 1000
        for decision in self._facts.decisions:
            self._decided_ms.setdefault(decision.position, now_ms)
        status = runner.status()
        if status.phase != "running" or status.token is None or status.token != self._token():
            self._runs = None
            return
        self._look_at_uploads(status)
        if self._runs != (runner, status.token):
            self._runs, self._since_ms = (runner, status.token), now_ms
        told = {each.sink for each in status.commits.slow} | {
            each.sink.rpartition("/")[0] for each in status.commits.troubles
        }
        late_ms = max(2 * self._schedule.interval_ms, LATE_MS) + _SLACK_MS
        reached: dict[tuple[str, int], int] = {}  # (sink, delay of its commits) -> checkpoint
        for key, checkpoint in status.commits.through.items():
            held_ms = self.every_ms if key.endswith(_GLOBAL) else 0
            part = key.rpartition("/")[0], held_ms
            reached[part] = min(checkpoint, reached.get(part, checkpoint))
        own = [
            each
            for each in self._facts.decisions
            if each.position > status.token and self._decided_ms[each.position] >= self._since_ms
        ]
        for (sink, held_ms), through in reached.items():
            behind = [each for each in own if each.record.checkpoint > through]
            most = self.bound + self._schedule.max_concurrent + asked + _LAST
            if len(behind) > most and not held_ms:
                self._wrong("CommitsKeepUp", f"sink {sink} has {len(behind)} checkpoints to commit, {most} are allowed")
            if self._schedule.clocks_jump:
                continue  # so do ages
            seen_ms = [self._decided_ms[each.position] for each in behind]
            if seen_ms and now_ms - min(seen_ms) > late_ms + held_ms:
                self._note("a commit was late, and told")
                if sink not in told and status.condition in ("RUNNING", "WAITING_SINK"):
                    waited = now_ms - min(seen_ms)
                    self._wrong("SlowCommitIsTold", f"sink {sink} has not committed for {waited} ms; told: {told}")
            if held_ms and through and asked == 0 and not ends:
                self._look_at_held(sink, through, own, reached[sink, 0], status, now_ms)

    def _look_at_uploads(self, status: JobStatus) -> None:
        """Checks the uploads of the newest checkpoint of this generation."""
        last = status.checkpoints.last_completed
        if last is None or last.token != status.token:
            return
        slow_ms = max(self._schedule.interval_ms, LATE_MS)
        slow = {each.chain for each in last.subtasks if max(each.precommit_ms, each.upload_ms) > slow_ms}
        told = status.checkpoints.slow_uploads
        if slow:
            self._note("an upload was slow, and told")
        if len(told) != len(slow):
            self._wrong("SlowUploadIsTold", f"uploads of chains {sorted(slow)} were slow; told: {told}")

    def _look_at_held(
        self,
        sink: str,
        through: int,
        own: list[Decision],
        parts: int,
        status: JobStatus,
        now_ms: int,
    ) -> None:
        """Checks a global committer that has shown `through`, while the subtasks of `sink` have committed `parts`.

        No commit is late before `commit_every` is over, unless a request needs all rows visible."""
        before = self._shown.get(sink)
        if before is None or before[0] != through:
            before = self._shown[sink] = (through, now_ms)
        held = own and own[-1].record.checkpoint > through and parts >= own[-1].record.checkpoint
        if held and before[1] >= self._since_ms:
            self._note("a commit was held back")
            if now_ms - before[1] < self.every_ms and sink in {each.sink for each in status.commits.slow}:
                self._wrong("HeldIsNotLate", f"sink {sink} is told to be slow while its commits are held back")

    def _token(self) -> int:
        return 0 if self._facts.fence is None else self._facts.fence.token
