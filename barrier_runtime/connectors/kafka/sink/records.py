"""Converts rows to Kafka records before the decision, off the loop.

Records are staged as columns: `key` and `value` (binary), `timestamp` (ms), a `header:<name>` each, and `topic` if rows
choose topics.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import sleep, time_ns
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.kafka.sink.client import library
from barrier_runtime.connectors.kafka.sink.topic_limits import KafkaLimits
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.data.rows import preview, rows_of
from barrier_runtime.data.schemas import no_column
from barrier_runtime.data.values.stored_times import rounded_down
from barrier_runtime.state.errors import InvalidJob

Serialiser: TypeAlias = Callable[[Any, Any], bytes | None]  # (row as a dict, SerializationContext)
SerialiserFactory: TypeAlias = Callable[[], Serialiser]
LimitsOf: TypeAlias = Callable[[str], KafkaLimits]

_HEADER = "header:"
_TOPIC = "topic"
_CHUNK = 256  # rows, after which other threads may run
_CHUNK_BYTES = 1 << 20
_RECORD_OVERHEAD = 32  # bytes; also per header
_CLOCKS_MS = 10_000  # allowed difference of this clock and the brokers' clocks


class RecordFormat:
    def __init__(
        self,
        topic: str,
        key: str | SerialiserFactory | None,
        value: str | SerialiserFactory,
        headers: Mapping[str, str],
        timestamp: str | None,
        topic_column: str | None = None,
    ) -> None:
        self._topic = topic
        self._topic_column = topic_column
        self._key = key
        self._value = value
        self._headers = dict(headers)
        self._timestamp = timestamp
        self._serialisers: dict[str, Serialiser] = {}

    @property
    def timestamp(self) -> str | None:
        return self._timestamp

    def open(self, where: str, limits: KafkaLimits, limits_of: LimitsOf) -> None:
        self._where = where
        self._limits = limits
        self._limits_of = limits_of
        self._known = {self._topic: limits}
        self._check_keyed(self._topic, limits)
        for part, given in (("KEY", self._key), ("VALUE", self._value)):
            if given is not None and not isinstance(given, str):
                self._serialisers[part] = given()

    def _check_keyed(self, topic: str, limits: KafkaLimits) -> None:
        if limits.keyed and self._key is None:
            raise InvalidJob(
                f"{self._where}: topic {topic!r} is compacted (cleanup.policy) and takes no row without a key: pass "
                "key=, or write to a topic with cleanup.policy=delete"
            )

    def check_schema(self, schema: pa.Schema) -> None:
        plain = [self._key, *self._headers.values(), None if self._value == "json" else self._value]
        for name in [*plain, self._timestamp, self._topic_column]:
            if isinstance(name, str) and name not in schema.names:
                raise no_column(name, schema.names, self._where, f" for topic {self._topic!r}")
        for name in plain:
            if isinstance(name, str) and pa.types.is_nested(schema.field(name).type):
                raise InvalidJob(
                    f"{self._where}: column {name!r} is {schema.field(name).type}, which is not a key, value or "
                    'header: use value="json", or a text or binary column'
                )
        if self._timestamp is not None:
            kind = schema.field(self._timestamp).type
            if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
                raise InvalidJob(
                    f"{self._where}: column {self._timestamp!r} is {kind}, which is not a time of a record: use a "
                    "timestamp column, or an integer one in milliseconds"
                )
        if self._topic_column is not None:
            kind = schema.field(self._topic_column).type
            plain_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(plain_kind) or pa.types.is_large_string(plain_kind)):
                raise InvalidJob(
                    f"{self._where}: column {self._topic_column!r} is {kind}, which is not the name of a topic: "
                    "topic_column= takes a text column"
                )

    def records(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        together = _together(batches)
        if self._topic_column is not None:
            for batch in together:
                self._meet_topics(batch)
        made = [(batch, self._record_batch(batch)) for batch in together]
        now_ms = time_ns() // 1_000_000
        for rows, records in made:
            self._check_sizes(rows, records)
            for topic, its_rows, its_records in self._by_topic(rows, records):
                self._check_keys(topic, its_rows, its_records)
                if self._timestamp is not None:
                    self._check_times(topic, its_rows, its_records.column("timestamp"), now_ms)
        return [records for _, records in made]

    def _meet_topics(self, batch: pa.RecordBatch) -> None:
        names = _texts(batch.column(self._topic_column))
        for name in pc.unique(names).drop_null().to_pylist():
            if name not in self._known:
                try:
                    limits = self._limits_of(name)
                    self._check_keyed(name, limits)
                except InvalidJob as error:
                    row = pc.index(names, name).as_py()
                    raise InvalidJob(
                        f"{error}; column {self._topic_column!r} says so: {preview(batch, row)}"
                    ) from error
                self._known[name] = limits

    def _by_topic(
        self, rows: pa.RecordBatch, records: pa.RecordBatch
    ) -> Iterator[tuple[str, pa.RecordBatch, pa.RecordBatch]]:
        if self._topic_column is None:
            yield self._topic, rows, records
            return
        names = pc.fill_null(records.column(_TOPIC), self._topic)
        for name in pc.unique(names).to_pylist():
            chosen = pc.equal(names, name)
            yield name, rows.filter(chosen), records.filter(chosen)

    def _record_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {"key": self._part("KEY", self._key, batch), "value": self._part("VALUE", self._value, batch)}
        if self._timestamp is not None:
            columns["timestamp"] = self._times(batch.column(self._timestamp))
        for header, column in self._headers.items():
            columns[_HEADER + header] = _bytes_of(batch.column(column))
        if self._topic_column is not None:
            columns[_TOPIC] = _texts(batch.column(self._topic_column))
        return pa.RecordBatch.from_pydict(columns)

    def _part(self, part: str, given: str | SerialiserFactory | None, batch: pa.RecordBatch) -> pa.Array:
        if given is None:
            return pa.nulls(batch.num_rows, pa.binary())
        if part == "VALUE" and given == "json":
            return pa.array(encoders.jsonl([batch]).split(b"\n")[:-1], pa.binary())
        if isinstance(given, str):
            return _bytes_of(batch.column(given))
        return pa.array(self._serialised(part, batch), pa.binary())

    def _serialised(self, part: str, batch: pa.RecordBatch) -> list[bytes | None]:
        library()
        from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

        # other errors, such as an unavailable registry, may be temporary
        refusals = (SerializationError, ValueError, TypeError, LookupError, AttributeError)
        field = getattr(MessageField, part)
        contexts = {name: SerializationContext(name, field) for name in self._known}
        serialise, chosen = self._serialisers[part], self._topic_column
        done: list[bytes | None] = []
        for number, row in enumerate(rows_of(batch)):
            topic = self._topic if chosen is None or row[chosen] is None else row[chosen]
            try:
                done.append(serialise(row, contexts[topic]))
            except refusals as error:
                raise InvalidJob(
                    f"{self._where}: the serialiser of the {part.lower()} for topic {topic!r} refused a row "
                    f"({type(error).__name__}: {error}): {preview(batch, number)}; correct the row or the schema"
                ) from error
            if number % _CHUNK == 0:
                sleep(0)
        return done

    def _check_sizes(self, rows: pa.RecordBatch, records: pa.RecordBatch) -> None:
        around = _RECORD_OVERHEAD + sum(_RECORD_OVERHEAD + len(header.encode()) for header in self._headers)
        sizes = pa.array([around] * records.num_rows, pa.int64())
        for name, column in zip(records.schema.names, records.columns, strict=True):
            if name not in ("timestamp", _TOPIC):
                sizes = pc.add(sizes, pc.coalesce(pc.binary_length(column), 0).cast(pa.int64()))
        largest = pc.max(sizes).as_py() or 0
        if largest > self._limits.row_max_bytes:
            row = pc.index(sizes, largest).as_py()
            raise InvalidJob(
                f"{self._where}: a row takes {largest} bytes, topic {self._topic!r} allows about "
                f"{self._limits.row_max_bytes}: raise max.message.bytes of the topic, or make the row smaller: "
                f"{preview(rows, row)}"
            )

    def _times(self, column: pa.Array) -> pa.Array:
        try:
            return _milliseconds(column)
        except pa.ArrowInvalid as error:
            raise InvalidJob(
                f"{self._where}: column {self._timestamp!r} (timestamp=) has a time beyond 64 bits of milliseconds "
                f"({error}): correct or filter such rows"
            ) from error

    def _check_keys(self, topic: str, rows: pa.RecordBatch, records: pa.RecordBatch) -> None:
        keys = records.column("key")
        if self._known[topic].keyed and keys.null_count:
            row = pc.index(keys.is_null(), True).as_py()
            raise InvalidJob(
                f"{self._where}: a row has no key, and topic {topic!r} is compacted (cleanup.policy), so it "
                f"takes none: give such rows a key (key={self._key if isinstance(self._key, str) else '<serialiser>'}"
                f"), or filter them out: {preview(rows, row)}"
            )

    def _check_times(self, topic: str, rows: pa.RecordBatch, times: pa.Array, now_ms: int) -> None:
        """Refuses times outside the topic's limits, and time 0, which the client would replace."""
        limits = self._known[topic]
        oldest, newest = limits.oldest_ms, limits.newest_ms
        least = 1 if oldest is None else max(1, now_ms - oldest + min(_CLOCKS_MS, oldest // 2))
        most = None if newest is None else now_ms + newest - min(_CLOCKS_MS, newest // 2)
        found = pc.min_max(times).as_py()
        if found["min"] is not None and found["min"] < least:
            age = "" if oldest is None else f" or more than {oldest} ms ago (message.timestamp.before.max.ms)"
            self._refuse_time(topic, rows, times, found["min"], f"none of 1970-01-01T00:00Z or before{age}")
        if found["max"] is not None and most is not None and found["max"] > most:
            self._refuse_time(
                topic,
                rows,
                times,
                found["max"],
                f"none of more than {newest} ms ahead (message.timestamp.after.max.ms)",
            )

    def _refuse_time(self, topic: str, rows: pa.RecordBatch, times: pa.Array, time_ms: int, allowed: str) -> None:
        row = pc.index(times, time_ms).as_py()
        raise InvalidJob(
            f"{self._where}: a row has the time {time_ms} ms (column {self._timestamp!r}), topic {topic!r} takes "
            f"{allowed}: correct the row or the topic's setting, or leave out timestamp=: {preview(rows, row)}"
        )


def handed_over(
    producer: Any, records: pa.RecordBatch, topic: str, wait: Callable[[], None], **delivery: Any
) -> Iterator[int]:
    """Hands rows to Kafka's client, in order; yields how many it took.

    `topic`: of rows without a topic of their own. `wait` is called while the client's queue is full. `delivery`:
    arguments of `produce`.
    """
    give = _each if _singly(records) else _as_batch
    for messages in _messages(records, topic):
        left = messages
        while left:
            taken, error = give(producer, topic, left, delivery)
            yield taken
            if isinstance(error, BufferError):
                wait()
            elif error is not None:
                raise error
            left = left[taken:]


def _singly(records: pa.RecordBatch) -> bool:
    """`produce_batch` of the client has one topic, and neither times nor headers."""
    return any(name in ("timestamp", _TOPIC) or name.startswith(_HEADER) for name in records.schema.names)


def _each(
    producer: Any, topic: str, messages: list[dict[str, Any]], delivery: Mapping[str, Any]
) -> tuple[int, Exception | None]:
    for taken, message in enumerate(messages):
        try:
            producer.produce(**message, **delivery)
        except (BufferError, library().KafkaException) as error:
            return taken, error
    return len(messages), None


def _as_batch(
    producer: Any, topic: str, messages: list[dict[str, Any]], delivery: Mapping[str, Any]
) -> tuple[int, Exception | None]:
    """After a message that met a full queue the client takes none of the others."""
    taken = producer.produce_batch(topic, messages, **delivery)
    if taken == len(messages):
        return taken, None
    refusals = [message.pop("_error") for message in messages if "_error" in message]
    lasting = [refusal for refusal in refusals if refusal.name() != "_QUEUE_FULL"]
    return taken, library().KafkaException(lasting[0]) if lasting else BufferError()


def _messages(records: pa.RecordBatch, topic: str) -> Iterator[list[dict[str, Any]]]:
    """Yields keyword arguments of `produce`, in chunks."""
    chosen = _TOPIC in records.schema.names
    headers = [name for name in records.schema.names if name.startswith(_HEADER)]
    timed = "timestamp" in records.schema.names
    rows = max(1, min(_CHUNK, _CHUNK_BYTES * records.num_rows // max(1, records.nbytes)))
    for start in range(0, records.num_rows, rows):
        chunk = records.slice(start, rows)
        columns = zip(chunk.column("key").to_pylist(), chunk.column("value").to_pylist(), strict=True)
        messages: list[dict[str, Any]] = [{"topic": topic, "key": key, "value": value} for key, value in columns]
        if chosen:
            for message, name in zip(messages, chunk.column(_TOPIC).to_pylist(), strict=True):
                message["topic"] = topic if name is None else name
        if timed:
            for message, time in zip(messages, chunk.column("timestamp").to_pylist(), strict=True):
                if time is not None:
                    message["timestamp"] = time
        if headers:
            values = zip(*(chunk.column(name).to_pylist() for name in headers), strict=True)
            names = [name.removeprefix(_HEADER) for name in headers]
            for message, row in zip(messages, values, strict=True):
                message["headers"] = [pair for pair in zip(names, row, strict=True) if pair[1] is not None]
        yield messages


def _together(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _bytes_of(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def _texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _milliseconds(column: pa.Array) -> pa.Array:
    return (rounded_down(column, "ms") if pa.types.is_timestamp(column.type) else column).cast(pa.int64())
