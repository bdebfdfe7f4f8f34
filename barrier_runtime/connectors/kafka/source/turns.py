"""Is the fetching thread making progress? The loop sees it, and says where the thread stands: what it calls may block.

Seen is counted, not measured: a process that was stopped for an hour saw nothing in that time.
"""

import sys
import traceback

_TICK_NS = 100_000_000
_MANY_TICKS = 300


class Turns:
    """`turn` is the thread's; `held` and what it says are the loop's."""

    def __init__(self) -> None:
        self._turn = 0
        self._seen_turn = 0
        self._ticks = 0
        self._ticked_ns = 0

    def turn(self) -> None:
        self._turn += 1

    def held(self, now_ns: int) -> bool:
        """True once in half a minute in which there was no turn. To be asked often."""
        if 0 <= now_ns - self._ticked_ns < _TICK_NS:
            return False
        self._ticked_ns = now_ns
        if self._turn != self._seen_turn:
            self._seen_turn, self._ticks = self._turn, 0
        self._ticks += 1
        return self._ticks % _MANY_TICKS == 0


def standing_at(thread: int | None) -> str:
    """The innermost place of a thread, for messages."""
    frame = None if thread is None else sys._current_frames().get(thread)
    if frame is None:
        return "nothing"
    place = traceback.extract_stack(frame, limit=1)[-1]
    return f"{place.name} ({place.filename}:{place.lineno})"
