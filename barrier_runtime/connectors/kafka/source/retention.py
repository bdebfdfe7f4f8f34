"""Compares retained with unread records: warns before a loss, and stops the job after a loss.

Brokers delete records by age and size, read or not. A source that skipped the gap would be silently incomplete. The
warning is logged while the earliest retained offset advances and the position is within the oldest tenth of the
retained records.
"""

import time
from collections.abc import Collection
from typing import Any, Literal

from barrier_runtime.connectors.kafka.asking import Asker, raised
from barrier_runtime.connectors.kafka.errors import Kind, kind_of
from barrier_runtime.connectors.kafka.source.client import (
    EARLIEST,
    LATEST,
    KafkaClient,
    Partition,
    is_transient,
    log,
    what_to_do,
)
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue
from barrier_runtime.state.errors import InvalidJob

_SHARE = 0.1
_POLL_S = 30.0
_POLL_SOON_S = 1.0
_MISSING_S = 20.0  # of a missing topic: brokers that have just started may not know it yet
_ANSWER_S = 5.0

Outlook = Literal["fine", "soon", "lost"]


def outlook(position: int, earliest: int, earliest_before: int | None, end: int | None) -> Outlook:
    """Compares a position with the retained offsets. `earliest_before`: at the last poll.
    `end`: None if not known."""
    if position < earliest:
        return "lost"
    moving = earliest_before is not None and earliest > earliest_before
    if moving and end is not None and position < end and position - earliest < _SHARE * (end - earliest):
        return "soon"
    return "fine"


def lost(queue: PartitionQueue, wanted: int, earliest: int, end: int) -> InvalidJob:
    """Returns the error about a missing offset `wanted`; `earliest` and `end` may be newer."""
    if wanted < earliest:
        return InvalidJob(
            f"{queue.where}: offset {wanted} is wanted, but the earliest that is retained is {earliest}: "
            f"{earliest - wanted} offsets were deleted before they were read. Raise the topic's retention.ms or "
            "retention.bytes, and start without state (restore='none') if you accept the gap"
        )
    ends = f"the partition ends at {end}" if wanted > end else f"it was not there, and now the partition ends at {end}"
    return InvalidJob(
        f"{queue.where}: offset {wanted} is wanted, but {ends}: the topic was made again, or "
        "its brokers lost records. Bring the records back, or start without state (restore='none')"
    )


class RetentionWatch:
    """Periodic check by the fetching thread, with the thread's client.

    If that client does not know the leaders any more, other clients are used, replaced until a client knows them.
    """

    def __init__(self, client: KafkaClient, kafka: Any) -> None:
        self._kafka = kafka
        self._other = Asker(client.consumer)
        self._ask_other = False
        self._earliest: dict[Partition, int] = {}
        self._missing: dict[Partition, float] = {}  # since when, monotonic
        self._warned: set[Partition] = set()

    def poll(self, consumer: Any, queues: Collection[PartitionQueue]) -> float:
        """Fails queues whose records are gone. Returns seconds until the next poll, also without an answer."""
        wanted = [self._kafka.TopicPartition(queue.topic, queue.partition, EARLIEST) for queue in queues]
        if not wanted:
            return _POLL_S
        try:
            answers = self._offsets(consumer, wanted)
        except self._kafka.KafkaException as error:
            if not is_transient(error.args[0]):
                log.warning("%s", what_to_do(error.args[0], "the retained offsets"))
            return _POLL_S
        by_partition = {(answer.topic, answer.partition): answer for answer in answers}
        self._missing = {partition: since for partition, since in self._missing.items() if partition in by_partition}
        for queue in queues:
            self._judge(consumer, queue, by_partition[(queue.topic, queue.partition)])
        return _POLL_SOON_S if self._missing or _leaderless(answers) else _POLL_S

    def close(self) -> None:
        self._other.close()

    def _offsets(self, consumer: Any, wanted: list[Any]) -> list[Any]:
        if self._ask_other:
            answers = self._other.ask(lambda client: client.offsets_for_times(wanted, timeout=_ANSWER_S))
        else:
            answers = consumer.offsets_for_times(wanted, timeout=_ANSWER_S)
        if _leaderless(answers):
            self._ask_other = True
            self._other.replace()
        return list(answers)

    def explain(self, consumer: Any, queue: PartitionQueue) -> InvalidJob:
        """Explains why the broker lacks the queue's next offset."""
        found = {}
        for what in (EARLIEST, LATEST):
            place = self._kafka.TopicPartition(queue.topic, queue.partition, what)
            try:
                found[what] = raised(self._offsets(consumer, [place]))[0].offset
            except self._kafka.KafkaException:
                return InvalidJob(
                    f"{queue.where}: offset {queue.next_offset} is not in the log: start without state "
                    "(restore='none') if you accept the gap"
                )
        return lost(queue, queue.next_offset, found[EARLIEST], found[LATEST])

    def _judge(self, consumer: Any, queue: PartitionQueue, answer: Any) -> None:
        partition = (queue.topic, queue.partition)
        if answer.error is not None:
            self._miss(queue, partition, answer.error)
            return
        self._missing.pop(partition, None)
        earliest, before = answer.offset, self._earliest.get(partition)
        self._earliest[partition] = earliest
        if queue.next_offset < earliest:
            queue.fail(lost(queue, queue.next_offset, earliest, earliest))
            return
        end = known_end(consumer, self._kafka.TopicPartition(*partition))
        if outlook(queue.reached, earliest, before, end) == "fine":
            self._warned.discard(partition)
        elif partition not in self._warned:
            self._warned.add(partition)
            log.warning(
                "%s: offset %d is next, and all before %d is deleted already, of %s: records are about to be lost. "
                "Give the job more parallelism, or raise the topic's retention.ms or retention.bytes",
                *(queue.where, queue.reached, earliest, end),
            )

    def _miss(self, queue: PartitionQueue, partition: Partition, error: Any) -> None:
        if is_transient(error):
            return
        since = self._missing.setdefault(partition, time.monotonic())
        if time.monotonic() - since >= _MISSING_S:
            queue.fail(what_to_do(error, queue.where))


def known_end(consumer: Any, partition: Any) -> int | None:
    """End of a `TopicPartition` by the client's last fetch, without a request; None: not fetched yet."""
    cached = consumer.get_watermark_offsets(partition, cached=True)
    return cached[1] if cached is not None and cached[1] >= 0 else None


def _leaderless(answers: Collection[Any]) -> bool:
    return any(answer.error is not None and kind_of(answer.error) is Kind.LEADERSHIP for answer in answers)
