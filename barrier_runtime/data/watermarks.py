"""Watermark of several input channels: the minimum of those neither idle nor ended.

The watermark is the end of time only when every channel has ended: an idle channel may bring rows again. If the
remaining channels never have rows, nothing is emitted.
"""

from collections.abc import Collection, Sequence

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Idle, Watermark


class WatermarkMerger:
    """Merges the watermarks of channels: each call returns the element to emit, if any. Never goes back.

    `empty`: channels that bring no rows. `together`: groups of channels from subtasks that receive the same elements,
    idle only when the whole group is idle or ended: after a silence one subtask notices rows first, and event time must
    not pass rows of the others. `timeless`: channels idle until the end, whatever they bring.
    """

    def __init__(
        self,
        channels: int,
        empty: Collection[int] = (),
        together: Sequence[Collection[int]] = (),
        timeless: Collection[int] = (),
    ) -> None:
        self._of_channel = [WATERMARK_MIN] * channels
        self._timeless = frozenset(timeless)
        self._without_rows_in_time = self._timeless.union(empty)
        self._idle = [channel in self._without_rows_in_time for channel in range(channels)]
        self._together = [tuple(group) for group in together if len(group) > 1]
        self._later: frozenset[int] = frozenset()
        self.current = WATERMARK_MIN
        self._said_idle = False

    def count_later(self, channels: Collection[int]) -> None:
        """Lets `channels` hold event time back only after all other channels have ended."""
        self._later = frozenset(channels)

    def on_watermark(self, channel: int, ms: int) -> Watermark | Idle | None:
        self._idle[channel] = channel in self._timeless and ms < WATERMARK_MAX
        if ms > self._of_channel[channel]:
            self._of_channel[channel] = ms
        return self._advance()

    def on_idle(self, channel: int) -> Watermark | Idle | None:
        self._idle[channel] = True
        return self._advance()

    def on_activity(self, channel: int) -> None:
        """Ends the idleness of a channel with new rows."""
        self._idle[channel] = channel in self._timeless
        self._said_idle = False

    def after_timeless_rows(self) -> Watermark | Idle | None:
        """Repeats the idleness that a timeless channel's rows have ended in later steps."""
        return self._advance()

    def on_end(self, channel: int) -> Watermark | Idle | None:
        return self.on_watermark(channel, WATERMARK_MAX)

    def is_over(self, channel: int) -> bool:
        return self._of_channel[channel] == WATERMARK_MAX

    def others(self, channel: int) -> int:
        active = zip(self._of_channel, self._idle_ones(), strict=True)
        return min(
            (ms for number, (ms, idle) in enumerate(active) if number != channel and not idle), default=WATERMARK_MAX
        )

    def _advance(self) -> Watermark | Idle | None:
        idle_ones = self._idle_ones()
        waiting = [ms for ms, idle in zip(self._of_channel, idle_ones, strict=True) if not idle and ms < WATERMARK_MAX]
        if not waiting and any(idle_ones):  # a channel may still bring rows
            if self._said_idle or self._only_ends_are_left():
                return None
            self._said_idle = True
            return Idle()
        self._said_idle = False
        lowest = min(waiting, default=WATERMARK_MAX)
        if lowest > self.current:
            self.current = lowest
            return Watermark(lowest)
        return None

    def _idle_ones(self) -> list[bool]:
        """Returns True per channel that does not hold event time back."""
        idle_ones = self._in_turn() if self._later else self._idle
        if not self._together:
            return idle_ones
        idle_ones = list(idle_ones)
        for group in self._together:
            if not all(idle_ones[channel] or self._of_channel[channel] == WATERMARK_MAX for channel in group):
                for channel in group:
                    idle_ones[channel] = False
        return idle_ones

    def _in_turn(self) -> list[bool]:
        earlier = [channel for channel in range(len(self._idle)) if channel not in self._later]
        if all(map(self.is_over, earlier)):
            return self._idle
        return [idle or channel in self._later for channel, idle in enumerate(self._idle)]

    def _only_ends_are_left(self) -> bool:
        open_ones = {channel for channel, ms in enumerate(self._of_channel) if ms < WATERMARK_MAX}
        return len(open_ones) < len(self._of_channel) and open_ones <= self._without_rows_in_time
