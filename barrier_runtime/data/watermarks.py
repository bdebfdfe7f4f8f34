"""The watermark over several input channels: the minimum of those that are neither idle nor ended. Pure.

It is the end of time only when every channel has ended: an idle one may bring rows again. While one that never has rows
is all that has still to end, nothing is said: "idle" would let others pass rows that are held here for the end."""

from collections.abc import Collection

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Idle, Watermark


class WatermarkMerger:
    """Feed it what each channel says; it answers with what to say downstream, if anything. Never goes back.

    `empty`: channels of which it is known that no row will come, before they say so themselves."""

    def __init__(self, channels: int, empty: Collection[int] = ()) -> None:
        self._of_channel = [WATERMARK_MIN] * channels
        self._empty = frozenset(empty)
        self._idle = [channel in self._empty for channel in range(channels)]
        self.current = WATERMARK_MIN
        self._said_idle = False

    def on_watermark(self, channel: int, ms: int) -> Watermark | Idle | None:
        self._idle[channel] = False
        if ms > self._of_channel[channel]:
            self._of_channel[channel] = ms
        return self._advance()

    def on_idle(self, channel: int) -> Watermark | Idle | None:
        self._idle[channel] = True
        return self._advance()

    def on_activity(self, channel: int) -> None:
        """Rows came: the channel is no longer idle. What was already said downstream stands."""
        self._idle[channel] = False
        self._said_idle = False

    def on_end(self, channel: int) -> Watermark | Idle | None:
        """An ended channel no longer holds anything back."""
        return self.on_watermark(channel, WATERMARK_MAX)

    def others(self, channel: int) -> int:
        """How far the other channels let event time go."""
        active = zip(self._of_channel, self._idle, strict=True)
        return min(
            (ms for number, (ms, idle) in enumerate(active) if number != channel and not idle), default=WATERMARK_MAX
        )

    def _advance(self) -> Watermark | Idle | None:
        waiting = [ms for ms, idle in zip(self._of_channel, self._idle, strict=True) if not idle and ms < WATERMARK_MAX]
        if not waiting and any(self._idle):  # what has ended says nothing about a channel that may still bring rows
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

    def _only_ends_are_left(self) -> bool:
        """Channels have ended, and those that have not are known to bring no rows."""
        open_ones = {channel for channel, ms in enumerate(self._of_channel) if ms < WATERMARK_MAX}
        return len(open_ones) < len(self._of_channel) and open_ones <= self._empty
