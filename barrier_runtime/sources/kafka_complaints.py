"""What the fetching thread logs of trouble that passes: not more often than it is of use. And what does not pass."""

import time
from typing import Any

from barrier_runtime.sources.kafka_client import log, what_to_do

_AGAIN_S = 30.0  # between two warnings of the same kind
_REFUSED_S = 30.0  # credentials refused for so long, and nothing read meanwhile: that is no broker just starting


class Complaints:
    """The fetching thread's, and that of the client's callbacks in it."""

    def __init__(self, where: str, kafka: Any) -> None:
        self._where = where
        self._kafka = kafka
        self._said_s: dict[str, float] = {}
        self._refused_s: float | None = None
        self._commit_failures = 0

    def say(self, kind: str, reason: str) -> None:
        now = time.monotonic()
        if now - self._said_s.get(kind, float("-inf")) > _AGAIN_S:
            self._said_s[kind] = now
            log.warning("%s %s", self._where, reason)

    def read(self) -> None:
        """Something came: credentials are right."""
        self._refused_s = None

    def on_commit(self, error: Any, partitions: Any) -> None:
        if error is not None:
            self._commit_failures += 1
            times = f"{self._commit_failures} times"
            self.say("commit", f"commits to its group in vain ({times}): {error.str()}. No record is lost by that")

    def on_error(self, error: Any) -> None:
        codes = self._kafka.KafkaError
        if error.code() in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED):
            now = time.monotonic()
            self._refused_s = self._refused_s or now
            if now - self._refused_s > _REFUSED_S:
                raise what_to_do(error, self._where, self._kafka)
        self.say("client", f"waits for Kafka: {error.str()}")
