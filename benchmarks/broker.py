"""The Kafka broker that engines read from and write to: the examples' real one, with more memory.

Its JVM has the quick compiler only: the other one is at work for minutes, on the cores that are measured.
"""

import contextlib
from collections.abc import Iterator

from examples.servers.kafka import KafkaServer

PARTITIONS = 2


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
        yield server
    finally:
        server.close()
