"""RabbitMQ broker: address without a password, meaning of errors, and the consumer of a queue.

A consumer is a thread with a connection, a buffer, and acknowledgements in order.

`prefetch` bounds the buffer. The thread reopens a lost connection without limit, and the broker repeats unacknowledged
messages. Tags of earlier connections acknowledge nothing.

Only the thread uses pika's objects. `take`, `acknowledge` and `reject` are for the loop and never wait.
"""

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.outside_errors import must_be_mended, told
from barrier_runtime.state.store.urls import shown

_SCHEMES = ("amqp", "amqps")
_USER, _PASSWORD = "RABBITMQ_USERNAME", "RABBITMQ_PASSWORD"
_SOCKET_TIMEOUT_S = 5.0
_STACK_TIMEOUT_S = 15.0
_HEARTBEAT_S = 30  # after two of these the broker gives a dead consumer's messages to others


@dataclass(frozen=True)
class Broker:
    """`user`: empty if the environment names the user."""

    url: str
    user: str

    @staticmethod
    def of(url: str, where: str) -> "Broker":
        try:
            parts = urlsplit(url)
            port_is_valid = parts.port is None or parts.port > 0
        except (ValueError, AttributeError):
            parts, port_is_valid = urlsplit(""), False
        if parts.scheme not in _SCHEMES or not parts.hostname or not port_is_valid:
            raise InvalidJob(f"{where}: its url is not a broker's: pass amqp://host:5672/vhost (amqps:// for TLS)")
        if parts.password is not None:
            raise InvalidJob(
                f"{where}: its url carries a password: remove it, and set {_USER} and {_PASSWORD} in the environment "
                "of the driver and of the slots"
            )
        user = unquote(parts.username or "")
        return Broker(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), user)

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def login(self) -> str:
        return self.user or os.environ.get(_USER, "guest")

    def connect(self) -> Any:
        """Returns a `pika.BlockingConnection`. Raises pika's errors; see `explained`."""
        pika = imported(str(self))
        parameters = pika.URLParameters(self.url)
        parameters.credentials = pika.PlainCredentials(self.login, os.environ.get(_PASSWORD, "guest"))
        parameters.connection_attempts = 1
        parameters.socket_timeout = _SOCKET_TIMEOUT_S
        parameters.stack_timeout = _STACK_TIMEOUT_S
        if "heartbeat" not in parse_qs(urlsplit(self.url).query):
            parameters.heartbeat = _HEARTBEAT_S
        return pika.BlockingConnection(parameters)


def imported(where: str) -> Any:
    try:
        import pika
        import pika.exceptions
    except ImportError as error:
        raise missing_extra(f"{where}: reading RabbitMQ", "rabbitmq", error) from None
    noisy = logging.getLogger("pika")
    if noisy.level == logging.NOTSET:  # pika logs a dozen errors with stacks per lost connection
        noisy.setLevel(logging.CRITICAL)
    return pika


def check_queue(broker: Broker, queue: str, where: str) -> None:
    try:
        connection = broker.connect()
        try:
            connection.channel().queue_declare(queue, passive=True)
        finally:
            if connection.is_open:
                connection.close()
    except Exception as error:
        raise explained(error, broker, queue, where) from error


def explained(error: Exception, broker: Broker, queue: str, where: str) -> BarrierRuntimeError:
    """Returns `InvalidJob` if an operator must act, otherwise `Unavailable`."""
    if isinstance(error, BarrierRuntimeError):
        return error
    amqp = imported(where).exceptions
    code = getattr(error, "reply_code", 0)
    said = str(getattr(error, "reply_text", "") or error) or repr(error)
    if "down" in said:  # a virtual host or a queue's node that is starting
        return Unavailable(f"{where}: {broker} is not ready: {said}")
    of_connection = isinstance(error, amqp.AMQPConnectionError)
    if isinstance(error, amqp.ProbableAuthenticationError | amqp.AuthenticationError) or (
        of_connection and code == 403
    ):
        return InvalidJob(
            f"{where}: {broker} refuses the credentials of user {broker.login!r}: set {_USER} and {_PASSWORD} in the "
            "environment of the driver and of the slots"
        )
    if isinstance(error, amqp.ProbableAccessDeniedError) or (of_connection and code == 530):
        return InvalidJob(
            f"{where}: {broker} has no such virtual host, or user {broker.login!r} may not use it ({said}): correct "
            "the path of the url (%2F is the default one), or give the user permission"
        )
    if not of_connection and code in _REFUSALS:
        return InvalidJob(f"{where}: {broker} does not give out queue {queue!r} ({said}): {_REFUSALS[code]}")
    if must_be_mended(error):
        return told(error, f"{where}: reading from {broker} failed", "Correct the source's arguments or the messages")
    if isinstance(error, amqp.AMQPError | OSError):
        return Unavailable(f"{where}: {broker} cannot be reached, or broke off: {said}. Is it running?")
    return Unavailable(f"{where}: reading from {broker} failed: {type(error).__name__}: {said}")


