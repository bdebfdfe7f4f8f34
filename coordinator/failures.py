"""When failures end a generation, and how long to wait before the next one.

`FailureCounter` counts as Flink does (CheckpointFailureManager): only consecutive failures that a checkpoint itself is
to blame for, each id once; a success forgets them, and failures of checkpoints older than it never count.
`RestartPolicy` restarts at once the first time, then backs off exponentially, and forgets when the job made progress.
"""

import enum

from coordinator.messages import RestartOptions


class Cause(enum.Enum):
    DECLINED = "declined"
    EXPIRED = "expired"
    NOT_STORED = "its manifest could not be stored"
    GENERATION_ENDED = "the generation ended"
    SUBSUMED = "a newer checkpoint completed"


COUNTABLE = frozenset({Cause.DECLINED, Cause.EXPIRED, Cause.NOT_STORED})


class Verdict(enum.Enum):
    TOLERATED = "tolerated"
    EXCEEDED = "exceeded"


class FailureCounter:
    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._counted: set[int] = set()
        self._last_success = 0

    def failed(self, checkpoint: int, cause: Cause) -> Verdict:
        if cause in COUNTABLE and checkpoint > self._last_success:
            self._counted.add(checkpoint)
            if len(self._counted) > self._tolerable:
                return Verdict.EXCEEDED
        return Verdict.TOLERATED

    def completed(self, checkpoint: int) -> None:
        self._counted.clear()
        self._last_success = max(self._last_success, checkpoint)

    def new_generation(self) -> None:
        self._counted.clear()

    @property
    def consecutive(self) -> int:
        return len(self._counted)


class RestartPolicy:
    def __init__(self, options: RestartOptions) -> None:
        self._options = options
        self._in_a_row = 0
        self._running_since_ms: int | None = None
        self._progressed = False

    @property
    def in_a_row(self) -> int:
        return self._in_a_row

    def running(self, now_ms: int) -> None:
        self._running_since_ms = now_ms
        self._progressed = False

    def checkpoint_completed(self) -> None:
        self._progressed = True

    def delay_ms(self, now_ms: int) -> int | None:
        """How long to wait before the restart that is needed now; None when there were too many in a row."""
        since = self._running_since_ms
        if self._progressed and since is not None and now_ms - since >= self._options.reset_after_ms:
            self._in_a_row = 0
        self._running_since_ms = None
        self._progressed = False
        if self._options.max_attempts is not None and self._in_a_row >= self._options.max_attempts:
            return None
        delay = self._backoff()
        self._in_a_row += 1
        return delay

    def _backoff(self) -> int:
        if self._in_a_row == 0:
            return 0
        steps = min(self._in_a_row - 1, 64)  # keeps the power finite
        return int(min(self._options.max_ms, self._options.initial_ms * self._options.multiplier**steps))
