"""Feeds of flights, at an even pace: into a Kafka topic or a RabbitMQ queue.

After an outage of the broker both resend unconfirmed messages, as producers do. Kafka drops such repeated messages;
RabbitMQ does not, so consumers get some messages more than once.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

_STEPS_PER_S = 5
_RESENT_EVERY = 25  # messages: the queue's sender sends every 25th message twice, as if lost


class Feed(threading.Thread):
    """Sends bodies from first to last. `error` is the error that ended the feed early."""

    def __init__(self, bodies: Sequence[bytes], seconds: float) -> None:
        super().__init__(name="feed", daemon=True)
        self._bodies = bodies
        self._seconds = seconds
        self.error: Exception | None = None
        self.fed = 0  # bodies

    def run(self) -> None:
        try:
            with self.sender() as send:
                for first, end in self._paced():
                    send(first, end)
                    self.fed = end
        except Exception as error:
            self.error = error

    def sender(self) -> Any:
        """Context manager whose value sends the bodies from the first number up to, but without, the second."""
        raise NotImplementedError

    def _paced(self) -> Iterator[tuple[int, int]]:
        steps = max(1, round(self._seconds * _STEPS_PER_S))
        began, total = time.monotonic(), len(self._bodies)
        for step in range(steps):
            time.sleep(max(0.0, began + step / _STEPS_PER_S - time.monotonic()))
            yield total * step // steps, total * (step + 1) // steps


class KafkaFeed(Feed):
    """Deals bodies to partitions in turn, then a `heartbeat` to each, which ends earlier times."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, bodies: Sequence[bytes], seconds: float, heartbeat: bytes
    ) -> None:
        super().__init__(bodies, seconds)
        self._servers = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._heartbeat = heartbeat

    @contextlib.contextmanager
    def sender(self) -> Iterator[Any]:
        from confluent_kafka import Producer

        # `log_level` 0: the broker is expected to be away at times.
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "log_level": 0})

        def send(first: int, end: int) -> None:
            for number in range(first, end):
                while True:
                    try:
                        producer.produce(self._topic, self._bodies[number], partition=number % self._partitions)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)

        yield send
        for partition in range(self._partitions):
            producer.produce(self._topic, self._heartbeat, partition=partition)
        if left := producer.flush(120):
            raise TimeoutError(f"Kafka did not take {left} records within two minutes")


class RabbitFeed(Feed):
    """Durable messages, a broker transaction per step; the id of a message is the message's number."""

    def __init__(self, url: str, queue: str, bodies: Sequence[bytes], seconds: float) -> None:
        super().__init__(bodies, seconds)
        self._url = url
        self._queue = queue
        self._connection: Any = None
        self._channel: Any = None

    @contextlib.contextmanager
    def sender(self) -> Iterator[Any]:
        yield self._send
        self._connection.close()

    def _send(self, first: int, end: int) -> None:
        import pika

        while True:
            try:
                if self._channel is None:
                    self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
                    self._channel = self._connection.channel()
                    self._channel.tx_select()
                for number in range(first, end):
                    for _ in range(2 if number % _RESENT_EVERY == 0 else 1):
                        self._publish(number)
                self._channel.tx_commit()
                return
            except (pika.exceptions.AMQPError, OSError):
                self._channel = None
                time.sleep(0.2)

    def _publish(self, number: int) -> None:
        import pika

        properties = pika.BasicProperties(message_id=str(number), delivery_mode=2)
        self._channel.basic_publish("", self._queue, self._bodies[number], properties)


def as_json(flights: pa.Table) -> list[bytes]:
    return [msgspec.json.encode(row) for row in flights.to_pylist()]
