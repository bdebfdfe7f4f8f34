"""Replaces a client that silently stopped fetching a partition.
The rule: the partition's end is beyond the position, and nothing has arrived for some seconds. The same client requests
the ends, in order, so an answer proves that everything fetched before has arrived.

A replacement may be wrong, because the client reports nothing while it skips aborted transactions: the wait doubles
with each replacement after which the partition stays quiet. A request without an answer ends the suspicion, because the
client handles outages itself; an error of leadership begins a suspicion.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from barrier_runtime.connectors.kafka.errors import Kind, kind_of
from barrier_runtime.connectors.kafka.source.client import LATEST, Partition
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue


@dataclass(frozen=True)
class StallTimeouts:
    """Timeouts in seconds.
    `quiet`: without messages until the end is requested, and between requests. `still`: with answers until the client
    is replaced. `answer`: for a request, while the fetching thread waits.
    """

    quiet: float = 5.0
    still: float = 15.0
    answer: float = 1.5


@dataclass(frozen=True)
class SuspectedStall:
    """Missing records up to `end` since `since_s`. `end` None: the client does not know the leader."""

    since_s: float
    end: int | None


class StallDetector:
    """Pure: times are seconds of any clock. `unread`: the awaited partitions, each with the next offset."""

    def __init__(self, timeouts: StallTimeouts) -> None:
        self._timeouts = timeouts
        self._heard_s: dict[Partition, float] = {}
        self._suspected: dict[Partition, SuspectedStall] = {}
        self._asked_s: dict[Partition, float] = {}
        self._polled_s = float("-inf")
        self._ask_at_s = float("-inf")
        self._apart_until_s = float("-inf")
        self._blamed: Partition | None = None
        self._wait_s = timeouts.still

    def heard(self, partitions: Iterable[Partition], now_s: float) -> None:
        for partition in partitions:
            self._heard_s[partition] = now_s
            self._suspected.pop(partition, None)
            if partition == self._blamed:
                self._forgive()

    def _forgive(self) -> None:
        self._blamed, self._wait_s = None, self._timeouts.still

    def to_ask(self, unread: Collection[Partition], now_s: float) -> list[Partition]:
        """Partitions whose ends to request now. After a pause of the calls, observations restart."""
        if now_s - self._polled_s > self._timeouts.quiet:
            self._heard_s, self._suspected = {}, {}
        self._polled_s = now_s
        self._heard_s = {partition: self._heard_s.get(partition, now_s) for partition in unread}
        if self._blamed not in self._heard_s:
            self._forgive()
        for others in (self._suspected, self._asked_s):
            for partition in [partition for partition in others if partition not in self._heard_s]:
                del others[partition]
        if now_s < self._ask_at_s:
            return []
        quiet = [partition for partition, heard_s in self._heard_s.items() if now_s - heard_s >= self._timeouts.quiet]
        if quiet:
            self._ask_at_s = now_s + self._timeouts.quiet
            if now_s < self._apart_until_s:
                quiet = [min(quiet, key=lambda each: (each not in self._suspected, self._asked_s.get(each, 0.0)))]
            self._asked_s.update(dict.fromkeys(quiet, now_s))
        return quiet

    def answered(self, unread: Mapping[Partition, int], ends: Mapping[Partition, int | None], now_s: float) -> None:
        """Records an answer about `unread`.
        `ends` lacks partitions without an end at present; None: no known leader.
        """
        for partition, offset in unread.items():
            end = ends.get(partition, offset)
            if end is not None and end <= offset:
                self._suspected.pop(partition, None)
            else:
                self._suspected.setdefault(partition, SuspectedStall(now_s, end))

    def unanswered(self, asked: Iterable[Partition], now_s: float) -> None:
        """Checks partitions one by one and less often for a while, because the fetching thread waits for answers."""
        for partition in asked:
            self._suspected.pop(partition, None)
        self._ask_at_s = now_s + 3 * self._timeouts.quiet
        if now_s >= self._apart_until_s:
            self._apart_until_s = now_s + 60 * self._timeouts.quiet

    def stalled(self, now_s: float) -> tuple[Partition, int | None] | None:
        for partition, suspected in self._suspected.items():
            if now_s - suspected.since_s >= self._wait_s:
                return partition, suspected.end
        return None

    def replaced(self, partition: Partition) -> None:
        self._heard_s, self._suspected = {}, {}
        self._blamed = partition
        self._wait_s *= 2


class StallWatch:
    def __init__(self, kafka: Any, timeouts: StallTimeouts) -> None:
        self._kafka = kafka
        self._timeouts = timeouts
        self._detector = StallDetector(timeouts)
        self._poll_at_s = float("-inf")

    def heard(self, partitions: Iterable[Partition]) -> None:
        self._detector.heard(partitions, time.monotonic())

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._poll_at_s

    def poll(self, consumer: Any, queues: Mapping[Partition, PartitionQueue]) -> str:
        """Returns why to replace the client, or "". To be called after all fetched messages were handed out."""
        now_s = time.monotonic()
        self._poll_at_s = now_s + self._timeouts.quiet / 10
        asked = self._detector.to_ask(queues, now_s)
        if not asked:
            return ""
        ends = self._ends(consumer, asked)
        now_s = time.monotonic()
        if ends is None:
            self._detector.unanswered(asked, now_s)
            return ""
        self._detector.answered({partition: queues[partition].next_offset for partition in asked}, ends, now_s)
        stalled = self._detector.stalled(now_s)
        if stalled is None:
            return ""
        partition, end = stalled
        self._detector.replaced(partition)
        queue = queues[partition]
        why = "and does not know its leader" if end is None else f"although there are records up to {end}"
        return f"{queue.where}: the client went silent at offset {queue.next_offset} {why}"

    def _ends(self, consumer: Any, partitions: Collection[Partition]) -> dict[Partition, int | None] | None:
        wanted = [self._kafka.TopicPartition(*partition, LATEST) for partition in partitions]
        try:
            found = consumer.offsets_for_times(wanted, timeout=self._timeouts.answer)
        except self._kafka.KafkaException:
            return None
        ends: dict[Partition, int | None] = {}
        for each in found:
            if each.error is not None and kind_of(each.error) is Kind.LEADERSHIP:
                ends[each.topic, each.partition] = None
            elif each.error is None and each.offset >= 0:
                ends[each.topic, each.partition] = each.offset
        return ends