_REFUSALS = {
    403: "give the user permission to read it",
    404: "declare it, durable, before the job starts",
    405: "another connection has it for itself: declare it without exclusive",
}


log = logging.getLogger("barrier_runtime.rabbitmq")

_WAIT_S = 1.0  # a call of the loop ends the wait at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """Place of a message: connection number and delivery tag. Ordered as delivered."""

    connection: int
    tag: int


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    delivery: Delivery
    body: bytes
    properties: Any  # pika.BasicProperties
    routing_key: str
    redelivered: bool


class Consumer:
    """Connects at once, until `close`.

    `wake` is called for the first message of an empty buffer, and after a final error.
    """

    def __init__(
        self, broker: Broker, queue: str, prefetch: int, where: str, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.failed: InvalidJob | None = None
        self.connection = 0
        self.connected = False
        self._broker = broker
        self._queue = queue
        self._prefetch = prefetch
        self._where = where
        self._tell = wake
        self._messages: deque[ReceivedMessage] = deque()
        self._orders: deque[tuple[Delivery, Callable[[Any, int], None]]] = deque()
        self._pika: Any = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rabbitmq {queue}", daemon=True)
        self._thread.start()

    def take(self, max_messages: int, max_bytes: int) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        size = 0
        while len(taken) < max_messages and size < max_bytes:
            try:
                message = self._messages.popleft()
            except IndexError:
                break
            taken.append(message)
            size += len(message.body)
        return taken

    @property
    def waiting(self) -> bool:
        return bool(self._messages)

    def acknowledge(self, delivery: Delivery) -> None:
        self._order(delivery, lambda channel, tag: channel.basic_ack(tag, multiple=True))

    def reject(self, delivery: Delivery) -> None:
        """Sends this message to the queue's dead-letter exchange, if any."""
        self._order(delivery, lambda channel, tag: channel.basic_reject(tag, requeue=False))

    def close(self) -> None:
        """Lets the thread execute earlier orders and close the connection. Does not wait."""
        self._closing.set()
        self._wake()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _order(self, delivery: Delivery, work: Callable[[Any, int], None]) -> None:
        self._orders.append((delivery, work))
        self._wake()

    def _wake(self) -> None:
        connection = self._pika
        if connection is not None:
            with contextlib.suppress(Exception):  # just closed: the thread knows
                connection.add_callback_threadsafe(_nothing)

    # ------------------------------------------------------------ on the thread

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            before = self.connection
            try:
                self._consume()
            except Exception as error:
                trouble = explained(error, self._broker, self._queue, self._where)
                if isinstance(trouble, InvalidJob):
                    self.failed = trouble
                    self._tell()
                    return
                if not self._closing.is_set():
                    log.warning("%s; connecting again", trouble)
            if self.connection > before:
                pause_s = _FIRST_PAUSE_S
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _consume(self) -> None:
        """Returns after `close`; raises when the connection is lost."""
        pika_connection = self._broker.connect()
        number = self.connection + 1
        cancelled = threading.Event()

        def received(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            delivery = Delivery(number, method.delivery_tag)
            self._messages.append(ReceivedMessage(delivery, body, properties, method.routing_key, method.redelivered))
            if len(self._messages) == 1:  # with earlier messages the loop was woken before
                self._tell()

        try:
            channel = pika_connection.channel()
            channel.add_on_cancel_callback(lambda _: cancelled.set())
            channel.basic_qos(prefetch_count=self._prefetch)
            channel.basic_consume(self._queue, received)
            self._pika = pika_connection
            self.connection, self.connected = number, True
            while True:
                closing = self._closing.is_set()  # read first: earlier orders are still executed
                self._carry_out(channel, number)
                if closing:
                    return
                if cancelled.is_set():
                    raise Unavailable(f"{self._where}: {self._broker} stopped giving out queue {self._queue!r}")
                pika_connection.process_data_events(_WAIT_S)
        finally:
            self.connected = False
            self._pika = None
            self._messages.clear()
            if pika_connection.is_open:
                with contextlib.suppress(Exception):  # closing only releases the messages
                    pika_connection.close()

    def _carry_out(self, channel: Any, number: int) -> None:
        while self._orders:
            delivery, work = self._orders.popleft()
            if delivery.connection == number:
                work(channel, delivery.tag)


def _nothing() -> None:
    """Only wakes `process_data_events`."""
