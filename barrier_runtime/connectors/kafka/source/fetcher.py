"""Consumer for all partitions of a source that a slot reads, and the thread that serves the consumer."""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from barrier_runtime.connectors.kafka.errors import Kind, kind_of
from barrier_runtime.connectors.kafka.source.client import (
    KafkaClient,
    LogThrottle,
    Partition,
    is_transient,
    load_client,
    log,
    what_to_do,
)
from barrier_runtime.connectors.kafka.source.partition_queue import Fetched, PartitionQueue
from barrier_runtime.connectors.kafka.source.records import RecordConverter
from barrier_runtime.connectors.kafka.source.stall_detector import StallTimeouts, StallWatch
from barrier_runtime.connectors.kafka.source.topic_checks import RetentionWatch, TopicIds, known_end
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.threads import ask_for_short_slices

_AT_ONCE = 2_000  # messages: some milliseconds of the interpreter's time
_WAIT_S = 0.1
_WAIT_FULL_S = 0.005
_FEW = 200  # after fewer messages the thread pauses,
_REST_AT_LEAST_S = 0.001  # because its turn costs as much as dozens of messages
_HELD_AT_LEAST = 1024 * 1024  # by a queue, however many queues there are
_HANGS_S = 30.0
_RETRY_S = 1.0
_ENDS_S = 0.5

T = TypeVar("T")


