"""Is a topic still the one that was begun with, or another of the same name? Told by its id, which brokers before 2.8
do not give: then nothing is checked.

A client reads on in a topic that was deleted and made again, from the old offset, and says nothing. So the fetching
thread asks for the id after rows have come and before they are handed out. An answer is good for less time than the
client waits after the failure that such a deletion is to it (`fetch.error.backoff.ms`): until then no row of the new
topic can have come. What remains: a partition that was paused just then meets no failure, and a broker that has not
heard of the deletion gives the old id; both end within a second, and the rows of that second were read.

Rows wait for an answer as long as there is none. So that they do not wait for a client that is out of order, as one may
be since an outage, another is made when questions have failed for some seconds.
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
_AHEAD_S = 0.2  # after the question that the last answer is to
_ANSWER_S = 2.0
_IN_VAIN_S = 5.0


class TopicIds:
    """The fetching thread's. Asks when an answer is or soon will be needed, so not at all while nothing comes. `say`:
    hears why rows wait."""

    def __init__(self, client: KafkaClient, kafka: Any, say: Callable[[str], None]) -> None:
        self._client = client
        self._kafka = kafka
        self._say = say
        self._admin: Any = None
        self._in_vain_s: dict[str, float] = {}  # since when, by topic, all questions were
        self._seen: dict[str, tuple[str, float]] = {}  # id by topic, and when it was asked for
        self._asked: dict[str, tuple[Future[Any], float]] = {}  # not heard yet

    def forget(self, topic: str) -> None:
        """A partition of it is read anew: what was heard before says nothing about its rows."""
        self._seen.pop(topic, None)
        self._asked.pop(topic, None)
        self._in_vain_s.pop(topic, None)

    def judge(self, queues: Collection[PartitionQueue]) -> list[PartitionQueue]:
        """Fails queues of topics that are others by now. Gives those of which nobody can tell at present."""
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
        """Time for a question. One that is under way is given up when its answer would be too old."""
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
        """The answer, if it is there; where the last one is too old by now it is waited for."""
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
        """What was asked has no answer then."""
        self._say(f"waits: the brokers do not tell its topics' ids ({reason}), and are asked by another client")
        put_away(self._admin)
        self._admin = None
        self._asked, self._in_vain_s = {}, {}
