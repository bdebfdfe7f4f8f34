"""Chooses how many decided checkpoints a sink commits together.

Without failures, a sink commits all waiting checkpoints. After a failure the group is halved, down to the failing
checkpoint alone: a checkpoint that cannot be committed must not hold back older ones, and a slow target may manage half
of a request. Each successful group doubles the next group; the limit ends when no checkpoint waits.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable

Step = TypeVar("Step")


class CommitGroups:
    """Commits steps in groups of at most `most_bytes`; a larger step is committed alone."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._most: int | None = None

    @property
    def limited(self) -> bool:
        """Returns True while the steps of a failed group are not all committed."""
        return self._most is not None

    def failed(self, steps: int, error: BarrierRuntimeError) -> None:
        """Halves the next group after a commit of `steps` steps raised `error`.

        Raises `error` for a single step, which cannot be halved, and if the target may be unavailable.
        """
        if steps == 1:
            raise error
        self._most = steps // 2
        if isinstance(error, Unavailable):
            raise error

    def commit(
        self, steps: Sequence[Step], size: Callable[[Step], int], commit: Callable[[Sequence[Step]], None]
    ) -> None:
        """Commits all `steps`, oldest first; each call of `commit` gets as many steps as the limits allow."""
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
