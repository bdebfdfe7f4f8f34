"""Exactly-once Kafka sink: write-ahead, delivered by short Kafka transactions with a marker.

A transaction takes decided rows of a subtask, up to 16 MiB and a third of the transaction timeout, and a marker that
counts rows and covers all earlier checkpoints. Old markers are rewritten.

A note in the job's store (`markers`) records that a marker exists. If a recorded marker is missing (expired, or the
topic was recreated), the commit stops: only an operator can know whether the topic holds the rows.

Transactions span topics: rows with a chosen topic share the marker on partition 0 of the sink's own topic.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.kafka.sink.client import KafkaCluster
from barrier_runtime.connectors.kafka.sink.markers import Loss, LostMarkers, MarkerNotes
from barrier_runtime.connectors.kafka.sink.records import RecordFormat
from barrier_runtime.connectors.kafka.sink.topic_limits import KafkaLimits, check_waiting, limits_of_chosen, read_limits
from barrier_runtime.connectors.kafka.sink.transactions import MarkedProducer, Marker, TransactionOrigin
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.write_ahead import WriteAheadSink
from barrier_runtime.connectors.sink_bases.write_ahead_committable import DeliveryToken
from barrier_runtime.state.errors import Corrupt, Fenced, Unavailable


class KafkaWriteAhead(WriteAheadSink):
    delivers_from_memory = True  # the successor fences this subtask's producer before delivering

    def __init__(
        self,
        cluster_of: Mapping[str, Any],
        topic: str,
        format: RecordFormat,
        lost_markers: LostMarkers,
        max_bytes_in_memory: int,
    ) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        self._cluster_of = cluster_of
        self._topic = topic
        self._format = format
        self._lost_markers = lost_markers

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._cluster = KafkaCluster(self._cluster_of["bootstrap_servers"], self._cluster_of["config"], self._where)
        self._producers: dict[tuple[str, int], MarkedProducer] = {}
        self._notes_of_markers = MarkerNotes(context, self._where)
        self._noted: set[tuple[str, int]] = set()
        self._said: dict[tuple[str, int], int] = {}  # checkpoints that an operator reported and no marker contains
        self._decided: dict[tuple[str, int], int] = {}
        self._own = (context.lineage, context.subtask)
        self._marked_at = time.monotonic()
        self._fenced: Fenced | None = None
        try:
            self._limits = read_limits(self._cluster, self._topic, self._cluster_of["config"])
        except Unavailable:
            known = self._notes_of_markers.limits(*self._own)
            if known is None:
                raise
            self._limits = known
        # Staged rows cannot expire; brokers keep markers at least this long.
        self.transaction_timeout_ms = _MARKER_KEPT * self._limits.refresh_marker_s * 1000
        check_waiting(self._limits, self._where, self._topic, self._format.timestamp)
        self._format.open(self._where, self._limits, self._limits_of)

    def close(self) -> None:
        if hasattr(self, "_producers"):
            self._fenced = Fenced(f"{self._where}: closed")  # a commit may still wait for its turn
            self.check_again()

    def _limits_of(self, topic: str) -> KafkaLimits:
        """Called before the decision, so `Unavailable` only fails a checkpoint."""
        limits = limits_of_chosen(self._cluster, topic, self._limits)
        check_waiting(limits, self._where, topic, self._format.timestamp)
        return limits

    def check_schema(self, schema: pa.Schema) -> None:
        self._format.check_schema(schema)

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        return self._format.records(batches)

    def must_deliver_nothing(self) -> bool:
        return time.monotonic() - self._marked_at > self._limits.refresh_marker_s

    def delivered(self, token: DeliveryToken, rows: int) -> bool:
        marker = self._connected(token.lineage, token.subtask, token).marker
        assert marker is not None, "connected without a marker"
        if marker.checkpoint == token.checkpoint and marker.token not in (token.token, _A_PERSON):
            raise Corrupt(
                f"{self._where}: the marker on topic {self._topic!r} says that checkpoint {token.checkpoint} was "
                f"written by generation {marker.token}, here it is of generation {token.token}: two jobs share the "
                f"name {token.job!r} and the sink name {token.sink!r}; give one of them another name"
            )
        return marker.checkpoint > token.checkpoint or (marker.checkpoint == token.checkpoint and marker.rows >= rows)

    def check_again(self) -> None:
        for producer in list(self._producers.values()):
            producer.close()

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        self.deliver_together(iter([(token, batches)]))

    def commit_together(self, committables: Sequence[bytes]) -> None:
        for each in map(self._decoded, committables):
            origin = each.lineage, each.subtask
            self._decided[origin] = max(each.checkpoint, self._decided.get(origin, 0))
        super().commit_together(committables)

    def deliver_together(self, deliveries: Iterator[tuple[DeliveryToken, Iterator[pa.RecordBatch]]]) -> None:
        for first, batches in deliveries:
            producer = self._connected(first.lineage, first.subtask, first)
            try:
                self._write(producer, itertools.chain([(first, batches)], deliveries))
            except BaseException:
                producer.abandon()
                raise
            if (first.lineage, first.subtask) == self._own:
                self._marked_at = time.monotonic()

    def _write(
        self, producer: MarkedProducer, transactions: Iterable[tuple[DeliveryToken, Iterator[pa.RecordBatch]]]
    ) -> None:
        before = producer.marker
        assert before is not None, "connected without a marker"
        reached = before
        producer.begin()
        for token, batches in transactions:
            written = before.rows if before.checkpoint == token.checkpoint else 0
            position = 0
            for batch in batches:
                for chunk in _chunks(batch):
                    skipped = min(chunk.num_rows, max(0, written - position))
                    position += chunk.num_rows
                    producer.send(chunk.slice(skipped))
                    if producer.full and position > written:
                        producer.commit(self._marker(token, position))
                        producer.begin()
            reached = self._marker(token, position)
        producer.commit(reached)

    def recover(self, decided: Sequence[bytes]) -> None:
        super().recover(decided)
        # All decided rows are written: no transaction is in doubt.
        self._connected(*self._own, None)
        for origin in [origin for origin in self._producers if origin != self._own]:
            self._producers.pop(origin).close()

    def _marker(self, token: DeliveryToken, rows: int) -> Marker:
        return Marker(token.checkpoint, token.token, rows, self._context.token)

    def _connected(self, lineage: str, subtask: int, in_doubt: DeliveryToken | None) -> MarkedProducer:
        """Producer with a marker. `in_doubt`: the delivery that was perhaps written."""
        if self._fenced is not None:
            raise self._fenced
        producer = self._producers.get((lineage, subtask))
        if producer is None:
            producer = self._producers[lineage, subtask] = self._new_producer(self._origin(lineage, subtask))
        try:
            if not producer.connected:
                producer.connect()
            if producer.marker is None:
                producer.begin()
                producer.commit(self._first_marker(lineage, subtask, in_doubt))
            self._said.pop((lineage, subtask), None)
            self._take_note(lineage, subtask)
        except Fenced as error:
            self._fenced = error
            raise
        return producer

    def _origin(self, lineage: str, subtask: int) -> TransactionOrigin:
        return TransactionOrigin(self._context.job, self._context.sink, lineage, subtask)

    def _new_producer(self, origin: TransactionOrigin) -> MarkedProducer:
        settings = {
            "partitioner": "murmur2_random",  # as Java's clients
            **self._cluster_of["config"],
            "transaction.timeout.ms": self._limits.transaction_timeout_ms,
            "message.max.bytes": self._limits.message_max_bytes,
        }
        return MarkedProducer(self._cluster, self._topic, origin, self._context.token, settings)

    def _first_marker(self, lineage: str, subtask: int, in_doubt: DeliveryToken | None) -> Marker:
        origin = lineage, subtask
        generation = self._notes_of_markers.generation(*origin)
        if generation is not None:
            if in_doubt is not None and origin not in self._said:
                last = max(in_doubt.checkpoint, self._decided.get(origin, 0))
                loss = Loss(lineage, subtask, generation, in_doubt.checkpoint, last)
                group = self._origin(lineage, subtask).group
                self._said[origin] = loss.answer(self._lost_markers, self._where, self._topic, group)
            self._notes_of_markers.another(*origin)
        if origin in self._said:
            return Marker(self._said[origin], _A_PERSON, _ALL_ROWS, self._context.token)
        return Marker(0, 0, 0, self._context.token)

    def _take_note(self, lineage: str, subtask: int) -> None:
        if (lineage, subtask) not in self._noted:
            self._notes_of_markers.first(lineage, subtask)
            if (lineage, subtask) == self._own:
                self._notes_of_markers.keep_limits(lineage, subtask, self._limits)
            self._noted.add((lineage, subtask))


_A_PERSON = 0  # in place of the generation: an operator reported the rows
_ALL_ROWS = 2**62
_CHUNK_ROWS = 4_096
_MARKER_KEPT = 4  # times `refresh_marker_s`: see `topic_limits`


def _chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _CHUNK_ROWS):
        yield batch.slice(start, _CHUNK_ROWS)
