"""What one generation in a slot does later: operators' timers, and work that waits while the job is about to move to
other slots, so that the move has the processor for itself, and little to fetch.

| a move is …                  | entries that databases merge | compactions                                          |
|------------------------------|------------------------------|------------------------------------------------------|
| not near                     | go on                        | as RocksDB likes                                     |
| near: a sign came lately     | wait                         | none begins; those that run end (`at_rest`)          |
| begun: sources stand         | wait                         | none begins                                          |
| over, with this generation   | ended                        | as RocksDB likes                                     |
"""

from collections.abc import Callable
from typing import Any, TypeAlias

_Later: TypeAlias = Callable[[float, Callable[[], None]], Any]
_LOOK_S = 0.05  # between two looks whether work may go on
_NEAR_S = 10.0  # behind a sign that the job is about to move; a move that takes longer to prepare gives others


class GenerationTimers:
    """For the loop's thread, but for `ends_before_move`. `later(delay_s, callback)` calls back once, unless the
    generation has ended by then. `hold(True)`: compactions do not begin; `hold(False)`: they may again."""

    def __init__(self, later: _Later, now_s: Callable[[], float], hold: Callable[[bool], None]) -> None:
        self._later = later
        self._hold = hold
        self._held = False
        self._ended = False
        self._under_way: list[Callable[[], bool]] = []
        self._now_s = now_s
        self._paused = 0  # the checkpoint behind which sources read nothing; 0: there is none
        self._near_until_s = 0.0

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

    def move_is_near(self) -> None:
        """Slots fetch what they are going to have."""
        self._near_until_s = self._now_s() + _NEAR_S
        if not self._held and not self._ended:
            self._held = True
            self._hold(True)
            self._later(_LOOK_S, self._look)

    def ends_before_move(self, under_way: Callable[[], bool]) -> None:
        """Work that cannot wait any more once it has begun."""
        self._under_way.append(under_way)

    @property
    def at_rest(self) -> bool:
        """None of that is under way."""
        return self._ended or not any(each() for each in self._under_way)

    def end(self) -> None:
        """With the generation: nobody looks any more whether a move is near."""
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
        """For work that may wait. What databases merge in the move to come, or before it, is new in its last
        checkpoint, and has to be written out, uploaded and fetched while sources stand."""

        def call() -> None:
            if self._waits:
                self._later(_LOOK_S, call)
            else:
                callback()

        self._later(delay_s, call)
