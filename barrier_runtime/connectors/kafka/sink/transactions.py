"""Short Kafka transactions with a marker, which becomes visible together with the rows.

The *marker* is a committed offset of a separate consumer group, on partition 0 of the target topic. The offset is the
checkpoint; the metadata has the number of rows and the writer.

`init_transactions` ends the transaction of an earlier producer of the same origin and fences that producer; *then* the
marker is read; then rows are written. After any error, a new producer reads the marker again. A zombie that fences the
successor sees that a later generation has moved the marker, and stops.

`send_offsets_to_transaction` may wait for ever (librdkafka issues 5456 and 5511), so overdue calls are abandoned in
their threads; the next producer fences the abandoned producer.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from barrier_runtime.connectors.kafka.clients import answered
from barrier_runtime.connectors.kafka.sink.client import ANSWER_S, KafkaCluster, library
from barrier_runtime.connectors.kafka.sink.records import handed_over
from barrier_runtime.state.errors import Fenced, Unavailable
from barrier_runtime.state.threads import Threads
from barrier_runtime.state.versioned import Format, VersionedDecoder

MARKER_VERSION = 1
_CHUNK_BYTES = 16 << 20
_QUEUE_KB = 32 << 10
_WAIT_S = 0.05
_REACH_S = 1.0


_CALLS = Threads(math.inf, "kafka-transaction")  # unbounded: a hanging call must not block others


def returns_within(timeout_s: float, call: Callable[[], Any]) -> None:
    answered(_CALLS.submit(call), timeout_s, library())


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    token: int
    rows: int
    writer: int
    positions: str = ""


_FORMAT = Format("{}", MARKER_VERSION, damaged="something else has committed to this group; nothing was written")
_METADATA = VersionedDecoder(_FORMAT, msgspec.json.Decoder(_Metadata))


@dataclass(frozen=True)
class Marker:
    """Record that `rows` rows of `checkpoint` and all rows of earlier checkpoints are in the topic.

    `token`: of the generation that staged the rows; `writer`: that wrote them. With `positions` (at most once),
    `checkpoint` counts transactions.
    """

    checkpoint: int
    token: int
    rows: int
    writer: int
    positions: str = ""


@dataclass(frozen=True)
class TransactionOrigin:
    job: str
    sink: str
    lineage: str
    subtask: int
    suffix: str = ""  # of the group: keeps markers of another meaning apart

    @property
    def transactional_id(self) -> str:
        """Equal in all lineages, so zombies of every lineage are fenced."""
        return f"barrier-runtime.{self.job}.{self.sink}.{self.subtask}"

    @property
    def group(self) -> str:
        return f"barrier-runtime.{self.job}.{self.sink}.{self.lineage}.{self.subtask}{self.suffix}"


class MarkedProducer:
    """Transactional producer with a marker. Blocks. After an error the producer is closed until `connect`.

    `writer`: fencing token of the generation that writes.
    """

    def __init__(
        self, cluster: KafkaCluster, topic: str, origin: TransactionOrigin, writer: int, settings: dict[str, Any]
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._origin = origin
        self._writer = writer
        self._settings = settings
        self._timeout_s = int(settings["transaction.timeout.ms"]) / 1000
        self._producer: Any = None
        self._consumer: Any = None
        self._began = 0.0
        self._bytes = 0
        self.marker: Marker | None = None

    @property
    def connected(self) -> bool:
        return self._producer is not None

    def connect(self) -> None:
        """Fences earlier producers, then reads the marker. Raises `Fenced` if a later generation has written."""
        try:
            self._producer = self._cluster.producer(
                {
                    **self._settings,
                    "transactional.id": self._origin.transactional_id,
                    "queue.buffering.max.kbytes": _QUEUE_KB,
                }
            )
            self._reach()
            self._cluster.answered(self._producer.init_transactions, "begin transactions at")
            self.marker = self.read_marker()
            self._refuse_if_later(self.marker)
        except BaseException:
            self.close()
            raise

    def _reach(self) -> None:
        """Connects to the brokers, which saves half a second in `init_transactions`."""
        with contextlib.suppress(library().KafkaException):  # the next request reports the reason
            for _ in range(2):
                self._producer.list_topics(self._topic, timeout=_REACH_S)

    def read_marker(self) -> Marker | None:
        """Reads the marker without fencing: its producer may still write."""
        wanted = [library().TopicPartition(self._topic, 0)]
        found = self._cluster.answered(
            lambda timeout: self._group().committed(wanted, timeout=timeout), "read the marker at"
        )[0]
        if found.error is not None:
            raise self._cluster.meaning(library().KafkaException(found.error), "read the marker at")
        if found.offset < 0:
            return None
        where = f"{self._cluster.where}: the marker of consumer group {self._origin.group!r} on topic {self._topic!r}"
        metadata = _METADATA.decode((found.metadata or "").encode(), where)
        return Marker(found.offset, metadata.token, metadata.rows, metadata.writer, metadata.positions)

    def begin(self) -> None:
        self._began = time.monotonic()
        self._bytes = 0
        self._do(lambda: self._producer.begin_transaction(), "begin a transaction at")

    def send(self, records: Any) -> None:
        self._do(lambda: self._send(records), "write rows to")
        self._bytes += records.nbytes

    @property
    def full(self) -> bool:
        return self._bytes >= _CHUNK_BYTES or time.monotonic() - self._began > self._timeout_s / 3

    def commit(self, marker: Marker) -> None:
        """After an error only `connect` knows the outcome."""
        self._do(lambda: self._commit(marker), "commit a transaction at")
        self.marker = marker

    def abandon(self) -> None:
        """Aborts the open transaction, for which readers would wait."""
        if self._producer is not None:
            with contextlib.suppress(library().KafkaException):
                self._producer.abort_transaction(self._timeout_s)
        self.close()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()
        self._producer = self._consumer = self.marker = None

    def _do(self, call: Any, doing: str) -> None:
        kafka = library()
        try:
            call()
        except kafka.KafkaException as error:
            self.close()
            raise self._cluster.meaning(error, doing) from error
        except BaseException:
            self.close()
            raise

    def _send(self, records: Any) -> None:
        for _ in handed_over(self._producer, records, self._topic, self._wait_for_room):
            time.sleep(0)

    def _wait_for_room(self) -> None:
        if time.monotonic() - self._began > self._timeout_s:
            raise Unavailable(
                f"{self._cluster.where}: Kafka at {self._cluster.bootstrap_servers} takes no rows: it is tried "
                f"again; within transaction.timeout.ms={self._timeout_s * 1000:.0f} it must take "
                f"{_CHUNK_BYTES >> 20} MiB"
            )
        self._producer.poll(_WAIT_S)

    def _commit(self, marker: Marker) -> None:
        known = _Metadata(MARKER_VERSION, marker.token, marker.rows, marker.writer, marker.positions)
        metadata = msgspec.json.encode(known).decode()
        offset = library().TopicPartition(self._topic, 0, marker.checkpoint, metadata=metadata)
        group = self._group().consumer_group_metadata()
        producer, timeout_s = self._producer, self._timeout_s
        offsets_s = min(timeout_s, ANSWER_S)
        self._add_marker(lambda: producer.send_offsets_to_transaction([offset], group, offsets_s), offsets_s)
        returns_within(timeout_s, lambda: producer.commit_transaction(timeout_s))
        self._cluster.answers()

    @staticmethod
    def _add_marker(call: Callable[[], Any], timeout_s: float) -> None:
        """Sends the marker's offset.
        If the brokers refuse a row meanwhile, only a second call raises the refusal.
        """
        kafka = library()
        try:
            returns_within(timeout_s, call)
        except kafka.KafkaException as error:
            if error.args[0].name() == "_STATE":
                returns_within(timeout_s, call)
            raise

    def _group(self) -> Any:
        if self._consumer is None:
            self._consumer = self._cluster.consumer(
                {"group.id": self._origin.group, "isolation.level": "read_committed", "enable.auto.commit": False}
            )
        self._consumer.poll(0)  # without a partition: the poll serves the consumer's log and errors
        return self._consumer

    def _refuse_if_later(self, marker: Marker | None) -> None:
        if marker is not None and marker.writer > self._writer:
            raise Fenced(
                f"{self._cluster.where}: generation {marker.writer} writes to topic {self._topic!r} now; generation "
                f"{self._writer} stops"
            )
