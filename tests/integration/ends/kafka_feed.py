"""Parts shared by the kill tests that read Kafka: numbered rows, written to a topic at an even pace through every
outage, and the source that reads the rows.
"""

import datetime
import json
import threading
import time

from confluent_kafka import Producer

from barrier_runtime import Dataflow, Stream
from examples.servers import KafkaServer

KEYS, PARTITIONS, RATE = 50, 2, 500


def read_numbers(flow: Dataflow, bootstrap: str, topic: str) -> Stream:
    """The rows of a `Feed`, as the source `numbers` with the columns `value` and `key`."""
    return flow.read_kafka(
        "numbers",
        bootstrap,
        topic,
        group="counters",
        key=None,
        value="json",
        schema={"value": int, "key": int},
        metadata=(),
        discover=datetime.timedelta(seconds=1),
    )


class Feed:
    """Writes row i = 0, 1, 2, … to partition i % PARTITIONS, once each, whatever happens to the broker."""

    def __init__(self, kafka: KafkaServer, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 0,  # never given up
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._topic = topic
        self._failed: list[object] = []
        self._rows = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")
        self._thread.start()

    def drain(self) -> int:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        assert self._failed == []
        return self._rows

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.purge()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.01):
            if self._producer.flush(0.05):
                continue  # the client spins if rows are due while five requests of a partition are in flight
            due = int((time.monotonic() - began) * RATE)
            for number in range(self._rows, due):
                row = json.dumps({"value": number, "key": number % KEYS})
                while True:
                    try:
                        self._producer.produce(
                            self._topic, row, partition=number % PARTITIONS, on_delivery=self._delivered
                        )
                        break
                    except BufferError:  # while the broker is away
                        self._producer.poll(0.1)
            self._rows = max(self._rows, due)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(error)
