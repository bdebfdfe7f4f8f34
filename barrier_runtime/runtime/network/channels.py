"""Both ends of a channel inside a slot: bounded queues, no sockets.

`InputChannel` is what a subtask reads; whoever fills it stops when its window (see `window`) is full and is told when
there is room again. It notes barriers as they come in, and records in-flight data for a snapshot that does not wait.
`ResultPartition` is what a subtask writes: it partitions rows over the `OutputChannel`s of one edge and sends control
elements to all of them.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from barrier_runtime.data.elements import Barrier, Batch, CancelBarrier, Element, EndOfInput
from barrier_runtime.data.partitioning import Rebalancer, hash_partition
from barrier_runtime.data.plain_rows import PlainRows
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.runtime.alignment.effects import Announced
from barrier_runtime.runtime.network.flow_control import MAX_WINDOW_BYTES, Chunk, Window
from barrier_runtime.runtime.network.frames import RowTooLarge
from barrier_runtime.state.errors import InvalidJob

_CONTROL_BYTES = 64  # what a control element counts for
_FEW_ROWS = 256
SMALL_ROW_BYTES = 128  # what a row of a small batch counts for
_ANNOUNCED = frozenset({Barrier, CancelBarrier, EndOfInput})


class PeerLost(ConnectionError):
    """The connection with another slot broke, as it does when that one dies: nothing is wrong here."""


class InputChannel:
    """One input channel of a subtask. `blocked` (alignment) means: leave it unread; it still fills up to its bound.
    `empty`: no row will ever come.

    When barriers, cancels and the end come, they are also put on `announcements`, which all channels of a subtask
    share.
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
        "together",
        "window",
    )

    def __init__(self, index: int, port: int, wake: Callable[[], None], window: int = MAX_WINDOW_BYTES) -> None:
        self.index = index
        self.port = port
        self.blocked = self.empty = False
        self.together: int | None = None  # the edge whose channels are idle all or none
        self.bytes = 0
        self.window = Window(window)
        self.chunk = Chunk()
        self.announcements: deque[tuple[int, Announced]] = deque()
        self._elements: deque[tuple[Element, int]] = deque()
        self._wake = wake
        self._on_credit: Callable[[], None] | None = None
        self._taken = 0  # bytes since the beginning
        self._owed = 0  # of `bytes`: what was taken ahead of time
        self._tell_at = self.window.bytes // 4
        self._recorded: list[Batch] | None = None
        self._recorded_until = 0

    @property
    def readable(self) -> bool:
        return bool(self._elements) and not self.blocked

    @property
    def next(self) -> Element:
        """What `pop` takes a piece of, when it is readable."""
        return self._elements[0][0]

    @property
    def credit(self) -> int:
        """Bytes that may still be sent to this channel."""
        return max(0, self.window.bytes - self.bytes)

    def when_credit(self, callback: Callable[[], None]) -> None:
        """`callback` is called each time a quarter of the window has been taken, and when the window grows."""
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
        """`ahead`: of a reader without room. The sender hears of the room that makes when `settle` is called."""
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
        """The next element, if it may be read now and is a small batch, of `rows` rows at most and of the same schema,
        that can be processed together with `with_batch`: neither has event times within."""
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
        """The reader has room again."""
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
        """Let the window follow what was taken; `elapsed_s` since the last time."""
        before = self.window.bytes
        if self.blocked:  # nothing could be taken: that says nothing about who takes it
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
        """The first rows of a batch that would take its reader long; the rest stays first in the queue."""
        rows = batch.rows
        count = max(1, rows.num_rows * self.chunk.bytes // size)
        if count >= rows.num_rows:
            return batch, size
        taken = size * count // rows.num_rows
        self._elements.appendleft((batch.slice(count), size - taken))
        return batch.slice(0, count), taken

    # ------------------------------------------------------------ in-flight data

    def record(self, checkpoint: int) -> list[Batch]:
        """The batches ahead of the barrier of `checkpoint`. While that (or the end) has not come, the list goes on
        growing by what comes, until it does or `stop_recording` is called."""
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
    """A later barrier or cancel ends it, too: it says that the checkpoint's own will never come."""
    if isinstance(element, Barrier | CancelBarrier):
        return element.id >= checkpoint
    return isinstance(element, EndOfInput)


class OutputChannel(Protocol):
    """Where one upstream subtask writes for one downstream subtask."""

    @property
    def writable(self) -> bool:
        """False while the receiver has no room. `send` still accepts: the bound is soft by one step's output."""
        ...

    def send(self, element: Element) -> None: ...


class LocalOutput:
    """To a subtask of the same process: no serialisation."""

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
    """Bytes, roughly: asking Arrow costs as much as the whole hand-over of a small batch."""
    if not isinstance(element, Batch):
        return _CONTROL_BYTES
    count = element.count
    size: int = count * SMALL_ROW_BYTES if count <= _FEW_ROWS else element.rows.nbytes
    return size


class ResultPartition:
    """All channels of one outgoing edge of a subtask, in order of the downstream subtasks."""

    def __init__(
        self, edge: Edge, channels: list[OutputChannel], subtask: int, max_parallelism: int, operator: str = ""
    ) -> None:
        """`operator`: whose rows these are."""
        self._edge = edge
        self.tag = edge.tag
        self._channels = channels
        self._max_parallelism = max_parallelism
        self.operator = operator
        self._plain = PlainRows()
        self._rebalancer = Rebalancer(len(channels), first=subtask)
        self.rows = 0

    @property
    def writable(self) -> bool:
        for channel in self._channels:  # noqa: SIM110
            if not channel.writable:
                return False
        return True

    def emit(self, batch: Batch) -> None:
        batch = self._plain.batch(batch)
        self.rows += batch.count
        partitioning = self._edge.partitioning
        if partitioning == "hash":
            parts = hash_partition(batch, self._edge.keys, len(self._channels), self._max_parallelism)
        elif partitioning == "rebalance":
            parts = self._rebalancer.partition(batch)
        elif partitioning == "single":
            parts = [(0, batch)]
        else:  # forward: one channel; broadcast: all of them
            parts = [(target, batch) for target in range(len(self._channels))]
        try:
            for target, part in parts:
                self._channels[target].send(part)
        except RowTooLarge as error:
            raise InvalidJob(f"operator {self.operator!r}: {error}") from error

    def control(self, element: Element) -> None:
        for channel in self._channels:
            channel.send(element)
