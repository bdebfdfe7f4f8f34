"""Operators' timers, and work that waits for a move.

While a move is near or under way, databases merge no entries and begin no compaction: the move has the processor to
itself, and less to fetch.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

_Later: TypeAlias = Callable[[float, Callable[[], None]], Any]
_LOOK_S = 0.05
_NEAR_S = 10.0  # a longer preparation repeats the sign


class GenerationTimers:
    """`ends_before_move` may be called on any thread, everything else on the loop's.

    `later(delay_s, callback)` calls back once, unless the generation has ended. `hold(True)` prevents new compactions.
    """

    def __init__(self, later: _Later, now_s: Callable[[], float], hold: Callable[[bool], None]) -> None:
        self._later = later
        self._hold = hold
        self._held = False
        self._ended = False
        self._under_way: list[Callable[[], bool]] = []
        self._now_s = now_s
        self._paused = 0  # the checkpoint after which sources read nothing; 0: none
        self._near_until_s = 0.0

    @property
    def sources_stand(self) -> bool:
        return self._paused > 0

    def pause(self, checkpoint: int) -> None:
        self._paused = self._paused or checkpoint

    def aborted(self, checkpoint: int) -> None:
        if checkpoint >= self._paused:
            self._paused = 0

    def move_is_near(self) -> None:
        self._near_until_s = self._now_s() + _NEAR_S
        if not self._held and not self._ended:
            self._held = True
            self._hold(True)
            self._later(_LOOK_S, self._look)

    def ends_before_move(self, under_way: Callable[[], bool]) -> None:
        """Registers work: `at_rest` is False while `under_way()`."""
        self._under_way.append(under_way)

    @property
    def at_rest(self) -> bool:
        return self._ended or not any(each() for each in self._under_way)

    def end(self) -> None:
        self._ended = True
        self._release()

    def _look(self) -> None:
        if self._waits:
            self._later(_LOOK_S, self._look)
        else:
            self._release()

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._hold(False)

    @property
    def _waits(self) -> bool:
        return self.sources_stand or self._now_s() < self._near_until_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._later(delay_s, callback)

    def call_when_settled(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Waits until no move is near: merged entries would be uploaded during the move."""

        def call() -> None:
            if self._waits:
                self._later(_LOOK_S, call)
            else:
                callback()

        self._later(delay_s, call)
