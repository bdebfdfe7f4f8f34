"""Checks of topics during reading: records deleted before they were read, recreated topics.

Deleted unread records stop the job. A warning precedes: the earliest retained offset advances, and the position is
within the oldest tenth of the retained records.
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from barrier_runtime.connectors.kafka.clients import Asker, answered, put_away, raised
from barrier_runtime.connectors.kafka.errors import Kind, kind_of
from barrier_runtime.connectors.kafka.source.client import (
    EARLIEST,
    LATEST,
    KafkaClient,
    Partition,
    is_transient,
    known_id,
    log,
    what_to_do,
)
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue
from barrier_runtime.connectors.kafka.source.position import made_again
from barrier_runtime.state.errors import InvalidJob

_ID_TRUSTED_S = 0.4
_ID_AHEAD_S = 0.2  # after the request of the last answer
_ID_ANSWER_S = 2.0
_ID_IN_VAIN_S = 5.0


class TopicIds:
    """Detects recreated topics by their ids; brokers before 2.8 have no ids, so nothing is checked.

    In a recreated topic a client reads on from the old offset without an error. So the fetching thread requests the id
    before rows are handed out. An answer is trusted for less time than the client waits after the failure that the
    deletion causes (`fetch.error.backoff.ms`). Two gaps of up to a second remain: a partition that was just paused, and
    a broker that does not know of the deletion.
    """

    def __init__(self, client: KafkaClient, kafka: Any, say: Callable[[str], None]) -> None:
        self._client = client
        self._kafka = kafka
        self._say = say
        self._admin: Any = None
        self._in_vain_s: dict[str, float] = {}
        self._seen: dict[str, tuple[str, float]] = {}
        self._asked: dict[str, tuple[Future[Any], float]] = {}  # without an answer yet

    def forget(self, topic: str) -> None:
        self._seen.pop(topic, None)
        self._asked.pop(topic, None)
        self._in_vain_s.pop(topic, None)

    def judge(self, queues: Collection[PartitionQueue]) -> list[PartitionQueue]:
        """Fails queues of recreated topics. Returns queues whose topics are unknown at present."""
        checked = [queue for queue in queues if queue.start.topic_id]
        topics = sorted({queue.topic for queue in checked})
        now_s = time.monotonic()
        due = [topic for topic in topics if self._is_due(topic, now_s)]
        if due:
            self._ask(due, now_s)
        for topic in topics:
            self._hear(topic, checked, now_s)
        unknown = []
        for queue in checked:
            if queue.topic not in self._seen:
                unknown.append(queue)
            elif self._seen[queue.topic][0] not in ("", queue.start.topic_id):
                queue.fail(made_again(queue.where, queue.next_offset))
        return unknown

    def _is_due(self, topic: str, now_s: float) -> bool:
        """Drops a pending request whose answer would be too old."""
        if topic in self._asked:
            return now_s - self._asked[topic][1] >= _ID_TRUSTED_S
        return topic not in self._seen or now_s - self._seen[topic][1] >= _ID_AHEAD_S

    def _ask(self, topics: Sequence[str], now_s: float) -> None:
        if self._admin is None:
            self._admin = self._client.admin()
        self._admin.poll(0)  # callbacks in config=
        wanted = self._kafka.TopicCollection(topics)
        for topic, answer in self._admin.describe_topics(wanted, request_timeout=_ID_ANSWER_S).items():
            self._asked[topic] = answer, now_s

    def _hear(self, topic: str, queues: Collection[PartitionQueue], now_s: float) -> None:
        if topic in self._seen and now_s - self._seen[topic][1] >= _ID_TRUSTED_S:
            del self._seen[topic]
        if topic not in self._asked or (topic in self._seen and not self._asked[topic][0].done()):
            return
        answer, asked_s = self._asked.pop(topic)
        try:
            self._seen[topic] = known_id(answered(answer, _ID_ANSWER_S, self._kafka).topic_id), asked_s
        except self._kafka.KafkaException as error:
            reason = error.args[0]
            if is_transient(reason):
                in_vain_s = time.monotonic() - self._in_vain_s.setdefault(topic, asked_s)
                if in_vain_s >= _ID_IN_VAIN_S or kind_of(reason) is Kind.LEADERSHIP:
                    self._replace_admin(reason.str())
                return
            if kind_of(reason) is not Kind.MISSING:
                for queue in queues:
                    if queue.topic == topic:
                        queue.fail(what_to_do(reason, queue.where))
        self._in_vain_s.pop(topic, None)

    def _replace_admin(self, reason: str) -> None:
        self._say(f"waits: the brokers do not tell its topics' ids ({reason}), and are asked by another client")
        put_away(self._admin)
        self._admin = None
        self._asked, self._in_vain_s = {}, {}


_SHARE = 0.1
_POLL_S = 30.0
_POLL_SOON_S = 1.0
_MISSING_S = 20.0  # brokers that have just started may not know a topic yet
_ANSWER_S = 5.0

Outlook = Literal["fine", "soon", "lost"]


def outlook(position: int, earliest: int, earliest_before: int | None, end: int | None) -> Outlook:
    if position < earliest:
        return "lost"
    moving = earliest_before is not None and earliest > earliest_before
    if moving and end is not None and position < end and position - earliest < _SHARE * (end - earliest):
        return "soon"
    return "fine"


def lost(queue: PartitionQueue, wanted: int, earliest: int, end: int) -> InvalidJob:
    """Error about a missing offset; `earliest` and `end` may be newer."""
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
    """Periodic check by the fetching thread.

    If the thread's client does not know the leaders, other clients are tried.
    """

    def __init__(self, client: KafkaClient, kafka: Any) -> None:
        self._kafka = kafka
        self._other = Asker(client.consumer)
        self._ask_other = False
        self._earliest: dict[Partition, int] = {}
        self._missing: dict[Partition, float] = {}
        self._warned: set[Partition] = set()

    def poll(self, consumer: Any, queues: Collection[PartitionQueue]) -> float:
        """Fails queues whose records are gone. Returns seconds until the next poll."""
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
    """End by the client's last fetch, without a request; None: not fetched."""
    cached = consumer.get_watermark_offsets(partition, cached=True)
    return cached[1] if cached is not None and cached[1] >= 0 else None


def _leaderless(answers: Collection[Any]) -> bool:
    return any(answer.error is not None and kind_of(answer.error) is Kind.LEADERSHIP for answer in answers)
