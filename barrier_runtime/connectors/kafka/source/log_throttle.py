"""Log throttle of the fetching thread: repeats messages about passing errors at intervals.

Lasting errors end the source.
"""

import time
from typing import Any

from barrier_runtime.connectors.kafka.errors import Refusals
from barrier_runtime.connectors.kafka.source.client import log
from barrier_runtime.state.errors import InvalidJob

_AGAIN_S = 30.0  # between two warnings of the same kind


class LogThrottle:
    """Throttle of the fetching thread, which also runs the client's callbacks."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._said_s: dict[str, float] = {}
        self._refusals = Refusals()
        self._commit_failures = 0

    def say(self, kind: str, reason: str) -> None:
        now = time.monotonic()
        if now - self._said_s.get(kind, float("-inf")) > _AGAIN_S:
            self._said_s[kind] = now
            log.warning("%s %s", self._where, reason)

    def read(self) -> None:
        """Records that messages arrived: credentials and certificates are right."""
        self._refusals.answered()

    def on_commit(self, error: Any, partitions: Any) -> None:
        if error is not None:
            self._commit_failures += 1
            times = f"{self._commit_failures} times"
            self.say("commit", f"commits to its group failed ({times}): {error.str()}. No record is lost by that")

    def on_error(self, error: Any) -> None:
        self._refusals.heard(error, time.monotonic())
        if self._refusals.lasting:
            raise InvalidJob(
                f"{self._where}: Kafka refuses the credentials or the handshake ({self._refusals.lasting}): correct "
                "the sasl.* and ssl.* in config="
            )
        self.say("client", f"waits for Kafka: {error.str()}")