class Fetcher:
    """`limit_bytes`: of converted rows that were not taken, over all partitions."""

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
        self._orders: SimpleQueue[Callable[[Any], None]] = SimpleQueue()
        self._added: list[PartitionQueue] = []
        self._failed: Exception | None = None
        self.rest_s = 0.0  # after few messages; see `Gathering`
        self._queues: dict[Partition, PartitionQueue] = {}  # this and the following fields belong to the thread
        self._full: set[Partition] = set()  # paused until their queues are emptier
        self._over: set[Partition] = set()  # paused for good
        self._gathers = False
        self._poll_at_s = 0.0
        self._ends_at_s = 0.0
        self._watch = RetentionWatch(client, self._kafka)
        self._stall_watch = StallWatch(self._kafka, timeouts)
        self._log_throttle = LogThrottle(where)
        self._ids = TopicIds(client, self._kafka, partial(self._log_throttle.say, "ids"))
        self._turned_s = time.monotonic()
        self._logged_s = 0.0  # belongs to the loop, as the next field
        self._reported = 0
        self._replaced = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka-{where}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ any thread; does not block

    def add(self, queue: PartitionQueue) -> None:
        self._added.append(queue)
        if self._failed is None:
            self._orders.put(lambda consumer: self._add(consumer, queue))
        else:
            queue.fail(self._failed)

    def remove(self, queue: PartitionQueue) -> None:
        self._orders.put(lambda consumer: self._remove(consumer, queue))

    def report(self, topic: str, partition: int, offset: int) -> None:
        self._orders.put(lambda consumer: self._commit(consumer, topic, partition, offset))

    def poll(self) -> None:
        """Logs twice a minute if the thread hangs."""
        now_s = time.monotonic()
        if now_s - max(self._turned_s, self._logged_s) >= _HANGS_S:
            self._logged_s = now_s
            log.warning("%s: nothing is fetched while the client is in %s", self._where, place_of(self._thread.ident))

    def replacements(self) -> int:
        new, self._reported = self._replaced - self._reported, self._replaced
        return new

    @property
    def failed(self) -> bool:
        return self._failed is not None

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        consumer = None
        ask_for_short_slices(also_started=True)  # rows wait for this thread and the client's threads
        try:
            consumer = self._new_consumer()
            converter = self._patiently(self._make_converter)
            while not self._stop.is_set():
                consumer = self._serve(consumer, converter)
            self._obey(consumer)
        except BaseException as error:  # readers must see every error that ends the thread
            ended = Unavailable(f"{self._where}: the fetching thread ended ({error!r}): it is started again")
            self._failed = error if isinstance(error, Exception) else ended
            for queue in self._added:
                queue.fail(self._failed)
        finally:
            self._watch.close()
            if consumer is not None:
                consumer.close()

    def _new_consumer(self) -> Any:
        throttle = self._log_throttle
        return self._client.consumer(error_cb=throttle.on_error, on_commit=throttle.on_commit)

    def _serve(self, consumer: Any, converter: RecordConverter) -> Any:
        self._turned_s = time.monotonic()
        self._obey(consumer)
        self._go_on(consumer)
        first = consumer.poll(_WAIT_FULL_S if self._full or self._gathers else _WAIT_S)
        messages = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
        if messages:
            self._hand_out(consumer, converter, messages)
            self._hold_back(consumer)
        if messages or self._gathers:
            self._flush(behind=len(messages) >= _AT_ONCE)
            if 0 < len(messages) < _FEW and self.rest_s:
                self._stop.wait(max(self.rest_s, _REST_AT_LEAST_S))
        if len(messages) < _AT_ONCE and self._stall_watch.due:
            silent = self._stall_watch.poll(consumer, self._awaited())
            if silent:
                consumer = self._replace(consumer, silent)
        if time.monotonic() >= self._poll_at_s:
            watched = [queue for queue in self._queues.values() if not queue.over]
            self._poll_at_s = time.monotonic() + self._watch.poll(consumer, watched)
        if time.monotonic() >= self._ends_at_s:
            self._ends_at_s = time.monotonic() + _ENDS_S
            for (topic, partition), queue in self._queues.items():
                queue.known_end = known_end(consumer, self._kafka.TopicPartition(topic, partition))
        return consumer

    def _replace(self, silent: Any, why: str) -> Any:
        log.warning("%s: it is replaced", why)
        threading.Thread(target=silent.close, name=f"close-{self._where}", daemon=True).start()  # may never return
        self._replaced += 1
        consumer = self._new_consumer()
        for queue in self._queues.values():
            self._assign(consumer, queue)
        self._full, self._over = set(), set()
        self._hold_back(consumer)
        return consumer

    def _obey(self, consumer: Any) -> None:
        while not self._orders.empty():
            order = self._orders.get()
            try:
                order(consumer)
            except self._kafka.KafkaException as error:
                raise what_to_do(error.args[0], self._where) from error

    def _add(self, consumer: Any, queue: PartitionQueue) -> None:
        self._queues[(queue.topic, queue.partition)] = queue
        self._ids.forget(queue.topic)
        self._assign(consumer, queue)
        self._poll_at_s = 0.0

    def _assign(self, consumer: Any, queue: PartitionQueue) -> None:
        epoch = {} if queue.epoch is None else {"leader_epoch": queue.epoch}
        consumer.incremental_assign(
            [self._kafka.TopicPartition(queue.topic, queue.partition, queue.next_offset, **epoch)]
        )

    def _remove(self, consumer: Any, queue: PartitionQueue) -> None:
        partition = (queue.topic, queue.partition)
        if self._queues.pop(partition, None) is not None:
            self._full.discard(partition)
            self._over.discard(partition)
            consumer.incremental_unassign([self._kafka.TopicPartition(*partition)])

    def _commit(self, consumer: Any, topic: str, partition: int, offset: int) -> None:
        place = self._kafka.TopicPartition(topic, partition, offset)
        try:
            consumer.commit(offsets=[place], asynchronous=True)
        except self._kafka.KafkaException as error:
            self._log_throttle.on_commit(error.args[0], [place])

    def _hold_back(self, consumer: Any) -> None:
        share = self._share()
        over = {partition for partition, queue in self._queues.items() if queue.over} - self._over
        full = {partition for partition, queue in self._queues.items() if queue.held_bytes >= share} - self._full
        if over or full:
            consumer.pause([self._kafka.TopicPartition(*partition) for partition in over | full])
            self._over |= over
            self._full = (self._full | full) - self._over

    def _go_on(self, consumer: Any) -> None:
        half = self._share() // 2
        free = {partition for partition in self._full if self._queues[partition].held_bytes <= half}
        if free:
            consumer.resume([self._kafka.TopicPartition(*partition) for partition in free])
            self._full -= free
            self._stall_watch.heard(free)

    def _awaited(self) -> dict[Partition, PartitionQueue]:
        return {at: queue for at, queue in self._queues.items() if not queue.over and at not in self._full}

    def _share(self) -> int:
        return max(min(_HELD_AT_LEAST, self._limit_bytes), self._limit_bytes // max(1, len(self._queues)))

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
        self._stall_watch.heard(came)
        again = self._not_sure_of(consumer, came)
        for partition, found in records.items():
            queue = self._queues.get(partition)
            if queue is not None and not queue.over and partition not in again:
                self._fill(converter, queue, found, at_ns)
        for event in events:
            if (event.topic(), event.partition()) not in again:
                self._on_event(consumer, event, at_ns)

    def _flush(self, behind: bool) -> None:
        """Hands rows to the loop, unless more rows are expected at once."""
        now_ns = time.monotonic_ns()
        self._gathers = False
        for queue in self._queues.values():
            if behind and queue.gathers(now_ns):
                self._gathers = True
            else:
                queue.flush()

    def _ended(self, events: Sequence[Any]) -> list[Partition]:
        ended = self._kafka.KafkaError._PARTITION_EOF
        return [(event.topic(), event.partition()) for event in events if event.error().code() == ended]

    def _not_sure_of(self, consumer: Any, partitions: Sequence[Partition]) -> set[Partition]:
        """Partitions of possibly recreated topics, whose messages are fetched again."""
        queues = {self._queues[partition] for partition in partitions if partition in self._queues}
        doubtful = self._ids.judge([queue for queue in queues if not queue.over])
        for queue in doubtful:
            self._poll_at_s = 0.0
            try:
                consumer.seek(self._kafka.TopicPartition(queue.topic, queue.partition, queue.next_offset))
            except self._kafka.KafkaException as error:
                said = error.args[0].str()
                raise Unavailable(f"{queue.where}: cannot be fetched again ({said}): the client is replaced") from error
        return {(queue.topic, queue.partition) for queue in doubtful}

    def _fill(self, converter: RecordConverter, queue: PartitionQueue, found: Sequence[Any], at_ns: int) -> None:
        offsets = [message.offset() for message in found]
        end = queue.end
        if offsets[0] < queue.next_offset or (end is not None and offsets[-1] >= end):
            wanted = [queue.next_offset <= offset and (end is None or offset < end) for offset in offsets]
            found = [message for message, keep in zip(found, wanted, strict=True) if keep]
            beyond = end is not None and offsets[-1] >= end
            offsets = [message.offset() for message in found]
        else:
            beyond = False
        if found:
            converted = self._patiently(lambda: converter.convert(found))
            reached = offsets[-1] + 1 if converted.bad_at is None else offsets[converted.bad_at]
            if reached > offsets[0]:
                last = -1 if converted.bad_at is None else converted.bad_at - 1
                epoch = found[last].leader_epoch()
                kept = offsets if converted.kept is None else [offsets[index] for index in converted.kept]
                rows = converted.rows if converted.count else None
                offsets_of_rows, nulls = kept[: converted.count], converted.nulls
                queue.gather(Fetched(rows, offsets_of_rows, reached, epoch, at_ns, converted.size, nulls))
            if converted.bad_at is not None:
                queue.fail(
                    InvalidJob(
                        f"{queue.where}, offset {reached}: the record cannot be decoded, "
                        f"{converted.bad}. Correct schema= or the producer, or set such records aside with "
                        'bad_records="dead_letter"'
                    )
                )
        if beyond and end is not None and not queue.over:
            queue.gather(Fetched(None, (), end, None, at_ns))

    def _on_event(self, consumer: Any, message: Any, at_ns: int) -> None:
        error, codes = message.error(), self._kafka.KafkaError
        queue = self._queues.get((message.topic(), message.partition()))
        code = error.code()
        if queue is None or queue.over:
            if error.fatal():
                raise Unavailable(f"{self._where}: Kafka's client gave up ({error.str()}): it is started again")
        elif code == codes._PARTITION_EOF:
            if message.offset() > queue.next_offset:  # the gap consists of aborted transactions
                queue.gather(Fetched(None, (), message.offset(), None, at_ns))
        elif code in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE, codes._LOG_TRUNCATION):
            queue.fail(self._watch.explain(consumer, queue))
        elif code == codes.TOPIC_AUTHORIZATION_FAILED:
            queue.fail(what_to_do(error, queue.where))
        elif kind_of(error) is Kind.MISSING:
            self._poll_at_s = 0.0
        elif not is_transient(error):
            queue.fail(Unavailable(f"{queue.where}: Kafka cannot read on ({error.name()}: {error.str()}): tried again"))

    def _patiently(self, work: Callable[[], T]) -> T:
        while True:
            self._turned_s = time.monotonic()
            try:
                return work()
            except Unavailable as error:
                self._log_throttle.say("work", f"waits: {error}")
                if self._stop.wait(_RETRY_S):
                    raise


