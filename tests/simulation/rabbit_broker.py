"""A RabbitMQ queue for the production reader: deliveries, redeliveries after a lost consumer, acknowledgements.

Each message is a transfer of the bank; the transfer's number is the message id."""

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import msgspec
import pyarrow as pa
from workload import LEGS, TRANSFERS, legs

from barrier_runtime import Dataflow
from barrier_runtime.connectors.rabbitmq.broker import Delivery, ReceivedMessage
from barrier_runtime.connectors.rabbitmq.source import RabbitMQQueue, RabbitReader, columns_of
from barrier_runtime.connectors.source import Split
from barrier_runtime.testing.simulation.loop import SimLoop, SimProcess, Simulation

PREFETCH = 12
_TRAVEL_US = (300, 3_000)
_GONE_US = 500_000  # a consumer counts as gone after four times this silence
_LOOK_NS = 2_000_000
_COLUMNS = columns_of("json", TRANSFERS, ("message_id",), "message_id", True, "the simulated queue")


class RabbitQueue:
    """Queue of `count` messages, one every `period_us` from `start_us` on. `cut()`: whether a connection breaks now."""

    def __init__(
        self, simulation: Simulation, count: int, start_us: int, period_us: int, cut: Callable[[], bool]
    ) -> None:
        self.simulation = simulation
        self.count = count
        self.acknowledged: set[int] = set()
        self.redelivered = 0
        self._start_us = start_us
        self._period_us = period_us
        self._cut = cut
        self._published = 0
        self._free: deque[tuple[int, bool]] = deque()  # (message, redelivered), in order
        self._consumers: list[SimConsumer] = []

    def connect(self, consumer: "SimConsumer") -> None:
        self._consumers.append(consumer)

    def give(self, consumer: "SimConsumer", room: int) -> list[tuple[int, bool]]:
        now_us = self.simulation.now_us
        for other in list(self._consumers):
            if not other.process.alive or other.closed or now_us - other.heard_us > 4 * _GONE_US:
                self._take_back(other)
        if self._cut():
            self._take_back(consumer)
            return []
        due = min(self.count, (now_us - self._start_us) // self._period_us + 1)
        while self._published < due:
            self._free.append((self._published, False))
            self._published += 1
        return [self._free.popleft() for _ in range(min(room, len(self._free)))]

    def acknowledge(self, consumer: "SimConsumer", delivery: Delivery) -> None:
        """Acknowledges the delivery and all before, if its connection is still the current one."""
        if delivery.connection == consumer.connection:
            for tag in [tag for tag in consumer.unacknowledged if tag <= delivery.tag]:
                self.acknowledged.add(consumer.unacknowledged.pop(tag))

    def _take_back(self, consumer: "SimConsumer") -> None:
        lost = list(consumer.unacknowledged.values())
        self.redelivered += len(lost)
        self._free.extendleft((number, True) for number in reversed(lost))
        consumer.disconnected()
        if not consumer.process.alive or consumer.closed:
            self._consumers.remove(consumer)


class SimConsumer:
    """Replacement of `rabbitmq/broker.Consumer`."""

    failed = None

    def __init__(self, queue: RabbitQueue, process: SimProcess) -> None:
        self.process = process
        self.connection = 1
        self.connected = True
        self.closed = False
        self.heard_us = queue.simulation.now_us
        self.unacknowledged: dict[int, int] = {}  # tag -> message
        self._queue = queue
        self._tag = 0
        self._ready: deque[ReceivedMessage] = deque()
        queue.connect(self)

    def take(self, max_messages: int, max_bytes: int) -> list[ReceivedMessage]:
        self.heard_us = self._queue.simulation.now_us
        for number, again in self._queue.give(self, PREFETCH - len(self.unacknowledged)):
            self._tag += 1
            self.unacknowledged[self._tag] = number
            body = msgspec.json.encode({"source": "a", "split": 0, "seq": number})
            properties = SimpleNamespace(message_id=str(number), timestamp=None, headers=None)
            self._ready.append(ReceivedMessage(Delivery(self.connection, self._tag), body, properties, "rows", again))
        return [self._ready.popleft() for _ in range(min(3, max_messages, len(self._ready)))]

    @property
    def waiting(self) -> bool:
        return bool(self._ready)

    def acknowledge(self, delivery: Delivery) -> None:
        simulation = self._queue.simulation
        simulation.after(simulation.between_us(*_TRAVEL_US), lambda _: self._queue.acknowledge(self, delivery))

    def close(self) -> None:
        self.closed = True

    def disconnected(self) -> None:
        """Drops unacknowledged messages, which return to the broker; tags of the next connection start at 1."""
        self.connection += 1
        self._tag = 0
        self.unacknowledged = {}
        self._ready.clear()


class _Reader(RabbitReader):
    def __init__(self, rabbit: RabbitQueue) -> None:
        super().__init__(None, "rows", _COLUMNS, PREFETCH, False, None, "the simulated queue")  # type: ignore[arg-type]
        self._rabbit = rabbit

    def prepare(self) -> None:
        if self._consumer is None:
            self._consumer = SimConsumer(self._rabbit, _process(self._rabbit.simulation))  # type: ignore[assignment]

    def next_due_ns(self) -> int | None:
        """Returns the next poll, 2 ms after the last: no thread waits for messages and wakes the slot."""
        due_ns = super().next_due_ns()
        return None if due_ns is None else self._polled_ns + _LOOK_NS


class SimRabbitSource(RabbitMQQueue):
    def __init__(self, rabbit: RabbitQueue) -> None:
        self._rabbit = rabbit
        self.schema = _COLUMNS.schema
        self.exactly_once = True

    def __repr__(self) -> str:
        return "a simulated queue"

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"consumer-{i}", b"consumer") for i in range(parallelism)]

    def reader(self, split: Split) -> RabbitReader:
        return _Reader(self._rabbit)


def stream_of(flow: Dataflow, rabbit: RabbitQueue) -> object:
    """Returns the stream of legs, with duplicate messages removed."""
    messages = flow.source("queue", SimRabbitSource(rabbit)).deduplicate("once", "message_id", within=None)
    return messages.map_batches(_legs, schema=LEGS)


def _legs(batch: pa.RecordBatch) -> pa.RecordBatch:
    return legs(batch.select(TRANSFERS.names))


def _process(simulation: Simulation) -> SimProcess:
    """Returns the process whose code runs now, in a blocking job or on a loop."""
    import asyncio

    if simulation.jobs.current is not None:
        return simulation.jobs.current.process
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop.process
