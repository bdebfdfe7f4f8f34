"""The Kafka broker for the engines: the examples' real broker with more memory.

The JVM has only the quick compiler; the other compiler works for minutes on the measured cores. Some thousand requests
warm the broker up, so that the first engine does not meet a broker that still loads.
"""

import contextlib
import time
from collections.abc import Iterator

from examples.servers.kafka import KafkaServer

PARTITIONS = 2
_WARM_UP_S = 12.0
_TIMEOUT_S = 30.0


class LoadedKafka(KafkaServer):
    jvm = (
        "-Xmx1g",
        "-Xms1g",
        "-XX:+UseG1GC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    )


@contextlib.contextmanager
def broker() -> Iterator[LoadedKafka]:
    server = LoadedKafka({"log_segment_bytes": 256 << 20, "transaction_max_timeout_ms": 900_000})
    try:
        server.start()
        _warm_up(server)
        yield server
    finally:
        server.close()


def _warm_up(server: LoadedKafka) -> None:
    """Sends transactions and reads them, in sequence."""
    from confluent_kafka import Consumer, Producer

    topic = "warm-up"
    server.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(_TIMEOUT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    until_s = time.monotonic() + _WARM_UP_S
    while time.monotonic() < until_s:
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, b"x" * 100, partition=number % PARTITIONS)
            producer.flush(_TIMEOUT_S)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), _TIMEOUT_S
        )
        producer.commit_transaction(_TIMEOUT_S)
        consumer.consume(100, timeout=0.0)
    consumer.close()
