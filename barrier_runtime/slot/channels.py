"""Both ends of a channel inside a slot: bounded queues, no sockets.

`InputChannel` is what a subtask reads; whoever fills it stops at high water and is told when there is room again.
`EdgeOutput` is what a subtask writes: it partitions rows over the `OutputChannel`s of one edge and sends control
elements to all of them.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from barrier_runtime.elements import Batch, Element
from barrier_runtime.graph import Edge
from barrier_runtime.partitioning import Rebalancer, hash_partition

HIGH_WATER_BYTES = 4 * 1024 * 1024
LOW_WATER_BYTES = 1024 * 1024
_CONTROL_BYTES = 64  # what a control element counts for
_FEW_ROWS = 256
_SMALL_ROW_BYTES = 128  # what a row of a small batch counts for


class InputChannel:
    """One input channel of a subtask. `blocked` (alignment) means: leave it unread; it still fills up to its bound."""

    __slots__ = (
        "_elements",
        "_on_room",
        "_wake",
        "blocked",
        "bytes",
        "high_water",
        "index",
        "low_water",
        "port",
    )

    def __init__(self, index: int, port: int, wake: Callable[[], None], high_water: int = HIGH_WATER_BYTES) -> None:
        self.index = index
        self.port = port
        self.blocked = False
        self.bytes = 0
        self.high_water = high_water
        self.low_water = min(LOW_WATER_BYTES, high_water // 2)
        self._elements: deque[tuple[Element, int]] = deque()
        self._wake = wake
        self._on_room: Callable[[], None] | None = None

    @property
    def full(self) -> bool:
        return self.bytes >= self.high_water

    @property
    def readable(self) -> bool:
        return bool(self._elements) and not self.blocked

    def when_room(self, callback: Callable[[], None]) -> None:
        """`callback` is called each time the channel falls below low water after having been full."""
        self._on_room = callback

    def push(self, element: Element, size: int) -> None:
        self._elements.append((element, size))
        self.bytes += size
        if not self.blocked:
            self._wake()

    def pop(self) -> Element:
        element, size = self._elements.popleft()
        before = self.bytes
        self.bytes = before - size
        if self._on_room is not None and before > self.low_water >= self.bytes:
            self._on_room()
        return element

    def unblock(self) -> None:
        self.blocked = False
        if self._elements:
            self._wake()


class OutputChannel(Protocol):
    """Where one upstream subtask writes for one downstream subtask."""

    @property
    def writable(self) -> bool:
        """False above high water. `send` still accepts: the bound is soft by one step's output."""
        ...

    def send(self, element: Element) -> None: ...


class LocalOutput:
    """To a subtask of the same process: no serialisation."""

    __slots__ = ("_target",)

    def __init__(self, target: InputChannel, wake_writer: Callable[[], None]) -> None:
        self._target = target
        target.when_room(wake_writer)

    @property
    def writable(self) -> bool:
        return self._target.bytes < self._target.high_water

    def send(self, element: Element) -> None:
        self._target.push(element, _size(element))


def _size(element: Element) -> int:
    """Bytes, roughly: asking Arrow costs as much as the whole hand-over of a small batch."""
    if not isinstance(element, Batch):
        return _CONTROL_BYTES
    rows = element.rows
    size: int = rows.num_rows * _SMALL_ROW_BYTES if rows.num_rows <= _FEW_ROWS else rows.nbytes
    return size


class EdgeOutput:
    """All channels of one outgoing edge of a subtask, in order of the downstream subtasks."""

    def __init__(self, edge: Edge, channels: list[OutputChannel], subtask: int, max_parallelism: int) -> None:
        self._edge = edge
        self._channels = channels
        self._max_parallelism = max_parallelism
        self._rebalancer = Rebalancer(len(channels), first=subtask)
        self.rows = 0

    @property
    def writable(self) -> bool:
        return all(channel.writable for channel in self._channels)

    def emit(self, batch: Batch) -> None:
        self.rows += batch.rows.num_rows
        partitioning = self._edge.partitioning
        if partitioning == "hash":
            parts = hash_partition(batch, self._edge.keys, len(self._channels), self._max_parallelism)
        elif partitioning == "rebalance":
            parts = self._rebalancer.partition(batch)
        else:  # forward: one channel; broadcast: all of them
            parts = [(target, batch) for target in range(len(self._channels))]
        for target, part in parts:
            self._channels[target].send(part)

    def control(self, element: Element) -> None:
        for channel in self._channels:
            channel.send(element)
