"""Has the client stopped fetching a partition and said nothing? Then it is replaced: the job must not wait for ever.

The client may lose a partition, as after an outage of the brokers: nothing comes of it any more, and no error either.
Of partitions that are quiet the same client asks the end now and then, for all of them in one question. A broker serves
a connection in order, so an answer means that what was fetched before has come. What lies before an end that was heard
of, and has not come many answers later, is then read by another client: only if that one gets on from the same place is
ours to blame. Otherwise there may be nothing to read (compaction can leave no record before the end), or long
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
from barrier_runtime.connectors.kafka.source.partition_queue import Feed
from barrier_runtime.state.errors import Unavailable

_QUICKER = 4  # the other client got on in so small a part of the time in which ours did not


@dataclass(frozen=True)
class StallTimeouts:
    """Seconds. `quiet`: without a word until the end is asked for, and between questions. `still`: with answers, until
    another client is tried, for as long as `trial`. `answer`: for one question; the fetching thread waits. `tried`:
    until a partition is asked about again from which the other client read nothing either."""

    quiet: float = 5.0
    still: float = 15.0
    answer: float = 1.5
    trial: float = 30.0
    tried: float = 300.0


@dataclass(frozen=True)
class Suspicion:
    """There were records up to `end` at `since_s`, and they have not come. None: the client cannot ask for the end."""

    since_s: float
    end: int | None


class Silences:
    """Which partitions to ask about, and which ones stand still. Pure: times are seconds of any clock. `unread`: what
    is waited for, each with the offset that is next."""

    def __init__(self, timeouts: StallTimeouts) -> None:
        self._patience = timeouts
        self._heard_s: dict[Partition, float] = {}
        self._suspicions: dict[Partition, Suspicion] = {}
        self._not_before_s: dict[Partition, float] = {}
        self._asked_s: dict[Partition, float] = {}
        self._looked_s = float("-inf")
        self._ask_at_s = float("-inf")
        self._apart_until_s = float("-inf")

    def heard(self, partitions: Iterable[Partition], now_s: float) -> None:
        for partition in partitions:
            self._heard_s[partition] = now_s
            self._suspicions.pop(partition, None)
            self._not_before_s.pop(partition, None)

    def quiet_s(self, partition: Partition, now_s: float) -> float:
        return now_s - self._heard_s[partition]

    def suspicion(self, partition: Partition) -> Suspicion | None:
        return self._suspicions.get(partition)

    def to_ask(self, unread: Collection[Partition], now_s: float) -> list[Partition]:
        """Those whose ends are to be asked for now. To be called often: while it is not, nobody listens."""
        if now_s - self._looked_s > self._patience.quiet:
            self._heard_s, self._suspicions = {}, {}
        self._looked_s = now_s
        self._heard_s = {partition: self._heard_s.get(partition, now_s) for partition in unread}
        for others in (self._suspicions, self._not_before_s, self._asked_s):
            for partition in [partition for partition in others if partition not in self._heard_s]:
                del others[partition]
        if now_s < self._ask_at_s:
            return []
        quiet = [
            partition
            for partition, heard_s in self._heard_s.items()
            if now_s - heard_s >= self._patience.quiet and now_s >= self._not_before_s.get(partition, now_s)
        ]
        if quiet:
            self._ask_at_s = now_s + self._patience.quiet
            if now_s < self._apart_until_s:
                quiet = [min(quiet, key=lambda each: (each not in self._suspicions, self._asked_s.get(each, 0.0)))]
            self._asked_s.update(dict.fromkeys(quiet, now_s))
        return quiet

    def answered(self, unread: Mapping[Partition, int], ends: Mapping[Partition, int | None], now_s: float) -> None:
        """`unread`: of those that were asked for. `ends`: without those that have none at present; None for those whose
        leader the client does not know."""
        for partition, offset in unread.items():
            end = ends.get(partition, offset)
            if end is not None and end <= offset:
                self._suspicions.pop(partition, None)
            else:
                self._suspicions.setdefault(partition, Suspicion(now_s, end))

    def unanswered(self, asked: Iterable[Partition], now_s: float) -> None:
        """A broker that is away keeps all others' answers back: for a while partitions are asked about one by one, and
        more rarely, because the fetching thread waits."""
        for partition in asked:
            self._suspicions.pop(partition, None)
        self._ask_at_s = now_s + 3 * self._patience.quiet
        if now_s >= self._apart_until_s:
            self._apart_until_s = now_s + 60 * self._patience.quiet

    def standing_still(self, now_s: float) -> list[Partition]:
        return [
            partition
            for partition, suspicion in self._suspicions.items()
            if now_s - suspicion.since_s >= self._patience.still
        ]

    def acquit(self, partition: Partition, now_s: float) -> None:
        """Another client reads nothing either."""
        self._suspicions.pop(partition, None)
        self._not_before_s[partition] = now_s + self._patience.tried


def to_blame(quiet_s: float, took_s: float) -> bool:
    """Another client got on in `took_s`, ours has not for `quiet_s`. Both may just be slow."""
    return quiet_s >= _QUICKER * took_s


class _Trial:
    """Another client, which reads from where ours stands."""

    def __init__(self, client: KafkaClient, kafka: Any, feed: Feed, now_s: float) -> None:
        self.partition = (feed.topic, feed.partition)
        self.began_s = now_s
        self.took_s: float | None = None  # until it got on
        self._offset = feed.next_offset
        self._kafka = kafka
        self._consumer = client.consumer()
        self._consumer.assign([kafka.TopicPartition(*self.partition, feed.next_offset)])

    def go_on(self, now_s: float) -> None:
        while self.took_s is None and (message := self._consumer.poll(0)) is not None:
            error = message.error()
            ended = error is not None and error.code() == self._kafka.KafkaError._PARTITION_EOF
            if (error is None and message.offset() >= self._offset) or (ended and message.offset() > self._offset):
                self.took_s = now_s - self.began_s

    def close(self) -> None:
        self._consumer.close()


class SilenceWatch:
    """The fetching thread's."""

    def __init__(self, client: KafkaClient, kafka: Any, timeouts: StallTimeouts) -> None:
        self._client = client
        self._kafka = kafka
        self._patience = timeouts
        self._silences = Silences(timeouts)
        self._trial: _Trial | None = None
        self._look_at_s = float("-inf")

    def heard(self, partitions: Iterable[Partition]) -> None:
        self._silences.heard(partitions, time.monotonic())

    @property
    def due(self) -> bool:
        return self._trial is not None or time.monotonic() >= self._look_at_s

    def look(self, consumer: Any, feeds: Mapping[Partition, Feed]) -> None:
        """`feeds`: those from which something may come. To be called when everything that has come is handed out.
        Raises `Unavailable` when the client is to be replaced."""
        now_s = time.monotonic()
        if self._trial is not None:
            self._go_on_trying(self._trial, feeds, now_s)
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + self._patience.quiet / 10
        asked = self._silences.to_ask(feeds, now_s)
        if not asked:
            return
        ends = self._ends(consumer, asked)
        now_s = time.monotonic()
        if ends is None:
            self._silences.unanswered(asked, now_s)
            return
        self._silences.answered({partition: feeds[partition].next_offset for partition in asked}, ends, now_s)
        for partition in self._silences.standing_still(now_s):
            if self._trial is None:
                self._trial = _Trial(self._client, self._kafka, feeds[partition], now_s)

    def close(self) -> None:
        if self._trial is not None:
            self._trial.close()
            self._trial = None

    def _ends(self, consumer: Any, partitions: Collection[Partition]) -> dict[Partition, int | None] | None:
        """Of the decided records, where there is one, see `Silences.answered`; None without an answer."""
        wanted = [self._kafka.TopicPartition(*partition, LATEST) for partition in partitions]
        try:
            found = consumer.offsets_for_times(wanted, timeout=self._patience.answer)
        except self._kafka.KafkaException:
            return None
        ends: dict[Partition, int | None] = {}
        for each in found:
            if each.error is not None and kind_of(each.error) is Kind.LEADERSHIP:
                ends[each.topic, each.partition] = None
            elif each.error is None and each.offset >= 0:
                ends[each.topic, each.partition] = each.offset
        return ends

    def _go_on_trying(self, trial: _Trial, feeds: Mapping[Partition, Feed], now_s: float) -> None:
        suspicion = self._silences.suspicion(trial.partition)
        if suspicion is None or trial.partition not in feeds:
            self.close()
            return
        trial.go_on(now_s)
        feed = feeds[trial.partition]
        end = suspicion.end
        why = "and does not know its leader" if end is None else f"although there are records up to {end}"
        what = f"at offset {feed.next_offset} {why}"
        if trial.took_s is None:
            if now_s - trial.began_s >= self._patience.trial:
                self._silences.acquit(trial.partition, now_s)
                self.close()
                log.warning("%s: nothing comes %s, for another client neither: waits", feed.where, what)
        elif to_blame(self._silences.quiet_s(trial.partition, now_s), trial.took_s):
            raise Unavailable(f"{feed.where}: the client went silent {what}: it is replaced")
