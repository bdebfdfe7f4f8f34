"""Source of a RabbitMQ queue: the broker delivers messages again, but has no positions.

The stream is exactly-once only with a following `deduplicate`: either the restored state contains the id, or the
message was not acknowledged. Splits are consumers that compete for the queue.
"""

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.rabbitmq.broker import (
    Broker,
    Consumer,
    Delivery,
    ReceivedMessage,
    check_queue,
    imported,
)
from barrier_runtime.connectors.source import DeduplicateBy, Discovery, Polled, SourceOf, Split
from barrier_runtime.connectors.source_bases.payloads import JsonPayloads, decoded, json_row
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Duration, Rows, SchemaOf, as_duration, as_schema, milliseconds
from barrier_runtime.state.errors import InvalidJob

Value = Literal["bytes", "json"]

BODY = "body"
MESSAGE_ID = "message_id"
METADATA = {
    MESSAGE_ID: pa.string(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "routing_key": pa.string(),
    "redelivered": pa.bool_(),
    "headers": pa.string(),
}
HEADER_PREFIX = "headers."
_LAST_SECOND = 253_402_300_799  # of the year 9999; greater values are milliseconds by mistake


@dataclass(frozen=True)
class Columns:
    """`json`: columns of the body (None: bytes).
    `id_from`: "message_id" (the property) or "headers.<name>". `id_needed`: a message without id is bad.
    """

    json: pa.Schema | None
    metadata: tuple[str, ...]
    id_from: str = MESSAGE_ID
    id_needed: bool = False

    @property
    def schema(self) -> pa.Schema:
        body = [pa.field(BODY, pa.binary())] if self.json is None else list(self.json)
        return pa.schema([*body, *[pa.field(name, METADATA[name]) for name in self.metadata]])


def columns_of(
    value: Value,
    json: pa.Schema | None,
    metadata: Sequence[str],
    message_id: str,
    id_needed: bool,
    where: str,
) -> Columns:
    if value not in ("bytes", "json"):
        raise InvalidJob(f'{where}: value={value!r}: use "bytes" or "json"')
    if value == "json" and json is None:
        raise InvalidJob(f'{where}: pass schema=, as value="json" needs it: the columns of the JSON')
    if value != "json" and json is not None:
        raise InvalidJob(f'{where}: schema= goes with value="json": pass that, or leave schema= out')
    if json is not None:
        json_row(json, where)
    if message_id != MESSAGE_ID and (not message_id.startswith(HEADER_PREFIX) or message_id == HEADER_PREFIX):
        raise InvalidJob(f'{where}: message_id={message_id!r}: use "message_id" (the property) or "headers.<name>"')
    for name in metadata:
        if name not in METADATA:
            raise InvalidJob(f"{where}: metadata= names {name!r}: use some of {', '.join(METADATA)}")
    if id_needed and MESSAGE_ID not in metadata:
        raise InvalidJob(f"{where}: deduplicate= needs the column {MESSAGE_ID!r}: add it to metadata=")
    names = [*([BODY] if json is None else json.names), *metadata]
    for name in names:
        if names.count(name) > 1:
            remedy = "or pass no deduplicate=" if id_needed and name == MESSAGE_ID else "or leave it out of metadata="
            raise InvalidJob(f"{where}: there are two columns {name!r}: rename it in the body, {remedy}")
    return Columns(json, tuple(metadata), message_id, id_needed)


class MessageRows:
    def __init__(self, columns: Columns, where: str) -> None:
        self._columns = columns
        self._schema = columns.schema
        self._decoder = None if columns.json is None else JsonPayloads(columns.json, where)

    def batch(self, messages: Sequence[ReceivedMessage]) -> tuple[pa.RecordBatch, list[tuple[ReceivedMessage, str]]]:
        """Rows of the good messages in order, and the bad messages with reasons."""
        bad: list[tuple[ReceivedMessage, str]] = []
        good: list[ReceivedMessage] = []
        ids: list[str | None] = []
        for message in messages:
            id = _id(message, self._columns.id_from)
            wrong = self._wrong(message, id)
            if wrong:
                bad.append((message, wrong))
            else:
                good.append(message)
                ids.append(id)
        body, undecoded = self._bodies(good)
        if undecoded:
            bad += [(good[index], reason) for index, reason in undecoded.items()]
            kept = [index for index in range(len(good)) if index not in undecoded]
            body = [column.take(pa.array(kept, pa.int64())) for column in body]
            good, ids = [good[index] for index in kept], [ids[index] for index in kept]
        arrays = [*body, *[self._column(name, good, ids) for name in self._columns.metadata]]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), bad

    def _wrong(self, message: ReceivedMessage, id: str | None) -> str:
        if id is None and self._columns.id_needed:
            return f"it has no {self._columns.id_from}, by which redeliveries are told"
        timestamp = message.properties.timestamp
        if timestamp is not None and timestamp > _LAST_SECOND:
            return f"its timestamp {timestamp} is not in seconds since 1970"
        return ""

    def _bodies(self, messages: Sequence[ReceivedMessage]) -> tuple[list[pa.Array], dict[int, str]]:
        bodies = [message.body for message in messages]
        if self._decoder is None:
            return [pa.array(bodies, pa.binary())], {}
        arrays, wrong = decoded(self._decoder, bodies, messages)
        return arrays, {
            index: f"its body ({len(bodies[index])} bytes) is not a JSON object of the declared columns: {reason}"
            for index, reason in wrong.items()
        }

    def _column(self, name: str, messages: Sequence[ReceivedMessage], ids: Sequence[str | None]) -> pa.Array:
        values: Sequence[Any]
        if name == MESSAGE_ID:
            values = ids
        elif name == "timestamp":
            stamps = [message.properties.timestamp for message in messages]
            return pa.array([None if each is None else each * 1_000 for each in stamps], pa.int64()).view(
                METADATA[name]
            )
        elif name == "headers":
            values = [_as_json(message.properties.headers) for message in messages]
        else:
            values = [_readable(getattr(message, name)) for message in messages]
        return pa.array(values, METADATA[name])


def _id(message: ReceivedMessage, id_from: str) -> str | None:
    if id_from == MESSAGE_ID:
        id = message.properties.message_id
    else:
        id = (message.properties.headers or {}).get(id_from[len(HEADER_PREFIX) :])
    return None if id is None or id == "" else str(_readable(id))


def _readable(value: Any) -> Any:
    """pika gives texts that are not UTF-8 as bytes."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _as_json(headers: Any) -> str | None:
    return None if not headers else msgspec.json.encode(headers, enc_hook=str).decode()


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

    url: str = field(repr=False)  # `named` refuses a password, but not before
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
