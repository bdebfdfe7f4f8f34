"""Parts shared by tests of the RabbitMQ source: private queues, publishers that know which messages the broker has
taken, and a wire that can be cut.
"""

import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions

from examples.servers import RabbitServer
from tests.waiting import until


def address(server: RabbitServer, port: int | None = None) -> str:
    """The server's URL as a job passes the URL: without credentials. `port`: of a proxy."""
    return f"amqp://127.0.0.1:{port or server.port}/%2F"


def connected(server: RabbitServer) -> pika.BlockingConnection:
    """A connection that waits longer for a busy broker than the library's default."""
    return pika.BlockingConnection(pika.URLParameters(f"{server.url}?socket_timeout=60&stack_timeout=60"))


class Queue:
    """A durable queue, a publisher (with confirms), and the broker's figures of the queue."""

    def __init__(self, server: RabbitServer, dead_letters: str = "") -> None:
        self.name = f"queue-{uuid.uuid4().hex[:8]}"
        self._server = server
        self._channel: Any = None
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letters} if dead_letters else None
        self.channel.queue_declare(self.name, durable=True, arguments=arguments)

    @property
    def channel(self) -> Any:
        """Made anew when the broker was away."""
        if self._channel is not None and self._channel.is_open:
            with contextlib.suppress(pika.exceptions.AMQPError):
                self._channel.connection.process_data_events()  # the connection may have been closed meanwhile
        if self._channel is None or not self._channel.is_open:
            self._channel = connected(self._server).channel()
            self._channel.confirm_delivery()
        return self._channel

    def publish(self, body: bytes, **properties: Any) -> None:
        """Returns when the broker has the message on disk; raises when the outcome is unknown."""
        self.channel.basic_publish("", self.name, body, pika.BasicProperties(delivery_mode=2, **properties))

    def publish_numbers(self, first: int, last: int) -> None:
        for number in range(first, last):
            self.publish(b'{"value":%d}' % number, message_id=f"m-{number}", timestamp=1_700_000_000 + number)

    def left(self) -> int:
        """Unacknowledged messages, once no consumer is left."""

        def is_free() -> bool:
            return bool(self.channel.queue_declare(self.name, passive=True).method.consumer_count == 0)

        until(is_free, "no consumer was left")
        return int(self.channel.queue_declare(self.name, passive=True).method.message_count)

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError):
            self.channel.queue_delete(self.name)
            self.channel.connection.close()


@contextlib.contextmanager
def queue_of(server: RabbitServer, dead_letters: str = "") -> Iterator[Queue]:
    queue = Queue(server, dead_letters)
    try:
        yield queue
    finally:
        queue.close()


class Feeder:
    """Publishes 0, 1, 2, … on a thread, at a rate, through all outages. Unconfirmed messages are published again, so
    the queue may hold a message twice.
    """

    def __init__(self, queue: Queue, per_second: float) -> None:
        self.confirmed = 0
        self._queue = queue
        self._pause_s = 1 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Feeder":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Stops the feeder. Returns the number of messages."""
        self._stop.set()
        self._thread.join()
        return self.confirmed

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._queue.publish_numbers(self.confirmed, self.confirmed + 1)
            except (pika.exceptions.AMQPError, OSError):
                self._stop.wait(0.1)
            else:
                self.confirmed += 1
                self._stop.wait(self._pause_s)


class Wire:
    """A TCP port that forwards to another port. `cut` breaks all connections; while `severed` the wire refuses new
    connections.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.severed = False
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.severed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.severed:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                thread = threading.Thread(target=_carry, args=(source, target), daemon=True)
                self._threads.append(thread)
                thread.start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
