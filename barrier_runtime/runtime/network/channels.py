"""Both ends of a channel inside a slot, and `DataPlane`, which connects slots."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import msgspec

from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.data.elements import Barrier, Batch, CancelBarrier, Element, EndOfInput
from barrier_runtime.data.keys import Rebalancer, hash_partition
from barrier_runtime.data.plain_rows import PlainRows
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.runtime.aligner import Announced
from barrier_runtime.runtime.network.flow_control import MAX_WINDOW_BYTES, Chunk, Window
from barrier_runtime.runtime.network.frames import RowTooLarge
from barrier_runtime.runtime.network.gathering import Gathered
from barrier_runtime.state.errors import InvalidJob


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All channels from a slot to another share a connection."""

    token: int
    source_slot: int
    target_slot: int


class ChannelId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: int
    edge: int
    source_slot: int
    target_slot: int

    @property
    def route(self) -> Route:
        return Route(self.token, self.source_slot, self.target_slot)


Broken = Callable[[Route, str], None]


_CONTROL_BYTES = 64  # per control element
_FEW_ROWS = 256
_MOST_ROWS = 65_536  # sent at once of a larger batch for a combiner
WIDE = 16  # slots from which rows by key are gathered
SMALL_ROW_BYTES = 128  # per row of a small batch
_ANNOUNCED = frozenset({Barrier, CancelBarrier, EndOfInput})


class PeerLost(ConnectionError):
    """Loss of the connection with another slot; this slot is healthy."""


