"""Source of a RabbitMQ queue: the broker delivers messages again, but has no positions.

The stream is exactly-once only with a following `deduplicate`: either the restored state contains the id, or the
message was not acknowledged. Splits are consumers that compete for the queue.
"""

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.rabbitmq.broker import Broker, check_queue, imported
from barrier_runtime.connectors.rabbitmq.consumer import Consumer, Delivery, ReceivedMessage
from barrier_runtime.connectors.rabbitmq.rows import MESSAGE_ID, METADATA, Columns, MessageRows, Value, columns_of
from barrier_runtime.connectors.source import DeduplicateBy, Discovery, Polled, SourceOf, Split
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Duration, Rows, SchemaOf, as_duration, as_schema, milliseconds
from barrier_runtime.state.errors import InvalidJob

_POLL_NS = 100_000_000  # period of polls at an empty buffer; messages wake the slot
_BATCH_MESSAGES = 4_096  # the loop decodes a batch in some milliseconds
_BATCH_BYTES = 4 << 20
_MAX_PREFETCH = 65_535
_PAYLOAD = b"consumer"  # recreates a consumer of a larger parallelism


@kinds_checked
@dataclass(frozen=True)
class RabbitMQSource(SourceOf[Rows]):
    """Messages of a durable RabbitMQ queue at `amqp://host:port/vhost`; a consumer per subtask.

    RABBITMQ_USERNAME and RABBITMQ_PASSWORD in the environment of driver and slots are the credentials.

    A completed checkpoint acknowledges the covered messages; after a failure the broker delivers the others again.
    `deduplicate` drops such redeliveries by message id (the property `message_id`, or `"headers.<name>"`); publishers
    must give each message a different id. "forever" keeps each id; a duration keeps an id until the watermark has
    advanced by that duration (this needs `event_time`), and must exceed the time in which a publisher or broker may
    send a message again. With None sinks can only be at-least-once.

    Columns: `body` (bytes), or with `value="json"` the columns of `schema`; then those of `metadata`. `timestamp` is
    the publisher's, in whole seconds, null if missing. `headers` is JSON text.

    `prefetch`: messages that a consumer may hold without acknowledgement (at most 65,535); then the stream waits for
    the next checkpoint. docs/rabbitmq.md has limits of the broker.

    `bad_records`: "fail" stops the job at a message without id or with an unfitting body; "reject" sends the message to
    the queue's dead-letter exchange (without an exchange the message is lost). `until_idle`: end after the queue
    delivered nothing for that duration. Messages keep the queue's order only with parallelism 1 and before the first
    redelivery.
    """

    url: str
    queue: str
    _: KW_ONLY
    deduplicate: Duration | Literal["forever"] | None
    message_id: str = MESSAGE_ID
    value: Value = "bytes"
    schema: SchemaOf[Rows] | None = None
    metadata: Sequence[str] = tuple(METADATA)
    prefetch: int = 10_000
    bad_records: Literal["fail", "reject"] = "fail"
    until_idle: Duration | None = None

    def named(self, name: str) -> "RabbitMQQueue":
        """Checks the settings without requests to the broker. Raises `InvalidJob`."""
        where = f"source {name!r}"
        repeats = _repeats(self.deduplicate, where)
        if self.bad_records not in ("fail", "reject"):
            raise InvalidJob(f'{where}: bad_records={self.bad_records!r}: use "fail" or "reject"')
        json = as_schema(self.schema, where) if self.schema is not None else None
        columns = columns_of(self.value, json, self.metadata, self.message_id, repeats is not None, where)
        return RabbitMQQueue(
            name,
            self.url,
            self.queue,
            columns,
            deduplicate_by=repeats,
            prefetch=self.prefetch,
            reject_bad=self.bad_records == "reject",
            until_idle=self.until_idle,
        )


def _repeats(deduplicate: Duration | Literal["forever"] | None, where: str) -> DeduplicateBy | None:
    if deduplicate is None:
        return None
    if deduplicate == "forever":
        return DeduplicateBy(MESSAGE_ID, None)
    if isinstance(deduplicate, str):
        raise InvalidJob(f'{where}: deduplicate={deduplicate!r}: pass a timedelta, seconds, "forever", or None')
    return DeduplicateBy(MESSAGE_ID, as_duration(deduplicate, f"deduplicate of {where}"))


