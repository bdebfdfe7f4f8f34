"""Input channels of a subtask: reading order, queued barriers, joined small batches, watermark."""

from collections import deque
from collections.abc import Collection, Sequence

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Barrier, Batch, EndOfInput, Idle, Watermark
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows
from barrier_runtime.runtime.aligner import Announced
from barrier_runtime.runtime.network.channels import SMALL_ROW_BYTES, InputChannel

# Watermark of several input channels: the minimum of those neither idle nor ended.
#
# The watermark is the end of time only when every channel has ended: an idle channel may bring rows again. If the
# remaining channels never have rows, nothing is emitted.


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


class InputQueues:
    def __init__(self, channels: list[InputChannel]) -> None:
        self.channels = channels
        self.live = len(channels)
        self.merger = _merger_of(channels)
        self.timeless = frozenset(channel.port for channel in channels if channel.timeless)
        self.announcements: deque[tuple[int, Announced]] = deque()
        self._barrier_behind = [0] * len(channels)  # per channel, the last barrier in the queue
        self._end_behind: set[int] = set()  # channels whose end is in the queue
        self._next = 0
        for channel in channels:
            channel.announcements = self.announcements

    def next_announcement(self) -> tuple[int, Announced]:
        index, element = self.announcements.popleft()
        if isinstance(element, Barrier):
            self._barrier_behind[index] = element.id
        elif isinstance(element, EndOfInput):
            self._end_behind.add(index)
        return index, element

    def read_barrier(self, index: int, checkpoint: int) -> None:
        if self._barrier_behind[index] == checkpoint:
            self._barrier_behind[index] = 0

    def has_in_queue(self, channel: InputChannel, checkpoint: int) -> bool:
        return self._barrier_behind[channel.index] == checkpoint or channel.index in self._end_behind

    def is_awaited(self, channel: InputChannel, done: int, wanted: int) -> bool:
        """True if a checkpoint after `done` waits for `channel` to be read."""
        return self._barrier_behind[channel.index] > done or (wanted > done and channel.index in self._end_behind)

    def read_in_turn(self, first: int) -> None:
        """Other ports' channels have no rows before the channels of port `first` have ended."""
        self.merger.count_later([channel.index for channel in self.channels if channel.port != first])

    def has_ended(self, port: int) -> bool:
        return all(self.merger.is_over(channel.index) for channel in self.channels if channel.port == port)

    def next_readable(self) -> InputChannel | None:
        channels, count = self.channels, len(self.channels)
        for offset in range(count):
            channel = channels[(self._next + offset) % count]
            if channel.readable:
                self._next = (channel.index + 1) % count
                return channel
        return None

    def next_awaited(self, done: int, wanted: int) -> InputChannel | None:
        count = len(self.channels)
        for offset in range(count):
            channel = self.channels[(self._next + offset) % count]
            if channel.readable and self.is_awaited(channel, done, wanted):
                self._next = (channel.index + 1) % count
                return channel
        return None

    def gathered(self, batch: Batch, count: int, channel: InputChannel) -> Batch:
        """Joins small batches, because operators cost the same per batch."""
        parts, emit_ns = [batch], batch.emit_ns
        most = min(MOST_ROWS, count + channel.chunk.left // SMALL_ROW_BYTES)
        for other in self.channels:
            if other.port != channel.port:
                continue
            while count < most and (part := other.pop_along(batch, most - count)) is not None:
                self.merger.on_activity(other.index)
                count, emit_ns = count + part.count, min(emit_ns, part.emit_ns)
                parts.append(part)
        if len(parts) == 1:
            return batch
        channel.chunk.taken_along((count - batch.count) * SMALL_ROW_BYTES)
        few = FewRows.joined([part.few for part in parts if part.few is not None])
        return Batch(few, emit_ns)


def _merger_of(inputs: list[InputChannel]) -> WatermarkMerger:
    edges = sorted({channel.together for channel in inputs if channel.together is not None})
    together = [[channel.index for channel in inputs if channel.together == edge] for edge in edges]
    empty = [channel.index for channel in inputs if channel.empty]
    return WatermarkMerger(
        len(inputs), empty, together, timeless=[channel.index for channel in inputs if channel.timeless]
    )
