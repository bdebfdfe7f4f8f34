"""Detects recreated topics by their ids. Brokers before 2.8 have no ids, so nothing is checked.

In a recreated topic, a client reads on from the old offset without an error. So the fetching thread requests the id
after rows have arrived and before they are handed out. An answer is trusted for less time than the client waits after
the failure that the deletion causes (`fetch.error.backoff.ms`): no row of the new topic can arrive earlier. Two gaps
remain: a partition that was just paused has no such failure, and a broker that does not know of the deletion returns
the old id. Both end within a second, whose rows were read.

Rows wait for the answer. If requests fail for some seconds, another client is made, because a client may stay broken
after an outage.
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any

from barrier_runtime.connectors.kafka.asking import answered, put_away
from barrier_runtime.connectors.kafka.errors import Kind, kind_of
from barrier_runtime.connectors.kafka.source.client import KafkaClient, is_transient, known_id, what_to_do
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue
from barrier_runtime.connectors.kafka.source.position import made_again

_TRUSTED_S = 0.4
_AHEAD_S = 0.2  # after the request of the last answer
_ANSWER_S = 2.0
_IN_VAIN_S = 5.0


class TopicIds:
    """Ids of the topics that the fetching thread reads.

    Requests an id only when an answer is needed now or soon, so never without messages. `say`: logs why rows wait.
    """

    def __init__(self, client: KafkaClient, kafka: Any, say: Callable[[str], None]) -> None:
        self._client = client
        self._kafka = kafka
        self._say = say
        self._admin: Any = None
        self._in_vain_s: dict[str, float] = {}  # by topic, since when all requests failed
        self._seen: dict[str, tuple[str, float]] = {}  # id by topic, and time of the request
        self._asked: dict[str, tuple[Future[Any], float]] = {}  # without an answer yet

    def forget(self, topic: str) -> None:
        """Forgets a topic because a partition is read anew: earlier answers do not apply to the new rows."""
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
        """True if a request is due. A pending request is dropped when the answer would be too old."""
        if topic in self._asked:
            return now_s - self._asked[topic][1] >= _TRUSTED_S
        return topic not in self._seen or now_s - self._seen[topic][1] >= _AHEAD_S

    def _ask(self, topics: Sequence[str], now_s: float) -> None:
        if self._admin is None:
            self._admin = self._client.admin()
        self._admin.poll(0)  # callbacks in config=
        wanted = self._kafka.TopicCollection(topics)
        for topic, answer in self._admin.describe_topics(wanted, request_timeout=_ANSWER_S).items():
            self._asked[topic] = answer, now_s

    def _hear(self, topic: str, queues: Collection[PartitionQueue], now_s: float) -> None:
        """Takes an available answer; waits for the answer if the last one is too old."""
        if topic in self._seen and now_s - self._seen[topic][1] >= _TRUSTED_S:
            del self._seen[topic]
        if topic not in self._asked or (topic in self._seen and not self._asked[topic][0].done()):
            return
        answer, asked_s = self._asked.pop(topic)
        try:
            self._seen[topic] = known_id(answered(answer, _ANSWER_S, self._kafka).topic_id), asked_s
        except self._kafka.KafkaException as error:
            reason = error.args[0]
            if is_transient(reason):
                in_vain_s = time.monotonic() - self._in_vain_s.setdefault(topic, asked_s)
                if in_vain_s >= _IN_VAIN_S or kind_of(reason) is Kind.LEADERSHIP:
                    self._replace_admin(reason.str())
                return
            if kind_of(reason) is not Kind.MISSING:
                for queue in queues:
                    if queue.topic == topic:
                        queue.fail(what_to_do(reason, queue.where))
        self._in_vain_s.pop(topic, None)

    def _replace_admin(self, reason: str) -> None:
        """Replaces the client; pending requests get no answer."""
        self._say(f"waits: the brokers do not tell its topics' ids ({reason}), and are asked by another client")
        put_away(self._admin)
        self._admin = None
        self._asked, self._in_vain_s = {}, {}
