"""At-least-once Kafka sink: sends rows before the decision; a checkpoint waits for the brokers.

Rows go to the client off the loop, some hundred KiB at a time, and the rest at a barrier. Readers may see rows again
after a restart. A row that the brokers refuse for good breaks this instance: the job restarts from its last checkpoint
and sends all later rows again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.kafka.sink.client import KafkaCluster, library
from barrier_runtime.connectors.kafka.sink.records import RecordFormat, produced
from barrier_runtime.connectors.kafka.sink.topic_limits import limits_of_chosen, read_limits
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases.row_buffer import InOrder, RowBuffer
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.state.errors import InvalidJob, Unavailable

_WRITE_BYTES = 256 << 10
_QUEUE_KB = 64 << 10
_FLUSH_S = 30.0
_WAIT_S = 0.05


class KafkaDirect(TwoPhaseCommitSink):
    guarantee = "at_least_once"

    def __init__(self, cluster_of: Mapping[str, Any], topic: str, format: RecordFormat) -> None:
        self._cluster_of = cluster_of
        self._topic = topic
        self._format = format

    def open(self, context: SinkContext) -> None:
        where = context.where
        config = self._cluster_of["config"]
        self._cluster = KafkaCluster(self._cluster_of["bootstrap_servers"], config, where)
        limits = read_limits(self._cluster, self._topic, config)
        self._format.open(where, limits, lambda name: limits_of_chosen(self._cluster, name, limits))
        self._schema_checked = False
        self._buffers: InOrder[int] = InOrder()
        self._sending = threading.Lock()  # rows of the next checkpoint wait while this checkpoint is flushed
        self._refused: InvalidJob | Unavailable | None = None
        self._producer = self._cluster.producer(
            {
                "partitioner": "murmur2_random",  # as Java's clients
                **config,
                "message.max.bytes": limits.message_max_bytes,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "delivery.report.only.error": True,
                "queue.buffering.max.kbytes": _QUEUE_KB,
            }
        )

    def begin_transaction(self) -> RowBuffer[int]:
        return self._buffers.begin()

    def write(self, transaction: RowBuffer[int], rows: pa.RecordBatch) -> None:
        self._check(rows.schema)
        transaction.write(rows)

    def write_few(self, transaction: RowBuffer[int], rows: FewRows) -> None:
        self._check(rows.schema)
        transaction.write_few(rows)

    def _check(self, schema: pa.Schema) -> None:
        if self._refused is not None:
            raise self._refused
        if not self._schema_checked:
            self._format.check_schema(schema)
            self._schema_checked = True

    def stage_early(self, transaction: RowBuffer[int]) -> Callable[[], None] | None:
        if transaction.bytes_in_current < _WRITE_BYTES:
            return None
        transaction.fill_up()

        def send() -> None:
            self._buffers.stage(transaction, self._send, closed=False)

        return send

    def pre_commit(self, transaction: RowBuffer[int], checkpoint: int) -> None:
        """Waits until the brokers have every row; raises an error otherwise."""
        self._buffers.stage(transaction, self._send, closed=True)
        with self._sending:
            waiting = self._producer.flush(_FLUSH_S)
        if self._refused is not None:
            raise self._refused
        if waiting:
            raise Unavailable(
                f"{self._cluster.where}: Kafka at {self._cluster.bootstrap_servers} has not taken {waiting} rows for "
                f"topic {self._topic!r} within {_FLUSH_S:.0f} s: they go on being sent; are the brokers up?"
            )
        self._cluster.answers()

    def commit(self, committable: bytes) -> None:
        """Never called: pre-commit returns no committable."""

    def abort(self, committable: bytes) -> None:
        """Does nothing: rows cannot be unsent."""

    def close(self) -> None:
        if getattr(self, "_producer", None) is not None:
            self._producer.purge()
            self._producer = None

    def _send(self, batches: Sequence[pa.RecordBatch]) -> int:
        sent = 0
        for records in self._format.records(batches):
            with self._sending:
                for messages in produced(records, self._topic):
                    for message in messages:
                        self._produce(message)
                    sent += len(messages)
                    self._producer.poll(0)
        return sent

    def _produce(self, message: dict[str, Any]) -> None:
        while True:
            try:
                with self._cluster.trouble("write rows to"):
                    self._producer.produce(**message, on_delivery=self._not_delivered)
                return
            except BufferError:  # the brokers are slow or away: wait here, off the loop
                self._producer.poll(_WAIT_S)
                if self._refused is not None:
                    raise self._refused from None

    def _not_delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._refused is None:
            self._refused = self._cluster.meaning(
                library().KafkaException(error), f"write to topic {message.topic()!r} of"
            )
