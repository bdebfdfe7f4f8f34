"""Input channels of a subtask: reading order, queued barriers, joined small batches."""

from collections import deque

from barrier_runtime.data.elements import Barrier, Batch, EndOfInput
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows
from barrier_runtime.data.watermarks import WatermarkMerger
from barrier_runtime.runtime.aligner import Announced
from barrier_runtime.runtime.network.channels import SMALL_ROW_BYTES, InputChannel


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
