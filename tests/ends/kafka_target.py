"""A topic as readers see it, and Kafka sinks driven by hand, a generation after the other."""

import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from examples.servers import KafkaServer
from examples.servers.kafka_ends import TopicEnds, asked_again, done_at_last
from tests.waiting import until

_SILENT_S = 20.0  # then a client that ought to read on is replaced


class Topic:
    """A topic's reader. `read`: the committed rows of all partitions, each in offset order. Keeps all rows read."""

    def __init__(self, kafka: KafkaServer, partitions: int = 2, **config: object) -> None:
        self.decode: Callable[[Any], Any] = json.loads
        self.name = f"topic-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(self.name, partitions, **config)
        self.messages: list[list[Any]] = [[] for _ in range(partitions)]
        self._ends = [0] * partitions
        self._known = TopicEnds(kafka.bootstrap, self.name, partitions)
        self._bootstrap = kafka.bootstrap
        self._consumer = self._opened()

    def read(self) -> list[dict[str, Any]]:
        """All committed rows. A broker ends a transaction a moment after the confirmation: waits for that end."""
        deadline = time.monotonic() + 120
        while self.has_open_transactions():
            assert time.monotonic() < deadline, f"there is an open transaction on {self.name}"
        return self.read_stable()

    def has_open_transactions(self) -> bool:
        return self._known.committed() != self._known.written()

    def read_stable(self) -> list[dict[str, Any]]:
        """The rows visible to readers now: up to the first open transaction."""
        committed = self._known.committed()
        stable = [committed[number] for number in range(len(self.messages))]
        deadline = time.monotonic() + 120
        patience = time.monotonic() + _SILENT_S
        while any(end < wanted for end, wanted in zip(self._ends, stable, strict=True)):
            assert time.monotonic() < deadline, f"{self.name} cannot be read up to {stable}, only to {self._ends}"
            if time.monotonic() > patience:  # a client may hang after a kill of the broker
                self._consumer.close()
                self._consumer, patience = self._opened(), time.monotonic() + _SILENT_S
            for message in self._consumer.consume(500, timeout=0.05):
                patience = time.monotonic() + _SILENT_S
                if message.error() is None:
                    self.messages[message.partition()].append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    self._ends[message.partition()] = message.offset()
        return [self.decode(message.value()) for messages in self.messages for message in messages]

    def close(self) -> None:
        self._consumer.close()

    def _opened(self) -> Consumer:
        """A client that reads from the first unread offset on."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        nexts = [messages[-1].offset() + 1 if messages else 0 for messages in self.messages]
        consumer.assign([TopicPartition(self.name, number, next_) for number, next_ in enumerate(nexts)])
        return consumer


def alter(kafka: KafkaServer, topic: Topic, name: str, value: str | None) -> None:
    """Changes a setting of the topic (None: back to the default). Returns when the broker applies the setting.

    The broker shows a change before the broker applies the change, and applies one change after the other. So the
    second change is visible when the first is in force.
    """
    _altered(kafka, topic, name, value)
    _altered(kafka, topic, "segment.ms", str(next(_SEGMENT_MS)))


_SEGMENT_MS = itertools.count(1_000_000_000)  # a setting without effect on any test


def _altered(kafka: KafkaServer, topic: Topic, name: str, value: str | None) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    change = ConfigResource(ConfigResource.Type.TOPIC, topic.name, incremental_configs=[entry])
    done_at_last(lambda: admin.incremental_alter_configs([change])[change].result())
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)

    def shown() -> bool:
        found = asked_again(lambda: admin.describe_configs([resource])[resource].result())[name]
        own = found.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return (found.value == value) if value is not None else not own

    until(shown, f"the broker shows {name}={value} of {topic.name}")


@contextmanager
def new_topic(kafka: KafkaServer, partitions: int = 2, **config: object) -> Iterator[Topic]:
    topic = Topic(kafka, partitions, **config)
    try:
        yield topic
    finally:
        topic.close()


class Job:
    """A job's sink subtasks, opened by hand. The end closes all open sinks."""

    def __init__(self, lineage: str = "line") -> None:
        self.name = f"job-{uuid.uuid4().hex[:8]}"
        self.lineage = lineage
        self.store = MemoryStore()
        self._opened: list[Any] = []

    def open(
        self, sink: Any, token: int = 1, subtask: int = 0, parallelism: int = 1, recover: Sequence[Any] = ()
    ) -> Any:
        def no_store(url: str) -> MemoryStore:
            raise AssertionError("the sink has nothing but the job's store")

        self._opened.append(sink)

        sink.open(SinkContext(self.name, "out", token, subtask, parallelism, no_store, self.store, self.lineage))
        sink.recover([each for each in recover if each is not None])
        return sink

    def close(self) -> None:
        for sink in self._opened:
            sink.close()


@contextmanager
def new_job(lineage: str = "line") -> Iterator[Job]:
    job = Job(lineage)
    try:
        yield job
    finally:
        job.close()


def kafka_sink(kafka: KafkaServer, topic: Topic, **settings: Any) -> KafkaSink:
    return KafkaSink(kafka.bootstrap, topic.name, **settings)


def written(sink: Any, rows: Sequence[dict[str, Any]]) -> Any:
    """A transaction with these rows, a batch each, staged early if the sink requests staging."""
    transaction = sink.begin_transaction()
    for row in rows:
        sink.write(transaction, pa.RecordBatch.from_pylist([row]))
        early = sink.stage_early(transaction)
        if early is not None:
            early()
    return transaction


def sealed(sink: Any, checkpoint: int, numbers: Sequence[int]) -> Any:
    return sink.pre_commit(written(sink, [{"n": number} for number in numbers]), checkpoint)


def commit_until(sink: Any, committables: Sequence[Any], patience_s: float = 240) -> None:
    """Commits as the runtime does: retries each checkpoint until success, oldest first."""
    deadline = time.monotonic() + patience_s
    for committable in committables:
        while True:
            try:
                sink.commit(committable)
                break
            except Unavailable:
                assert time.monotonic() < deadline, "the sink does not go on"


def numbers(topic: Topic) -> list[int]:
    return sorted(row["n"] for row in topic.read())
