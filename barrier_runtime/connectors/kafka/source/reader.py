"""Reader of a partition: a position, and a queue that the slot's fetcher fills.

Offsets of decided checkpoints are committed to the group, for monitoring and `start="group"` only.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue, no_wake
from barrier_runtime.connectors.kafka.source.position import (
    POSITION,
    KafkaPosition,
    KafkaSplit,
    begin,
    resumed,
    where_of,
)
from barrier_runtime.connectors.source import Polled
from barrier_runtime.coordinator.metric_table import CLIENTS_REPLACED, NULL_VALUES, Counter

if TYPE_CHECKING:
    from barrier_runtime.connectors.kafka.source.fetcher import Fetcher, FetcherPool

_POLL_NS = 100_000_000  # while the queue is empty, to detect a hanging fetching thread


class KafkaReader:
    def __init__(self, source: str, split: KafkaSplit, pool: "FetcherPool") -> None:
        self._where = where_of(source, split.topic, split.partition)
        self._split = split
        self._pool = pool
        self._position = begin(split)
        self._fetcher: Fetcher | None = None
        self._queue: PartitionQueue | None = None
        self._wake: Callable[[], None] = no_wake
        self._polled_ns = 0
        self._rest_s = 0.0
        self._count: Callable[[Counter, int], None] | None = None
        self._at_checkpoint: dict[int, int] = {}

    @property
    def finished(self) -> bool:
        return self._position.end is not None and self._position.offset >= self._position.end

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def gather_for(self, seconds: float) -> None:
        self._rest_s = seconds

    def count_by(self, count: Callable[[Counter, int], None]) -> None:
        self._count = count

    def backlog(self) -> int | None:
        end = self._position.end
        if end is None and self._queue is not None:
            end = self._queue.known_end
        return None if end is None else max(0, end - self._position.offset)

    def prepare(self) -> None:
        if self._queue is None and not self.finished:
            split = self._split
            queue = PartitionQueue(split.topic, split.partition, self._position, self._where, self._wake)
            self._fetcher = self._pool.join(queue)
            self._fetcher.rest_s = self._rest_s
            self._queue = queue

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self._polled_ns = now_ns
        self.prepare()
        if self.finished:
            return None
        assert self._queue is not None
        assert self._fetcher is not None
        if self._count is not None and (replaced := self._fetcher.replacements()):
            self._count(CLIENTS_REPLACED, replaced)
        fetched = self._queue.take(max_rows)
        if fetched is None:
            self._fetcher.poll()
            return None
        if self._count is not None and fetched.nulls:
            self._count(NULL_VALUES, fetched.nulls)
        position = self._position
        offset = fetched.next_offset if position.end is None else min(fetched.next_offset, position.end)
        epoch = position.epoch if fetched.epoch is None else fetched.epoch
        self._position = KafkaPosition(offset, position.end, position.topic_id, epoch)
        if fetched.rows is None:
            return None
        return Polled(fetched.rows, now_ns - (time.monotonic_ns() - fetched.at_ns))

    def next_due_ns(self) -> int | None:
        if self._queue is None or self._queue.waiting:
            return None
        return self._polled_ns + _POLL_NS

    def position(self) -> bytes:
        return msgspec.json.encode(self._position)

    def seek(self, position: bytes) -> None:
        found = POSITION.decode(position)
        self._position = resumed(self._split, found, self._where)

    def snapshotted(self, checkpoint: int) -> None:
        self._at_checkpoint[checkpoint] = self._position.offset

    def completed(self, checkpoint: int) -> None:
        covered = [number for number in self._at_checkpoint if number <= checkpoint]
        if not covered:
            return
        offset = self._at_checkpoint[max(covered)]
        for number in covered:
            del self._at_checkpoint[number]
        if self._fetcher is not None:
            self._fetcher.report(self._split.topic, self._split.partition, offset)

    def close(self) -> None:
        if self._fetcher is not None and self._queue is not None:
            self._pool.leave(self._fetcher, self._queue)
            self._fetcher = None
