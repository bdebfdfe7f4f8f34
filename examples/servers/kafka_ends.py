"""Ends of a topic, from a broker that may have just restarted."""

import time
from collections.abc import Callable
from typing import TypeVar

from barrier_runtime.connectors.kafka.clients import Asker

_ANSWER_S = 5.0
_PATIENCE_S = 60.0
_AGAIN_S = 0.1

T = TypeVar("T")


def asked_again(question: Callable[[], T]) -> T:
    """Answer to a question, repeated for a minute on KafkaException: a busy broker may be slow."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return question()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def done_at_last(order: Callable[[], object], *done_already: int) -> None:
    """Carries out a change at the broker, with retries as in `asked_again`.

    `done_already`: codes of errors that report a change as already done: success if an earlier answer was lost, errors
    at the first attempt."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + _PATIENCE_S
    ordered = False
    while True:
        try:
            order()
            return
        except KafkaException as error:
            done = error.args[0].code() in done_already
            if done and ordered:
                return
            if done or time.monotonic() > deadline:
                raise
        ordered = True
        time.sleep(_AGAIN_S)


class TopicEnds:
    """Ends of all partitions. Replaces a client that has wrong leaders, possibly for ever."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._asker = Asker(lambda: AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}))

    def committed(self) -> dict[int, int]:
        """Ends before the first open transaction, by partition.

        Raises KafkaException after a minute without answer."""
        from confluent_kafka import IsolationLevel

        return self._ends(IsolationLevel.READ_COMMITTED)

    def written(self) -> dict[int, int]:
        """Ends including open transactions."""
        from confluent_kafka import IsolationLevel

        return self._ends(IsolationLevel.READ_UNCOMMITTED)

    def _ends(self, level: object) -> dict[int, int]:
        from confluent_kafka.admin import OffsetSpec

        wanted = {place: OffsetSpec.latest() for place in self._places}

        def question(admin: object) -> dict[int, int]:
            asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=_ANSWER_S)  # type: ignore[attr-defined]
            return {place.partition: answer.result(2 * _ANSWER_S).offset for place, answer in asked.items()}

        return asked_again(lambda: self._asker.ask(question))
