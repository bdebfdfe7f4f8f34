"""Which failures of checkpoints are tolerated, when a job restarts, and the pause before the next generation.

`FailureCounter` counts like Flink's CheckpointFailureManager: consecutive failures of the checkpoint itself, each id
once.

`RestartPolicy` implements Flink's restart strategies, but the first restart of an exponential delay is immediate, and a
series ends only when the job has run for `reset_after_ms` *and* completed a checkpoint. Each coordinator process counts
for itself.

An unavailable server is no failure of the job: `exponential_delay` waits without limit, unless `max_attempts` is 0;
other strategies wait as long as their restarts would last.
"""

import enum
from collections import deque

from barrier_runtime.coordinator.wire.messages import RestartOptions
from barrier_runtime.state.texts import counted
from barrier_runtime.state.versioned import sha256_hex


class Cause(enum.Enum):
    DECLINED = "declined"
    EXPIRED = "expired"
    NOT_STORED = "its manifest could not be stored"
    GENERATION_ENDED = "the generation ended"
    SUBSUMED = "a newer checkpoint completed"
    MOVE_ABORTED = "the move that it was taken for was aborted"


COUNTABLE = frozenset({Cause.DECLINED, Cause.EXPIRED, Cause.NOT_STORED})


class FailureVerdict(enum.Enum):
    TOLERATED = "tolerated"
    EXCEEDED = "exceeded"


class FailureCounter:
    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._counted: set[int] = set()
        self._last_success = 0

    def failed(self, checkpoint: int, cause: Cause) -> FailureVerdict:
        if cause in COUNTABLE and checkpoint > self._last_success:
            self._counted.add(checkpoint)
            if len(self._counted) > self._tolerable:
                return FailureVerdict.EXCEEDED
        return FailureVerdict.TOLERATED

    def completed(self, checkpoint: int) -> None:
        self._counted.clear()
        self._last_success = max(self._last_success, checkpoint)


class RestartPolicy:
    """`seed` (job and run) is the only source of jitter."""

    def __init__(self, options: RestartOptions, seed: str = "") -> None:
        self._options = options
        self._seed = seed
        self._restarts = 0  # of the present series; for fixed_delay of the run
        self._outages = 0  # of the present series
        self._failed_ms: deque[int] = deque(maxlen=options.max_failures + 1)
        self._running_since_ms: int | None = None
        self._progressed = False

    def running(self, now_ms: int) -> None:
        self._running_since_ms = now_ms
        self._progressed = False

    def checkpoint_completed(self) -> None:
        self._progressed = True

    def delay_ms(self, now_ms: int, unavailable: bool = False) -> int | None:
        """Counts a failure; returns the wait before the restart. None: no restart is allowed."""
        options, lasting = self._options, self._lasting_progress(now_ms)
        self._running_since_ms = None
        self._progressed = False
        if options.strategy == "none":
            return None
        if options.strategy == "failure_rate":
            return self._at_rate(now_ms)
        if lasting and options.strategy == "exponential_delay":
            self._restarts = self._outages = 0
        if unavailable and options.strategy == "exponential_delay" and options.max_attempts != 0:
            self._outages += 1
            return self._backoff(self._restarts + self._outages)
        if options.max_attempts is not None and self._restarts >= options.max_attempts:
            return None
        self._restarts += 1
        return (
            options.initial_ms if options.strategy == "fixed_delay" else self._backoff(self._restarts + self._outages)
        )

    @property
    def wait_limit_ms(self) -> int | None:
        """Wait of a restoring generation for an unavailable server; None: no limit."""
        options = self._options
        if options.strategy == "none" or options.max_attempts == 0:
            return 0
        if options.strategy == "failure_rate":
            return options.interval_ms
        if options.strategy == "exponential_delay" or options.max_attempts is None:
            return None
        return options.max_attempts * options.initial_ms

    def impatient(self) -> str:
        waits = f"{(self.wait_limit_ms or 0) / 1000:g} s" if self.wait_limit_ms else "at no time"
        return (
            f"restart strategy {self._options.strategy} waits {waits} for a server that does not answer: start the "
            "server, then start the job again, or use restart='exponential_delay', which waits without end"
        )

    def impatient_for_slots(self) -> str:
        return (
            f"Restart strategy {self._options.strategy} does not wait longer for slots: give Spark machines or cores, "
            "then start the job again, or use restart='exponential_delay', which waits without end"
        )

    def exhausted(self) -> str:
        options, remedy = self._options, "remove the cause, then start the job again"
        if options.strategy == "none":
            return (
                f"restart strategy none: the first failure ends the job: {remedy}, or use another strategy (restart=)"
            )
        if options.strategy == "failure_rate":
            return (
                f"restart strategy failure_rate: {counted(len(self._failed_ms), 'failure')} within "
                f"{options.interval_ms / 1000:g} s, {options.max_failures} are allowed: {remedy}, "
                "or raise restart_failures"
            )
        row = "in this run" if options.strategy == "fixed_delay" else "in a row"
        return (
            f"restart strategy {options.strategy}: failed {counted(self._restarts + 1, 'time')} {row}, of "
            f"{counted(options.max_attempts or 0, 'allowed restart')}: {remedy}, or raise restart_attempts"
        )

    def _lasting_progress(self, now_ms: int) -> bool:
        since = self._running_since_ms
        return self._progressed and since is not None and now_ms - since >= self._options.reset_after_ms

    def _at_rate(self, now_ms: int) -> int | None:
        while self._failed_ms and now_ms - self._failed_ms[0] >= self._options.interval_ms:
            self._failed_ms.popleft()
        self._failed_ms.append(now_ms)
        return None if len(self._failed_ms) > self._options.max_failures else self._options.initial_ms

    def _backoff(self, restart: int) -> int:
        if restart == 1:
            return 0
        options, steps = self._options, min(restart - 2, 64)  # the bound keeps the power finite
        pause = min(options.max_ms, options.initial_ms * options.multiplier**steps)
        pause *= 1 + options.jitter * _spread(f"{self._seed}/{restart}")
        return int(max(options.initial_ms, min(options.max_ms, pause)))


def _spread(text: str) -> float:
    return int(sha256_hex(text.encode())[:13], 16) / 2**51 - 1
