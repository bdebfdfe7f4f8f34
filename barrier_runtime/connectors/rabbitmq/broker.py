"""Address of and connection to a RabbitMQ broker, and the meaning of errors.

A URL may contain a user but no password.
"""

import logging
import os
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