class RabbitMQQueue:
    positions_in = "RabbitMQ"

    def __init__(
        self,
        name: str,
        url: str,
        queue: str,
        columns: Columns,
        *,
        deduplicate_by: DeduplicateBy | None,
        prefetch: int,
        reject_bad: bool,
        until_idle: Duration | None,
    ) -> None:
        self._where = f"source {name!r}, queue {queue!r}"
        if not queue or not isinstance(queue, str):
            raise InvalidJob(f"source {name!r}: its queue is {queue!r}: pass the queue's name")
        if not 1 <= prefetch <= _MAX_PREFETCH:
            raise InvalidJob(f"{self._where}: prefetch={prefetch!r}: use 1 to {_MAX_PREFETCH}")
        self._idle_ns = None
        if until_idle is not None:
            self._idle_ns = milliseconds(until_idle, f"until_idle of {self._where}") * 1_000_000
        self._broker = Broker.of(url, self._where)
        self._queue = queue
        self._columns = columns
        self._prefetch = prefetch
        self._reject_bad = reject_bad
        self.schema = columns.schema
        self.deduplicate_by = deduplicate_by
        self.exactly_once = deduplicate_by is not None

    @property
    def endless(self) -> bool:
        return self._idle_ns is None

    def __repr__(self) -> str:
        return f"RabbitMQ queue {self._queue!r} of {self._broker}, {self._prefetch} ahead"

    def splits(self, parallelism: int) -> Sequence[Split]:
        imported(self._where)
        check_queue(self._broker, self._queue, self._where)
        # A consumer that has ended stays ended: the next run uses other ids.
        run = f"-{uuid.uuid4().hex[:8]}" if self._idle_ns is not None else ""
        return [Split(f"consumer-{i}{run}", _PAYLOAD) for i in range(parallelism)]

    def reader(self, split: Split) -> "RabbitReader":
        return RabbitReader(
            self._broker, self._queue, self._columns, self._prefetch, self._reject_bad, self._idle_ns, self._where
        )

    def owner(self, split_id: str, parallelism: int) -> int:
        return int(split_id.split("-")[1]) % parallelism

    def discovery(self, known: NameSet) -> Discovery | None:
        return None


class RabbitReader:
    """Finished after `idle_ns` without deliveries."""

    def __init__(
        self,
        broker: Broker,
        queue: str,
        columns: Columns,
        prefetch: int,
        reject_bad: bool,
        idle_ns: int | None,
        where: str,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._prefetch = prefetch
        self._reject_bad = reject_bad
        self._idle_ns = idle_ns
        self._where = where
        self._rows = MessageRows(columns, where)
        self._consumer: Consumer | None = None
        self._handed = Delivery(0, 0)
        self._acknowledged = Delivery(0, 0)
        self._covered: deque[tuple[int, Delivery]] = deque()  # by checkpoint: the last message before the barrier
        self._wake: Callable[[], None] = lambda: None
        self._polled_ns = 0
        self._active_ns: int | None = None  # last event that prevents idleness
        self._connection = 0
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def prepare(self) -> None:
        if self._consumer is None:
            self._consumer = Consumer(self._broker, self._queue, self._prefetch, self._where, self._wake)

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.prepare()
        assert self._consumer is not None
        self._polled_ns = now_ns
        if self._consumer.failed is not None:
            raise self._consumer.failed
        messages = self._consumer.take(min(max_rows, _BATCH_MESSAGES), _BATCH_BYTES)
        if not messages:
            self._look_for_the_end(self._consumer, now_ns)
            return None
        self._active_ns = now_ns
        rows, bad = self._rows.batch(messages)
        for message, wrong in bad:
            if not self._reject_bad:
                raise self._bad(message, wrong)
            self._consumer.reject(message.delivery)
        rejected = {message.delivery for message, _ in bad}
        kept = [message.delivery for message in messages if message.delivery not in rejected]
        if kept:  # the broker closes the channel if a rejected delivery is acknowledged
            self._handed = kept[-1]
        return Polled(rows, now_ns) if rows.num_rows else None

    def next_due_ns(self) -> int | None:
        if self._consumer is not None and self._consumer.waiting:
            return None
        return self._polled_ns + _POLL_NS

    def position(self) -> bytes:
        return b"null"

    def seek(self, position: bytes) -> None:
        """Only the broker knows the unread messages."""

    def snapshotted(self, checkpoint: int) -> None:
        self._covered.append((checkpoint, self._handed))

    def completed(self, checkpoint: int) -> None:
        last = None
        while self._covered and self._covered[0][0] <= checkpoint:
            last = self._covered.popleft()[1]
        if last is not None and last.tag and last != self._acknowledged and self._consumer is not None:
            self._consumer.acknowledge(last)
            self._acknowledged = last

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _look_for_the_end(self, consumer: Consumer, now_ns: int) -> None:
        """The queue is idle only with a connection, and with less than `prefetch` messages unacknowledged."""
        if self._idle_ns is None:
            return
        same = self._handed.connection == consumer.connection
        acknowledged = self._acknowledged.tag if self._acknowledged.connection == consumer.connection else 0
        full = same and self._handed.tag - acknowledged >= self._prefetch
        if self._active_ns is None or not consumer.connected or consumer.connection != self._connection or full:
            self._active_ns = now_ns
        self._connection = consumer.connection
        self._finished = now_ns - self._active_ns >= self._idle_ns

    def _bad(self, message: ReceivedMessage, wrong: str) -> InvalidJob:
        id = message.properties.message_id
        return InvalidJob(
            f"{self._where}: a bad message, {'without id' if id is None else f'id {str(id)[:100]!r}'}, delivery "
            f"{message.delivery.tag} of connection {message.delivery.connection}: {wrong}. Correct the publisher and "
            'take the message out of the queue, or pass bad_records="reject" to send such messages to the queue\'s '
            "dead-letter exchange"
        )
