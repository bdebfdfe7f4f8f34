"""Fetchers of a source in a process: readers share a fetcher unless a partition would be read twice."""

import threading
from collections.abc import Callable
from functools import partial

from barrier_runtime.connectors.kafka.source.client import KafkaClient, Partition
from barrier_runtime.connectors.kafka.source.fetcher import Fetcher
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue
from barrier_runtime.connectors.kafka.source.records import RecordConverter
from barrier_runtime.connectors.kafka.source.stall_detector import StallTimeouts


class FetcherPool:
    """Pool of fetchers. `join` and `leave` do not block."""

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