class InputChannel:
    """The sender stops when the window is full.

    An `empty` channel never has rows, a `timeless` channel has rows without event time. Barriers, cancels and the end
    are also appended on arrival to the subtask's `announcements`.
    """

    __slots__ = (
        "_elements",
        "_on_credit",
        "_owed",
        "_recorded",
        "_recorded_until",
        "_taken",
        "_tell_at",
        "_wake",
        "announcements",
        "blocked",
        "bytes",
        "chunk",
        "empty",
        "index",
        "port",
        "timeless",
        "together",
        "window",
    )

    def __init__(self, index: int, port: int, wake: Callable[[], None], window: int = MAX_WINDOW_BYTES) -> None:
        self.index = index
        self.port = port
        self.blocked = self.empty = self.timeless = False
        self.together: int | None = None  # id of the edge whose channels are idle all at once or not at all
        self.bytes = 0
        self.window = Window(window)
        self.chunk = Chunk()
        self.announcements: deque[tuple[int, Announced]] = deque()
        self._elements: deque[tuple[Element, int]] = deque()
        self._wake = wake
        self._on_credit: Callable[[], None] | None = None
        self._taken = 0  # bytes since the beginning
        self._owed = 0  # part of `bytes`: elements taken ahead, see `pop`
        self._tell_at = self.window.bytes // 4
        self._recorded: list[Batch] | None = None
        self._recorded_until = 0

    @property
    def readable(self) -> bool:
        return bool(self._elements) and not self.blocked

    @property
    def next(self) -> Element:
        return self._elements[0][0]

    @property
    def credit(self) -> int:
        return max(0, self.window.bytes - self.bytes)

    def when_credit(self, callback: Callable[[], None]) -> None:
        """Sets the callback for each taken quarter of the window, and for growth of the window."""
        self._on_credit = callback

    def push(self, element: Element, size: int) -> None:
        self._elements.append((element, size))
        self.bytes += size
        if self._recorded is not None:
            self._record(element)
        if element.__class__ in _ANNOUNCED:
            self.announcements.append((self.index, cast(Announced, element)))
            self._wake()
        elif not self.blocked:
            self._wake()

    def pop(self, ahead: bool = False) -> Element:
        """Cuts a large batch. `ahead`: the reader has no room; the sender gets credit at `settle`."""
        element, size = self._elements.popleft()
        if isinstance(element, Batch):
            if size > self.chunk.bytes:
                element, size = self._cut(element, size)
            self.chunk.taken(size)
        else:
            self.chunk.taken(0)
        if ahead:
            self._owed += size
        else:
            self._took(size)
        return element

    def pop_along(self, with_batch: Batch, rows: int) -> Batch | None:
        """Takes the next element if `with_batch` can be joined to that, else None.

        That is a small batch of at most `rows` rows and the same schema, without event times.
        """
        if self.blocked or not self._elements:
            return None
        element, size = self._elements[0]
        if not isinstance(element, Batch) or element.reached is not None or size > self.chunk.bytes:
            return None
        few = element.few
        if few is None or few.count > rows or with_batch.few is None or few.schema is not with_batch.few.schema:
            return None
        self._elements.popleft()
        self._took(size)
        return element

    def settle(self) -> None:
        if self._owed:
            owed, self._owed = self._owed, 0
            self._took(owed)

    def _took(self, size: int) -> None:
        self.bytes -= size
        self._taken += size
        if self._taken >= self._tell_at:
            self._tell_of_credit()

    def unblock(self) -> None:
        self.blocked = False
        if self._elements:
            self._wake()

    def adapt(self, elapsed_s: float) -> None:
        before = self.window.bytes
        if self.blocked:  # the speed of a blocked reader is unknown
            self.window.forget(self._taken)
        else:
            self.window.adapt(self._taken, bool(self._elements), elapsed_s)
        if self.window.bytes > before:
            self._tell_of_credit()
        else:
            self._tell_at = min(self._tell_at, self._taken + self.window.bytes // 4)

    def _tell_of_credit(self) -> None:
        self._tell_at = self._taken + self.window.bytes // 4
        if self._on_credit is not None:
            self._on_credit()

    def _cut(self, batch: Batch, size: int) -> tuple[Batch, int]:
        rows = batch.rows
        count = max(1, rows.num_rows * self.chunk.bytes // size)
        if count >= rows.num_rows:
            return batch, size
        taken = size * count // rows.num_rows
        self._elements.appendleft((batch.slice(count), size - taken))
        return batch.slice(0, count), taken

    def record(self, checkpoint: int) -> list[Batch]:
        """Batches before the barrier; grows until the barrier, the end or `stop_recording`."""
        recorded: list[Batch] = []
        for element, _ in self._elements:
            if isinstance(element, Batch):
                recorded.append(element)
            elif _ends_recording(element, checkpoint):
                return recorded
        self._recorded, self._recorded_until = recorded, checkpoint
        return recorded

    def stop_recording(self) -> None:
        self._recorded = None

    def _record(self, element: Element) -> None:
        assert self._recorded is not None, "nothing is recorded on this channel"
        if isinstance(element, Batch):
            self._recorded.append(element)
        elif _ends_recording(element, self._recorded_until):
            self._recorded = None


def _ends_recording(element: Element, checkpoint: int) -> bool:
    if isinstance(element, Barrier | CancelBarrier):
        return element.id >= checkpoint
    return isinstance(element, EndOfInput)


class OutputChannel(Protocol):
    @property
    def writable(self) -> bool:
        """Returns whether the receiver has room. `send` always accepts: the bound is soft by a step's output."""
        ...

    def send(self, element: Element) -> None: ...


class LocalOutput:
    __slots__ = ("_target",)

    def __init__(self, target: InputChannel, wake_writer: Callable[[], None]) -> None:
        self._target = target
        target.when_credit(wake_writer)

    @property
    def writable(self) -> bool:
        return self._target.bytes < self._target.window.bytes

    def send(self, element: Element) -> None:
        self._target.push(element, _size(element))


def _size(element: Element) -> int:
    """Approximate bytes: Arrow's exact size costs as much as handing over a small batch."""
    if not isinstance(element, Batch):
        return _CONTROL_BYTES
    count = element.count
    size: int = count * SMALL_ROW_BYTES if count <= _FEW_ROWS else element.rows.nbytes
    return size


class ResultPartition:
    def __init__(
        self, edge: Edge, channels: list[OutputChannel], subtask: int, max_parallelism: int, operator: str = ""
    ) -> None:
        self._edge = edge
        self.tag = edge.tag
        self._channels = channels
        self._max_parallelism = max_parallelism
        self.operator = operator
        self._plain = PlainRows()
        self._combiner = None if edge.combiner is None else edge.combiner()
        self._subtask = subtask
        self._rebalancer = Rebalancer(len(channels), first=subtask)
        is_wide = edge.partitioning == "hash" and len(channels) >= WIDE
        self._gathered = Gathered(len(channels)) if is_wide else None
        self.gathers = False  # within a step of the subtask
        self.rows = 0

    @property
    def writable(self) -> bool:
        for channel in self._channels:  # noqa: SIM110
            if not channel.writable:
                return False
        return True

    @property
    def takes_more(self) -> bool:
        return self._combiner is not None and self._combiner.takes_more

    def emit(self, batch: Batch) -> None:
        batch = self._plain.batch(batch)
        self.rows += batch.count
        if self._combiner is None or (batch := self._combiner.combined(batch)).count <= _MOST_ROWS:
            self._send(batch)
            return
        for first in range(0, batch.count, _MOST_ROWS):
            self._send(batch.slice(first, _MOST_ROWS))

    @property
    def is_wide(self) -> bool:
        return self._gathered is not None

    def send_gathered(self) -> None:
        if self._gathered is not None and (batch := self._gathered.take()) is not None:
            self._send_now(batch)

    def _send(self, batch: Batch) -> None:
        gathered = self._gathered
        if gathered is None or not self.gathers or not batch.count:
            self._send_now(batch)
            return
        if not gathered.takes(batch):
            self.send_gathered()
        if gathered.add(batch):
            self.send_gathered()

    def _send_now(self, batch: Batch) -> None:
        partitioning = self._edge.partitioning
        if partitioning == "hash":
            parts = hash_partition(batch, self._edge.keys, len(self._channels), self._max_parallelism)
        elif partitioning == "rebalance":
            parts = self._rebalancer.partition(batch)
        elif partitioning == "single":
            parts = [(0, batch)]
        elif partitioning == "same":
            parts = [(self._subtask, batch)]
        else:
            parts = [(target, batch) for target in range(len(self._channels))]
        try:
            for target, part in parts:
                self._channels[target].send(part)
        except RowTooLarge as error:
            raise InvalidJob(f"operator {self.operator!r}: {error}") from error

    def control(self, element: Element) -> None:
        self.send_gathered()
        for channel in self._channels:
            channel.send(element)


class DataPlane(Protocol):
    async def listen(self) -> tuple[str, int]: ...

    def expect(self, token: int, channels: dict[ChannelId, InputChannel], broken: Broken) -> None: ...

    async def connect(
        self, peer: Peer, channels: Sequence[ChannelId], wake_writer: Callable[[], None]
    ) -> Sequence[OutputChannel]:
        """Returns the ends of all channels to `peer`, in order."""
        ...

    async def all_connected(self) -> None: ...

    def beat(self) -> dict[int, int]:
        """Sends signs of life on idle connections. Call in equal intervals.

        Returns slots that were not heard -> number of calls since.
        """
        ...

    def disconnect(self) -> None: ...

    def close(self) -> None: ...
