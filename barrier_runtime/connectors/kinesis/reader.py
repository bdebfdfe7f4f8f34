"""Reader of a shard: a position, and the rows that the fetcher has ahead."""

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.kinesis.client import KinesisClient, KinesisRecord
from barrier_runtime.connectors.kinesis.fetcher import ShardFetcher, ShardRows
from barrier_runtime.connectors.kinesis.position import POSITION, KinesisPosition, KinesisSplit
from barrier_runtime.connectors.source import Polled

_LOOK_NS = 1_000_000_000  # between polls without a wake-up


class KinesisReader:
    def __init__(
        self,
        client: KinesisClient,
        split: KinesisSplit,
        convert: Callable[[str, Sequence[KinesisRecord]], pa.RecordBatch],
        every_s: float,
    ) -> None:
        self._make_fetcher = partial(ShardFetcher, client, split)
        self._convert = convert
        self._every_s = every_s
        self._fetcher: ShardFetcher | None = None
        self._chunk: ShardRows | None = None  # rows that are being returned
        self._taken = 0  # rows of `_chunk` that were returned
        self._position = KinesisPosition()
        self._wake: Callable[[], None] = _nothing
        self._due_ns: int | None = None

    @property
    def finished(self) -> bool:
        return self._chunk is None and self._fetcher is not None and self._fetcher.over

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def prepare(self) -> None:
        if self._fetcher is None:
            self._fetcher = self._make_fetcher(self._position, self._convert, self._every_s, self._wake)

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.prepare()
        assert self._fetcher is not None
        self._due_ns = None
        while self._chunk is None or self._chunk.rows is None:
            self._chunk = self._fetcher.take()
            self._taken = 0
            if self._chunk is None:
                self._due_ns = now_ns + _LOOK_NS
                return None
            if self._chunk.rows is None:
                self._position = msgspec.structs.replace(self._position, complete_ms=self._chunk.complete_ms)
        chunk = self._chunk
        assert chunk.rows is not None
        rows = chunk.rows.slice(self._taken, max_rows)
        self._taken += rows.num_rows
        after = chunk.records[self._taken - 1].sequence
        if self._taken < chunk.rows.num_rows:
            self._position = msgspec.structs.replace(self._position, after=after)
        else:
            self._position = KinesisPosition(after, chunk.complete_ms)
            self._chunk = None
        return Polled(rows, now_ns - (monotonic_ns() - chunk.at_ns))

    def next_due_ns(self) -> int | None:
        return self._due_ns

    def position(self) -> bytes:
        return msgspec.json.encode(self._position)

    def seek(self, position: bytes) -> None:
        self._position = POSITION.decode(position)

    def close(self) -> None:
        """Does not wait for a running request: the thread ends when the request returns."""
        if self._fetcher is not None:
            self._fetcher.close()


def _nothing() -> None:
    """Used until `wake_by`."""
