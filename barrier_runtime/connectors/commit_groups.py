"""How many decided checkpoints a sink commits at once: all of them, and fewer after a commit of several has failed.

One that cannot be committed must hold back nothing older, and a target that is too slow for all of them in one request
may be quick enough for half. So a group that fails is halved until it is the failing checkpoint alone; each group that
succeeds lets the next one be twice as large, and when nothing is left there is no limit any more.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable

Step = TypeVar("Step")


class CommitGroups:
    """`most_bytes`: of the steps that are committed at once, but for a larger one alone."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._most: int | None = None

    @property
    def limited(self) -> bool:
        """A group has failed, and what it consisted of is not committed yet."""
        return self._most is not None

    def failed(self, steps: int, error: BarrierRuntimeError) -> None:
        """A commit of so many raised. Raises the error if there is nothing to halve, or if the target may be away: the
        next attempt takes fewer."""
        if steps == 1:
            raise error
        self._most = steps // 2
        if isinstance(error, Unavailable):
            raise error

    def commit(
        self, steps: Sequence[Step], size: Callable[[Step], int], commit: Callable[[Sequence[Step]], None]
    ) -> None:
        """Commit all `steps`, oldest first, by calls of `commit` with as many at once as go."""
        done = 0
        while done < len(steps):
            group = steps[done : done + self._fitting(steps[done:], size)]
            try:
                commit(group)
            except BarrierRuntimeError as error:
                self.failed(len(group), error)
            else:
                done += len(group)
                if self._most is not None:
                    self._most *= 2
        self._most = None

    def _fitting(self, steps: Sequence[Step], size: Callable[[Step], int]) -> int:
        total = 0
        for count, step in enumerate(steps[: self._most]):
            total += size(step)
            if count and total > self.most_bytes:
                return count
        return len(steps[: self._most])
