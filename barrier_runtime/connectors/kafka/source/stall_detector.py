"""Has the client stopped fetching a partition and said nothing? Then it is replaced: the job must not wait for ever.

The client may lose a partition, as after an outage of the brokers: nothing comes of it any more, and no error either.
Of partitions that are quiet the same client asks the end now and then, for all of them in one question. A broker serves
a connection in order, so an answer means that what was fetched before has come. What lies before an end that was heard
of, and has not come many answers later, is then read by another client: only if that one reads on from there is ours to
blame. Otherwise there may be nothing to read (compaction can leave no record before the end), or long
transactions that were given up: of these the client says nothing until it is through.

A question that is not answered ends every suspicion: that is an outage, and the client's own business. One that is
answered with an error of leadership begins one: since an outage the client may be wrong about who leads the partition.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from barrier_runtime.connectors.kafka.errors import Kind, kind_of
from barrier_runtime.connectors.kafka.source.client import LATEST, KafkaClient, Partition, log
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue
from barrier_runtime.state.errors import Unavailable

_QUICKER = 4  # the other client read on in so small a part of the time in which ours did not


@dataclass(frozen=True)
class StallTimeouts:
    """Seconds. `quiet`: without a word until the end is asked for, and between questions. `still`: with answers, until
    another client is tried, for as long as `probe`. `answer`: for one question; the fetching thread waits. `tried`:
    until a partition is asked about again from which the other client read nothing either."""

    quiet: float = 5.0
    still: float = 15.0
    answer: float = 1.5
    probe: float = 30.0
    tried: float = 300.0


@dataclass(frozen=True)
class SuspectedStall:
    """There were records up to `end` at `since_s`, and they have not come. None: the client cannot ask for the end."""

    since_s: float
    end: int | None


class StallDetector:
    """Which partitions to ask about, and which ones stand still. Pure: times are seconds of any clock. `unread`: what
    is waited for, each with the offset that is next."""

    def __init__(self, timeouts: StallTimeouts) -> None:
        self._timeouts = timeouts
        self._heard_s: dict[Partition, float] = {}
        self._suspected: dict[Partition, SuspectedStall] = {}
        self._not_before_s: dict[Partition, float] = {}
        self._asked_s: dict[Partition, float] = {}
        self._polled_s = float("-inf")
        self._ask_at_s = float("-inf")
        self._apart_until_s = float("-inf")

    def heard(self, partitions: Iterable[Partition], now_s: float) -> None:
        for partition in partitions:
            self._heard_s[partition] = now_s
            self._suspected.pop(partition, None)
            self._not_before_s.pop(partition, None)

    def quiet_s(self, partition: Partition, now_s: float) -> float:
        return now_s - self._heard_s[partition]

    def suspected(self, partition: Partition) -> SuspectedStall | None:
        return self._suspected.get(partition)

    def to_ask(self, unread: Collection[Partition], now_s: float) -> list[Partition]:
        """Those whose ends are to be asked for now. To be called often: while it is not, nobody listens."""
        if now_s - self._polled_s > self._timeouts.quiet:
            self._heard_s, self._suspected = {}, {}
        self._polled_s = now_s
        self._heard_s = {partition: self._heard_s.get(partition, now_s) for partition in unread}
        for others in (self._suspected, self._not_before_s, self._asked_s):
            for partition in [partition for partition in others if partition not in self._heard_s]:
                del others[partition]
        if now_s < self._ask_at_s:
            return []
        quiet = [
            partition
            for partition, heard_s in self._heard_s.items()
            if now_s - heard_s >= self._timeouts.quiet and now_s >= self._not_before_s.get(partition, now_s)
        ]
        if quiet:
            self._ask_at_s = now_s + self._timeouts.quiet
            if now_s < self._apart_until_s:
                quiet = [min(quiet, key=lambda each: (each not in self._suspected, self._asked_s.get(each, 0.0)))]
            self._asked_s.update(dict.fromkeys(quiet, now_s))
        return quiet

    def answered(self, unread: Mapping[Partition, int], ends: Mapping[Partition, int | None], now_s: float) -> None:
        """`unread`: of those that were asked for. `ends`: without those that have none at present; None for those whose
        leader the client does not know."""
        for partition, offset in unread.items():
            end = ends.get(partition, offset)
            if end is not None and end <= offset:
                self._suspected.pop(partition, None)
            else:
                self._suspected.setdefault(partition, SuspectedStall(now_s, end))

    def unanswered(self, asked: Iterable[Partition], now_s: float) -> None:
        """A broker that is away keeps all others' answers back: for a while partitions are asked about one by one, and
        more rarely, because the fetching thread waits."""
        for partition in asked:
            self._suspected.pop(partition, None)
        self._ask_at_s = now_s + 3 * self._timeouts.quiet
        if now_s >= self._apart_until_s:
            self._apart_until_s = now_s + 60 * self._timeouts.quiet

    def stalled(self, now_s: float) -> list[Partition]:
        return [
            partition
            for partition, suspected in self._suspected.items()
            if now_s - suspected.since_s >= self._timeouts.still
        ]

    def clear(self, partition: Partition, now_s: float) -> None:
        """Another client reads nothing either."""
        self._suspected.pop(partition, None)
        self._not_before_s[partition] = now_s + self._timeouts.tried


def client_to_blame(quiet_s: float, took_s: float) -> bool:
    """Another client read on in `took_s`, ours has not for `quiet_s`. Both may just be slow."""
    return quiet_s >= _QUICKER * took_s


class _Probe:
    """Another client, which reads from where ours stands."""

    def __init__(self, client: KafkaClient, kafka: Any, queue: PartitionQueue, now_s: float) -> None:
        self.partition = (queue.topic, queue.partition)
        self.began_s = now_s
        self.took_s: float | None = None  # until it read on
        self._offset = queue.next_offset
        self._kafka = kafka
        self._consumer = client.consumer()
        self._consumer.assign([kafka.TopicPartition(*self.partition, queue.next_offset)])

    def go_on(self, now_s: float) -> None:
        while self.took_s is None and (message := self._consumer.poll(0)) is not None:
            error = message.error()
            ended = error is not None and error.code() == self._kafka.KafkaError._PARTITION_EOF
            if (error is None and message.offset() >= self._offset) or (ended and message.offset() > self._offset):
                self.took_s = now_s - self.began_s

    def close(self) -> None:
        self._consumer.close()


class StallWatch:
    """The fetching thread's."""

    def __init__(self, client: KafkaClient, kafka: Any, timeouts: StallTimeouts) -> None:
        self._client = client
        self._kafka = kafka
        self._timeouts = timeouts
        self._detector = StallDetector(timeouts)
        self._probe: _Probe | None = None
        self._poll_at_s = float("-inf")

    def heard(self, partitions: Iterable[Partition]) -> None:
        self._detector.heard(partitions, time.monotonic())

    @property
    def due(self) -> bool:
        return self._probe is not None or time.monotonic() >= self._poll_at_s

    def poll(self, consumer: Any, queues: Mapping[Partition, PartitionQueue]) -> None:
        """`queues`: those from which something may come. To be called when everything that has come is handed out.
        Raises `Unavailable` when the client is to be replaced."""
        now_s = time.monotonic()
        if self._probe is not None:
            self._go_on_probing(self._probe, queues, now_s)
        if now_s < self._poll_at_s:
            return
        self._poll_at_s = now_s + self._timeouts.quiet / 10
        asked = self._detector.to_ask(queues, now_s)
        if not asked:
            return
        ends = self._ends(consumer, asked)
        now_s = time.monotonic()
        if ends is None:
            self._detector.unanswered(asked, now_s)
            return
        self._detector.answered({partition: queues[partition].next_offset for partition in asked}, ends, now_s)
        for partition in self._detector.stalled(now_s):
            if self._probe is None:
                self._probe = _Probe(self._client, self._kafka, queues[partition], now_s)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _ends(self, consumer: Any, partitions: Collection[Partition]) -> dict[Partition, int | None] | None:
        """Of the decided records, where there is one, see `StallDetector.answered`; None without an answer."""
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

    def _go_on_probing(self, probe: _Probe, queues: Mapping[Partition, PartitionQueue], now_s: float) -> None:
        suspected = self._detector.suspected(probe.partition)
        if suspected is None or probe.partition not in queues:
            self.close()
            return
        probe.go_on(now_s)
        queue = queues[probe.partition]
        end = suspected.end
        why = "and does not know its leader" if end is None else f"although there are records up to {end}"
        what = f"at offset {queue.next_offset} {why}"
        if probe.took_s is None:
            if now_s - probe.began_s >= self._timeouts.probe:
                self._detector.clear(probe.partition, now_s)
                self.close()
                log.warning("%s: nothing comes %s, for another client neither: waits", queue.where, what)
        elif client_to_blame(self._detector.quiet_s(probe.partition, now_s), probe.took_s):
            raise Unavailable(f"{queue.where}: the client went silent {what}: it is replaced")
