"""Short Kafka transactions that move a marker: rows and "written up to here" become visible together, or not at all.

The *marker* is a committed offset of a consumer group that nobody else uses, on partition 0 of the target topic. Its
group is named by job, sink, lineage and origin subtask; the offset is the checkpoint, the metadata says how many of its
rows were written, and by whom.

The order of everything: `init_transactions`, which ends whatever an earlier producer of the same job, sink and origin
subtask has begun and refuses all that it may still send; *then* the marker is read; then rows are written. What was
read stays true as long as this producer is not refused itself. So after any error there is a new producer, and the
marker is read again: nobody has to guess whether a transaction was committed.

A zombie may take the producer from its successor in the same way, which costs time, but no row: it sees that a later
generation has moved the marker, and stops for good.

The library's own time limits are not kept: `send_offsets_to_transaction` may wait for ever for a group coordinator that
was away (librdkafka issues 5456 and 5511). So it runs on a thread that is left behind then, with its producer: the next
one has refused that producer before it does anything else. A thread whose call has ended serves again: to start one
takes as long as what a small transaction costs here otherwise.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from barrier_runtime.connectors.kafka.asking import answered
from barrier_runtime.connectors.kafka.sink.client import ANSWER_S, KafkaCluster, library
from barrier_runtime.connectors.kafka.sink.records import produced
from barrier_runtime.state.errors import Fenced, Unavailable
from barrier_runtime.state.threads import Threads
from barrier_runtime.state.versioned import Format, VersionedDecoder

MARKER_VERSION = 1
_CHUNK_BYTES = 16 << 20
_QUEUE_KB = 32 << 10
_WAIT_S = 0.05
_REACH_S = 1.0


_CALLS = Threads(math.inf, "kafka-transaction")  # without a bound: one that hangs takes no other's place


def returns_within(timeout_s: float, call: Callable[[], Any]) -> None:
    """What `call` raises, or a `KafkaException` (timed out) when it has not come back a little later than it should."""
    answered(_CALLS.submit(call), timeout_s, library())


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    token: int
    rows: int
    writer: int


_FORMAT = Format("{}", MARKER_VERSION, damaged="something else has committed to this group; nothing was written")
_METADATA = VersionedDecoder(_FORMAT, msgspec.json.Decoder(_Metadata))


@dataclass(frozen=True)
class Marker:
    """`rows` rows of `checkpoint` and all before it are in the topic. `token`: of the generation that staged them,
    `writer`: of the one that wrote them."""

    checkpoint: int
    token: int
    rows: int
    writer: int


@dataclass(frozen=True)
class TransactionOrigin:
    """Whose rows: at any time there is one producer for them."""

    job: str
    sink: str
    lineage: str
    subtask: int

    @property
    def transactional_id(self) -> str:
        """The same in all lineages, so that zombies of every one are refused."""
        return f"barrier-runtime.{self.job}.{self.sink}.{self.subtask}"

    @property
    def group(self) -> str:
        return f"barrier-runtime.{self.job}.{self.sink}.{self.lineage}.{self.subtask}"


class MarkedProducer:
    """`writer`: the fencing token of the generation that writes. Every error leaves it closed; `connect` again.
    Blocking."""

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
        self.marker: Marker | None = None  # as of now, while connected

    @property
    def connected(self) -> bool:
        return self._producer is not None

    def connect(self) -> None:
        """Refuse every earlier producer, then read the marker. Raises `Fenced` when a later generation has written."""
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
            self.marker = self._read_marker()
            self._refuse_if_later(self.marker)
        except BaseException:
            self.close()
            raise

    def _reach(self) -> None:
        """The library asks for the coordinator over a connection that is there, else half a second later. Its first,
        to an address of `bootstrap.servers`, may end with its first answer: the second question makes another."""
        with contextlib.suppress(library().KafkaException):  # who asks next is told the reason
            for _ in range(2):
                self._producer.list_topics(self._topic, timeout=_REACH_S)

    def begin(self) -> None:
        self._began = time.monotonic()
        self._bytes = 0
        self._do(lambda: self._producer.begin_transaction(), "begin a transaction at")

    def send(self, records: Any) -> None:
        """Queue records (see `kafka/sink/records`) for the open transaction."""
        self._do(lambda: self._send(records), "write rows to")
        self._bytes += records.nbytes

    @property
    def full(self) -> bool:
        """A transaction must end long before it times out: what is left of its rows goes with the next one."""
        return self._bytes >= _CHUNK_BYTES or time.monotonic() - self._began > self._timeout_s / 3

    def commit(self, marker: Marker) -> None:
        """Rows and marker become visible together. After an error nobody knows: `connect` again, and look."""
        self._do(lambda: self._commit(marker), "commit a transaction at")
        self.marker = marker

    def abandon(self) -> None:
        """End the open transaction without its rows, so that readers need not wait until it times out; and close."""
        if self._producer is not None:
            with contextlib.suppress(library().KafkaException):
                self._producer.abort_transaction(self._timeout_s)
        self.close()

    def close(self) -> None:
        """Drops what is not committed; the next producer of this origin ends it at the broker."""
        if self._producer is not None:
            self._producer.purge()
        self._producer = self._consumer = self.marker = None

    # ------------------------------------------------------------ inside

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
        produce = self._producer.produce
        for messages in produced(records, self._topic):
            for message in messages:
                try:
                    produce(**message)
                except BufferError:
                    self._send_patiently(message)
            time.sleep(0)  # another thread gets the interpreter

    def _send_patiently(self, message: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(**message)
                return
            except BufferError:
                if time.monotonic() - self._began > self._timeout_s:
                    raise Unavailable(
                        f"{self._cluster.where}: Kafka at {self._cluster.bootstrap_servers} takes no rows: it is tried "
                        f"again; within transaction.timeout.ms={self._timeout_s * 1000:.0f} it must take "
                        f"{_CHUNK_BYTES >> 20} MiB"
                    ) from None
                self._producer.poll(_WAIT_S)

    def _commit(self, marker: Marker) -> None:
        metadata = msgspec.json.encode(_Metadata(MARKER_VERSION, marker.token, marker.rows, marker.writer)).decode()
        offset = library().TopicPartition(self._topic, 0, marker.checkpoint, metadata=metadata)
        group = self._group().consumer_group_metadata()
        producer, timeout_s = self._producer, self._timeout_s
        offsets_s = min(timeout_s, ANSWER_S)
        self._add_marker(lambda: producer.send_offsets_to_transaction([offset], group, offsets_s), offsets_s)
        returns_within(timeout_s, lambda: producer.commit_transaction(timeout_s))
        self._cluster.answers()

    @staticmethod
    def _add_marker(call: Callable[[], Any], timeout_s: float) -> None:
        """Where the brokers refuse a row during the call, its error says "erroneous state" alone. Asked again, the
        library names the refusal. Either way the transaction is not committed."""
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
        self._consumer.poll(0)  # of no partition: its log and its errors wait for that
        return self._consumer

    def _read_marker(self) -> Marker | None:
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
        return Marker(found.offset, metadata.token, metadata.rows, metadata.writer)

    def _refuse_if_later(self, marker: Marker | None) -> None:
        if marker is not None and marker.writer > self._writer:
            raise Fenced(
                f"{self._cluster.where}: generation {marker.writer} writes to topic {self._topic!r} now; generation "
                f"{self._writer} stops"
            )
