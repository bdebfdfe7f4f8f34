"""One consumer for all partitions that a slot reads of a source, and the thread that serves it.

The thread waits in the client, converts what comes, and fills the feeds; a feed that is full has its partition paused.
Nothing here touches the slot's loop: orders come through a queue, rows and trouble leave through the feeds. Partitions
are assigned, never subscribed to. A partition is read once by a fetcher: a second reader of it, as after a failure,
gets another fetcher (`kafka/source/fetcher_pool`), so that no record fetched for the first can pass for one of the
second's.

    broker ──► librdkafka's queue ──► convert ──► feed per partition ──► reader.poll
                (bounded)                          (bounded: pause)
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from barrier_runtime.connectors.kafka.errors import Kind, kind_of
from barrier_runtime.connectors.kafka.source.client import (
    KafkaClient,
    Partition,
    is_transient,
    load_client,
    log,
    what_to_do,
)
from barrier_runtime.connectors.kafka.source.log_throttle import LogThrottle
from barrier_runtime.connectors.kafka.source.partition_queue import Feed, Fetched
from barrier_runtime.connectors.kafka.source.records import RecordConverter
from barrier_runtime.connectors.kafka.source.retention import RetentionWatch
from barrier_runtime.connectors.kafka.source.stall_detector import SilenceWatch, StallTimeouts
from barrier_runtime.connectors.kafka.source.topic_ids import TopicIds
from barrier_runtime.connectors.kafka.source.turns import Turns, standing_at
from barrier_runtime.state.errors import InvalidJob, Unavailable

_AT_ONCE = 2_000  # messages: some milliseconds of the interpreter's time
_WAIT_S = 0.1  # how long an order may lie
_WAIT_FULL_S = 0.005  # while a feed is full
_FEW = 200  # messages: after so few the next ones are let come together for a moment,
_REST_S = 0.001  # since a turn of the thread costs as much as dozens of them
_HELD_AT_LEAST = 1024 * 1024  # by one feed, however many there are
_RETRY_S = 1.0  # a schema registry that does not answer

T = TypeVar("T")


class Fetcher:
    """`limit_bytes`: of what is converted and not yet taken, over all partitions."""

    def __init__(
        self,
        where: str,
        client: KafkaClient,
        make_converter: Callable[[], RecordConverter],
        limit_bytes: int,
        timeouts: StallTimeouts,
    ) -> None:
        self._where = where
        self._client = client
        self._make_converter = make_converter
        self._limit_bytes = limit_bytes
        self._kafka = load_client(where)
        self._orders: queue.SimpleQueue[Callable[[Any], None]] = queue.SimpleQueue()
        self._added: list[Feed] = []
        self._failed: Exception | None = None
        self._feeds: dict[Partition, Feed] = {}  # this and what follows: the thread's
        self._full: set[Partition] = set()  # paused until their feeds are emptier
        self._over: set[Partition] = set()  # paused for good
        self._look_at_s = 0.0
        self._watch = RetentionWatch(client, self._kafka)
        self._silence = SilenceWatch(client, self._kafka, timeouts)
        self._log_throttle = LogThrottle(where)
        self._ids = TopicIds(client, self._kafka, partial(self._log_throttle.say, "ids"))
        self._turns = Turns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka-{where}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ any thread; does not block

    def add(self, feed: Feed) -> None:
        self._added.append(feed)
        self._orders.put(lambda consumer: self._add(consumer, feed))
        if self._failed is not None:
            feed.fail(self._failed)

    def remove(self, feed: Feed) -> None:
        self._orders.put(lambda consumer: self._remove(consumer, feed))

    def report(self, topic: str, partition: int, offset: int) -> None:
        """Commit an offset to the group: for monitoring, so nobody waits for it."""
        self._orders.put(lambda consumer: self._commit(consumer, topic, partition, offset))

    def look(self, now_ns: int) -> None:
        """Say so if the thread hangs. For those that wait for it, again and again."""
        if self._turns.held(now_ns):
            log.warning(
                "%s: nothing is fetched while the client is in %s", self._where, standing_at(self._thread.ident)
            )

    @property
    def failed(self) -> bool:
        return self._failed is not None

    def stop(self) -> None:
        self._stop.set()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        consumer = None
        try:
            log_throttle = self._log_throttle
            consumer = self._client.consumer(error_cb=log_throttle.on_error, on_commit=log_throttle.on_commit)
            converter = self._patiently(self._make_converter)
            while not self._stop.is_set():
                self._serve(consumer, converter)
            self._obey(consumer)
        except BaseException as error:  # whatever ends the thread: readers must hear of it
            ended = Unavailable(f"{self._where}: the fetching thread ended ({error!r}): it is started again")
            self._failed = error if isinstance(error, Exception) else ended
            for feed in self._added:
                feed.fail(self._failed)
        finally:
            self._silence.close()
            self._watch.close()
            if consumer is not None:
                consumer.close()

    def _serve(self, consumer: Any, converter: RecordConverter) -> None:
        self._turns.turn()
        self._obey(consumer)
        self._go_on(consumer)
        first = consumer.poll(_WAIT_FULL_S if self._full else _WAIT_S)
        messages = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
        if messages:
            self._hand_out(consumer, converter, messages)
            self._hold_back(consumer)
            if len(messages) < _FEW:
                self._stop.wait(_REST_S)
        if len(messages) < _AT_ONCE and self._silence.due:
            self._silence.look(consumer, self._awaited())
        if time.monotonic() >= self._look_at_s:
            watched = [feed for feed in self._feeds.values() if not feed.over]
            self._look_at_s = time.monotonic() + self._watch.look(consumer, watched)

    def _obey(self, consumer: Any) -> None:
        while not self._orders.empty():
            order = self._orders.get()
            try:
                order(consumer)
            except self._kafka.KafkaException as error:
                raise what_to_do(error.args[0], self._where) from error

    def _add(self, consumer: Any, feed: Feed) -> None:
        self._feeds[(feed.topic, feed.partition)] = feed
        self._ids.forget(feed.topic)
        epoch = {} if feed.start.epoch is None else {"leader_epoch": feed.start.epoch}
        consumer.incremental_assign([self._kafka.TopicPartition(feed.topic, feed.partition, feed.next_offset, **epoch)])
        self._look_at_s = 0.0

    def _remove(self, consumer: Any, feed: Feed) -> None:
        partition = (feed.topic, feed.partition)
        if self._feeds.pop(partition, None) is not None:
            self._full.discard(partition)
            self._over.discard(partition)
            consumer.incremental_unassign([self._kafka.TopicPartition(*partition)])

    def _commit(self, consumer: Any, topic: str, partition: int, offset: int) -> None:
        place = self._kafka.TopicPartition(topic, partition, offset)
        try:
            consumer.commit(offsets=[place], asynchronous=True)
        except self._kafka.KafkaException as error:
            self._log_throttle.on_commit(error.args[0], [place])

    # ------------------------------------------------------------ back-pressure

    def _hold_back(self, consumer: Any) -> None:
        """Pause what is full, and what is over."""
        share = self._share()
        over = {partition for partition, feed in self._feeds.items() if feed.over} - self._over
        full = {partition for partition, feed in self._feeds.items() if feed.held_bytes >= share} - self._full
        if over or full:
            consumer.pause([self._kafka.TopicPartition(*partition) for partition in over | full])
            self._over |= over
            self._full = (self._full | full) - self._over

    def _go_on(self, consumer: Any) -> None:
        """With partitions whose feeds are down to half."""
        half = self._share() // 2
        free = {partition for partition in self._full if self._feeds[partition].held_bytes <= half}
        if free:
            consumer.resume([self._kafka.TopicPartition(*partition) for partition in free])
            self._full -= free
            self._silence.heard(free)

    def _awaited(self) -> dict[Partition, Feed]:
        return {at: feed for at, feed in self._feeds.items() if not feed.over and at not in self._full}

    def _share(self) -> int:
        return max(min(_HELD_AT_LEAST, self._limit_bytes), self._limit_bytes // max(1, len(self._feeds)))

    # ------------------------------------------------------------ what comes

    def _hand_out(self, consumer: Any, converter: RecordConverter, messages: Sequence[Any]) -> None:
        at_ns = time.monotonic_ns()
        self._log_throttle.read()
        records: dict[Partition, list[Any]] = {}
        events = []
        for message in messages:
            if message.error() is None:
                records.setdefault((message.topic(), message.partition()), []).append(message)
            else:
                events.append(message)
        came = [*records, *self._ended(events)]
        self._silence.heard(came)
        again = self._not_sure_of(consumer, came)
        for partition, found in records.items():
            feed = self._feeds.get(partition)
            if feed is not None and not feed.over and partition not in again:
                self._fill(converter, feed, found, at_ns)
        for event in events:
            if (event.topic(), event.partition()) not in again:
                self._on_event(consumer, event, at_ns)

    def _ended(self, events: Sequence[Any]) -> list[Partition]:
        ended = self._kafka.KafkaError._PARTITION_EOF
        return [(event.topic(), event.partition()) for event in events if event.error().code() == ended]

    def _not_sure_of(self, consumer: Any, partitions: Sequence[Partition]) -> set[Partition]:
        """Those whose topic may be another by now: what came of them is dropped, and fetched again."""
        feeds = {self._feeds[partition] for partition in partitions if partition in self._feeds}
        doubtful = self._ids.judge([feed for feed in feeds if not feed.over])
        for feed in doubtful:
            self._look_at_s = 0.0
            try:
                consumer.seek(self._kafka.TopicPartition(feed.topic, feed.partition, feed.next_offset))
            except self._kafka.KafkaException as error:
                said = error.args[0].str()
                raise Unavailable(f"{feed.where}: cannot be fetched again ({said}): the client is replaced") from error
        return {(feed.topic, feed.partition) for feed in doubtful}

    def _fill(self, converter: RecordConverter, feed: Feed, found: Sequence[Any], at_ns: int) -> None:
        offsets = [message.offset() for message in found]
        end = feed.end
        if offsets[0] < feed.next_offset or (end is not None and offsets[-1] >= end):
            wanted = [feed.next_offset <= offset and (end is None or offset < end) for offset in offsets]
            found = [message for message, keep in zip(found, wanted, strict=True) if keep]
            beyond = end is not None and offsets[-1] >= end
            offsets = [message.offset() for message in found]
        else:
            beyond = False
        if found:
            converted = self._patiently(lambda: converter.convert(found))
            rows = converted.rows
            if rows.num_rows:
                epoch = found[rows.num_rows - 1].leader_epoch()
                last = offsets[rows.num_rows - 1]
                feed.put(Fetched(rows, offsets[: rows.num_rows], last + 1, epoch, at_ns))
            if converted.bad:
                feed.fail(
                    InvalidJob(
                        f"{feed.where}, offset {offsets[rows.num_rows]}: the record cannot be decoded, "
                        f"{converted.bad}. Correct schema= or the producer, or set such records aside with "
                        'bad_records="dead_letter"'
                    )
                )
        if beyond and end is not None and not feed.over:
            feed.put(Fetched(None, (), end, None, at_ns))

    def _on_event(self, consumer: Any, message: Any, at_ns: int) -> None:
        error, codes = message.error(), self._kafka.KafkaError
        feed = self._feeds.get((message.topic(), message.partition()))
        code = error.code()
        if feed is None or feed.over:
            if error.fatal():
                raise Unavailable(f"{self._where}: Kafka's client gave up ({error.str()}): it is started again")
        elif code == codes._PARTITION_EOF:
            if message.offset() > feed.next_offset:  # what lies between are transactions that were given up
                feed.put(Fetched(None, (), message.offset(), None, at_ns))
        elif code in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE, codes._LOG_TRUNCATION):
            feed.fail(self._watch.explain(consumer, feed))
        elif code == codes.TOPIC_AUTHORIZATION_FAILED:
            feed.fail(what_to_do(error, feed.where))
        elif kind_of(error) is Kind.MISSING:
            self._look_at_s = 0.0
        elif not is_transient(error):
            feed.fail(Unavailable(f"{feed.where}: Kafka cannot read on ({error.name()}: {error.str()}): tried again"))

    def _patiently(self, work: Callable[[], T]) -> T:
        """Wait for a schema registry that does not answer; what it should explain is not a bad record."""
        while True:
            self._turns.turn()
            try:
                return work()
            except Unavailable as error:
                self._log_throttle.say("work", f"waits: {error}")
                if self._stop.wait(_RETRY_S):
                    raise
