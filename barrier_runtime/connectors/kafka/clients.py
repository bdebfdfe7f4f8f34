"""Replaces Kafka clients whose answers are no longer reliable, and throttles the clients' log.

Why: docs/design/targets-and-committables.md.
"""

import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoResult
from typing import Any, TypeVar

from barrier_runtime.connectors.kafka.errors import Kind, kind_of

T = TypeVar("T")

_IN_VAIN_S = 5.0
_SAY_AGAIN_S = 60.0
_OVERDUE_S = 1.0
_SERVER = re.compile(r"[\w.\-\]]+:\d+(?=/)")  # a broker's name is host:port/number or host:port/bootstrap
_NUMBERS = re.compile(r"\d+")


class Asker:
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._client: Any = None
        self._in_vain_since_s: float | None = None

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self._make()
        return self._client

    def ask(self, question: Callable[[Any], T]) -> T:
        """Raises `KafkaException`, which `question` must also raise for errors in an answer (see `raised`).

        For one thread. A client that may have caused the error is replaced before a retry.
        """
        from confluent_kafka import KafkaException

        client, began_s = self.client, time.monotonic()
        try:
            answer = question(client)
        except KafkaException as error:
            since_s = self._in_vain_since_s = self._in_vain_since_s or began_s
            if kind_of(error.args[0]) is Kind.LEADERSHIP or time.monotonic() - since_s >= _IN_VAIN_S:
                self.replace()
            raise
        self._in_vain_since_s = None
        return answer

    def replace(self) -> None:
        self._in_vain_since_s = None
        put_away(self._client)
        self._client = None

    def close(self) -> None:
        client, self._client = self._client, None
        if hasattr(client, "close"):
            client.close()


def put_away(client: Any) -> None:
    """Closes in a thread. The caller must drop all references."""
    if client is not None:
        threading.Thread(target=_end, args=([client],), name="kafka-client-ends", daemon=True).start()


def _end(last: list[Any]) -> None:
    client = last.pop()
    if hasattr(client, "close"):
        client.close()


def answered(answer: Future[Any], within_s: float, kafka: Any) -> Any:
    """Raises `KafkaException` also if the answer is overdue."""
    try:
        return answer.result(within_s + _OVERDUE_S)
    except NoResult as error:
        said = "its client does not say how a question ended"
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT, said)) from error


def raised(answers: list[Any]) -> list[Any]:
    from confluent_kafka import KafkaException

    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return answers


class OncePerMinute(logging.Filter):
    """Passes a message per server and minute, with the number of suppressed messages."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said_s: dict[str, float] = {}
        self._kept_back: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        found = _SERVER.search(text)
        about, now_s = found.group() if found else _NUMBERS.sub("", text), self._clock()
        if now_s - self._said_s.get(about, float("-inf")) < _SAY_AGAIN_S:
            self._kept_back[about] = self._kept_back.get(about, 0) + 1
            return False
        self._said_s[about] = now_s
        if kept_back := self._kept_back.pop(about, 0):
            record.msg, record.args = f"{text} ({kept_back} more since)", ()
        return True


def client_log() -> logging.Logger:
    log = logging.getLogger("barrier_runtime.kafka.client")
    if not any(isinstance(each, OncePerMinute) for each in log.filters):
        log.addFilter(OncePerMinute())
    return log