def place_of(thread: int | None) -> str:
    frame = None if thread is None else sys._current_frames().get(thread)
    if frame is None:
        return "nothing"
    place = traceback.extract_stack(frame, limit=1)[-1]
    return f"{place.name} ({place.filename}:{place.lineno})"


class FetcherPool:
    """Fetchers of a source in a process. Does not block.

    A fetcher reads a partition only once, so that no reader gets records fetched for another.
    """

    def __init__(
        self,
        where: str,
        client: KafkaClient,
        make_converter: Callable[[], RecordConverter],
        limit_bytes: int,
        timeouts: StallTimeouts = StallTimeouts(),
    ) -> None:
        self._make = partial(Fetcher, where, client, make_converter, limit_bytes, timeouts)
        self._lock = threading.Lock()
        self._current: Fetcher | None = None
        self._used: set[Partition] = set()  # by readers of the current fetcher, including closed readers
        self._readers: dict[Fetcher, int] = {}

    def join(self, queue: PartitionQueue) -> Fetcher:
        with self._lock:
            partition = (queue.topic, queue.partition)
            if self._current is None or self._current.failed or partition in self._used:
                self._current, self._used = self._make(), set()
                self._readers[self._current] = 0
            self._used.add(partition)
            self._readers[self._current] += 1
            self._current.add(queue)
            return self._current

    def leave(self, fetcher: Fetcher, queue: PartitionQueue) -> None:
        with self._lock:
            fetcher.remove(queue)
            self._readers[fetcher] -= 1
            if not self._readers[fetcher]:
                del self._readers[fetcher]
                fetcher.stop()
                if self._current is fetcher:
                    self._current = None
