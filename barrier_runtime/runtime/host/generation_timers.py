"""What one generation in a slot does later: operators' timers, and work that waits while sources stand, so that a move
to other slots, which stops them, has the processor for itself."""

from collections.abc import Callable
from typing import Any, TypeAlias

_Later: TypeAlias = Callable[[float, Callable[[], None]], Any]
_LOOK_S = 0.05  # between two looks whether sources read on


class GenerationTimers:
    """For the loop's thread. `later(delay_s, callback)` calls back once, unless the generation has ended by then."""

    def __init__(self, later: _Later) -> None:
        self._later = later
        self._paused = 0  # the checkpoint behind which sources read nothing; 0: there is none

    @property
    def sources_stand(self) -> bool:
        return self._paused > 0

    def pause(self, checkpoint: int) -> None:
        """Sources read nothing behind it."""
        self._paused = self._paused or checkpoint

    def aborted(self, checkpoint: int) -> None:
        """Sources that were paused with it read on."""
        if checkpoint >= self._paused:
            self._paused = 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._later(delay_s, callback)

    def call_when_reading(self, delay_s: float, callback: Callable[[], None]) -> None:
        """For work that may wait. Databases that merge while sources stand would have to write it all out in the move
        to come, where they are closed."""

        def call() -> None:
            if self.sources_stand:
                self._later(_LOOK_S, call)
            else:
                callback()

        self._later(delay_s, call)
